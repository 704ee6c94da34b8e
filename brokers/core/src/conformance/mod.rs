//! The broker conformance kit: what every adapter must do, as named cases, with lying adapters that it must catch.
//!
//! An adapter's test is a binary without a harness that gives [`trials`] to `libtest_mimic::run`. A case that needs what the
//! broker cannot do is shown as ignored with the reason, never as passed.

mod delivery;
pub mod faulty;
mod ordering;
mod outage;
mod settlement;
mod shutdown;

use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use libtest_mimic::Trial;

use crate::{
    Broker, BrokerError, Consumer, Delivery, Disposition, Lease, Message, Ordering, Redelivery, Subscription,
};

/// What the kit needs to know of, and do to, a broker. Publishing and looking go past the adapter.
#[async_trait]
pub trait BrokerHarness: Send + Sync {
    /// The adapter.
    fn broker(&self) -> Arc<dyn Broker>;
    /// A source that nobody has used.
    async fn fresh_source(&self, case: &str) -> Subscription;
    /// Sends messages to a source, in order.
    async fn publish(&self, to: &Subscription, messages: Vec<Message>);
    /// What was kept aside from a source, with its reason.
    async fn parked(&self, of: &Subscription) -> Vec<(Message, String)>;
    /// Whether [`disrupt`](BrokerHarness::disrupt) can do that.
    fn can(&self, how: Disruption) -> bool;
    /// Disturbs the broker. Called only when [`can`](BrokerHarness::can) says so.
    async fn disrupt(&self, source: &Subscription, how: Disruption);
    /// An adapter that is set up wrong in that way; `None` when there is no such thing.
    fn misconfigured(&self, how: Mistake) -> Option<Arc<dyn Broker>>;
    /// Whether two consumers may read one source at once.
    fn shares_sources(&self) -> bool;
    /// How long to wait for what must come.
    fn within(&self) -> Duration;
}

/// What can be done to a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disruption {
    /// Cut the connection once.
    CutConnection,
    /// Stop the server and start it again.
    RestartServer,
    /// Make dead letters impossible.
    LoseDeadLetters,
    /// Make dead letters possible again.
    RestoreDeadLetters,
}

/// How an adapter can be set up wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// A credential or an address that will never be right.
    Refused,
    /// Nobody listens there, yet.
    NobodyListens,
}

type Run = for<'a> fn(&'a Stage<'a>) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;
type Needs = fn(&dyn BrokerHarness) -> Result<(), &'static str>;

struct Case {
    name: &'static str,
    needs: Needs,
    run: Run,
}

macro_rules! case {
    ($name:ident) => {
        case!($name, |_| Ok(()))
    };
    ($name:ident, $needs:expr) => {
        Case { name: stringify!($name), needs: $needs, run: |stage| Box::pin($name(stage)) }
    };
}
use case;

/// Ends the case with a sentence unless it holds.
macro_rules! ensure {
    ($holds:expr, $($text:tt)*) => {
        if !$holds {
            return Err(format!($($text)*));
        }
    };
}
use ensure;

fn all() -> impl Iterator<Item = &'static Case> {
    let groups = [delivery::CASES, settlement::CASES, ordering::CASES, shutdown::CASES, outage::CASES];
    groups.into_iter().flatten()
}

/// The names of the cases that the broker can be held to.
pub fn case_names(harness: &dyn BrokerHarness) -> Vec<&'static str> {
    all().filter(|case| (case.needs)(harness).is_ok()).map(|case| case.name).collect()
}

/// Every case as a test; nothing is done yet.
pub fn trials(prefix: &str, harness: &Arc<dyn BrokerHarness>) -> Vec<Trial> {
    all()
        .map(|case| {
            let missing = (case.needs)(&**harness).err();
            let reason = missing.map(|why| format!(" ({why})")).unwrap_or_default();
            let harness = Arc::clone(harness);
            let run = move || run(case, &*harness).map_err(Into::into);
            Trial::test(format!("{prefix}::{}{reason}", case.name), run).with_ignored_flag(missing.is_some())
        })
        .collect()
}

