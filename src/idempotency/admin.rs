//! What operators do to a store, beside and below the guard.

use async_trait::async_trait;

use super::{Entry, StoreError};
use crate::key::IdempotencyKey;

/// A store that operators can look into and mend. Never used on the path of a message.
#[async_trait]
pub trait StoreAdmin: Send + Sync {
    /// Up to `limit` keys that start with `prefix`, in order of their bytes, strictly after `after`.
    ///
    /// # Errors
    /// As [`claim`](super::IdempotencyStore::claim).
    async fn list(
        &self,
        prefix: &str,
        after: Option<&IdempotencyKey>,
        limit: usize,
    ) -> Result<Vec<(IdempotencyKey, Entry)>, StoreError>;

    /// Frees a key that is in doubt, or whose claim has expired; the attempt number stays. `false` when the key is in
    /// any other state: a living claim is never taken away, an outcome never erased.
    ///
    /// # Errors
    /// As [`claim`](super::IdempotencyStore::claim).
    async fn release_if_dead(&self, key: &IdempotencyKey) -> Result<bool, StoreError>;

    /// Forgets a key, whatever its state; a step that is running loses its claim. `false` when there was none.
    ///
    /// # Errors
    /// As [`claim`](super::IdempotencyStore::claim).
    async fn forget(&self, key: &IdempotencyKey) -> Result<bool, StoreError>;

    /// Forgets what is past its retention; how many keys that were.
    ///
    /// # Errors
    /// As [`claim`](super::IdempotencyStore::claim).
    async fn purge(&self) -> Result<u64, StoreError>;

    /// Forgets everything. The reference offers it for its in-memory store; so only the memory and the SQLite
    /// store do it, others answer [`StoreError::Refused`].
    ///
    /// # Errors
    /// As [`claim`](super::IdempotencyStore::claim).
    async fn clear(&self) -> Result<(), StoreError>;

    /// How many keys there are, by state.
    ///
    /// # Errors
    /// As [`claim`](super::IdempotencyStore::claim).
    async fn stats(&self) -> Result<Stats, StoreError>;
}

/// Keys by state; those past their retention are not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Claimed, alive or expired.
    pub in_progress: u64,
    /// Free, with a history.
    pub released: u64,
    /// Completed with a success.
    pub succeeded: u64,
    /// Completed with a decline.
    pub declined: u64,
    /// In doubt.
    pub in_doubt: u64,
}
