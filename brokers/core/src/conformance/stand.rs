use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::{
    Broker, Capabilities, Consumer, Delivery, Disposition, Lease, Message, NackCause, Redelivery,
    RejectReason, Rejection, Subscription,
};

use super::{BrokerHarness, Disruption, Parked, Supported};

/// Where one case stands: a harness and a source of its own.
pub(super) struct Stand {
    pub(super) harness: Arc<dyn BrokerHarness>,
    pub(super) source: Subscription,
    case: &'static str,
}

impl Stand {
    pub(super) async fn open(harness: Arc<dyn BrokerHarness>, case: &'static str) -> Self {
        let source = harness.fresh_source(case).await;
        Self { harness, source, case }
    }

    /// A second source, for markers that must not go through the first.
    pub(super) async fn beside(&self) -> Self {
        Self::open(Arc::clone(&self.harness), self.case).await
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        self.harness.broker().capabilities()
    }

    /// How long the broker may hold back a message that nobody settles.
    pub(super) fn lease(&self) -> Duration {
        match self.capabilities().lease {
            Lease::Unlimited => Duration::ZERO,
            Lease::Renewable(lease) | Lease::Fixed(lease) => lease,
        }
    }

    /// The deadline of a wait that may include the end of a lease.
    pub(super) fn patience(&self) -> Duration {
        self.harness.within() + self.lease()
    }

    /// Publishes messages whose bodies are these names.
    pub(super) async fn publish(&self, names: &[&str]) {
        let messages = names.iter().map(|name| Message::new(*name, (*name).to_owned())).collect();
        self.harness.publish(&self.source, messages).await;
    }

    pub(super) async fn publish_message(&self, message: Message) {
        self.harness.publish(&self.source, vec![message]).await;
    }

    pub(super) async fn consumer(&self) -> Result<Tap, String> {
        let broker = self.harness.broker();
        let deadline = Instant::now() + self.patience();
        loop {
            let error = match timeout_at(deadline, broker.subscribe(&self.source)).await {
                Ok(Ok(consumer)) => {
                    return Ok(Tap {
                        spare: VecDeque::new(),
                        consumer,
                        patience: self.patience(),
                        left: FLOOD,
                    });
                }
                Ok(Err(error)) => format!("cannot subscribe: {}", chain(&error)),
                Err(_) => return Err(format!("cannot subscribe within {:?}", self.patience())),
            };
            // A server that has just come back may need a moment.
            if Instant::now() >= deadline {
                return Err(error);
            }
            sleep(POLL).await;
        }
    }

    /// Lets go of deliveries and does what this broker needs to deliver them again.
    pub(super) async fn let_go(&self, tap: Tap, held: Vec<Delivery>) -> Result<Tap, String> {
        drop(held);
        match self.capabilities().redelivery {
            Redelivery::OnDrop | Redelivery::OnLeaseEnd => Ok(tap),
            Redelivery::OnClose => {
                drop(tap);
                self.consumer().await
            }
        }
    }

    /// Dead letters, as soon as there are that many.
    pub(super) async fn parked(&self, count: usize) -> Result<Vec<Parked>, String> {
        let deadline = Instant::now() + self.harness.within();
        loop {
            let parked = self.harness.parked(&self.source).await;
            if parked.len() >= count {
                return Ok(parked);
            }
            if Instant::now() >= deadline {
                return Err(format!("{} dead letters instead of {count}", parked.len()));
            }
            sleep(POLL).await;
        }
    }

    pub(super) async fn disrupt(&self, how: Disruption) -> Result<(), String> {
        match self.harness.disrupt(&self.source, how).await {
            Supported::Yes => Ok(()),
            Supported::No(why) => Err(format!("promised but not done: {why}")),
        }
    }
}

/// One consumer, read message by message with a deadline.
pub(super) struct Tap {
    /// What came beyond what was asked for: one case objects to that, the others live with it. Dropped before the
    /// consumer, as a worker would.
    spare: VecDeque<Delivery>,
    pub(super) consumer: Box<dyn Consumer>,
    patience: Duration,
    /// How many more messages may come: without this bound, a message that is always there again at once would keep
    /// a case busy for ever, deadlines or not.
    left: usize,
}

impl Tap {
    /// The next message.
    pub(super) async fn next(&mut self) -> Result<Delivery, String> {
        match self.receive(NonZeroUsize::MIN).await {
            Ok(delivery) => Ok(delivery),
            Err(error) => Err(format!("no message came: {error}")),
        }
    }

