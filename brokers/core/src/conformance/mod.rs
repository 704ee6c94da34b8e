//! What every adapter must pass.
//!
//! An adapter's test target implements [`BrokerHarness`], turns the kit into tests with [`trials`] and hands them to
//! `libtest_mimic::run`. The list of cases exists once, here. A case that needs something the broker or the harness
//! does not have is listed as ignored with the reason, never as passed; listing does no I/O. Each case has its own
//! source and its own runtime.
//!
//! # Waiting
//! What must happen is waited for until [`BrokerHarness::within`] has passed. What must not happen is shown by a
//! marker that was published later and arrives first. The kit reads tokio's clock only, so a harness of a broker
//! that does the same may run on paused time.

mod delivery;
pub mod faulty;
mod ordering;
mod outage;
mod settlement;
mod shutdown;
mod stand;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use libtest_mimic::{Completion, Trial};
use tokio::runtime::{Builder, Runtime};

use crate::{Broker, DeadLetters, Lease, Message, Ordering, Subscription};
use stand::Stand;

/// One broker under test, and the ways around its adapter.
#[async_trait]
pub trait BrokerHarness: Send + Sync {
    /// The adapter under test.
    fn broker(&self) -> Arc<dyn Broker>;

    /// A source that nobody has used, made for the case of that name.
    async fn fresh_source(&self, case: &str) -> Subscription;

    /// Publishes to a source past the adapter, with the broker's own client, in this order. Ids and origins are of
    /// no concern: the kit recognises messages by their bodies.
    async fn publish(&self, to: &Subscription, messages: Vec<Message>);

    /// What was dead-lettered from a source, read past the adapter.
    async fn parked(&self, of: &Subscription) -> Vec<Parked>;

    /// The deadline of every positive wait, on top of the broker's lease.
    fn within(&self) -> Duration {
        Duration::from_secs(20)
    }

    /// Whether the broker can carry that; what it cannot carry is not tested.
    fn carries(&self, _what: Carried) -> bool {
        true
    }

    /// Whether [`disrupt`](Self::disrupt) can do that. Without I/O.
    fn supports(&self, _how: Disruption) -> bool {
        false
    }

    /// Disturbs the broker or the connection of everybody who uses that source; returns when it is done. No other
    /// case of the same [`trials`] runs meanwhile.
    async fn disrupt(&self, _source: &Subscription, how: Disruption) -> Supported {
        Supported::No(format!("this harness cannot do {how:?}"))
    }

    /// Ends what [`disrupt`](Self::disrupt) began; returns when the broker can be used again.
    async fn restore(&self, _source: &Subscription, _how: Disruption) {}

    /// The adapter, set up wrongly in that way; `None` when it cannot be. Without I/O.
    fn misconfigured(&self, _how: Misuse) -> Option<Arc<dyn Broker>> {
        None
    }

    /// Whether two consumers may read one source at once.
    fn shares_sources(&self) -> bool {
        true
    }

    /// Whether [`finish`](Self::finish) can make a source finite.
    fn finite(&self) -> bool {
        false
    }

    /// Tells the broker that nothing more comes to a source.
    async fn finish(&self, _source: &Subscription) {}

    /// The runtime of one case.
    ///
    /// # Errors
    /// When the system gives no threads.
    fn runtime(&self) -> io::Result<Runtime> {
        Builder::new_multi_thread().worker_threads(2).enable_all().build()
    }
}

/// A dead letter as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parked {
    /// The message, with the body that it had.
    pub message: Message,
    /// The word of its [`RejectReason`](crate::RejectReason).
    pub reason: String,
}

/// What a broker may be unable to carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carried {
    /// A body that is not UTF-8.
    BinaryBody,
    /// A body of no bytes.
    EmptyBody,
    /// No body, as something else than an empty one.
    NullBody,
    /// Headers with a text value.
    Headers,
    /// Several headers of one name.
    RepeatedHeaders,
    /// A header value that is not UTF-8.
    BinaryHeaders,
    /// A header without a value, as something else than an empty one.
    NullHeaders,
    /// A record key.
    RecordKey,
}

/// A way to disturb a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disruption {
    /// Connections break; the server stays.
    CutConnection,
    /// The server goes away and comes back with what it had stored.
    RestartServer,
    /// What was assigned to one consumer is assigned to another.
    Rebalance,
    /// The server stops answering and later goes on.
    Freeze,
    /// The place for dead letters is gone until [`BrokerHarness::restore`].
    LoseDeadLetters,
}

/// Whether a disruption took place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Supported {
    /// It did.
    Yes,
    /// It did not, and why. A case that needs it fails then: [`BrokerHarness::supports`] promised it.
    No(String),
}

/// A way to set an adapter up wrongly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misuse {
    /// The server is right, the credential is wrong.
    WrongPassword,
    /// Nobody listens at the address.
    RefusedConnection,
}

