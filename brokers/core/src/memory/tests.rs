use super::*;
use crate::{NackCause, RejectReason};

const LEASE: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn messages_come_in_the_order_in_which_they_were_published_and_say_where_from() {
    let broker = broker_with(MemoryBroker::new(), ["a", "b", "c"]);
    let mut consumer = consumer(&broker).await;
    let deliveries = consumer.receive(many()).await.unwrap();
    assert_eq!(ids(&deliveries), ["a", "b", "c"]);
    assert_eq!(deliveries[1].message().origin.to_string(), "memory/q@1");
    assert_eq!(deliveries[1].attempt(), Attempt::Number(1));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_delivery_is_back_at_its_place_at_once() {
    let broker = broker_with(MemoryBroker::new(), ["a", "b", "c"]);
    let mut consumer = consumer(&broker).await;
    let mut deliveries = consumer.receive(many()).await.unwrap();
    deliveries.remove(1).settle(Disposition::Ack).await.unwrap();
    drop(deliveries);
    let again = consumer.receive(many()).await.unwrap();
    assert_eq!(ids(&again), ["a", "c"]);
    assert_eq!(again[0].attempt(), Attempt::Number(2));
}

#[tokio::test(start_paused = true)]
async fn a_nack_hides_the_message_for_the_delay() {
    let broker = broker_with(MemoryBroker::new(), ["a"]);
    let mut consumer = consumer(&broker).await;
    let delay = Some(Duration::from_secs(7));
    let began = Instant::now();
    let delivery = one(&mut *consumer).await;
    delivery.settle(Disposition::Nack { delay, cause: NackCause::Tried }).await.unwrap();
    assert_eq!(broker.depth("q"), 1);
    let again = one(&mut *consumer).await;
    assert_eq!(again.message().id.as_str(), "a");
    assert!(began.elapsed() >= Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn after_its_lease_a_handle_is_lost_and_changes_nothing() {
    let broker = broker_with(MemoryBroker::with_lease(LEASE), ["a"]);
    let mut consumer = consumer(&broker).await;
    let stale = one(&mut *consumer).await;
    let current = one(&mut *consumer).await; // waits for the lease to end
    assert!(matches!(stale.extend(LEASE).await, Err(SettleError::Lost)));
    assert!(matches!(stale.settle(Disposition::Ack).await, Err(SettleError::Lost)));
    assert_eq!(broker.settled("q"), Settled::default());
    current.settle(Disposition::Ack).await.unwrap();
    assert_eq!((broker.settled("q").acks, broker.depth("q")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_extended_lease_ends_later() {
    let broker = broker_with(MemoryBroker::with_lease(LEASE), ["a"]);
    let mut consumer = consumer(&broker).await;
    let began = Instant::now();
    let held = one(&mut *consumer).await;
    held.extend(LEASE * 3).await.unwrap();
    drop(held);
    one(&mut *consumer).await;
    assert!(began.elapsed() >= LEASE * 3);
}

#[tokio::test(start_paused = true)]
async fn a_closed_queue_ends_when_everything_is_settled() {
    let broker = broker_with(MemoryBroker::new(), ["a"]);
    broker.close("q");
    let mut consumer = consumer(&broker).await;
    let held = one(&mut *consumer).await;
    let (end, ()) = tokio::join!(consumer.receive(many()), async {
        held.settle(Disposition::Ack).await.unwrap();
    });
    assert_eq!(end.unwrap_err().kind(), ErrorKind::Ended);
}

#[tokio::test(start_paused = true)]
async fn while_unavailable_everything_fails_and_nothing_is_settled() {
    let broker = broker_with(MemoryBroker::new(), ["a"]);
    let mut consumer = consumer(&broker).await;
    let held = one(&mut *consumer).await;
    let (waiting, ()) = tokio::join!(consumer.receive(many()), async { broker.set_available(false) });
    assert!(waiting.unwrap_err().is_transient());
    assert!(matches!(held.settle(Disposition::Ack).await, Err(SettleError::Failed(_))));
    assert!(broker.subscribe(&Subscription::new("q")).await.is_err());
    broker.set_available(true);
    assert_eq!(one(&mut *consumer).await.message().id.as_str(), "a");
}

#[tokio::test(start_paused = true)]
async fn a_rejected_message_is_kept_unless_dead_letters_are_gone() {
    let broker = broker_with(MemoryBroker::new(), ["a"]);
    let mut consumer = consumer(&broker).await;
    let reject = Disposition::Reject(Box::new(Rejection::new(RejectReason::Declined, "no")));
    broker.set_dead_letters_available("q", false);
    let refused = one(&mut *consumer).await.settle(reject.clone()).await;
    assert!(matches!(refused, Err(SettleError::Failed(_))));
    assert_eq!((broker.depth("q"), broker.dead_letters("q").len()), (1, 0));
    broker.set_dead_letters_available("q", true);
    one(&mut *consumer).await.settle(reject).await.unwrap();
    assert_eq!(broker.dead_letters("q")[0].1.detail, "no");
    assert_eq!(broker.depth("q"), 0);
}

fn broker_with<const N: usize>(broker: MemoryBroker, ids: [&'static str; N]) -> MemoryBroker {
    broker.publish_all("q", ids.map(|id| Message::new(id, "body")));
    broker
}

async fn consumer(broker: &MemoryBroker) -> Box<dyn Consumer> {
    broker.subscribe(&Subscription::new("q")).await.unwrap()
}

async fn one(consumer: &mut dyn Consumer) -> Delivery {
    consumer.receive(NonZeroUsize::MIN).await.unwrap().remove(0)
}

fn ids(deliveries: &[Delivery]) -> Vec<&str> {
    deliveries.iter().map(|delivery| delivery.message().id.as_str()).collect()
}

fn many() -> NonZeroUsize {
    NonZeroUsize::new(10).unwrap()
}
