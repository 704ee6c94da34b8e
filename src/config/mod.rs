//! Configuration: flag over environment over file over default, every fault in one report with its place and its cure.

use std::path::PathBuf;

mod check;
pub mod env;
pub mod fault;
mod load;
mod place;
pub mod raw;
mod read;
mod variable;

pub use fault::{Fault, Faults, Place};
pub use load::Sources;
pub use place::Layers;
pub(crate) use read::{deserialize, unknown_key};

/// A configuration whose shape is valid. What its words mean to adapters and stores is for the
/// [registry](crate::registry) to say.
#[derive(Debug)]
pub struct Config {
    /// `[worker]`.
    pub worker: raw::Worker,
    /// `[log]`.
    pub log: raw::Log,
    /// `[store]`.
    pub store: raw::Store,
    /// `[brokers.<name>]`, in the order of their names.
    pub brokers: Vec<(String, raw::Broker)>,
    /// `[flows.<name>]`, in the order of their names.
    pub flows: Vec<(String, raw::Flow)>,
    /// The folder that relative paths are relative to: that of the file, else the working directory.
    pub folder: PathBuf,
    /// Where each value came from.
    pub layers: Layers,
}

impl Config {
    /// Loads and checks.
    ///
    /// # Errors
    /// Every fault, at once.
    pub fn load(sources: Sources) -> Result<Self, Faults> {
        load::load(sources)
    }

    /// Where the value at that key path came from, or else the nearest key above it that is written down.
    pub fn place(&self, key: &str) -> Option<Place> {
        self.layers.place(key)
    }

    /// A fault at that key, with the place that the key came from.
    pub fn fault(&self, key: impl Into<String>, problem: impl Into<String>) -> Fault {
        self.layers.fault(key.into(), problem.into())
    }
}
