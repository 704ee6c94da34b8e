//! What the tests of this adapter share.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::num::NonZeroUsize;
use std::path::PathBuf;

use ackord_broker::{
    Broker, BrokerError, Consumer, Delivery, Disposition, ErrorKind, NackCause, RejectReason, Rejection,
    Subscription,
};
use ackord_file::{FileBroker, FileConfig};
use serde_json::Value;
use tempfile::TempDir;

/// A directory of its own with a source file in it.
pub(crate) struct Place {
    pub(crate) dir: TempDir,
    pub(crate) source: PathBuf,
}

impl Place {
    pub(crate) fn with(content: impl AsRef<[u8]>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("in.jsonl");
        std::fs::write(&source, content).unwrap();
        Self { dir, source }
    }

    /// The file beside the source with that suffix.
    pub(crate) fn beside(&self, suffix: &str) -> PathBuf {
        self.dir.path().join(format!("in.jsonl{suffix}"))
    }

    pub(crate) fn subscription(&self) -> Subscription {
        Subscription::new(self.source.to_str().unwrap())
    }

    pub(crate) async fn try_open(&self, config: FileConfig) -> Result<Box<dyn Consumer>, BrokerError> {
        FileBroker::new(config).subscribe(&self.subscription()).await
    }

    pub(crate) async fn open(&self, config: FileConfig) -> Box<dyn Consumer> {
        self.try_open(config).await.unwrap()
    }

    /// The text of the error that refuses to open the source.
    pub(crate) async fn refusal(&self, config: FileConfig) -> String {
        let error = self.try_open(config).await.err().expect("the source is refused");
        assert_eq!(error.kind(), ErrorKind::Refused);
        std::error::Error::source(&error).expect("a refusal has a reason").to_string()
    }

    pub(crate) fn dead_letters(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.beside(".dlq.jsonl")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

pub(crate) async fn one(consumer: &mut Box<dyn Consumer>) -> Delivery {
    consumer.receive(NonZeroUsize::MIN).await.unwrap().pop().unwrap()
}

/// As many deliveries as asked for, all of them open.
pub(crate) async fn several(consumer: &mut Box<dyn Consumer>, count: usize) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    while let Some(missing) = NonZeroUsize::new(count - deliveries.len()) {
        deliveries.extend(consumer.receive(missing).await.unwrap());
    }
    deliveries
}

pub(crate) async fn assert_ended(consumer: &mut Box<dyn Consumer>) {
    let error = consumer.receive(NonZeroUsize::MIN).await.expect_err("the source has ended");
    assert_eq!(error.kind(), ErrorKind::Ended);
}

/// Acknowledges everything up to the end; the ids in order of arrival.
pub(crate) async fn ack_all(consumer: &mut Box<dyn Consumer>) -> Vec<String> {
    let mut ids = Vec::new();
    loop {
        match consumer.receive(NonZeroUsize::new(10).unwrap()).await {
            Ok(deliveries) => {
                for delivery in deliveries {
                    ids.push(delivery.message().id.to_string());
                    delivery.settle(Disposition::Ack).await.unwrap();
                }
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Ended);
                return ids;
            }
        }
    }
}

pub(crate) fn nack(delay: Option<std::time::Duration>) -> Disposition {
    Disposition::Nack { delay, cause: NackCause::Tried }
}

pub(crate) fn reject(detail: &str) -> Disposition {
    let mut rejection = Rejection::new(RejectReason::Exhausted, detail);
    rejection.notes.push(("flow", "orders".into()));
    Disposition::Reject(Box::new(rejection))
}

/// Lines with the ids `0` to `count - 1`.
pub(crate) fn lines(count: usize) -> String {
    (0..count).map(|id| format!("{{\"id\":\"{id}\",\"body\":{{\"n\":{id}}}}}\n")).collect()
}
