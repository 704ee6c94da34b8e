//! What is guarded, and on which terms.

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::classify::StepError;
use crate::fingerprint::Fingerprint;
use crate::key::IdempotencyKey;
use crate::outcome::Outcome;
use crate::turn::Turn;

/// How a step is guarded. Durations and sizes have safe defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// How long a claim lives without a sign of life; renewed at a third. Default 30 s.
    pub lease: Duration,
    /// How long a success answers, counted from its completion. Default 24 h.
    pub retention: Duration,
    /// How long a decline answers. Default 24 h.
    pub decline_retention: Duration,
    /// The largest result that is kept, in bytes. Default 256 KiB.
    pub result_cap: usize,
    /// Whether and how long to wait while somebody else is at it. Default: not.
    pub wait: WaitPolicy,
    /// What to do when it is unknown whether the step took effect. Default: run it again with the same key.
    pub in_doubt: InDoubt,
    /// After this many runs that started and never ended the message is kept aside. Default 3.
    pub max_crashes: u32,
    /// Whether the action's result is kept under the claim before the hooks run, so that a failing hook does not
    /// repeat the action. One store call more. Default: not.
    pub recovery_point: bool,
}

impl Default for Terms {
    fn default() -> Self {
        let day = Duration::from_secs(24 * 3600);
        Self {
            lease: Duration::from_secs(30),
            retention: day,
            decline_retention: day,
            result_cap: 256 * 1024,
            wait: WaitPolicy::default(),
            in_doubt: InDoubt::default(),
            max_crashes: 3,
            recovery_point: false,
        }
    }
}

/// Whether and how long to wait for somebody else's claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitPolicy {
    /// The longest wait; zero = do not wait.
    pub timeout: Duration,
    /// The time between two looks, growing with jitter. Longer than `timeout` means one last look at the deadline.
    pub poll_interval: Duration,
}

impl Default for WaitPolicy {
    fn default() -> Self {
        Self { timeout: Duration::ZERO, poll_interval: Duration::from_millis(50) }
    }
}

/// What to do when it is unknown whether a step took effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InDoubt {
    /// Run it again, with the same key downstream.
    #[default]
    Rerun,
    /// Ask the step's reconciler whether it took effect.
    Reconcile,
    /// Keep the message aside and the key in doubt, for a person to look.
    Park,
}

/// What a reconciler found out.
#[derive(Debug, Clone, PartialEq)]
pub enum Reconciled {
    /// It took effect, with this result.
    Happened(Value),
    /// It did not: run it.
    NotHappened,
}

/// Whether the guarded thing has effects itself, or is made of steps that are guarded in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// A step with an effect: taking over its claim leaves a doubt.
    Step,
    /// A flow of guarded steps: taking it over leaves none.
    Flow,
}

/// What the action is given.
#[derive(Debug, Clone)]
pub struct Grant {
    /// 1 for the first try.
    pub attempt: u32,
    /// Cancelled when the claim, or the broker's lease, is lost.
    pub lost: CancellationToken,
}

/// How an action ends short of a value.
#[derive(Debug)]
pub enum End {
    /// The step failed or declined.
    Error(StepError),
    /// A guarded step inside ended like that.
    Inner(Outcome),
}

impl From<StepError> for End {
    fn from(error: StepError) -> Self {
        Self::Error(error)
    }
}

/// Runs after an action.
pub type Hook<'a> =
    &'a (dyn Fn(Value, Grant) -> BoxFuture<'static, Result<(), StepError>> + Send + Sync + 'a);
/// Finds out whether an action took effect.
pub type Reconciler<'a> =
    &'a (dyn Fn(Grant) -> BoxFuture<'static, Result<Reconciled, StepError>> + Send + Sync + 'a);

/// One thing to be guarded.
pub struct Call<'a> {
    /// Its key, computed once.
    pub key: &'a IdempotencyKey,
    /// What "the same request" means.
    pub fingerprint: Fingerprint,
    /// Step or flow.
    pub level: Level,
    /// The terms.
    pub terms: &'a Terms,
    /// Runs after the action and before the record is completed.
    pub on_after: Option<Hook<'a>>,
    /// Finds out whether it took effect.
    pub reconcile: Option<Reconciler<'a>>,
    /// Cancelled, beside the claim's own loss, when this is.
    pub lost: CancellationToken,
    pub(crate) turn: Option<&'a Turn>,
}

impl<'a> Call<'a> {
    /// A step under that key, with those terms and nothing else.
    pub fn new(key: &'a IdempotencyKey, fingerprint: Fingerprint, terms: &'a Terms) -> Self {
        Self {
            key,
            fingerprint,
            level: Level::Step,
            terms,
            on_after: None,
            reconcile: None,
            lost: CancellationToken::new(),
            turn: None,
        }
    }

    /// Runs that after the action and before the record is completed.
    #[must_use]
    pub fn on_after(mut self, hook: Hook<'a>) -> Self {
        self.on_after = Some(hook);
        self
    }

    /// Asks that when it is unknown whether it took effect.
    #[must_use]
    pub fn reconcile(mut self, reconcile: Reconciler<'a>) -> Self {
        self.reconcile = Some(reconcile);
        self
    }
}

impl std::fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("key", self.key).field("level", &self.level).finish_non_exhaustive()
    }
}
