//! One message with several effects, and messages that ask for none.

use ackord::classify::StepError;
use ackord::flow::{FlowBuilder, Keyless, OnControl, OnRetry, StepContext};
use ackord::policy::OnDecline;
use ackord_broker::{Message, RejectReason};
use serde_json::Value;

use crate::rig::{QUEUE, Rig, flow, id};

/// Each part of `/list` names its effect in `/id`; what `ends` says about it happens.
fn splitting(
    rig: &Rig,
    ends: impl Fn(&str, u32) -> Result<(), StepError> + Clone + Send + Sync + 'static,
) -> FlowBuilder {
    let effects = rig.effects.clone();
    flow().split("body:/list").step("charge", move |_: Value, cx: StepContext| {
        let (effects, ends) = (effects.clone(), ends.clone());
        async move {
            ends(&id(&cx), cx.attempt())?;
            effects.add(id(&cx));
            Ok(())
        }
    })
}

fn well(_: &str, _: u32) -> Result<(), StepError> {
    Ok(())
}

fn flaky_b(id: &str, attempt: u32) -> Result<(), StepError> {
    if id == "b" && attempt < 3 { Err(StepError::transient("ETIMEDOUT")) } else { Ok(()) }
}

#[tokio::test(start_paused = true)]
async fn each_part_takes_effect_once_under_its_own_key() {
    let rig = Rig::new();
    rig.send("m1", r#"{"list":[{"id":"a"},{"id":9007199254740993},{"id":"b"}]}"#);
    rig.send("m2", r#"{"list":[{"id":"b"},{"id":"c"}],"seen":2}"#);
    let report = rig.run(splitting(&rig, well).build().unwrap()).await;
    let mut effects = rig.effects.all();
    effects.sort();
    assert_eq!(effects, ["9007199254740993", "a", "b", "c"]);
    assert_eq!((report.summary.messages, report.summary.effects), (2, 4));
    assert_eq!(rig.broker.settled(QUEUE).acks, 2);
    assert_eq!(rig.parked(), []);
}

#[tokio::test(start_paused = true)]
async fn one_part_that_fails_keeps_the_others_from_nothing_and_the_message_from_its_end() {
    for on_retry in [None, Some(OnRetry::HoldKey), Some(OnRetry::Divert)] {
        let rig = Rig::new();
        rig.send("m", r#"{"list":[{"id":"a"},{"id":"b"},{"id":"c"}],"order":1}"#);
        let mut flow = splitting(&rig, flaky_b);
        if let Some(on_retry) = on_retry {
            flow = flow.ordered("body:/order", on_retry);
        }
        let report = rig.run(flow.build().unwrap()).await;
        assert_eq!(rig.effects.all(), ["a", "c", "b"], "{on_retry:?}");
        assert_eq!(report.summary.retries, 2);
        assert_eq!(rig.broker.settled(QUEUE).acks, 1);
        assert_eq!(rig.broker.depth(QUEUE), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_that_never_passes_keeps_the_whole_aside_and_sending_it_again_repeats_nothing() {
    let rig = Rig::new();
    let body = r#"{"list":[{"id":"a"},{"id":"never"},{"id":"no"},{"id":"c"}]}"#;
    let ends = |id: &str, _| match id {
        "never" => Err(StepError::transient("ETIMEDOUT")),
        "no" => Err(StepError::permanent("CardDeclined")),
        _ => Ok(()),
    };
    rig.send("m", body);
    let report = rig.run(splitting(&rig, ends).build().unwrap()).await;
    assert_eq!(rig.effects.all(), ["a", "c"]);
    assert_eq!(rig.parked(), [("m".to_owned(), RejectReason::Exhausted)]);
    assert_eq!(report.summary.dead_letters, 1);
    let (whole, why) = rig.broker.dead_letters(QUEUE).remove(0);
    assert_eq!(whole.body.unwrap(), body, "the whole message, as it came");
    let key = why.notes.iter().find(|(name, _)| *name == "key").unwrap();
    assert_eq!(key.1, "ff:idemp:::flow:charge:never");

    let again = Rig { broker: ackord_broker::memory::MemoryBroker::new(), ..rig.clone() };
    again.send("m again", body);
    again
        .run(
            splitting(&again, |id, _| if id == "no" { panic!("on record") } else { Ok(()) }).build().unwrap(),
        )
        .await;
    assert_eq!(again.effects.all(), ["a", "c", "never"]);
    assert_eq!(again.parked(), []);
}

#[tokio::test(start_paused = true)]
async fn a_declined_part_ends_the_message_as_the_flow_says() {
    let ends = |id: &str, _| if id == "no" { Err(StepError::permanent("CardDeclined")) } else { Ok(()) };
    for (on_decline, parked) in [(OnDecline::Ack, 0), (OnDecline::DeadLetter, 1)] {
        let rig = Rig::new();
        rig.send("m", r#"{"list":[{"id":"no"},{"id":"c"}]}"#);
        let report = rig.run(splitting(&rig, ends).on_decline(on_decline).build().unwrap()).await;
        assert_eq!(rig.effects.all(), ["c"]);
        assert_eq!(rig.parked().len(), parked);
        assert_eq!(report.summary.declines, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_runs_when_one_part_has_no_key_unless_such_parts_are_left_out() {
    for (body, ran) in [
        (r#"{"list":[{"id":"a"},{"no":1},{"id":"c"}]}"#, &["a", "c"][..]),
        (r#"{"list":[]}"#, &[]),
        (r#"{"list":{"id":"a"}}"#, &[]),
        (r#"{"other":[{"id":"a"}]}"#, &[]),
        ("no json", &[]),
    ] {
        let rig = Rig::new();
        rig.send("m", body);
        rig.run(splitting(&rig, well).build().unwrap()).await;
        assert_eq!(rig.effects.all(), [""; 0], "{body}");
        assert_eq!(rig.parked(), [("m".to_owned(), RejectReason::Keyless)]);

        let rig = Rig::new();
        rig.send("m", body);
        rig.run(splitting(&rig, well).on_missing_key(Keyless::Ignore).build().unwrap()).await;
        assert_eq!(rig.effects.all(), ran, "{body}");
        assert_eq!(rig.parked(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn two_parts_under_one_key_are_one_effect_or_a_mismatch() {
    let rig = Rig::new();
    rig.send("same", r#"{"list":[{"id":"a"},{"id":"a"}]}"#);
    rig.send("other", r#"{"list":[{"id":"b","n":1},{"id":"b","n":2}]}"#);
    rig.run(splitting(&rig, well).build().unwrap()).await;
    assert_eq!(rig.effects.counts().into_values().collect::<Vec<_>>(), [1, 1]);
    assert_eq!(rig.parked(), [("other".to_owned(), RejectReason::Mismatch)]);
}

#[tokio::test(start_paused = true)]
async fn a_step_with_a_key_of_its_own_reads_the_part() {
    let rig = Rig::new();
    rig.send("m", r#"{"list":[{"id":"a","to":"x"},{"id":"b","to":"x"},{"id":"c","to":"y"}]}"#);
    let effects = rig.effects.clone();
    let flow = splitting(&rig, well)
        .step("receipt", move |part: Value, cx: StepContext| {
            let effects = effects.clone();
            async move {
                effects.add(format!("to {} under {}", part["to"].as_str().unwrap(), cx.key()));
                Ok(())
            }
        })
        .idempotent("receipt:{body:/to}");
    rig.run(flow.build().unwrap()).await;
    let receipts: Vec<_> = rig.effects.all().into_iter().filter(|effect| effect.starts_with("to")).collect();
    assert_eq!(
        receipts,
        [
            "to x under ff:idemp:::flow:charge:own:receipt:receipt%3Ax",
            "to y under ff:idemp:::flow:charge:own:receipt:receipt%3Ay"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_control_record_is_acknowledged_or_kept_aside_and_never_run() {
    for (on_control, acks, parked) in [(OnControl::Ignore, 2, 0), (OnControl::Park, 0, 2)] {
        let rig = Rig::new();
        rig.broker
            .publish(QUEUE, Message { body: None, ..Message::new("tombstone", "").with_record_key("k") });
        rig.send("test", r#"{"Event":"s3:TestEvent","id":"1"}"#);
        let flow = splitting(&rig, well).tombstones_are_control().control("body:/Event", "s3:TestEvent");
        let report = rig.run(flow.on_control(on_control).build().unwrap()).await;
        assert_eq!(rig.effects.all(), [""; 0]);
        assert_eq!((rig.broker.settled(QUEUE).acks, rig.parked().len()), (acks, parked));
        assert!(rig.parked().iter().all(|(_, reason)| *reason == RejectReason::Keyless));
        assert_eq!(report.summary.effects, 0);
    }
}