/// The kit as tests named `<prefix>::<case>`, for `libtest_mimic::run`.
///
/// Cases run side by side, except those that disrupt the broker: they wait until they are alone.
pub fn trials(harness: Arc<dyn BrokerHarness>, prefix: &str) -> Vec<Trial> {
    let quiet = Arc::new(RwLock::new(()));
    cases()
        .map(|case| {
            let name = format!("{prefix}::{}", case.name);
            match missing(&*harness, case) {
                // Runs to nothing, also when ignored tests are asked for.
                Some(reason) => Trial::ignorable_test(name, move || Ok(Completion::ignored_with(reason))),
                None => {
                    let harness = Arc::clone(&harness);
                    let quiet = Arc::clone(&quiet);
                    Trial::test(name, move || {
                        // The lock guards no data, so a case that panicked under it left nothing broken.
                        if case.disrupts() {
                            let _alone = quiet.write().unwrap_or_else(PoisonError::into_inner);
                            Ok(run(&harness, case)?)
                        } else {
                            let _beside_others = quiet.read().unwrap_or_else(PoisonError::into_inner);
                            Ok(run(&harness, case)?)
                        }
                    })
                }
            }
        })
        .collect()
}

/// The names of all cases.
pub fn case_names() -> impl Iterator<Item = &'static str> {
    cases().map(|case| case.name)
}

/// Why a case does not apply to that harness; `None` when it does, or when there is no such case.
pub fn not_applicable(harness: &dyn BrokerHarness, name: &str) -> Option<String> {
    missing(harness, cases().find(|case| case.name == name)?)
}

/// Runs one case. Must not be called from within a runtime.
///
/// # Errors
/// What the case found wrong, or why it could not be run.
pub fn run_case(harness: &Arc<dyn BrokerHarness>, name: &str) -> Result<(), String> {
    let case = cases().find(|case| case.name == name).ok_or_else(|| format!("there is no case {name}"))?;
    match missing(&**harness, case) {
        Some(reason) => Err(format!("not applicable: {reason}")),
        None => run(harness, case),
    }
}

fn run(harness: &Arc<dyn BrokerHarness>, case: &'static Case) -> Result<(), String> {
    let runtime = harness.runtime().map_err(|error| format!("no runtime: {error}"))?;
    let harness = Arc::clone(harness);
    let outcome = runtime.block_on(async {
        let stand = Stand::open(harness, case.name).await;
        // Each wait has its own deadline; this one is for an adapter whose own calls hang.
        let limit = stand.patience() * 20;
        tokio::time::timeout(limit, (case.run)(stand))
            .await
            .unwrap_or_else(|_| Err(format!("not finished after {limit:?}")))
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
    outcome
}

fn cases() -> impl Iterator<Item = &'static Case> {
    [delivery::CASES, settlement::CASES, ordering::CASES, shutdown::CASES, outage::CASES]
        .into_iter()
        .flatten()
}

/// One promise of the contract.
struct Case {
    name: &'static str,
    /// Without all of these the case does not apply.
    needs: &'static [Need],
    run: fn(Stand) -> Verdict,
}

impl Case {
    fn disrupts(&self) -> bool {
        self.needs.iter().any(|need| matches!(need, Need::Disruption(_)))
    }
}

type Verdict = Pin<Box<dyn Future<Output = Result<(), String>>>>;

/// What a case cannot do without.
#[derive(Debug, Clone, Copy)]
enum Need {
    Carries(Carried),
    Disruption(Disruption),
    Misuse(Misuse),
    Order,
    DeadLetters,
    Delay,
    Lease,
    RenewableLease,
    StablePosition,
    Finite,
    Sharing,
}

fn missing(harness: &dyn BrokerHarness, case: &Case) -> Option<String> {
    let can = harness.broker().capabilities();
    let unmet = |need: &&Need| match **need {
        Need::Carries(what) => !harness.carries(what),
        Need::Disruption(how) => !harness.supports(how),
        Need::Misuse(how) => harness.misconfigured(how).is_none(),
        Need::Order => can.ordering == Ordering::None,
        Need::DeadLetters => can.dead_letters == DeadLetters::Dropped,
        Need::Delay => can.delay.max.is_zero(),
        Need::Lease => can.lease == Lease::Unlimited,
        Need::RenewableLease => !matches!(can.lease, Lease::Renewable(_)),
        Need::StablePosition => !can.stable_position,
        Need::Finite => !harness.finite(),
        Need::Sharing => !harness.shares_sources(),
    };
    case.needs.iter().find(unmet).map(|need| match need {
        Need::Carries(what) => format!("the broker does not carry {what:?}"),
        Need::Disruption(how) => format!("the harness cannot do {how:?}"),
        Need::Misuse(how) => format!("the harness has no adapter set up for {how:?}"),
        Need::Order => "the broker keeps no order".into(),
        Need::DeadLetters => "the broker keeps no dead letters".into(),
        Need::Delay => "the broker knows no delay".into(),
        Need::Lease => "the broker has no lease".into(),
        Need::RenewableLease => "the broker has no lease that can be extended".into(),
        Need::StablePosition => "the broker's positions do not name a message for good".into(),
        Need::Finite => "sources of this broker have no end".into(),
        Need::Sharing => "one consumer reads a source at a time".into(),
    })
}

/// A table entry: the function's name is the case's name.
macro_rules! case {
    ($run:ident $(, $need:expr)* $(,)?) => {
        $crate::conformance::Case { name: stringify!($run), needs: &[$($need),*], run: |stand| Box::pin($run(stand)) }
    };
}
use case;
