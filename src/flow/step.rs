//! What a step is, and what it is given.

use std::fmt;
use std::sync::Arc;

use ackord_broker::Message;
use async_trait::async_trait;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::classify::StepError;
use crate::key::IdempotencyKey;

/// One step of a flow: the code that has an effect.
///
/// # The usual mistake
/// Keeping state in the step between calls and relying on it: a step may be run by another process next time.
#[async_trait]
pub trait Step: Send + Sync + fmt::Debug {
    /// Runs the step once. `Ok` means that it took effect; its value is kept on record.
    ///
    /// # Errors
    /// The error's verdict decides what follows, see [`Verdict`](crate::classify::Verdict).
    async fn run(&self, cx: &StepContext) -> Result<Value, StepError>;
}

#[async_trait]
impl<S: Step + ?Sized> Step for Arc<S> {
    async fn run(&self, cx: &StepContext) -> Result<Value, StepError> {
        (**self).run(cx).await
    }
}

/// What a step is given. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StepContext {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    message: Arc<Message>,
    flow: Arc<str>,
    step: Arc<str>,
    key: IdempotencyKey,
    attempt: u32,
    max_attempts: u32,
    outputs: Outputs,
    lost: CancellationToken,
}

/// The outputs of the steps before, in order, by name.
pub type Outputs = Arc<Vec<(Arc<str>, Value)>>;

/// The parts of a [`StepContext`]; what the worker knows when it starts a step, and what a test makes up.
#[derive(Debug)]
pub struct StepCall {
    /// The message.
    pub message: Arc<Message>,
    /// The flow's name.
    pub flow: Arc<str>,
    /// The step's name.
    pub step: Arc<str>,
    /// The key under which this step's outcome is kept; the same on each try, so fit to be sent downstream.
    pub key: IdempotencyKey,
    /// 1 for the first try.
    pub attempt: u32,
    /// How many tries the flow allows.
    pub max_attempts: u32,
    /// The outputs of the steps before.
    pub outputs: Outputs,
    /// Cancelled when the claim or the broker's lease is lost.
    pub lost: CancellationToken,
}

impl From<StepCall> for StepContext {
    fn from(call: StepCall) -> Self {
        let StepCall { message, flow, step, key, attempt, max_attempts, outputs, lost } = call;
        Self { inner: Arc::new(Inner { message, flow, step, key, attempt, max_attempts, outputs, lost }) }
    }
}

impl StepContext {
    /// The message.
    pub fn message(&self) -> &Message {
        &self.inner.message
    }

    /// The flow's name.
    pub fn flow(&self) -> &str {
        &self.inner.flow
    }

    /// The step's name.
    pub fn step(&self) -> &str {
        &self.inner.step
    }

    /// The key under which this step's outcome is kept. It is the same on each try: send it downstream as the
    /// `Idempotency-Key`.
    pub fn key(&self) -> &IdempotencyKey {
        &self.inner.key
    }

    /// 1 for the first try; a lower bound of the tries made, counted in the store.
    pub fn attempt(&self) -> u32 {
        self.inner.attempt
    }

    /// How many tries the flow allows.
    pub fn max_attempts(&self) -> u32 {
        self.inner.max_attempts
    }

    /// The message's body, decoded from JSON.
    ///
    /// # Errors
    /// An [undecodable](StepError::undecodable) error: the message is dead-lettered, nothing is cached.
    pub fn body<T: DeserializeOwned>(&self) -> Result<T, StepError> {
        let body = self.message().body.as_deref().unwrap_or(b"null");
        serde_json::from_slice(body).map_err(StepError::undecodable)
    }

    /// The output of an earlier step, decoded; `None` when no step of that name ran before this one.
    ///
    /// # Errors
    /// When the output has another shape than `T`.
    pub fn output<T: DeserializeOwned>(&self, step: &str) -> Result<Option<T>, StepError> {
        match self.inner.outputs.iter().find(|(name, _)| &**name == step) {
            Some((_, value)) => Ok(Some(T::deserialize(value)?)),
            None => Ok(None),
        }
    }

    /// The outputs of all earlier steps, in order.
    pub fn outputs(&self) -> &[(Arc<str>, Value)] {
        &self.inner.outputs
    }

    /// Cancelled when the right to run was lost (the claim, or the broker's own lease): somebody else may be at it.
    /// What this step still returns is refused by the store.
    pub fn lost(&self) -> &CancellationToken {
        &self.inner.lost
    }
}
