//! Guarded one-step messages per second (in-process source, empty action) beside the raw store operations, in the same run.
//!
//! `cargo bench --bench guarded [-- MESSAGES]`. Rounds are interleaved; the median and the range are printed, and ratios within
//! this run: single figures of a shared machine say little.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ackord::fingerprint::Fingerprint;
use ackord::flow::{Flow, StepContext};
use ackord::idempotency::memory::MemoryStore;
use ackord::idempotency::sqlite::SqliteStore;
use ackord::idempotency::{ClaimOutcome, ClaimRequest, IdempotencyStore, Record, Token};
use ackord::key::{IdempotencyKey, Scope};
use ackord::worker::Worker;
use ackord_broker::Message;
use ackord_broker::memory::MemoryBroker;
use bytes::Bytes;
use rusqlite::Connection;

const ROUNDS: usize = 5;
const IN_FLIGHT: usize = 256;

fn main() {
    let messages = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(100_000);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench");
    std::fs::create_dir_all(&folder).expect("a folder below target");
    let mut results: [Vec<f64>; 5] = Default::default();
    for round in 0..ROUNDS {
        let file = |name: &str| {
            let path = folder.join(format!("{name}-{}-{round}.db", std::process::id()));
            for suffix in ["", "-wal", "-shm"] {
                let _ = std::fs::remove_file(format!("{}{suffix}", path.display()));
            }
            path
        };
        let memory = || Arc::new(MemoryStore::new());
        let sqlite = |name| Arc::new(SqliteStore::open(file(name)).expect("a fresh file"));
        results[0].push(runtime.block_on(raw_store(memory(), messages * 4)));
        results[1].push(runtime.block_on(guarded(memory(), messages * 4)));
        results[2].push(raw_group_commit(&file("raw"), messages));
        results[3].push(runtime.block_on(raw_store(sqlite("store"), messages)));
        results[4].push(runtime.block_on(guarded(sqlite("guarded"), messages)));
    }
    let _ = std::fs::remove_dir_all(&folder);
    let medians = results.map(median);
    show("memory, claim + complete through the trait", medians[0], None);
    show("memory, guarded one-step messages", medians[1], Some(("of the store", medians[0])));
    show("sqlite, raw group commit, groups of 64", medians[2], None);
    show("sqlite, claim + complete through the trait", medians[3], Some(("of raw", medians[2])));
    show("sqlite, guarded one-step messages", medians[4], Some(("of raw", medians[2])));
}

#[expect(clippy::print_stdout, reason = "a bench prints")]
fn show(what: &str, [median, low, high]: [f64; 3], base: Option<(&str, [f64; 3])>) {
    let ratio =
        base.map(|(of, base)| format!("  {:.0} % {of}", 100.0 * median / base[0])).unwrap_or_default();
    println!("{what:<48} {median:>9.0}/s  ({low:.0} to {high:.0}){ratio}");
}

fn median(mut rates: Vec<f64>) -> [f64; 3] {
    rates.sort_by(f64::total_cmp);
    [rates[rates.len() / 2], rates[0], rates[rates.len() - 1]]
}