    /// That many messages, taken in batches.
    pub(super) async fn several(&mut self, count: usize) -> Result<Vec<Delivery>, String> {
        let mut deliveries = Vec::new();
        while let Some(left) = NonZeroUsize::new(count.saturating_sub(deliveries.len())) {
            match self.receive(left).await {
                Ok(delivery) => deliveries.push(delivery),
                Err(error) => return Err(format!("only {:?} came: {error}", names(&deliveries))),
            }
            while deliveries.len() < count
                && let Some(delivery) = self.spare.pop_front()
            {
                deliveries.push(delivery);
            }
        }
        Ok(deliveries)
    }

    /// Reads on to the message of that name; also gives what came before it, still unsettled.
    pub(super) async fn until(&mut self, name: &str) -> Result<(Delivery, Vec<Delivery>), String> {
        let mut before = Vec::new();
        loop {
            match self.next().await {
                Ok(delivery) if is(&delivery, name) => return Ok((delivery, before)),
                Ok(delivery) => before.push(delivery),
                Err(error) => {
                    return Err(format!("`{name}` did not come, only {:?}: {error}", names(&before)));
                }
            }
        }
    }

    /// Reads on until each of these names came, in any order and with others between; settles what comes.
    pub(super) async fn all_of(&mut self, wanted: &[&str]) -> Result<(), String> {
        let mut missing = wanted.to_vec();
        while !missing.is_empty() {
            let delivery = self.next().await.map_err(|error| format!("{missing:?} did not come: {error}"))?;
            missing.retain(|name| !is(&delivery, name));
            ack(delivery).await?;
        }
        Ok(())
    }

    /// Reads on to `marker`; it is wrong when `unwanted` comes first.
    pub(super) async fn marker_before(&mut self, marker: &str, unwanted: &str) -> Result<(), String> {
        let (delivery, before) = self.until(marker).await?;
        if before.iter().any(|delivery| is(delivery, unwanted)) {
            return Err(format!("`{unwanted}` came again"));
        }
        ack(delivery).await
    }

    async fn receive(&mut self, max: NonZeroUsize) -> Result<Delivery, String> {
        let deadline = Instant::now() + self.patience;
        loop {
            if let Some(delivery) = self.spare.pop_front() {
                self.left =
                    self.left.checked_sub(1).ok_or_else(|| format!("more than {FLOOD} messages came"))?;
                return Ok(delivery);
            }
            match timeout_at(deadline, self.consumer.receive(max)).await {
                // An empty answer is the matter of one case; the others ask again.
                Ok(Ok(deliveries)) if deliveries.is_empty() => sleep(POLL).await,
                Ok(Ok(deliveries)) => self.spare.extend(deliveries),
                Ok(Err(error)) => return Err(chain(&error)),
                Err(_) => return Err(format!("waited {:?}", self.patience)),
            }
            if Instant::now() >= deadline && self.spare.is_empty() {
                return Err(format!("waited {:?}", self.patience));
            }
        }
    }
}

pub(super) async fn ack(delivery: Delivery) -> Result<(), String> {
    settle(delivery, Disposition::Ack).await
}

pub(super) async fn nack(delivery: Delivery, delay: Option<Duration>) -> Result<(), String> {
    settle(delivery, Disposition::Nack { delay, cause: NackCause::Tried }).await
}

pub(super) async fn settle(delivery: Delivery, disposition: Disposition) -> Result<(), String> {
    let what = format!("{disposition:?} of `{}`", name(&delivery));
    delivery.settle(disposition).await.map_err(|error| format!("{what} failed: {}", chain(&error)))
}

pub(super) fn rejection() -> Disposition {
    Disposition::Reject(Box::new(Rejection::new(RejectReason::Declined, "the kit says no")))
}

/// Whether the message's body is that name.
pub(super) fn is(delivery: &Delivery, name: &str) -> bool {
    delivery.message().body.as_deref() == Some(name.as_bytes())
}

pub(super) fn name(delivery: &Delivery) -> String {
    String::from_utf8_lossy(delivery.message().body.as_deref().unwrap_or_default()).into_owned()
}

pub(super) fn names(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(name).collect()
}

/// Fails with what was found when it is not what was expected.
pub(super) fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?} instead of {expected:?}")) }
}

/// Subscribing, or at the latest receiving, must fail; gives the error's kind.
pub(super) async fn failure_of(
    broker: &dyn Broker,
    source: &Subscription,
    within: Duration,
) -> Result<crate::ErrorKind, String> {
    let attempt = async {
        match broker.subscribe(source).await {
            Ok(mut consumer) => consumer.receive(NonZeroUsize::MIN).await.err(),
            Err(error) => Some(error),
        }
    };
    match timeout(within, attempt).await {
        Ok(Some(error)) => Ok(error.kind()),
        Ok(None) => Err("it worked".into()),
        Err(_) => Err(format!("no answer within {within:?}")),
    }
}

/// An error with its causes, as a log would print it.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// How often a wait looks again.
const POLL: Duration = Duration::from_millis(20);

/// More messages than any case can have published.
const FLOOD: usize = 500;
