//! Whether the store answers.

use std::sync::Mutex;

use tokio::sync::Notify;

use crate::lock::lock;

/// Whether the store answers, as seen by the last who asked.
#[derive(Debug, Default)]
pub(crate) struct StoreHealth {
    state: Mutex<Health>,
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

    pub(crate) fn set(&self, health: Health) {
        let mut state = lock(&self.state);
        if *state != health {
            match &health {
                Health::Well => tracing::info!("the store answers again"),
                Health::Away(error) => tracing::error!(error, "the store is away: intake paused"),
                Health::Refuses(error) => tracing::error!(error, "the store refuses"),
            }
            *state = health;
            drop(state);
            self.changed.notify_waiters();
        }
    }
}
