//! The store conformance kit on every store that needs no server, and the kit's own test: each lie is caught by exactly the
//! cases that name it.

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ackord::clock::{ManualClock, Timestamp};
use ackord::idempotency::IdempotencyStore;
use ackord::idempotency::conformance::faulty::{CAUGHT_BY, Lie, LyingHarness};
use ackord::idempotency::conformance::{StoreHarness, case_names, run_case, trials};
use ackord::idempotency::memory::MemoryStore;
use ackord::idempotency::sqlite::SqliteStore;
use async_trait::async_trait;
use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let mut tests = trials("memory", InMemory::new);
    tests.extend(trials("sqlite", InFile::new));
    tests.extend(CAUGHT_BY.iter().map(|(lie, cases)| {
        let run = || caught(*lie, cases).map_err(Into::into);
        Trial::test(format!("the_kit_catches::{lie:?}"), run)
    }));
    libtest_mimic::run(&args, tests).exit_code()
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Timestamp::from_millis(1_700_000_000_000)))
}

struct InMemory {
    clock: Arc<ManualClock>,
    store: Arc<MemoryStore>,
}

impl InMemory {
    fn new() -> Self {
        let clock = clock();
        Self { store: Arc::new(MemoryStore::with_clock(Arc::clone(&clock) as _)), clock }
    }
}

#[async_trait]
impl StoreHarness for InMemory {
    async fn open(&self) -> Arc<dyn IdempotencyStore> {
        Arc::clone(&self.store) as _
    }
    async fn reopen(&self) -> Arc<dyn IdempotencyStore> {
        unreachable!("memory is not persistent")
    }
    async fn open_skewed(&self, _seconds: i64) -> Arc<dyn IdempotencyStore> {
        self.open().await
    }
    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }
    fn is_persistent(&self) -> bool {
        false
    }
}

struct InFile {
    clock: Arc<ManualClock>,
    folder: tempfile::TempDir,
    store: Mutex<Option<Arc<SqliteStore>>>,
}

impl InFile {
    fn new() -> Self {
        Self { clock: clock(), folder: tempfile::tempdir().unwrap(), store: Mutex::new(None) }
    }

    fn store(&self) -> Arc<SqliteStore> {
        let open = || {
            let path = self.folder.path().join("ackord.db");
            Arc::new(SqliteStore::open_with(path, Arc::clone(&self.clock) as _).unwrap())
        };
        Arc::clone(self.store.lock().unwrap().get_or_insert_with(open))
    }
}

#[async_trait]
impl StoreHarness for InFile {
    async fn open(&self) -> Arc<dyn IdempotencyStore> {
        self.store()
    }
    async fn reopen(&self) -> Arc<dyn IdempotencyStore> {
        drop(self.store.lock().unwrap().take());
        self.store()
    }
    async fn open_skewed(&self, _seconds: i64) -> Arc<dyn IdempotencyStore> {
        self.open().await
    }
    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }
    fn is_persistent(&self) -> bool {
        true
    }
}

/// Exactly the named cases fail for that lie.
fn caught(lie: Lie, expected: &[&str]) -> Result<(), String> {
    let failed: Vec<_> =
        case_names().into_iter().filter(|case| run_case(&LyingHarness::new(lie), case).is_err()).collect();
    let missed: Vec<_> = expected.iter().filter(|case| !failed.contains(case)).collect();
    let unexpected: Vec<_> = failed.iter().filter(|case| !expected.contains(case)).collect();
    if missed.is_empty() && unexpected.is_empty() {
        return Ok(());
    }
    Err(format!("{lie:?}: not caught by {missed:?}, caught beside that by {unexpected:?}"))
}
