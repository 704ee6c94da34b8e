//! The order that a broker declares is the order that it keeps.

use std::collections::BTreeMap;

use crate::{Message, Ordering};

use super::stand::{Stand, ack, is, nack, name, same};
use super::{Carried, Case, Need, case};

pub(super) const CASES: &[Case] = &[
    case!(messages_arrive_in_the_declared_order, Need::Order),
    case!(a_nack_blocks_only_its_own_key, Need::Carries(Carried::RecordKey)),
];

async fn messages_arrive_in_the_declared_order(stand: Stand) -> Result<(), String> {
    let keyed = stand.harness.carries(Carried::RecordKey);
    let total = stand.capabilities().ordering == Ordering::Total;
    let names: Vec<_> = (0..24).map(|n| format!("{}{n:02}", ["a", "b", "c"][n % 3])).collect();
    let messages = names.iter().map(|name| {
        let message = Message::new(name.as_str(), name.clone());
        if keyed { message.with_record_key(name[..1].to_owned()) } else { message }
    });
    stand.harness.publish(&stand.source, messages.collect()).await;
    let mut tap = stand.consumer().await?;
    let mut came = Vec::new();
    while came.len() < names.len() {
        for delivery in tap.several(4).await? {
            came.push(name(&delivery));
            ack(delivery).await?;
        }
    }
    if total {
        return same("the order", came, names);
    }
    same("the order by key", by_key(&came), by_key(&names))
}

fn by_key(names: &[String]) -> BTreeMap<&str, Vec<&str>> {
    let mut keys = BTreeMap::<_, Vec<_>>::new();
    for name in names {
        keys.entry(&name[..1]).or_default().push(name.as_str());
    }
    keys
}

async fn a_nack_blocks_only_its_own_key(stand: Stand) -> Result<(), String> {
    let message = |name: &'static str, key: &'static str| Message::new(name, name).with_record_key(key);
    stand.publish_message(message("nacked", "a")).await;
    let mut tap = stand.consumer().await?;
    let nacked = tap.next().await?;
    // Longer than any wait of this case, where the broker can: only a message that is not blocked comes in time.
    let delay = stand.capabilities().delay.max.min(stand.patience() * 3);
    nack(nacked, Some(delay).filter(|delay| !delay.is_zero())).await?;
    stand.publish_message(message("free", "b")).await;
    let (free, before) = tap.until("free").await?;
    if let Some(other) = before.iter().find(|delivery| !is(delivery, "nacked")) {
        return Err(format!("`{}` came from nowhere", name(other)));
    }
    ack(free).await
}
