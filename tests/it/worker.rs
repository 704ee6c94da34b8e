//! The worker from receipt to settlement.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ackord::classify::StepError;
use ackord::flow::{DeadLetter, Flow, Keyless, Match, StepContext};
use ackord::key::reader::Reader;
use ackord::policy::OnDecline;
use ackord::worker::Worker;
use ackord_broker::RejectReason;
use ackord_broker::memory::MemoryBroker;
use serde_json::Value;

use crate::rig::{QUEUE, Rig, flow, id};

#[tokio::test(start_paused = true)]
async fn duplicates_under_other_ids_take_effect_once() {
    let rig = Rig::new();
    for n in 0..100 {
        rig.send(&format!("m{n}"), format!(r#"{{"id":{}}}"#, n % 10));
    }
    let effects = rig.effects.clone();
    let report = rig
        .run(flow().step("charge", move |_: Value, cx| charge(effects.clone(), cx)).build().unwrap())
        .await;
    assert_eq!(rig.effects.counts().len(), 10);
    assert!(rig.effects.counts().values().all(|count| *count == 1));
    assert_eq!((report.summary.messages, report.summary.effects, report.summary.replays), (100, 10, 90));
    assert_eq!(rig.broker.settled(QUEUE).acks, 100);
    assert_eq!(report.exit_code(), 0);
}

async fn charge(effects: crate::rig::Effects, cx: StepContext) -> Result<String, StepError> {
    tokio::time::sleep(Duration::from_millis(5)).await;
    effects.add(id(&cx));
    Ok(format!("charged {}", id(&cx)))
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_failure_ends_where_it_belongs() {
    let rig = Rig::new();
    rig.send("ok", r#"{"id":"ok"}"#);
    rig.send("declined", r#"{"id":"declined"}"#);
    rig.send("flaky", r#"{"id":"flaky"}"#);
    rig.send("never", r#"{"id":"never"}"#);
    rig.send("keyless", r#"{"no":"id"}"#);
    rig.send("blank", r#"{"id":" "}"#);
    rig.send("other content", r#"{"id":"ok","amount":2}"#);
    rig.send("panics", r#"{"id":"panics"}"#);
    rig.send("wrong shape", r#"{"id":"wrong shape"}"#);
    let effects = rig.effects.clone();
    let run = move |_: Value, cx: StepContext| {
        let effects = effects.clone();
        async move {
            match (&*id(&cx), cx.attempt()) {
                ("declined", _) => return Err(StepError::permanent("CardDeclined")),
                ("flaky", 1 | 2) | ("never", _) => return Err(StepError::transient("ETIMEDOUT")),
                ("panics", _) => panic!("on purpose"),
                ("wrong shape", _) => return cx.body::<Vec<u32>>().map(|_| ()),
                _ => {}
            }
            effects.add(id(&cx));
            Ok(())
        }
    };
    let report = rig.run(flow().concurrency(1).step("charge", run).build().unwrap()).await;
    let mut parked = rig.parked();
    parked.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(
        parked,
        [
            ("blank".to_owned(), RejectReason::Keyless),
            ("keyless".to_owned(), RejectReason::Keyless),
            ("never".to_owned(), RejectReason::Exhausted),
            ("other content".to_owned(), RejectReason::Mismatch),
            ("panics".to_owned(), RejectReason::Exhausted),
            ("wrong shape".to_owned(), RejectReason::Undecodable),
        ]
    );
    assert_eq!(rig.effects.all().len(), 2, "ok and flaky");
    assert_eq!(report.summary.declines, 1);
    assert_eq!(report.summary.retries, 6, "two each of flaky, never and panics");
    assert_eq!(report.summary.unsettled, 0);
    assert_eq!(rig.broker.depth(QUEUE), 0);
    let dead = rig.broker.dead_letters(QUEUE);
    let never = &dead.iter().find(|(message, _)| message.id.as_str() == "never").unwrap().1;
    assert_eq!(never.detail, "ETIMEDOUT");
    assert!(
        never.notes.contains(&("attempts", "3".to_owned()))
            && never.notes.contains(&("flow", "charge".to_owned()))
    );
}

/// mahendraHegde/node-idempotency!36: a fault is never cached, a decline is.
#[tokio::test(start_paused = true)]
async fn a_decline_is_answered_from_the_record_and_a_fault_never_is() {
    let rig = Rig::new();
    for n in 0..3 {
        rig.send(&format!("d{n}"), r#"{"id":"declined"}"#);
    }
    rig.send("f", r#"{"id":"503"}"#);
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let run = move |_: Value, cx: StepContext| {
        let calls = Arc::clone(&counted);
        async move {
            match (&*id(&cx), cx.attempt()) {
                ("503", 1) => Err(StepError::transient("http_503")),
                ("503", _) => Ok("done"),
                _ => {
                    calls.fetch_add(1, Ordering::SeqCst);
                    Err(StepError::permanent("CardDeclined").detail("no funds"))
                }
            }
        }
    };
    let report = rig.run(flow().on_decline(OnDecline::DeadLetter).step("charge", run).build().unwrap()).await;
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(report.summary.declines, 3);
    assert_eq!(report.summary.effects, 1);
    assert_eq!(rig.parked().len(), 3);
    assert_eq!(rig.broker.dead_letters(QUEUE)[0].1.detail, "CardDeclined: no funds");
}

#[tokio::test(start_paused = true)]
async fn a_flow_of_several_steps_resumes_where_it_failed() {
    let rig = Rig::new();
    rig.send("m", r#"{"id":"a"}"#);
    rig.send("again", r#"{"id":"a"}"#);
    let (one, two) = (rig.effects.clone(), rig.effects.clone());
    let flow = flow()
        .step("charge", move |_: Value, _| {
            one.add("charge");
            async { Ok(serde_json::json!({"charge": "ch_1"})) }
        })
        .step("receipt", move |_: Value, cx: StepContext| {
            let effects = two.clone();
            async move {
                let charge: Value = cx.output("charge")?.unwrap();
                if cx.attempt() == 1 {
                    return Err(StepError::transient("mail"));
                }
                effects.add(format!("receipt for {}", charge["charge"]));
                Ok(())
            }
        })
        .build()
        .unwrap();
    let report = rig.run(flow).await;
    assert_eq!(rig.effects.all(), ["charge", "receipt for \"ch_1\""]);
    assert_eq!((report.summary.effects, report.summary.replays), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn messages_with_one_step_key_share_its_effect() {
    let rig = Rig::new();
    for n in 0..4 {
        rig.send(&format!("m{n}"), format!(r#"{{"id":{n},"customer":7}}"#));
    }
    let (one, two) = (rig.effects.clone(), rig.effects.clone());
    let flow = flow()
        .step("ship", move |_: Value, cx| {
            one.add(format!("ship {}", id(&cx)));
            async { Ok(()) }
        })
        .step("welcome", move |_: Value, _| {
            two.add("welcome");
            async { Ok(()) }
        })
        .idempotent("welcome:{body:/customer}")
        .build()
        .unwrap();
    rig.run(flow).await;
    assert_eq!(rig.effects.counts()["welcome"], 1);
    assert_eq!(rig.effects.all().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_manual_step_bypasses_the_guard_only() {
    let rig = Rig::new();
    rig.send("m", r#"{"id":"a"}"#);
    rig.send("again", r#"{"id":"a"}"#);
    let (one, two) = (rig.effects.clone(), rig.effects.clone());
    let flow = flow()
        .step("manual", move |_: Value, _| {
            one.add("manual");
            async { Ok(()) }
        })
        .manual()
        .step("flaky", move |_: Value, cx: StepContext| {
            two.add("flaky");
            async move { if cx.attempt() == 1 { Err(StepError::transient("x")) } else { Ok(()) } }
        })
        .build()
        .unwrap();
    rig.run(flow).await;
    // Run again with the retry, but not for the duplicate: the flow's record answers that.
    assert_eq!(rig.effects.counts()["manual"], 2);
    assert_eq!(rig.effects.counts()["flaky"], 2);
}

#[tokio::test(start_paused = true)]
async fn flows_of_one_source_are_told_apart_by_their_conditions() {
    let rig = Rig::new();
    let broker = MemoryBroker::new();
    for (kind, n) in [("paid", 1), ("sent", 2), ("other", 3)] {
        broker.publish(
            QUEUE,
            ackord_broker::Message::new(format!("m{n}"), format!("{{\"id\":{n}}}")).with_header("type", kind),
        );
    }
    broker.close(QUEUE);
    let step = |effects: crate::rig::Effects, name: &'static str| {
        move |_: Value, _: StepContext| {
            effects.add(name);
            async { Ok(()) }
        }
    };
    let one = |name: &'static str, kind: &str| {
        Flow::builder(name)
            .from("shop", QUEUE)
            .key("body:/id")
            .matching(Match::equals(Reader::Header("type".into()), kind))
            .step("s", step(rig.effects.clone(), name))
            .build()
            .unwrap()
    };
    let worker = Worker::builder(Arc::clone(&rig.store))
        .broker("shop", Arc::new(broker.clone()))
        .flow(one("paid-flow", "paid"))
        .flow(one("sent-flow", "sent"))
        .build()
        .unwrap();
    worker.run(std::future::pending()).await.unwrap();
    let mut effects = rig.effects.all();
    effects.sort();
    assert_eq!(effects, ["paid-flow", "sent-flow"]);
    assert_eq!(broker.dead_letters(QUEUE)[0].1.reason, RejectReason::Unroutable);
}

#[tokio::test(start_paused = true)]
async fn what_is_to_be_dropped_or_ignored_is_acknowledged_and_counted() {
    let rig = Rig::new();
    rig.send("keyless", "{}");
    let step = |_: Value, _: StepContext| async { Ok(()) };
    let report = rig.run(flow().on_missing_key(Keyless::Ignore).step("s", step).build().unwrap()).await;
    assert_eq!((report.summary.dead_letters, rig.broker.settled(QUEUE).acks), (0, 1));
    let rig = Rig::new();
    rig.send("keyless", "{}");
    let report = rig.run(flow().dead_letter(DeadLetter::Nowhere).step("s", step).build().unwrap()).await;
    assert_eq!((report.summary.dead_letters, rig.broker.settled(QUEUE).acks), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_stop_finishes_what_runs_and_hands_back_what_waits() {
    let rig = Rig::new();
    for n in 0..10 {
        rig.send(&format!("m{n}"), format!(r#"{{"id":{n}}}"#));
    }
    let effects = rig.effects.clone();
    let flow = flow()
        .concurrency(2)
        .step("slow", move |_: Value, cx| {
            let effects = effects.clone();
            async move {
                tokio::time::sleep(Duration::from_secs(2)).await;
                effects.add(id(&cx));
                Ok(())
            }
        })
        .build()
        .unwrap();
    let stop = tokio::time::sleep(Duration::from_secs(3));
    let report = rig.worker(flow).run(stop).await.unwrap();
    assert_eq!(rig.effects.all().len(), 4, "two rounds of two");
    assert_eq!((report.drain.cut, report.summary.unsettled, report.exit_code()), (0, 0, 0));
    assert_eq!(rig.broker.depth(QUEUE), 6);
}

#[tokio::test(start_paused = true)]
async fn what_the_drain_time_does_not_suffice_for_is_left_unsettled() {
    let rig = Rig::new();
    rig.send("hangs", r#"{"id":1}"#);
    let step = |_: Value, _: StepContext| async { std::future::pending::<Result<(), StepError>>().await };
    let stop = tokio::time::sleep(Duration::from_secs(1));
    let report = rig.worker(flow().step("hangs", step).build().unwrap()).run(stop).await.unwrap();
    assert_eq!((report.drain.cut, report.summary.unsettled, report.exit_code()), (1, 1, 4));
    assert_eq!((rig.broker.depth(QUEUE), rig.broker.settled(QUEUE).acks), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_is_away_is_tried_again_and_nothing_is_lost() {
    let rig = Rig::new();
    rig.broker.set_available(false);
    rig.send("m", r#"{"id":1}"#);
    rig.broker.close(QUEUE);
    let effects = rig.effects.clone();
    let flow = flow().step("charge", move |_: Value, cx| charge(effects.clone(), cx)).build().unwrap();
    let broker = rig.broker.clone();
    let back = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(20)).await;
        broker.set_available(true);
    });
    rig.worker(flow).run(std::future::pending()).await.unwrap();
    back.await.unwrap();
    assert_eq!(rig.effects.all(), ["1"]);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_run_ends_its_steps_and_settles_nothing() {
    let rig = Rig::new();
    rig.send("m", r#"{"id":1}"#);
    let started = Arc::new(tokio::sync::Notify::new());
    let alive = Arc::new(());
    let (starts, held) = (Arc::clone(&started), Arc::clone(&alive));
    let step = move |_: Value, _: StepContext| {
        let (starts, held) = (Arc::clone(&starts), Arc::clone(&held));
        async move {
            starts.notify_one();
            std::future::pending::<()>().await;
            drop(held);
            Ok(())
        }
    };
    let run =
        tokio::spawn(rig.worker(flow().step("hangs", step).build().unwrap()).run(std::future::pending()));
    started.notified().await;
    run.abort();
    // One is this test's; the flow and its step go with the run.
    let ended = async {
        let mut look = tokio::time::interval(Duration::from_millis(10));
        while Arc::strong_count(&alive) > 1 {
            look.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.expect("the step outlives its run");
    assert_eq!((rig.broker.depth(QUEUE), rig.broker.settled(QUEUE).acks), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_source_that_fails_ends_the_run_whichever_place_it_has() {
    for (away, idle) in [("a", "b"), ("b", "a")] {
        let rig = Rig::new();
        let broker = MemoryBroker::new();
        broker.set_available(false);
        let step = |_: Value, _: StepContext| async { Ok(()) };
        let on = |name: &str, broker: &str| {
            Flow::builder(name).from(broker, QUEUE).key("body:/id").step("s", step).build().unwrap()
        };
        let worker = Worker::builder(Arc::clone(&rig.store))
            .broker(idle, Arc::new(rig.broker.clone()))
            .broker(away, Arc::new(broker))
            .flow(on("idle", idle))
            .flow(on("away", away))
            .fail_fast(true)
            .build()
            .unwrap();
        let run = tokio::time::timeout(Duration::from_secs(60), worker.run(std::future::pending())).await;
        let error = run.expect("the other source keeps the run going").unwrap_err();
        assert_eq!(error.exit_code(), 3, "{error}");
    }
}