/// Runs one case by name.
///
/// # Errors
/// What the case found, or that there is no such case.
pub fn run_case(harness: &dyn BrokerHarness, name: &str) -> Result<(), String> {
    let case = all().find(|case| case.name == name).ok_or_else(|| format!("there is no case {name}"))?;
    run(case, harness)
}

fn run(case: &Case, harness: &dyn BrokerHarness) -> Result<(), String> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().enable_io().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let ended = runtime.block_on(async {
        let source = harness.fresh_source(case.name).await;
        (case.run)(&Stage { harness, source }).await
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

/// A case's own source, and what cases do again and again.
struct Stage<'a> {
    harness: &'a dyn BrokerHarness,
    source: Subscription,
}

const ONE: NonZeroUsize = NonZeroUsize::MIN;

impl Stage<'_> {
    async fn publish(&self, ids: &[&str]) {
        self.harness.publish(&self.source, ids.iter().map(|id| message(id)).collect()).await;
    }

    async fn subscribe(&self) -> Result<Box<dyn Consumer>, String> {
        self.harness.broker().subscribe(&self.source).await.map_err(|error| told(&error))
    }

    async fn next(&self, consumer: &mut dyn Consumer) -> Result<Delivery, String> {
        let mut got = self.up_to(consumer, ONE).await?;
        got.pop().ok_or_else(|| "`receive` gave nothing".to_owned())
    }

    async fn up_to(&self, consumer: &mut dyn Consumer, max: NonZeroUsize) -> Result<Vec<Delivery>, String> {
        match tokio::time::timeout(self.harness.within(), consumer.receive(max)).await {
            Ok(Ok(deliveries)) => Ok(deliveries),
            Ok(Err(error)) => Err(told(&error)),
            Err(_) => Err("nothing came in time".to_owned()),
        }
    }

    async fn take(&self, consumer: &mut dyn Consumer, count: usize) -> Result<Vec<Delivery>, String> {
        let mut taken = Vec::new();
        while taken.len() < count {
            taken.push(self.next(consumer).await?);
        }
        Ok(taken)
    }

    /// Publishes a marker and takes it: whatever should not come would have come before it.
    async fn marker_is_next(&self, consumer: &mut dyn Consumer, name: &str) -> Result<(), String> {
        self.publish(&[name]).await;
        let next = self.next(consumer).await?;
        ensure!(id(&next) == name, "{} came where only {name} should", id(&next));
        settle(next, Disposition::Ack).await
    }

    fn lease(&self) -> Option<Duration> {
        match self.harness.broker().capabilities().lease {
            Lease::Unlimited => None,
            Lease::Renewable(lease) | Lease::Fixed(lease) => Some(lease),
        }
    }
}

fn message(id: &str) -> Message {
    Message::new(id, Bytes::from(format!("{{\"id\":\"{id}\"}}")))
}

fn id(delivery: &Delivery) -> String {
    delivery.message().id.to_string()
}

async fn settle(delivery: Delivery, disposition: Disposition) -> Result<(), String> {
    delivery.settle(disposition).await.map_err(|error| error.to_string())
}

fn told(error: &BrokerError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

fn needs_order(harness: &dyn BrokerHarness) -> Result<(), &'static str> {
    let ordered = harness.broker().capabilities().ordering != Ordering::None;
    if ordered { Ok(()) } else { Err("the broker keeps no order") }
}

fn needs_renewable_lease(harness: &dyn BrokerHarness) -> Result<(), &'static str> {
    let renewable = matches!(harness.broker().capabilities().lease, Lease::Renewable(_));
    if renewable { Ok(()) } else { Err("the broker's lease cannot be extended") }
}

fn needs_lease(harness: &dyn BrokerHarness) -> Result<(), &'static str> {
    let none = harness.broker().capabilities().lease == Lease::Unlimited;
    if none { Err("the broker knows no lease") } else { Ok(()) }
}

fn needs_redelivery_to_the_same(harness: &dyn BrokerHarness) -> Result<(), &'static str> {
    let on_close = harness.broker().capabilities().redelivery == Redelivery::OnClose;
    if on_close { Err("the broker delivers again only to another consumer") } else { Ok(()) }
}

fn needs_sharing(harness: &dyn BrokerHarness) -> Result<(), &'static str> {
    if harness.shares_sources() { Ok(()) } else { Err("one consumer reads a source at a time") }
}
