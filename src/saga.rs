//! A thin wrapper for saga orchestrators: each step of a saga runs once under `saga:<saga id>:<step>`.

use std::future::Future;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::classify::StepError;
use crate::fingerprint::Fingerprint;
use crate::guard::{Call, End, StepGuard, Terms};
use crate::key::step_idempotency_key;
use crate::outcome::{Failure, Outcome};

/// Whether the guard stands before a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// It does.
    #[default]
    Auto,
    /// The step sees to it itself: its function is called, and the guard is not asked.
    Manual,
}

/// Composes a [`StepGuard`]; it is not one, and knows nothing of fingerprints or leases.
#[derive(Debug)]
pub struct SagaGuard {
    guard: StepGuard,
    terms: Terms,
}

/// Why a saga's step has no outcome to go on with.
#[derive(Debug, thiserror::Error)]
pub enum SagaError {
    /// An earlier call of the step is still at it, alive: let it finish, do not call again.
    #[error("the step {step} of saga {saga} is being run by somebody else")]
    Conflict {
        /// The saga.
        saga: String,
        /// The step.
        step: String,
    },
    /// The step declined, now or before.
    #[error("declined: {0}")]
    Declined(String),
    /// It failed, and may be called again.
    #[error("failed: {0}")]
    Failed(String),
    /// It may have taken effect; a person must look.
    #[error("in doubt: {0}")]
    InDoubt(String),
    /// The step's key, its record or the store cannot be used.
    #[error("{0}")]
    Unusable(String),
}

impl SagaGuard {
    /// A wrapper over that guard, on default terms.
    pub fn new(guard: StepGuard) -> Self {
        Self { guard, terms: Terms::default() }
    }

    /// The same with other terms.
    #[must_use]
    pub fn with_terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }

    /// Runs a step once: answers from the record when it was run before, and never runs beside another call of it.
    ///
    /// # Errors
    /// [`SagaError`]; after [`SagaError::Failed`] the next call runs the step again.
    pub async fn run<T, F, Fut>(&self, saga_id: &str, step: &str, mode: Mode, f: F) -> Result<T, SagaError>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce() -> Fut + Send,
        Fut: Future<Output = Result<T, StepError>> + Send,
    {
        if mode == Mode::Manual {
            return f().await.map_err(|error| SagaError::Failed(error.summary()));
        }
        let key =
            step_idempotency_key(saga_id, step).map_err(|blank| SagaError::Unusable(blank.to_string()))?;
        let fingerprint = Fingerprint::of_parts([saga_id.as_bytes(), step.as_bytes()]);
        let action = |_| async {
            let output = f().await.map_err(End::Error)?;
            serde_json::to_value(output)
                .map_err(|error| End::Error(StepError::done_without_result(error.to_string())))
        };
        match self.guard.run(Call::new(&key, fingerprint, &self.terms), action).await {
            Outcome::Done { value, .. } => serde_json::from_value(value)
                .map_err(|error| SagaError::Unusable(format!("its result: {error}"))),
            Outcome::Busy { .. } | Outcome::LostOwnership => {
                Err(SagaError::Conflict { saga: saga_id.to_owned(), step: step.to_owned() })
            }
            outcome @ Outcome::Declined { .. } => Err(SagaError::Declined(outcome.error())),
            outcome @ (Outcome::Parked { .. } | Outcome::Failed { kind: Failure::InDoubt, .. }) => {
                Err(SagaError::InDoubt(outcome.error()))
            }
            outcome @ Outcome::Failed { .. } => Err(SagaError::Failed(outcome.error())),
            outcome => Err(SagaError::Unusable(outcome.error())),
        }
    }
}
