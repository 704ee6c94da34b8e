//! Random sequences of operations must answer as a model of a few lines does.

use bytes::Bytes;
use futures_util::FutureExt;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::super::{ClaimOutcome, ClaimRef, Record, Release, Renewal, StoreError, Token};
use super::cases::case;
use super::{Case, DAY, LEASE, StoreHarness, done, ensure, key, request};

pub(super) const CASES: &[Case] = &[case!(random_sequences_answer_as_the_model_does)];

const KEYS: usize = 3;
const STEPS: usize = 400;

/// What the model knows of a key: the last token, and how things stand.
#[derive(Debug, Clone, Copy, Default)]
struct Model {
    token: Option<Token>,
    held_until: Option<u64>,
    completed: bool,
    attempt: u32,
}

impl Model {
    fn claim(&mut self, token: Token, now: u64) -> &'static str {
        if self.completed {
            return "completed";
        }
        if self.held_until.is_some_and(|until| until > now) {
            return "in progress";
        }
        *self = Self {
            token: Some(token),
            held_until: Some(now + LEASE.as_secs()),
            completed: false,
            attempt: self.attempt + 1,
        };
        "claimed"
    }

    fn holds(&self, token: Token) -> bool {
        self.token == Some(token) && self.held_until.is_some()
    }

    fn complete(&mut self, token: Token) -> bool {
        let mine = self.holds(token) || (self.completed && self.token == Some(token));
        if self.holds(token) {
            (self.completed, self.held_until) = (true, None);
        }
        mine
    }

    fn release(&mut self, token: Token) -> Option<bool> {
        if self.holds(token) {
            self.held_until = None;
            return Some(true);
        }
        // Released before with the same token: a store may answer either way.
        let again = self.token == Some(token) && !self.completed && self.held_until.is_none();
        (!again).then_some(false)
    }
}

async fn random_sequences_answer_as_the_model_does(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    for seed in 0..4u64 {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut models = [Model::default(); KEYS];
        let mut tokens: Vec<(usize, Token)> = Vec::new();
        let mut now = 0;
        for step in 0..STEPS {
            let n = random.random_range(0..KEYS);
            let name = format!("model-{seed}-{n}");
            let at = format!("seed {seed}, step {step}, key {n}");
            let known = tokens.get(random.random_range(0..tokens.len().max(1))).copied();
            match random.random_range(0..10) {
                0..4 => {
                    let request = request(&name);
                    let expected = models[n].claim(request.token, now);
                    tokens.push((n, request.token));
                    let told = done(store.claim(&request).await)?;
                    let word = match &told {
                        ClaimOutcome::Claimed(claim) => {
                            let attempt = models[n].attempt;
                            ensure!(
                                claim.attempt == attempt,
                                "{at}: attempt {} for {attempt}",
                                claim.attempt
                            );
                            "claimed"
                        }
                        ClaimOutcome::Completed(_) => "completed",
                        ClaimOutcome::InProgress { .. } => "in progress",
                        other => return Err(format!("{at}: {other:?}")),
                    };
                    ensure!(word == expected, "{at}: claim was told {word}, the model says {expected}");
                }
                4 | 5 => {
                    let seconds = random.random_range(0..40);
                    now += seconds;
                    harness.pass(std::time::Duration::from_secs(seconds)).await;
                }
                which => {
                    let Some((n, token)) = known else { continue };
                    let held = ClaimRef { key: key(&format!("model-{seed}-{n}")), token };
                    let model = &mut models[n];
                    let (did, expected) = match which {
                        6 => {
                            let record = Record::Succeeded(Bytes::from_static(b"1"));
                            (
                                owned(store.complete(&held, &record, DAY * 365).await)?,
                                Some(model.complete(token)),
                            )
                        }
                        7 => {
                            let expected = model.holds(token);
                            if expected {
                                model.held_until = Some(now + LEASE.as_secs());
                            }
                            let renewed = done(store.renew(std::slice::from_ref(&held), LEASE).await)?;
                            (renewed == [Renewal::Renewed], Some(expected))
                        }
                        _ => {
                            let how = Release { counted: true, started: true, note: None };
                            (owned(store.release(&held, how).await)?, model.release(token))
                        }
                    };
                    ensure!(
                        expected.is_none_or(|expected| did == expected),
                        "{at}: operation {which} on key {n} took: {did}"
                    );
                }
            }
        }
    }
    Ok(())
}

fn owned(result: Result<(), StoreError>) -> Result<bool, String> {
    match result {
        Ok(()) => Ok(true),
        Err(StoreError::LostOwnership { .. }) => Ok(false),
        Err(error) => Err(error.to_string()),
    }
}
