//! The guard by itself: commitment, hooks, waiting, joining, doubt, lost ownership. Cases that came from a public fault carry
//! its address.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ackord::classify::StepError;
use ackord::clock::{ManualClock, Timestamp};
use ackord::fingerprint::Fingerprint;
use ackord::flow::StepContext;
use ackord::guard::{Call, End, InDoubt, Reconciled, StepGuard, Terms, WaitPolicy};
use ackord::idempotency::memory::MemoryStore;
use ackord::idempotency::{EntryState, IdempotencyStore, MissingBody, Record};
use ackord::key::IdempotencyKey;
use ackord::outcome::{Failure, Outcome};
use ackord_broker::memory::MemoryBroker;
use ackord_broker::{Message, RejectReason};
use futures_util::FutureExt;
use serde_json::{Value, json};

use crate::rig::{QUEUE, Rig, flow, id};

struct Bench {
    clock: Arc<ManualClock>,
    store: Arc<MemoryStore>,
    calls: AtomicU32,
}

impl Bench {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_millis(0)));
        let store = Arc::new(MemoryStore::with_clock(Arc::clone(&clock) as _));
        Self { clock, store, calls: AtomicU32::new(0) }
    }

    fn guard(&self, owner: &str) -> StepGuard {
        StepGuard::new(Arc::clone(&self.store) as _, owner)
    }

    async fn state(&self) -> EntryState {
        self.store.get(key()).await.unwrap().unwrap().state
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }

    async fn run(&self, guard: &StepGuard, terms: &Terms, value: Value) -> Outcome {
        guard.run(Call::new(key(), print("a"), terms), |_| self.act(Ok(value))).await
    }

    async fn act(&self, result: Result<Value, StepError>) -> Result<Value, End> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        result.map_err(End::Error)
    }
}

fn key() -> &'static IdempotencyKey {
    static KEY: LazyLock<IdempotencyKey> = LazyLock::new(|| IdempotencyKey::verbatim("k").unwrap());
    &KEY
}

fn print(text: &str) -> Fingerprint {
    Fingerprint::of_body(Some(text.as_bytes()))
}

fn done(value: Value, replayed: bool) -> Outcome {
    Outcome::Done { value, replayed }
}

#[tokio::test(start_paused = true)]
async fn first_run_and_replay_give_the_same_value_whatever_it_is() {
    for value in
        [json!(null), json!(false), json!(0), json!(""), json!([]), json!({}), json!({"a": [1.5, "é"]})]
    {
        let bench = Bench::new();
        let guard = bench.guard("w");
        let terms = Terms::default();
        assert_eq!(bench.run(&guard, &terms, value.clone()).await, done(value.clone(), false));
        assert_eq!(bench.run(&guard, &terms, json!("other")).await, done(value.clone(), true));
        assert_eq!(bench.calls(), 1, "{value}");
    }
}

