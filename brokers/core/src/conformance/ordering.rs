//! The order of arrival.

use std::collections::HashMap;
use std::time::Duration;

use super::{Case, Stage, case, ensure, id, message, needs_order, settle};
use crate::{Disposition, NackCause};

pub(super) const CASES: &[Case] =
    &[case!(one_key_arrives_in_order, needs_order), case!(a_nack_blocks_at_most_its_own_key)];

async fn one_key_arrives_in_order(stage: &Stage<'_>) -> Result<(), String> {
    let sent: Vec<_> =
        (0..60).map(|n| message(&format!("{n:02}")).with_record_key(format!("k{}", n % 3))).collect();
    stage.harness.publish(&stage.source, sent).await;
    let mut consumer = stage.subscribe().await?;
    let mut last: HashMap<Vec<u8>, String> = HashMap::new();
    for _ in 0..60 {
        let delivery = stage.next(&mut *consumer).await?;
        let key = delivery.message().record_key.clone().unwrap_or_default().to_vec();
        let name = id(&delivery);
        if let Some(before) = last.insert(key, name.clone()) {
            ensure!(before < name, "{name} came after {before}");
        }
        settle(delivery, Disposition::Ack).await?;
    }
    Ok(())
}

async fn a_nack_blocks_at_most_its_own_key(stage: &Stage<'_>) -> Result<(), String> {
    let sent = vec![message("fails").with_record_key("a"), message("passes").with_record_key("b")];
    stage.harness.publish(&stage.source, sent).await;
    let mut consumer = stage.subscribe().await?;
    let mut passed = false;
    let mut nacks = 0;
    while !passed {
        let delivery = stage.next(&mut *consumer).await?;
        if id(&delivery) == "passes" {
            passed = true;
            settle(delivery, Disposition::Ack).await?;
        } else {
            nacks += 1;
            ensure!(nacks < 100, "the key that fails keeps the other from coming");
            let delay = Some(Duration::from_millis(50));
            settle(delivery, Disposition::Nack { delay, cause: NackCause::Tried }).await?;
        }
    }
    let delivery = stage.next(&mut *consumer).await;
    match delivery {
        Ok(delivery) if id(&delivery) == "fails" => settle(delivery, Disposition::Ack).await,
        Ok(delivery) => Err(format!("{} came again", id(&delivery))),
        Err(error) => Err(format!("what failed never came again: {error}")),
    }
}
