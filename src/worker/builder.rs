//! The description of a worker.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ackord_broker::Broker;
use thiserror::Error;
use tokio::sync::Semaphore;

use super::source::SourcePlan;
use super::{RunningFlow, Worker};
use crate::flow::Flow;
use crate::gate::Gate;
use crate::idempotency::IdempotencyStore;
use crate::turn::FlowLimits;

/// Describes a worker; only [`build`](WorkerBuilder::build) fails.
#[derive(Debug)]
#[must_use]
pub struct WorkerBuilder {
    store: Arc<dyn IdempotencyStore>,
    name: Arc<str>,
    drain: Duration,
    fail_fast: bool,
    brokers: BTreeMap<String, Arc<dyn Broker>>,
    flows: Vec<Flow>,
}

/// Every fault of a worker's description, at once.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", .0.join("; "))]
pub struct WorkerFaults(pub Vec<String>);

impl WorkerBuilder {
    pub(super) fn new(store: Arc<dyn IdempotencyStore>) -> Self {
        Self {
            store,
            name: format!("pid-{}", std::process::id()).into(),
            drain: Duration::from_secs(25),
            fail_fast: false,
            brokers: BTreeMap::new(),
            flows: Vec::new(),
        }
    }

    /// Adds a broker under a name that flows refer to.
    pub fn broker(mut self, name: impl Into<String>, broker: Arc<dyn Broker>) -> Self {
        self.brokers.insert(name.into(), broker);
        self
    }

    /// Adds a flow.
    pub fn flow(mut self, flow: Flow) -> Self {
        self.flows.push(flow);
        self
    }

    /// Names this worker to people: it stands in claims and dead letters.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// How long running messages have to finish after a stop. Default 25 s.
    pub fn drain(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    /// Ends the run when a broker cannot be reached at the start, instead of trying on.
    pub fn fail_fast(mut self, fail_fast: bool) -> Self {
        self.fail_fast = fail_fast;
        self
    }

    /// Checks everything.
    ///
    /// # Errors
    /// All faults at once.
    pub fn build(self) -> Result<Worker, WorkerFaults> {
        let mut faults = Vec::new();
        if self.flows.is_empty() {
            faults.push("a worker needs at least one flow".to_owned());
        }
        let mut names = HashSet::new();
        let mut sources: BTreeMap<(String, String), Vec<Flow>> = BTreeMap::new();
        for flow in self.flows {
            if !names.insert(Arc::clone(&flow.name)) {
                faults.push(format!("two flows are named {}", flow.name));
            }
            if !self.brokers.contains_key(&flow.broker) {
                faults.push(format!("flow {}: there is no broker {}", flow.name, flow.broker));
            }
            sources.entry((flow.broker.clone(), flow.source.clone())).or_default().push(flow);
        }
        for ((broker, source), flows) in &sources {
            let open: Vec<_> =
                flows.iter().filter(|flow| flow.matches.is_empty()).map(|flow| &*flow.name).collect();
            if open.len() > 1 {
                faults.push(format!("{broker}/{source}: flows {} all take everything", open.join(", ")));
            }
            if flows.windows(2).any(|pair| pair[0].dead_letter != pair[1].dead_letter) {
                faults.push(format!("{broker}/{source}: its flows name different dead-letter places"));
            }
        }
        if !faults.is_empty() {
            return Err(WorkerFaults(faults));
        }
        let sources = sources
            .into_iter()
            .map(|((broker_name, source), flows)| SourcePlan {
                broker: Arc::clone(&self.brokers[&broker_name]),
                broker_name,
                source,
                flows: flows.into_iter().map(running).collect(),
            })
            .collect();
        Ok(Worker {
            store: self.store,
            name: self.name,
            drain: self.drain,
            fail_fast: self.fail_fast,
            sources,
            counters: Arc::default(),
        })
    }
}

fn running(flow: Flow) -> Arc<RunningFlow> {
    let limits = FlowLimits {
        name: Arc::clone(&flow.name),
        running: Arc::new(Semaphore::new(flow.concurrency.get())),
        gate: Arc::new(Gate::new(flow.circuit)),
    };
    Arc::new(RunningFlow { flow, limits: Arc::new(limits), lanes: Arc::default() })
}