fn key(n: usize) -> IdempotencyKey {
    // Spread over the index, as real keys are.
    let spread = (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    IdempotencyKey::for_flow("bench", &format!("{spread:016x}"), Scope::default()).expect("not blank")
}

/// Claim and complete, as many at once as the worker has.
async fn raw_store<S: IdempotencyStore + 'static>(store: Arc<S>, messages: usize) -> f64 {
    let start = Instant::now();
    let tasks = (0..IN_FLIGHT).map(|task| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let record = Record::Succeeded(Bytes::from(vec![b'1'; 200]));
            for n in (task..messages).step_by(IN_FLIGHT) {
                let request = ClaimRequest {
                    key: key(n),
                    token: Token::random(),
                    fingerprint: Fingerprint::of_body(Some(b"{}")),
                    owner: "bench".into(),
                    lease: Duration::from_secs(30),
                    retention: Duration::from_secs(3600),
                    starts: true,
                };
                match store.claim(&request).await.expect("a claim") {
                    ClaimOutcome::Claimed(claim) => {
                        store
                            .complete(&claim.held, &record, Duration::from_secs(3600))
                            .await
                            .expect("a completion");
                    }
                    other => panic!("{other:?}"),
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("a task that does not panic");
    }
    messages as f64 / start.elapsed().as_secs_f64()
}

/// The whole worker around an empty action.
async fn guarded<S: IdempotencyStore + 'static>(store: Arc<S>, messages: usize) -> f64 {
    let broker = MemoryBroker::new();
    let body = Bytes::from(format!("{{\"pad\":\"{}\"}}", "x".repeat(180)));
    let spread = |n: usize| format!("{:016x}", (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    broker.publish_all("in", (0..messages).map(|n| Message::new(spread(n), body.clone())));
    broker.close("in");
    let flow = Flow::builder("bench")
        .from("memory", "in")
        .key("message-id")
        .concurrency(IN_FLIGHT)
        .step_of("nothing", Nothing)
        .build()
        .expect("a sound flow");
    let worker =
        Worker::builder(store).broker("memory", Arc::new(broker)).flow(flow).build().expect("a sound worker");
    let start = Instant::now();
    let report = worker.run(std::future::pending()).await.expect("a run");
    assert_eq!(report.summary.effects as usize, messages);
    messages as f64 / start.elapsed().as_secs_f64()
}

#[derive(Debug)]
struct Nothing;

#[async_trait::async_trait]
impl ackord::flow::Step for Nothing {
    async fn run(&self, _: &StepContext) -> Result<serde_json::Value, ackord::classify::StepError> {
        Ok(serde_json::Value::Null)
    }
}

/// What SQLite itself does with the same columns: one connection, one thread, groups of 64.
fn raw_group_commit(path: &Path, messages: usize) -> f64 {
    let connection = Connection::open(path).expect("a fresh file");
    connection.pragma_update(None, "journal_mode", "WAL").expect("WAL");
    connection.pragma_update(None, "synchronous", "FULL").expect("FULL");
    connection
        .execute_batch(
            "CREATE TABLE records (key TEXT NOT NULL, state TEXT NOT NULL, token BLOB NOT NULL, epoch INTEGER NOT NULL,
             owner TEXT NOT NULL, fingerprint BLOB NOT NULL, attempt INTEGER NOT NULL, lease_until INTEGER NOT NULL,
             expires_at INTEGER NOT NULL, body BLOB);
             CREATE UNIQUE INDEX records_key ON records (key);",
        )
        .expect("a schema");
    let body = vec![b'1'; 200];
    let start = Instant::now();
    for group in (0..messages).collect::<Vec<_>>().chunks(64) {
        connection.execute_batch("BEGIN IMMEDIATE").expect("begin");
        for n in group {
            let mut claim = connection
                .prepare_cached(
                    "INSERT INTO records (key, state, token, epoch, owner, fingerprint, attempt, lease_until, expires_at)
                     VALUES (?1, 'claimed', ?2, 1, 'bench', ?3, 1, 1, 2) ON CONFLICT (key) DO NOTHING",
                )
                .expect("a statement");
            claim.execute((key(*n).as_str(), [0u8; 16], [0u8; 32])).expect("a claim");
        }
        connection.execute_batch("COMMIT; BEGIN IMMEDIATE").expect("commit");
        for n in group {
            let mut complete = connection
                .prepare_cached(
                    "UPDATE records SET state = 'succeeded', body = ?2, expires_at = 3 WHERE key = ?1 AND token = ?3",
                )
                .expect("a statement");
            complete.execute((key(*n).as_str(), &body, [0u8; 16])).expect("a completion");
        }
        connection.execute_batch("COMMIT").expect("commit");
    }
    messages as f64 / start.elapsed().as_secs_f64()
}
