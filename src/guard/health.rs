//! Whether the store answers.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use crate::lock::lock;

/// Whether the store answers, as seen by the last who asked.
#[derive(Debug, Default)]
pub(crate) struct StoreHealth {
    state: Mutex<Health>,
    /// Whether `state` is anything but well, so that the usual case takes no lock.
    ill: AtomicBool,
    pub(crate) changed: Notify,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Health {
    #[default]
    Well,
    /// It may come back by itself.
    Away(String),
    /// A person must do something.
    Refuses(String),
}

impl StoreHealth {
    pub(crate) fn get(&self) -> Health {
        lock(&self.state).clone()
    }

    pub(crate) fn is_well(&self) -> bool {
        !self.ill.load(Ordering::Acquire)
    }

    /// The store has answered.
    pub(crate) fn answered(&self) {
        if !self.is_well() {
            self.set(Health::Well);
        }
    }

    pub(crate) fn set(&self, health: Health) {
        let mut state = lock(&self.state);
        if *state != health {
            match &health {
                Health::Well => tracing::info!("the store answers again"),
                Health::Away(error) => tracing::error!(error, "the store is away: intake paused"),
                Health::Refuses(error) => tracing::error!(error, "the store refuses"),
            }
            self.ill.store(health != Health::Well, Ordering::Release);
            *state = health;
            drop(state);
            self.changed.notify_waiters();
        }
    }
}
