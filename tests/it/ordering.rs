//! Order by key, and what waiting costs the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ackord::backoff::Retry;
use ackord::classify::StepError;
use ackord::flow::{OnRetry, StepContext};
use ackord_broker::Message;
use rand::{RngExt, SeedableRng};
use serde_json::Value;

use crate::rig::{QUEUE, Rig, flow};

fn send(rig: &Rig, keys: u32, messages: u32) {
    rig.broker.publish_all(
        QUEUE,
        (0..messages).map(|n| {
            let key = format!("k{}", n % keys);
            Message::new(format!("m{n}"), format!(r#"{{"id":{n},"key":"{key}","n":{}}}"#, n / keys))
                .with_record_key(key)
        }),
    );
}

#[tokio::test(start_paused = true)]
async fn order_by_key_holds_over_ten_thousand_messages() {
    let rig = Rig::new();
    send(&rig, 100, 10_000);
    let seen: Arc<Mutex<HashMap<String, Vec<u64>>>> = Arc::default();
    let noted = Arc::clone(&seen);
    let random = Arc::new(Mutex::new(rand::rngs::SmallRng::seed_from_u64(7)));
    let step = move |body: Value, cx: StepContext| {
        let (seen, random) = (Arc::clone(&noted), Arc::clone(&random));
        async move {
            let (nap, fails) = {
                let mut random = random.lock().unwrap();
                (random.random_range(0..20), cx.attempt() < 3 && random.random_bool(0.05))
            };
            tokio::time::sleep(Duration::from_millis(nap)).await;
            if fails {
                return Err(StepError::transient("now and then"));
            }
            let key = body["key"].as_str().unwrap().to_owned();
            seen.lock().unwrap().entry(key).or_default().push(body["n"].to_string().parse().unwrap());
            Ok(())
        }
    };
    let flow = flow().ordered("record-key", OnRetry::HoldKey).step("s", step).build().unwrap();
    let report = rig.run(flow).await;
    assert_eq!(report.summary.effects, 10_000);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 100);
    for (key, order) in seen.iter() {
        assert!(order.is_sorted() && order.len() == 100, "{key}: {order:?}");
    }
}

/// confluentinc/parallel-consumer#857: what waits for its retry must not count as running.
#[tokio::test(start_paused = true)]
async fn keys_that_always_fail_do_not_slow_the_others() {
    let took = |failing: u32| async move {
        let rig = Rig::new();
        send(&rig, 100, 10_000);
        let done: Arc<Mutex<Option<tokio::time::Instant>>> = Arc::default();
        let last = Arc::clone(&done);
        let step = move |body: Value, _: StepContext| {
            let last = Arc::clone(&last);
            async move {
                let key: u32 = body["key"].as_str().unwrap()[1..].parse().unwrap();
                if key < failing {
                    return Err(StepError::transient("always"));
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
                *last.lock().unwrap() = Some(tokio::time::Instant::now());
                Ok(())
            }
        };
        let start = tokio::time::Instant::now();
        let retry = Retry {
            attempts: 1000.try_into().unwrap(),
            initial: Duration::from_secs(600),
            max: Duration::from_secs(600),
        };
        let flow = flow()
            .retry(retry)
            .circuit(ackord::gate::Circuit { failures: None, ..Default::default() })
            .ordered("record-key", OnRetry::HoldKey)
            .step("s", step)
            .build()
            .unwrap();
        let stop = tokio::time::sleep(Duration::from_secs(300));
        rig.worker(flow).run(stop).await.unwrap();
        let last = done.lock().unwrap().expect("good keys ran");
        (last - start, rig.broker.settled(QUEUE).acks)
    };
    let (with, acked) = took(30).await;
    assert_eq!(acked, 7_000);
    let (without, _) = took(0).await;
    // 7,000 good messages never take longer than 10,000 good ones: paused time, so no machine is judged here.
    assert!(with <= without, "{with:?} with failing keys, {without:?} without");
}

#[tokio::test(start_paused = true)]
async fn diverted_messages_let_those_behind_them_overtake() {
    let rig = Rig::new();
    send(&rig, 1, 3);
    let effects = rig.effects.clone();
    let step = move |body: Value, cx: StepContext| {
        let effects = effects.clone();
        async move {
            if body["n"] == 0 && cx.attempt() == 1 {
                return Err(StepError::transient("once"));
            }
            effects.add(body["n"].to_string());
            Ok(())
        }
    };
    rig.run(flow().ordered("record-key", OnRetry::Divert).step("s", step).build().unwrap()).await;
    assert_eq!(rig.effects.all(), ["1", "2", "0"]);
}
