//! One open source.

use std::collections::VecDeque;
use std::future::pending;
use std::num::NonZeroUsize;
use std::sync::Arc;

use ackord_broker::{BrokerError, Consumer, Delivery, ErrorKind};
use async_trait::async_trait;
use tokio::time::sleep_until;

use crate::backlog::Entry;
use crate::reader::{Fed, Feed};
use crate::settle::Shared;

/// Hands out what the reader thread read, and what came back.
#[derive(Debug)]
pub(crate) struct FileConsumer {
    shared: Arc<Shared>,
    inflow: Inflow,
    /// Read and not yet handed out.
    fetched: VecDeque<Entry>,
}

/// What is to be expected of the reader thread.
#[derive(Debug)]
enum Inflow {
    Open(Feed),
    /// It read to the end of the source.
    Ended,
    /// It failed; `None` once that was told.
    Failed(Option<BrokerError>),
    /// It was stopped before the end, or before everything was handed out.
    Stopped,
}

impl FileConsumer {
    pub(crate) fn new(shared: Arc<Shared>, feed: Feed) -> Self {
        Self { shared, inflow: Inflow::Open(feed), fetched: VecDeque::new() }
    }

    /// The next message that was read, if one is there.
    fn next_fetched(&mut self) -> Option<Entry> {
        loop {
            if let Some(entry) = self.fetched.pop_front() {
                return Some(entry);
            }
            let Inflow::Open(feed) = &mut self.inflow else { return None };
            match feed.batches.try_recv() {
                Ok(fed) => self.accept(Some(fed)),
                Err(tokio::sync::mpsc::error::TryRecvError::Empty) => return None,
                Err(tokio::sync::mpsc::error::TryRecvError::Disconnected) => self.accept(None),
            }
        }
    }

    fn accept(&mut self, fed: Option<Fed>) {
        match fed {
            Some(Fed::Batch(entries)) => self.fetched.extend(entries),
            Some(Fed::End) => self.inflow = Inflow::Ended,
            Some(Fed::Failed(error)) => self.inflow = Inflow::Failed(Some(error)),
            None => self.inflow = Inflow::Failed(Some(stopped_early())),
        }
    }
}

#[async_trait]
impl Consumer for FileConsumer {
    async fn receive(&mut self, max: NonZeroUsize) -> Result<Vec<Delivery>, BrokerError> {
        let max = max.get();
        loop {
            let (mut entries, next_due) = self.shared.due(max);
            let again = entries.len();
            while entries.len() < max
                && let Some(entry) = self.next_fetched()
            {
                entries.push(entry);
            }
            if !entries.is_empty() {
                let new = entries.len() - again;
                return Ok(self.shared.give_out(entries, new));
            }
            match &mut self.inflow {
                Inflow::Failed(error) => return Err(error.take().unwrap_or_else(stopped_early)),
                Inflow::Ended if self.shared.is_settled() => return Err(BrokerError::ended()),
                _ => {}
            }
            let due = async {
                match next_due {
                    Some(due) => sleep_until(due).await,
                    None => pending().await,
                }
            };
            // Each branch can be dropped at any point without losing a message.
            tokio::select! {
                fed = next_batch(&mut self.inflow) => self.accept(fed),
                () = self.shared.changed() => {}
                () = due => {}
            }
        }
    }

    async fn drain(&mut self) -> Result<(), BrokerError> {
        // What the thread sent last is not lost by looking: if that is the end, the source did end.
        if self.fetched.is_empty()
            && let Some(entry) = self.next_fetched()
        {
            self.fetched.push_front(entry);
        }
        if !self.fetched.is_empty() || matches!(self.inflow, Inflow::Open(_)) {
            self.fetched.clear();
            self.inflow = Inflow::Stopped;
        }
        self.shared.drain();
        Ok(())
    }
}

impl Drop for FileConsumer {
    fn drop(&mut self) {
        self.shared.close();
    }
}

async fn next_batch(inflow: &mut Inflow) -> Option<Fed> {
    match inflow {
        Inflow::Open(feed) => feed.batches.recv().await,
        _ => pending().await,
    }
}

fn stopped_early() -> BrokerError {
    BrokerError::new(ErrorKind::Unavailable, "receive", "the thread that reads the source has stopped")
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read};
    use std::path::Path;

    use ackord_broker::{Disposition, Fault, RejectReason, Rejection};
    use tokio::sync::mpsc;

    use super::*;
    use crate::config::LineFormat;
    use crate::dead_letter::DeadLetters;
    use crate::reader::{Reading, read_stream};
    use crate::settle::Ledger;

    const ONE: NonZeroUsize = NonZeroUsize::MIN;

    /// A consumer of what stands for stdin.
    fn consumer(input: impl Read + Send + 'static, dead_letter: &Path) -> FileConsumer {
        let reading = Reading {
            source: "-".into(),
            name: "stdin".into(),
            format: LineFormat::Message,
            longest: 20,
            window: NonZeroUsize::new(64).unwrap(),
        };
        let shared = Shared::new(Ledger::Unwritten, DeadLetters::new(dead_letter.to_owned(), None));
        FileConsumer::new(Arc::new(shared), read_stream(input, reading).unwrap())
    }

    /// A pipe whose writer is the test.
    struct Pipe(mpsc::Receiver<&'static [u8]>);

    impl Read for Pipe {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let bytes = self.0.blocking_recv().unwrap_or_default();
            buffer[..bytes.len()].copy_from_slice(bytes);
            Ok(bytes.len())
        }
    }

    #[tokio::test]
    async fn a_line_is_handed_out_while_the_writer_still_holds_the_pipe() {
        let (writer, pipe) = mpsc::channel(4);
        let mut consumer = consumer(Pipe(pipe), "unused".as_ref());
        writer.send(b"{\"id\":1}\n{\"id\"").await.unwrap();
        let first = consumer.receive(ONE).await.unwrap().pop().unwrap();
        assert_eq!(first.message().id.as_str(), "1");
        writer.send(b":2}\n").await.unwrap();
        let second = consumer.receive(ONE).await.unwrap().pop().unwrap();
        assert_eq!(second.message().id.as_str(), "2");
        drop(writer);
        for delivery in [first, second] {
            delivery.settle(Disposition::Ack).await.unwrap();
        }
        assert_eq!(consumer.receive(ONE).await.unwrap_err().kind(), ErrorKind::Ended);
    }

    #[tokio::test]
    async fn a_long_line_of_a_pipe_is_kept_whole_because_it_cannot_be_read_twice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dead");
        let mut consumer = consumer(&b"012345678901234567890\n"[..], &path);
        let delivery = consumer.receive(ONE).await.unwrap().pop().unwrap();
        assert_eq!(delivery.message().fault, Some(Fault::Oversize { size: 21, limit: 20 }));
        let rejection = Rejection::new(RejectReason::Oversize, "too long");
        delivery.settle(Disposition::Reject(Box::new(rejection))).await.unwrap();
        let letter: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert_eq!(letter["body_text"], "012345678901234567890");
        assert_eq!(letter["id"], "stdin@0");
    }

    #[tokio::test]
    async fn a_source_that_fails_hands_out_what_was_read_before_it_tells() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("the disk is gone"))
            }
        }
        let mut consumer = consumer((&b"{\"id\":1}\n"[..]).chain(Broken), "unused".as_ref());
        let delivery = consumer.receive(ONE).await.unwrap().pop().unwrap();
        delivery.settle(Disposition::Ack).await.unwrap();
        let error = consumer.receive(ONE).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let error = consumer.receive(ONE).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
}
