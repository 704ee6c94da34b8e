//! What the tests share: a broker, a store, a step that counts its effects.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ackord::backoff::Retry;
use ackord::flow::{Flow, FlowBuilder, StepContext};
use ackord::idempotency::IdempotencyStore;
use ackord::idempotency::memory::MemoryStore;
use ackord::shutdown::RunReport;
use ackord::worker::Worker;
use ackord_broker::memory::MemoryBroker;
use ackord_broker::{Message, RejectReason};

pub(crate) const QUEUE: &str = "orders";

#[derive(Debug, Clone)]
pub(crate) struct Rig {
    pub(crate) broker: MemoryBroker,
    pub(crate) store: Arc<dyn IdempotencyStore>,
    pub(crate) effects: Effects,
}

/// What happened outside the worker, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Effects(Arc<Mutex<Vec<String>>>);

impl Effects {
    pub(crate) fn add(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for effect in self.all() {
            *counts.entry(effect).or_default() += 1;
        }
        counts
    }
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(MemoryBroker::new(), Arc::new(MemoryStore::new()))
    }

    pub(crate) fn with(broker: MemoryBroker, store: Arc<dyn IdempotencyStore>) -> Self {
        Self { broker, store, effects: Effects::default() }
    }

    pub(crate) fn send(&self, id: &str, body: impl Into<String>) {
        self.broker.publish(QUEUE, Message::new(id, body.into()));
    }

    pub(crate) async fn run(&self, flow: Flow) -> RunReport {
        self.broker.close(QUEUE);
        self.worker(flow).run(std::future::pending()).await.unwrap()
    }

    pub(crate) fn worker(&self, flow: Flow) -> Worker {
        Worker::builder(Arc::clone(&self.store))
            .broker("shop", Arc::new(self.broker.clone()))
            .flow(flow)
            .drain(Duration::from_secs(5))
            .build()
            .unwrap()
    }

    pub(crate) fn parked(&self) -> Vec<(String, RejectReason)> {
        let dead = self.broker.dead_letters(QUEUE);
        dead.into_iter().map(|(message, why)| (message.id.to_string(), why.reason)).collect()
    }
}

/// A flow from the queue, keyed by `/id`, with short waits.
pub(crate) fn flow() -> FlowBuilder {
    Flow::builder("charge").from("shop", QUEUE).key("body:/id").retry(Retry {
        attempts: 3.try_into().unwrap(),
        initial: Duration::from_millis(10),
        max: Duration::from_millis(100),
    })
}

/// The message's `/id` as text.
pub(crate) fn id(cx: &StepContext) -> String {
    let body: serde_json::Value = cx.body().unwrap();
    body["id"].to_string().trim_matches('"').to_owned()
}
