//! The store conformance kit: what every store must do, as named cases, with lying stores that it must catch.
//!
//! A store's test is a binary without a harness:
//!
//! ```ignore
//! fn main() -> std::process::ExitCode {
//!     let args = libtest_mimic::Arguments::from_args();
//!     libtest_mimic::run(&args, conformance::trials("mine", || Arc::new(MyHarness::new()))).exit_code()
//! }
//! ```

mod cases;
mod expiry;
pub mod faulty;
mod model;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use libtest_mimic::Trial;

use super::{Claim, ClaimOutcome, ClaimRequest, IdempotencyStore, Token};
use crate::fingerprint::Fingerprint;
use crate::key::IdempotencyKey;

/// One space of keys, and what the kit needs to do to it. Each case gets a fresh one.
#[async_trait]
pub trait StoreHarness: Send + Sync {
    /// A handle to the space; two handles are two workers.
    async fn open(&self) -> Arc<dyn IdempotencyStore>;
    /// Closes the space as a crash would, and opens it again; the kit has dropped its handles. Called only when
    /// [`is_persistent`](StoreHarness::is_persistent).
    async fn reopen(&self) -> Arc<dyn IdempotencyStore>;
    /// A handle of a worker whose own clock is wrong by so many seconds. A store that never looks at a worker's clock
    /// gives the same handle as [`open`](StoreHarness::open).
    async fn open_skewed(&self, seconds: i64) -> Arc<dyn IdempotencyStore>;
    /// Lets time pass on the store's clock.
    async fn pass(&self, time: Duration);
    /// Whether records survive [`reopen`](StoreHarness::reopen).
    fn is_persistent(&self) -> bool;
}

type Run = for<'a> fn(&'a dyn StoreHarness) -> BoxFuture<'a, Result<(), String>>;

struct Case {
    name: &'static str,
    needs_reopen: bool,
    run: Run,
}

fn all() -> impl Iterator<Item = &'static Case> {
    cases::CASES.iter().chain(expiry::CASES).chain(model::CASES)
}

/// The names of all cases.
pub fn case_names() -> Vec<&'static str> {
    all().map(|case| case.name).collect()
}

/// Every case as a test. A case that needs persistence is shown as ignored where there is none.
pub fn trials<H, F>(prefix: &str, fresh: F) -> Vec<Trial>
where
    H: StoreHarness + 'static,
    F: Fn() -> H + Clone + Send + 'static,
{
    let persistent = fresh().is_persistent();
    all()
        .map(|case| {
            let fresh = fresh.clone();
            let ignored = case.needs_reopen && !persistent;
            let reason = if ignored { " (needs a store that survives its process)" } else { "" };
            let run = move || run(case, &fresh()).map_err(Into::into);
            Trial::test(format!("{prefix}::{}{reason}", case.name), run).with_ignored_flag(ignored)
        })
        .collect()
}

/// Runs one case by name.
///
/// # Errors
/// What the case found, or that there is no such case.
pub fn run_case(harness: &dyn StoreHarness, name: &str) -> Result<(), String> {
    let case = all().find(|case| case.name == name).ok_or_else(|| format!("there is no case {name}"))?;
    run(case, harness)
}

fn run(case: &Case, harness: &dyn StoreHarness) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let ended = AssertUnwindSafe((case.run)(harness)).catch_unwind().await;
        ended.unwrap_or_else(|_| Err("panicked".to_owned()))
    })
}

/// Ends the case with a sentence unless it holds.
macro_rules! ensure {
    ($holds:expr, $($text:tt)*) => {
        if !$holds {
            return Err(format!($($text)*));
        }
    };
}
use ensure;

pub(super) const LEASE: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn key(text: &str) -> IdempotencyKey {
    IdempotencyKey::verbatim(text).expect("the kit's keys are not blank")
}

fn request(text: &str) -> ClaimRequest {
    ClaimRequest {
        key: key(text),
        token: Token::random(),
        fingerprint: Fingerprint::of_body(Some(b"content")),
        owner: "kit".into(),
        lease: LEASE,
        retention: DAY,
        starts: true,
    }
}

async fn claimed(store: &dyn IdempotencyStore, request: &ClaimRequest) -> Result<Claim, String> {
    match store.claim(request).await.map_err(|error| error.to_string())? {
        ClaimOutcome::Claimed(claim) => Ok(claim),
        other => Err(format!("expected to be told `claimed`, was told {other:?}")),
    }
}

fn done<T>(result: Result<T, super::StoreError>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}
