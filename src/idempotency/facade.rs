//! The reference's store interface, in exactly its words, over any store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;

use super::admin::StoreAdmin;
use super::{
    ClaimOutcome, ClaimRef, ClaimRequest, EntryState, IdempotencyStore, Record, Release, StoreError, Token,
};
use crate::fingerprint::Fingerprint;
use crate::key::IdempotencyKey;
use crate::lock::lock;

/// The reference's default for how long a claim and a result live.
pub const DEFAULT_TTL: Duration = Duration::from_secs(24 * 3600);

/// `claim`, `complete`, `fail`, `get`: for people who know the reference and want nothing else.
///
/// One number, `ttl`, is both how long a claim lives and how long its result answers. What the reference does blindly is
/// fenced here: only the claimer of a key can complete it or give it back. Two that claimed one key one after the other
/// through two facades are told apart.
#[derive(Debug)]
pub struct PlainStore<S> {
    store: Arc<S>,
    owner: Arc<str>,
    tokens: Mutex<HashMap<IdempotencyKey, Token>>,
}

/// The three states of the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimState {
    /// The key is yours: go ahead.
    Claimed,
    /// It was done before: [`PlainStore::get_result`] has the result.
    Completed,
    /// Somebody else is at it.
    InProgress,
}

impl<S: IdempotencyStore> PlainStore<S> {
    /// A facade over that store; `owner` names it to people.
    pub fn new(store: Arc<S>, owner: impl Into<Arc<str>>) -> Self {
        Self { store, owner: owner.into(), tokens: Mutex::default() }
    }

    /// Asks for the right to run; `None` = [`DEFAULT_TTL`].
    ///
    /// # Errors
    /// As [`IdempotencyStore::claim`]. A key in doubt is told as in progress: nobody may run it.
    pub async fn claim(&self, key: &IdempotencyKey, ttl: Option<Duration>) -> Result<ClaimState, StoreError> {
        let ttl = ttl.unwrap_or(DEFAULT_TTL);
        let request = ClaimRequest {
            key: key.clone(),
            token: Token::random(),
            // The reference knows no fingerprint: equal keys are equal requests.
            fingerprint: Fingerprint::of_parts([]),
            owner: Arc::clone(&self.owner),
            lease: ttl,
            retention: ttl,
            starts: true,
        };
        match self.store.claim(&request).await? {
            ClaimOutcome::Claimed(claim) => {
                self.tokens().insert(key.clone(), claim.held.token);
                Ok(ClaimState::Claimed)
            }
            ClaimOutcome::Completed(_) => Ok(ClaimState::Completed),
            ClaimOutcome::InProgress { .. } | ClaimOutcome::InDoubt { .. } | ClaimOutcome::Mismatch => {
                Ok(ClaimState::InProgress)
            }
        }
    }

    /// Puts the result on record for `ttl`, counted from now; `None` = [`DEFAULT_TTL`].
    ///
    /// # Errors
    /// As [`IdempotencyStore::complete`]: [`StoreError::LostOwnership`] when this facade does not hold the key.
    pub async fn complete(
        &self,
        key: &IdempotencyKey,
        result: &Value,
        ttl: Option<Duration>,
    ) -> Result<(), StoreError> {
        let held = self.held(key)?;
        let record = Record::Succeeded(Bytes::from(result.to_string()));
        self.store.complete(&held, &record, ttl.unwrap_or(DEFAULT_TTL)).await
    }

    /// Gives the key back, so that it can be tried again at once. A completed key stays completed.
    ///
    /// # Errors
    /// As [`IdempotencyStore::release`], but a key that this facade does not hold is left alone and is no error.
    pub async fn fail(&self, key: &IdempotencyKey, error: &str) -> Result<(), StoreError> {
        let Ok(held) = self.held(key) else { return Ok(()) };
        let how = Release { counted: true, started: true, note: Some(error.to_owned()) };
        match self.store.release(&held, how).await {
            Err(StoreError::LostOwnership { .. }) => Ok(()),
            done => done,
        }
    }

    /// The same as [`get_result`](PlainStore::get_result).
    ///
    /// # Errors
    /// As [`IdempotencyStore::get`].
    pub async fn get(&self, key: &IdempotencyKey) -> Result<Option<Value>, StoreError> {
        self.get_result(key).await
    }

    /// The result on record; `None` when the key is free, in progress, forgotten, or its result cannot be read.
    ///
    /// # Errors
    /// As [`IdempotencyStore::get`].
    pub async fn get_result(&self, key: &IdempotencyKey) -> Result<Option<Value>, StoreError> {
        let entry = match self.store.get(key).await {
            Err(StoreError::Unreadable { .. }) => None,
            entry => entry?,
        };
        Ok(match entry.map(|entry| entry.state) {
            Some(EntryState::Completed(Record::Succeeded(body))) => serde_json::from_slice(&body).ok(),
            Some(EntryState::Completed(Record::Declined(decline))) => {
                Some(serde_json::json!({ "error": decline.code }))
            }
            Some(EntryState::Completed(Record::SucceededWithoutBody(_))) => Some(Value::Null),
            _ => None,
        })
    }

    fn held(&self, key: &IdempotencyKey) -> Result<ClaimRef, StoreError> {
        let token = self.tokens().get(key).copied();
        let token = token.ok_or_else(|| StoreError::LostOwnership { key: key.clone() })?;
        Ok(ClaimRef { key: key.clone(), token })
    }

    fn tokens(&self) -> std::sync::MutexGuard<'_, HashMap<IdempotencyKey, Token>> {
        lock(&self.tokens)
    }
}

impl<S: IdempotencyStore + StoreAdmin> PlainStore<S> {
    /// Forgets everything; for stores in this process only.
    ///
    /// # Errors
    /// As [`StoreAdmin::clear`].
    pub async fn clear(&self) -> Result<(), StoreError> {
        self.tokens().clear();
        self.store.clear().await
    }
}