/// pydantic/pydantic-ai!7157: done, but too large to keep, is never run again.
#[tokio::test(start_paused = true)]
async fn a_result_that_is_too_large_or_cannot_be_encoded_is_done_without_its_body() {
    let bench = Bench::new();
    let guard = bench.guard("w");
    let terms = Terms { result_cap: 1024, ..Terms::default() };
    for replayed in [false, true, true] {
        assert_eq!(bench.run(&guard, &terms, json!("x".repeat(2048))).await, done(Value::Null, replayed));
    }
    assert_eq!(bench.calls(), 1);
    let missing = MissingBody::TooLarge { size: 2050, cap: 1024 };
    assert_eq!(bench.state().await, EntryState::Completed(Record::SucceededWithoutBody(missing)));

    let rig = Rig::new();
    for n in 0..3 {
        rig.send(&format!("m{n}"), r#"{"id":"a"}"#);
    }
    let effects = rig.effects.clone();
    let step = move |_: Value, _: StepContext| {
        effects.add("x");
        // A map whose keys are no text cannot be JSON.
        async { Ok(std::collections::HashMap::from([((1, 2), 3)])) }
    };
    let report = rig.run(flow().step("s", step).build().unwrap()).await;
    assert_eq!((rig.effects.all().len(), report.summary.replays, report.summary.dead_letters), (1, 2, 0));
}

/// aws-powertools/powertools-lambda-typescript#5705, powertools-lambda-java#2260.
#[tokio::test(start_paused = true)]
async fn other_content_under_the_same_key_is_a_mismatch_in_every_state() {
    let bench = Bench::new();
    let (guard, other) = (bench.guard("w"), bench.guard("x"));
    let terms = Terms::default();
    let held = guard.run(Call::new(key(), print("a"), &terms), |_| async {
        // While it runs: in this process, and in another.
        for guard in [&guard, &other] {
            let outcome = guard.run(Call::new(key(), print("b"), &terms), |_| bench.act(Ok(json!(1)))).await;
            assert_eq!(outcome, Outcome::Mismatch);
        }
        Ok(json!(5))
    });
    assert_eq!(held.await, done(json!(5), false));
    assert_eq!(bench.run(&guard, &terms, json!(6)).await, done(json!(5), true), "identical");
    let outcome = guard.run(Call::new(key(), print("b"), &terms), |_| bench.act(Ok(json!(1)))).await;
    assert_eq!((outcome, bench.calls()), (Outcome::Mismatch, 0));
}

/// S1's commitment rule: completed only after every hook passed; a failing hook releases.
#[tokio::test(start_paused = true)]
async fn a_failing_hook_releases_the_claim_and_the_action_runs_again() {
    let bench = Bench::new();
    let guard = bench.guard("w");
    let terms = Terms::default();
    let fails = |_: Value, _| async { Err(StepError::permanent("hook")) }.boxed();
    let call = Call::new(key(), print("a"), &terms).on_after(&fails);
    let outcome = guard.run(call, |_| bench.act(Ok(json!(1)))).await;
    assert!(matches!(outcome, Outcome::Failed { kind: Failure::Transient, attempt: 1, .. }), "{outcome:?}");
    assert_eq!(bench.state().await, EntryState::Released);
    assert_eq!(bench.run(&guard, &terms, json!(2)).await, done(json!(2), false));
    assert_eq!(bench.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn nobody_sees_a_record_before_its_hooks_have_passed() {
    let bench = Bench::new();
    let guard = bench.guard("w");
    let terms = Terms::default();
    let store = Arc::clone(&bench.store);
    let looks = move |_: Value, _| {
        let store = Arc::clone(&store);
        async move {
            let entry = store.get(key()).await.unwrap().unwrap();
            assert!(matches!(entry.state, EntryState::InProgress { .. }));
            Ok(())
        }
        .boxed()
    };
    let call = Call::new(key(), print("a"), &terms).on_after(&looks);
    assert_eq!(guard.run(call, |_| bench.act(Ok(json!(1)))).await, done(json!(1), false));
}

#[tokio::test(start_paused = true)]
async fn with_a_recovery_point_only_the_hooks_run_again() {
    let bench = Bench::new();
    let guard = bench.guard("w");
    let terms = Terms { recovery_point: true, ..Terms::default() };
    let fails = |_: Value, _| async { Err(StepError::transient("hook")) }.boxed();
    let call = Call::new(key(), print("a"), &terms).on_after(&fails);
    guard.run(call, |_| bench.act(Ok(json!("charged")))).await;
    let passes = |value: Value, _| {
        assert_eq!(value, "charged");
        async { Ok(()) }.boxed()
    };
    let call = Call::new(key(), print("a"), &terms).on_after(&passes);
    assert_eq!(guard.run(call, |_| bench.act(Ok(json!("again")))).await, done(json!("charged"), false));
    assert_eq!(bench.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn callers_of_one_key_join_the_one_that_runs() {
    let bench = Arc::new(Bench::new());
    let guard = Arc::new(bench.guard("w"));
    let runs = (0..20).map(|_| {
        let (bench, guard) = (Arc::clone(&bench), Arc::clone(&guard));
        tokio::spawn(async move {
            let terms = Terms::default();
            let slow = |_| async {
                tokio::time::sleep(Duration::from_secs(2)).await;
                bench.act(Ok(json!(1))).await
            };
            guard.run(Call::new(key(), print("a"), &terms), slow).await
        })
    });
    let outcomes = futures_util::future::join_all(runs.collect::<Vec<_>>()).await;
    let replays =
        outcomes.iter().filter(|outcome| outcome.as_ref().unwrap() == &done(json!(1), true)).count();
    assert_eq!((bench.calls(), replays), (1, 19));
}

#[tokio::test(start_paused = true)]
async fn while_another_process_is_at_it_one_waits_only_as_long_as_asked() {
    let bench = Bench::new();
    let (one, other) = (bench.guard("one"), bench.guard("other"));
    let terms = Terms::default();
    let patient = Terms {
        wait: WaitPolicy { timeout: Duration::from_secs(3), poll_interval: Duration::from_millis(50) },
        ..Terms::default()
    };
    let last_look = Terms {
        wait: WaitPolicy { timeout: Duration::from_secs(3), poll_interval: Duration::from_secs(60) },
        ..Terms::default()
    };
    let slow = |takes: u64, result: Result<Value, StepError>| {
        let one = &one;
        let terms = &terms;
        async move {
            let action = |_| async move {
                tokio::time::sleep(Duration::from_secs(takes)).await;
                result.map_err(End::Error)
            };
            one.run(Call::new(key(), print("a"), terms), action).await
        }
    };
    // Not at all by default; for too short; long enough; with one look at the deadline.
    let (_, outcome) =
        tokio::join!(slow(10, Err(StepError::transient("x"))), bench.run(&other, &terms, json!(0)));
    assert!(matches!(outcome, Outcome::Busy { .. }), "{outcome:?}");
    let (_, outcome) =
        tokio::join!(slow(10, Err(StepError::transient("x"))), bench.run(&other, &patient, json!(0)));
    assert!(matches!(outcome, Outcome::Busy { .. }), "{outcome:?}");
    assert_eq!(bench.calls(), 0);
    // When the first lets go, the waiter runs with what is left of its time.
    let (_, outcome) =
        tokio::join!(slow(1, Err(StepError::transient("x"))), bench.run(&other, &patient, json!(7)));
    assert_eq!((outcome, bench.calls()), (done(json!(7), false), 1));
    bench.clock.advance(Duration::from_secs(25 * 3600));
    // When it declines, the waiter gets the decline.
    let (_, outcome) =
        tokio::join!(slow(2, Err(StepError::permanent("No"))), bench.run(&other, &last_look, json!(7)));
    assert!(matches!(outcome, Outcome::Declined { replayed: true, .. }), "{outcome:?}");
    assert_eq!(bench.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_kept_alive_for_as_long_as_its_step_runs() {
    let store: Arc<dyn IdempotencyStore> = Arc::new(MemoryStore::with_clock(Arc::new(TokioClock::new())));
    let (one, other) = (StepGuard::new(Arc::clone(&store), "one"), StepGuard::new(store, "other"));
    let terms = Terms { lease: Duration::from_secs(3), ..Terms::default() };
    let slow = one.run(Call::new(key(), print("a"), &terms), |grant| async move {
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!grant.lost.is_cancelled());
        Ok(json!(1))
    });
    let late = async {
        tokio::time::sleep(Duration::from_secs(50)).await;
        other
            .run(Call::new(key(), print("a"), &terms), |_| async { panic!("taken over a living claim") })
            .await
    };
    let (first, second) = tokio::join!(slow, late);
    assert_eq!(first, done(json!(1), false));
    assert!(matches!(second, Outcome::Busy { .. }), "{second:?}");
}

/// The store's clock on the runtime's paused time.
#[derive(Debug)]
struct TokioClock(tokio::time::Instant);

impl TokioClock {
    fn new() -> Self {
        Self(tokio::time::Instant::now())
    }
}

impl ackord::clock::Clock for TokioClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(0).plus(self.0.elapsed())
    }
}

/// aws-powertools/powertools-lambda-typescript#5714: a late result never overwrites the winner's.
#[tokio::test(start_paused = true)]
async fn who_lost_the_claim_is_told_and_its_late_result_is_refused() {
    let bench = Bench::new();
    let (frozen, winner) = (bench.guard("frozen"), bench.guard("winner"));
    let terms = Terms { lease: Duration::from_secs(3), ..Terms::default() };
    let outcome = frozen
        .run(Call::new(key(), print("a"), &terms), |grant| {
            let (bench, winner, terms) = (&bench, &winner, &terms);
            async move {
                // The store's clock runs on while this process stands still.
                bench.clock.advance(Duration::from_secs(4));
                assert_eq!(bench.run(winner, terms, json!("winner")).await, done(json!("winner"), false));
                grant.lost.cancelled().await;
                Ok(json!("late"))
            }
        })
        .await;
    assert_eq!(outcome, Outcome::LostOwnership);
    let record = Record::Succeeded(bytes::Bytes::from_static(b"\"winner\""));
    assert_eq!(bench.state().await, EntryState::Completed(record));
    let counted = frozen.counters().summary(0);
    assert_eq!((counted.leases_lost, counted.double_effects_suspected), (1, 1));
    assert_eq!(winner.counters().summary(0).takeovers, 1);
}

#[tokio::test(start_paused = true)]
async fn a_doubt_is_settled_as_the_step_asks() {
    for policy in [InDoubt::Rerun, InDoubt::Reconcile, InDoubt::Park] {
        let bench = Bench::new();
        let guard = bench.guard("w");
        let terms = Terms { in_doubt: policy, ..Terms::default() };
        let happened = |_| async { Ok(Reconciled::Happened(json!("found"))) }.boxed();
        let call = Call::new(key(), print("a"), &terms).reconcile(&happened);
        let outcome = guard.run(call, |_| bench.act(Err(StepError::in_doubt("timeout")))).await;
        let again = bench.run(&guard, &terms, json!("again")).await;
        match policy {
            InDoubt::Rerun => {
                assert!(matches!(outcome, Outcome::Failed { kind: Failure::InDoubt, .. }));
                assert_eq!((again, bench.calls()), (done(json!("again"), false), 2));
            }
            InDoubt::Reconcile => {
                assert_eq!(outcome, done(json!("found"), false));
                assert_eq!((again, bench.calls()), (done(json!("found"), true), 1));
            }
            InDoubt::Park => {
                assert!(matches!(outcome, Outcome::Parked { .. }));
                assert!(matches!(again, Outcome::Parked { .. }));
                assert_eq!((bench.state().await, bench.calls()), (EntryState::InDoubt, 1));
            }
        }
    }
}

/// aws-powertools/powertools-lambda-python#1093, powertools-lambda-typescript#5715.
#[tokio::test(start_paused = true)]
async fn a_step_that_edits_its_input_does_not_change_the_key_it_is_kept_under() {
    for fails in [false, true] {
        let rig = Rig::new();
        rig.send("m", r#"{"id":"a"}"#);
        rig.send("again", r#"{"id":"a"}"#);
        let effects = rig.effects.clone();
        let step = move |mut body: Value, cx: StepContext| {
            let effects = effects.clone();
            async move {
                body["id"] = json!("x");
                if fails && cx.attempt() == 1 {
                    return Err(StepError::transient("once"));
                }
                effects.add(id(&cx));
                Ok(body)
            }
        };
        let report = rig.run(flow().step("s", step).build().unwrap()).await;
        assert_eq!((rig.effects.all(), report.summary.replays), (vec!["a".to_owned()], 1), "fails: {fails}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_redelivery_of_the_message_at_work_is_adopted_and_settled_once() {
    let broker = MemoryBroker::with_lease(Duration::from_secs(3));
    let rig = Rig::with(broker.clone(), Arc::new(MemoryStore::new()));
    rig.send("m", r#"{"id":"a"}"#);
    let effects = rig.effects.clone();
    let step = move |_: Value, _: StepContext| {
        let (effects, broker) = (effects.clone(), broker.clone());
        async move {
            // Nobody can be asked to extend the lease: the broker gives the message out once more.
            broker.set_available(false);
            tokio::time::sleep(Duration::from_secs(10)).await;
            broker.set_available(true);
            tokio::time::sleep(Duration::from_secs(60)).await;
            effects.add("done");
            Ok(())
        }
    };
    let report = rig.run(flow().step("s", step).build().unwrap()).await;
    assert_eq!(rig.effects.all().len(), 1);
    assert_eq!((report.summary.adopted, rig.broker.settled(QUEUE).acks), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_the_broker_is_kept_alive_while_a_message_is_at_work() {
    let rig = Rig::with(MemoryBroker::with_lease(Duration::from_secs(3)), Arc::new(MemoryStore::new()));
    rig.send("m", r#"{"id":"a"}"#);
    let step = |_: Value, _: StepContext| async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok(())
    };
    let report = rig.run(flow().step("s", step).build().unwrap()).await;
    assert_eq!((report.summary.effects, report.summary.redeliveries, report.summary.leases_lost), (1, 0, 0));
}

/// Bogdanp/dramatiq#213, MassTransit/MassTransit#2076: what kills its process is kept aside, its neighbours pass.
#[test]
fn a_message_that_kills_its_process_is_kept_aside_and_its_neighbours_pass() {
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(0)));
    let rig = Rig::with(MemoryBroker::new(), Arc::new(MemoryStore::with_clock(Arc::clone(&clock) as _)));
    for n in 0..21 {
        let name = if n == 10 { "poison".to_owned() } else { n.to_string() };
        rig.broker.publish(QUEUE, Message::new(format!("m{n}"), format!(r#"{{"id":"{name}"}}"#)));
    }
    rig.broker.close(QUEUE);
    let mut lives = 0;
    loop {
        lives += 1;
        assert!(lives < 10, "it never ends");
        let died = Arc::new(tokio::sync::Notify::new());
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let ended = runtime.block_on(async {
            let (effects, dies) = (rig.effects.clone(), Arc::clone(&died));
            let step = move |_: Value, cx: StepContext| {
                let (effects, dies) = (effects.clone(), Arc::clone(&dies));
                async move {
                    if id(&cx) == "poison" {
                        dies.notify_one();
                        std::future::pending::<()>().await;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    effects.add(id(&cx));
                    Ok(())
                }
            };
            let worker = rig.worker(flow().concurrency(4).step("s", step).build().unwrap());
            let run = tokio::spawn(worker.run(std::future::pending()));
            tokio::select! {
                ended = run => Some(ended.unwrap().unwrap()),
                () = died.notified() => None,
            }
        });
        drop(runtime);
        clock.advance(Duration::from_secs(31));
        if ended.is_some() {
            break;
        }
    }
    assert_eq!(rig.parked(), [("m10".to_owned(), RejectReason::Crashed)]);
    assert_eq!(rig.effects.counts().len(), 20);
    assert!(rig.effects.counts().values().all(|count| *count == 1));
    assert_eq!(lives, 4, "three that it killed and one that kept it aside");
}
