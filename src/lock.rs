//! The lock that all shared state of this crate is behind.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks. Nothing in this crate panics while it holds such a lock, so a poisoned one still guards sound data.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
