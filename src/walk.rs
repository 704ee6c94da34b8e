//! A message's way through the steps of its flow, each behind the guard.

use std::sync::Arc;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::classify::StepError;
use crate::fingerprint::Fingerprint;
use crate::flow::shape::Effect;
use crate::flow::step::Outputs;
use crate::flow::{Flow, Keying, StepCall, StepContext, StepDef};
use crate::guard::{Call, End, Grant, Level};
use crate::key::{IdempotencyKey, Scope, step_in_flow};
use crate::outcome::Outcome;
use crate::turn::Turn;
use crate::worker::Engine;

/// One run of a flow for one effect of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Walk<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) flow: &'a Flow,
    pub(crate) effect: &'a Effect,
    pub(crate) turn: &'a Turn,
    pub(crate) lost: &'a CancellationToken,
}

impl<'a> Walk<'a> {
    /// Runs the flow. A flow of one step has one record, any other has one for itself and one for each step.
    pub(crate) async fn run(&self) -> Outcome {
        if self.flow.has_one_record() {
            return self
                .guarded(&self.flow.steps[0], &self.effect.key, self.effect.fingerprint, &Outputs::default())
                .await;
        }
        let call = Call {
            level: Level::Flow,
            lost: self.lost.clone(),
            turn: Some(self.turn),
            ..Call::new(&self.effect.key, self.effect.fingerprint, &self.flow.terms)
        };
        Box::pin(self.engine.guard.run(call, |_| self.steps())).await
    }

    async fn steps(&self) -> Result<Value, End> {
        let mut outputs = Outputs::default();
        for step in &self.flow.steps {
            let value = self.step(step, &outputs).await?;
            // The context of an earlier step may still be alive somewhere; then this copies.
            Arc::make_mut(&mut outputs).push((Arc::clone(&step.name), value));
        }
        // The flow's output is that of its last step.
        Ok(Arc::make_mut(&mut outputs).pop().map_or(Value::Null, |(_, value)| value))
    }

    async fn step(&self, step: &StepDef, outputs: &Outputs) -> Result<Value, End> {
        let (key, fingerprint) = match &step.keying {
            Keying::Manual => return self.unguarded(step, outputs).await,
            Keying::Message => (step_in_flow(&self.effect.key, &step.name), self.effect.fingerprint),
            Keying::Own(template) => {
                let keyless = |why: &dyn std::fmt::Display| {
                    let reason = format!("{}: {why}", step.name);
                    End::Inner(Outcome::Keyless { reason, ignored: false })
                };
                let id = template.fill(&self.effect.view, outputs).map_err(|refused| keyless(&refused))?;
                // Different messages share this effect, so their bodies do not tell it apart.
                let fingerprint = Fingerprint::of_parts([id.as_bytes()]);
                let scope = Scope {
                    namespace: self.effect.namespace.as_deref(),
                    version: self.flow.version.as_deref(),
                };
                let key = IdempotencyKey::for_own_step(&self.flow.name, &step.name, &id, scope);
                (key.map_err(|blank| keyless(&blank))?, fingerprint)
            }
        };
        match self.guarded(step, &key, fingerprint, outputs).await {
            Outcome::Done { value, .. } => Ok(value),
            Outcome::Failed { kind, error, attempt } => {
                let error = format!("{}: {error}", step.name);
                Err(End::Inner(Outcome::Failed { kind, error, attempt }))
            }
            other => Err(End::Inner(other)),
        }
    }

    async fn guarded(
        &self,
        step: &StepDef,
        key: &IdempotencyKey,
        fingerprint: Fingerprint,
        outputs: &Outputs,
    ) -> Outcome {
        let context = |grant: Grant| self.context(step, key, grant, outputs);
        let on_after = step.on_after.as_ref().map(|hook| {
            let context = &context;
            move |value: Value, grant: Grant| (hook.0)(value, context(grant))
        });
        let reconcile = step.reconcile.as_ref().map(|reconcile| {
            let context = &context;
            move |grant: Grant| (reconcile.0)(context(grant))
        });
        let call = Call {
            on_after: on_after.as_ref().map(|hook| hook as _),
            reconcile: reconcile.as_ref().map(|reconcile| reconcile as _),
            lost: self.lost.clone(),
            turn: Some(self.turn),
            ..Call::new(key, fingerprint, &step.terms)
        };
        let action = |grant: Grant| {
            let cx = context(grant);
            async move { Ok(step.action.run(&cx).await?) }
        };
        self.engine.guard.run(call, action).await
    }

    /// A manual step: no claim and no record of its own.
    async fn unguarded(&self, step: &StepDef, outputs: &Outputs) -> Result<Value, End> {
        let grant = Grant { attempt: 1, lost: self.lost.clone() };
        let key = step_in_flow(&self.effect.key, &step.name);
        let cx = self.context(step, &key, grant, outputs);
        let value: Result<Value, StepError> = step.action.run(&cx).await;
        let value = value.map_err(End::Error)?;
        self.turn.judge(Ok(()));
        self.engine.counters.effect();
        Ok(value)
    }

    fn context(&self, step: &StepDef, key: &IdempotencyKey, grant: Grant, outputs: &Outputs) -> StepContext {
        StepContext::from(StepCall {
            message: Arc::clone(&self.effect.message),
            flow: Arc::clone(&self.flow.name),
            step: Arc::clone(&step.name),
            key: key.clone(),
            attempt: grant.attempt,
            max_attempts: self.flow.settings.retry.attempts.get(),
            outputs: Arc::clone(outputs),
            lost: grant.lost,
        })
    }
}
