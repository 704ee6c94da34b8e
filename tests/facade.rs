//! The plain facade and the saga wrapper against what the reference documents say, sentence by sentence in our own words.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ackord::classify::StepError;
use ackord::clock::{ManualClock, Timestamp};
use ackord::guard::StepGuard;
use ackord::idempotency::IdempotencyStore;
use ackord::idempotency::admin::StoreAdmin;
use ackord::idempotency::facade::{ClaimState, PlainStore};
use ackord::idempotency::memory::MemoryStore;
use ackord::idempotency::sqlite::SqliteStore;
use ackord::key::{IdempotencyKey, Scope, step_idempotency_key};
use ackord::saga::{Mode, SagaError, SagaGuard};
use serde_json::{Value, json};

/// Every sentence about the store, on one store. A store on a server joins the list below.
async fn assert_reference<S: IdempotencyStore + StoreAdmin>(store: Arc<S>, clock: &ManualClock) {
    let (mine, yours) = (PlainStore::new(Arc::clone(&store), "mine"), PlainStore::new(store, "yours"));
    let key = |name: &str| IdempotencyKey::scoped(name, Scope::default()).unwrap();
    let hour = Some(Duration::from_secs(3600));

    // `claimed`: acquired, go on. `in-progress`: another execution has it.
    assert_eq!(mine.claim(&key("a"), hour).await.unwrap(), ClaimState::Claimed);
    assert_eq!(yours.claim(&key("a"), hour).await.unwrap(), ClaimState::InProgress);
    assert_eq!(mine.claim(&key("a"), hour).await.unwrap(), ClaimState::InProgress);
    // Nothing to read while it is in progress.
    assert_eq!(yours.get_result(&key("a")).await.unwrap(), None);
    // `completed`: the cached output at once.
    mine.complete(&key("a"), &json!({"receipt": 7}), hour).await.unwrap();
    assert_eq!(yours.claim(&key("a"), hour).await.unwrap(), ClaimState::Completed);
    // `get` and `get_result` are the same.
    assert_eq!(yours.get_result(&key("a")).await.unwrap(), Some(json!({"receipt": 7})));
    assert_eq!(yours.get(&key("a")).await.unwrap(), Some(json!({"receipt": 7})));
    // `fail` frees only what is in progress; a completed key keeps its result.
    mine.fail(&key("a"), "late").await.unwrap();
    yours.fail(&key("a"), "not mine").await.unwrap();
    assert_eq!(yours.claim(&key("a"), hour).await.unwrap(), ClaimState::Completed);
    // `fail` frees the key for a retry at once, but nobody else's key (mended: the reference frees anybody's).
    mine.claim(&key("b"), hour).await.unwrap();
    yours.fail(&key("b"), "not mine").await.unwrap();
    assert_eq!(yours.claim(&key("b"), hour).await.unwrap(), ClaimState::InProgress);
    mine.fail(&key("b"), "timeout").await.unwrap();
    assert_eq!(yours.claim(&key("b"), hour).await.unwrap(), ClaimState::Claimed);
    // No result is kept as null, and null is a result.
    yours.complete(&key("b"), &Value::Null, hour).await.unwrap();
    assert_eq!(mine.claim(&key("b"), hour).await.unwrap(), ClaimState::Completed);
    assert_eq!(mine.get_result(&key("b")).await.unwrap(), Some(Value::Null));
    // Completing starts the time anew; afterwards the key is unknown.
    clock.advance(Duration::from_secs(3599));
    assert_eq!(mine.claim(&key("b"), hour).await.unwrap(), ClaimState::Completed);
    clock.advance(Duration::from_secs(2));
    assert_eq!(mine.get(&key("b")).await.unwrap(), None);
    assert_eq!(mine.claim(&key("b"), hour).await.unwrap(), ClaimState::Claimed);
    // A claim ends with its ttl; by default that is a day.
    assert_eq!(mine.claim(&key("c"), None).await.unwrap(), ClaimState::Claimed);
    clock.advance(Duration::from_secs(24 * 3600 - 1));
    assert_eq!(yours.claim(&key("c"), None).await.unwrap(), ClaimState::InProgress);
    clock.advance(Duration::from_secs(2));
    assert_eq!(yours.claim(&key("c"), None).await.unwrap(), ClaimState::Claimed);
    // Mended: who lost the key cannot overwrite the new owner's result.
    assert!(mine.complete(&key("c"), &json!("late"), None).await.is_err());
    yours.complete(&key("c"), &json!("winner"), None).await.unwrap();
    assert_eq!(mine.get(&key("c")).await.unwrap(), Some(json!("winner")));
    // A cached decline is a result as any other.
    mine.claim(&key("d"), hour).await.unwrap();
    mine.complete(&key("d"), &json!({"error": "CardDeclined"}), hour).await.unwrap();
    assert_eq!(yours.get_result(&key("d")).await.unwrap(), Some(json!({"error": "CardDeclined"})));
    // `clear` forgets all.
    mine.clear().await.unwrap();
    assert_eq!(yours.claim(&key("d"), hour).await.unwrap(), ClaimState::Claimed);
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Timestamp::from_millis(1_700_000_000_000)))
}

