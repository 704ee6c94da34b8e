//! What is wrong between values that are each right.

use std::collections::HashMap;

use super::raw::{Circuit, Flow, Idempotency, Matches};
use super::{Config, Fault};

/// Only what the registry and the flow builder do not see: what concerns several flows, and settings that they merge.
pub(super) fn faults(config: &Config) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut greedy = HashMap::new();
    for (name, flow) in &config.flows {
        let source = &flow.source;
        let place = source.queue.as_ref().or(source.topic.as_ref()).or(source.path.as_ref());
        if let (true, Some(place)) = (takes_everything(flow), place)
            && let Some(first) = greedy.insert((&source.broker, place), name)
        {
            let problem =
                format!("flow {first} takes every message of {place} too; give one of them a `match`");
            faults.push(config.fault(format!("flows.{name}.source"), problem));
        }
        if let Circuit::Limits(limits) = &flow.circuit
            && limits.probe_max < limits.probe_initial
        {
            let problem = "is shorter than circuit.probe_initial";
            faults.push(config.fault(format!("flows.{name}.circuit.probe_max"), problem));
        }
        for step in &flow.steps {
            let Some(Idempotency::Own(own)) = &step.idempotency else { continue };
            let at = |key: &str| format!("flows.{name}.steps.{}.idempotency.{key}", step.name);
            for (key, other, both) in [
                ("settleTimeoutMs", "wait", own.wait.is_some() && own.settle_timeout_ms.is_some()),
                ("pollIntervalMs", "poll", own.poll.is_some() && own.poll_interval_ms.is_some()),
            ] {
                if both {
                    faults
                        .push(config.fault(at(key), format!("says the same as `{other}`; keep one of them")));
                }
            }
            let waits = own.wait.is_some() || own.settle_timeout_ms.is_some();
            if !waits && (own.poll.is_some() || own.poll_interval_ms.is_some()) {
                let key = if own.poll.is_some() { "poll" } else { "pollIntervalMs" };
                faults.push(config.fault(at(key), "has no meaning without `wait`"));
            }
        }
    }
    faults
}

fn takes_everything(flow: &Flow) -> bool {
    matches!(&flow.matches, Matches::All(conditions) if conditions.is_empty())
}