#[tokio::test]
async fn the_memory_store_does_what_the_reference_says() {
    let clock = clock();
    assert_reference(Arc::new(MemoryStore::with_clock(Arc::clone(&clock) as _)), &clock).await;
}

#[tokio::test]
async fn the_sqlite_store_does_what_the_reference_says() {
    let (clock, folder) = (clock(), tempfile::tempdir().unwrap());
    let store = SqliteStore::open_with(folder.path().join("ackord.db"), Arc::clone(&clock) as _).unwrap();
    assert_reference(Arc::new(store), &clock).await;
}

#[test]
fn keys_have_the_reference_texts() {
    let scope = Scope { namespace: Some("tenant-a"), version: Some("2.0.0") };
    assert_eq!(
        IdempotencyKey::scoped("order-1234", scope).unwrap().as_str(),
        "ff:idemp:tenant-a:2.0.0:order-1234"
    );
    assert_eq!(step_idempotency_key("s_1", "charge").unwrap().as_str(), "saga:s_1:charge");
}

fn saga() -> SagaGuard {
    SagaGuard::new(StepGuard::new(Arc::new(MemoryStore::new()), "saga"))
}

#[tokio::test]
async fn a_replayed_step_gets_the_cached_outcome_and_its_handler_is_not_entered() {
    let (saga, calls) = (saga(), AtomicU32::new(0));
    for _ in 0..3 {
        let charge = || async {
            calls.fetch_add(1, Ordering::SeqCst);
            Ok(json!({"chargeId": "ch_1"}))
        };
        assert_eq!(saga.run("s_1", "charge", Mode::Auto, charge).await.unwrap(), json!({"chargeId": "ch_1"}));
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    // Another saga, and another step, are other effects.
    let other = || async { Ok::<u32, StepError>(2) };
    assert_eq!(saga.run("s_2", "charge", Mode::Auto, other).await.unwrap(), 2);
    assert_eq!(saga.run("s_1", "ship", Mode::Auto, || async { Ok::<u32, StepError>(3) }).await.unwrap(), 3);
}

#[tokio::test]
async fn a_manual_step_is_called_each_time_and_leaves_no_record() {
    let (saga, calls) = (saga(), AtomicU32::new(0));
    for expected in 1..=3 {
        let call = || async { Ok(calls.fetch_add(1, Ordering::SeqCst) + 1) };
        assert_eq!(saga.run("s_1", "charge", Mode::Manual, call).await.unwrap(), expected);
    }
    assert_eq!(saga.run("s_1", "charge", Mode::Auto, || async { Ok::<u32, StepError>(9) }).await.unwrap(), 9);
}

#[tokio::test]
async fn a_step_that_is_still_pending_elsewhere_is_a_conflict_and_not_run_beside_it() {
    let store: Arc<dyn IdempotencyStore> = Arc::new(MemoryStore::new());
    let one = SagaGuard::new(StepGuard::new(Arc::clone(&store), "one"));
    let other = SagaGuard::new(StepGuard::new(store, "other"));
    let outer = one.run("s_1", "charge", Mode::Auto, || async {
        let beside = other.run("s_1", "charge", Mode::Auto, || async { Ok::<u32, StepError>(2) }).await;
        assert!(matches!(beside, Err(SagaError::Conflict { .. })), "{beside:?}");
        Ok(1u32)
    });
    assert_eq!(outer.await.unwrap(), 1);
}

#[tokio::test]
async fn a_step_that_failed_is_run_again() {
    let saga = saga();
    let failed =
        saga.run("s_1", "charge", Mode::Auto, || async { Err::<u32, _>(StepError::transient("ETIMEDOUT")) });
    assert!(matches!(failed.await, Err(SagaError::Failed(_))));
    assert_eq!(saga.run("s_1", "charge", Mode::Auto, || async { Ok::<u32, StepError>(1) }).await.unwrap(), 1);
    let declined = || async { Err::<u32, _>(StepError::permanent("CardDeclined")) };
    for _ in 0..2 {
        assert!(matches!(saga.run("s_1", "pay", Mode::Auto, declined).await, Err(SagaError::Declined(_))));
    }
}
