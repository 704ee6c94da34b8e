//! The thread that reads a source, ahead of the consumer by a bounded amount. A thread, because reading stdin blocks
//! for as long as its writer likes.

use std::fs::File;
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use ackord_broker::{BrokerError, ErrorKind, Fault, Message, MessageId, Origin};
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::backlog::{Entry, Unheld};
use crate::config::LineFormat;
use crate::format::parse_line;
use crate::line::{Limits, Line, Lines};
use crate::progress::Progress;

/// What the thread sends.
#[derive(Debug)]
pub(crate) enum Fed {
    /// Messages in the order of their lines, at least one.
    Batch(Vec<Entry>),
    /// The source is read to its end.
    End,
    /// The source cannot be read on.
    Failed(BrokerError),
}

/// How a source is read.
#[derive(Debug)]
pub(crate) struct Reading {
    /// The source as the subscription names it.
    pub(crate) source: String,
    /// The beginning of the ids of lines that have none.
    pub(crate) name: String,
    pub(crate) format: LineFormat,
    pub(crate) longest: usize,
    /// See [`Subscription::window`](ackord_broker::Subscription::window).
    pub(crate) window: NonZeroUsize,
}

/// The consumer's end of the thread. Dropping it stops the thread, at the latest when its read returns.
#[derive(Debug)]
pub(crate) struct Feed {
    pub(crate) batches: mpsc::Receiver<Fed>,
    /// Held for its drop, which wakes a thread that waits for the file to grow.
    _stop: std_mpsc::Sender<()>,
}

/// Reads a file from the watermark of what is settled; `follow` waits for more at its end.
pub(crate) fn read_file(file: File, settled: Progress, reading: Reading, follow: bool) -> io::Result<Feed> {
    let limits = limits(&reading, false);
    let at_end = move |lines: &Lines<File>, stop: &std_mpsc::Receiver<()>| {
        if !follow {
            return Ok(AtEnd::Stop);
        }
        // Shorter than what was read: it was truncated, and what comes next would be read from its middle.
        if lines.input().metadata()?.len() < lines.read_to() {
            return Err(io::Error::other("the file became shorter while it was being read"));
        }
        match stop.recv_timeout(POLL) {
            Err(std_mpsc::RecvTimeoutError::Timeout) => Ok(AtEnd::ReadOn),
            _ => Ok(AtEnd::Stop),
        }
    };
    spawn(Lines::new(file, settled, limits), reading, at_end)
}

/// Reads what can be read once only: stdin, or what stands for it.
pub(crate) fn read_stream(input: impl Read + Send + 'static, reading: Reading) -> io::Result<Feed> {
    let limits = limits(&reading, true);
    spawn(Lines::new(input, Progress::default(), limits), reading, |_, _| Ok(AtEnd::Stop))
}

/// What to do when nothing more is there.
enum AtEnd {
    Stop,
    ReadOn,
}

fn limits(reading: &Reading, keep_longer: bool) -> Limits {
    Limits { longest: reading.longest, keep_longer, skip_space: reading.format == LineFormat::Message }
}

fn spawn<R, F>(mut lines: Lines<R>, reading: Reading, mut at_end: F) -> io::Result<Feed>
where
    R: Read + Send + 'static,
    F: FnMut(&Lines<R>, &std_mpsc::Receiver<()>) -> io::Result<AtEnd> + Send + 'static,
{
    // One batch is being filled, one waits here, one is being handed out: together at most the window.
    let (sender, batches) = mpsc::channel(1);
    let (stop, stopped) = std_mpsc::channel();
    let size = (reading.window.get() / 3).clamp(1, LARGEST_BATCH);
    let mut batch = Batch { sender, entries: Vec::new(), bytes: 0, size };
    std::thread::Builder::new().name("ackord-file".into()).spawn(move || {
        let maker = Maker { origin_source: reading.source.as_str().into(), reading };
        let outcome = (|| {
            loop {
                while let Some(line) = lines.next_line() {
                    batch.push(maker.entry(line))?;
                }
                // The next read may block for long.
                batch.send()?;
                if lines.fill()? == 0
                    && let AtEnd::Stop = at_end(&lines, &stopped)?
                {
                    if let Some(line) = lines.last_line() {
                        batch.push(maker.entry(line))?;
                    }
                    return batch.send();
                }
            }
        })();
        let last = match outcome {
            Ok(()) => Fed::End,
            Err(Stopped::Gone) => return,
            Err(Stopped::Failed(error)) => {
                Fed::Failed(BrokerError::new(ErrorKind::Unavailable, "receive", error))
            }
        };
        // When nobody listens any more, nobody needs to know.
        let _ = batch.sender.blocking_send(last);
    })?;
    Ok(Feed { batches, _stop: stop })
}

/// Why the thread stops early.
enum Stopped {
    /// The consumer is gone.
    Gone,
    Failed(io::Error),
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

struct Batch {
    sender: mpsc::Sender<Fed>,
    entries: Vec<Entry>,
    bytes: usize,
    size: usize,
}

impl Batch {
    fn push(&mut self, entry: Entry) -> Result<(), Stopped> {
        self.bytes += entry.message.body.as_ref().map_or(0, Bytes::len);
        self.entries.push(entry);
        if self.entries.len() >= self.size || self.bytes >= BATCH_BYTES { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> Result<(), Stopped> {
        if self.entries.is_empty() {
            return Ok(());
        }
        self.bytes = 0;
        let entries = std::mem::replace(&mut self.entries, Vec::with_capacity(self.size));
        self.sender.blocking_send(Fed::Batch(entries)).map_err(|_| Stopped::Gone)
    }
}

/// Makes messages of lines.
struct Maker {
    reading: Reading,
    origin_source: Arc<str>,
}

impl Maker {
    fn entry(&self, line: Line<'_>) -> Entry {
        let limit = self.reading.longest as u64;
        let too_long = line.length > limit;
        let mut message = match line.bytes {
            Some(bytes) if too_long || self.reading.format == LineFormat::Body => raw(Some(bytes)),
            Some(bytes) => parse_line(bytes).unwrap_or_else(|error| {
                let mut message = raw(Some(bytes));
                message.fault = Some(Fault::Undecodable(error.to_string()));
                message
            }),
            None => raw(None),
        };
        if too_long {
            message.fault = Some(Fault::Oversize { size: line.length, limit });
        }
        if message.id.as_str().is_empty() {
            message.id = MessageId::from(format!("{}@{}", self.reading.name, line.at));
        }
        message.origin = Origin {
            broker: "file".into(),
            source: Arc::clone(&self.origin_source),
            position: Some(line.at.to_string().into()),
        };
        let unheld = line.bytes.is_none().then_some(Unheld { at: line.at, length: line.length });
        Entry { message, span: line.span, attempt: 1, unheld }
    }
}

fn raw(bytes: Option<&[u8]>) -> Message {
    let mut message = Message::new("", Bytes::new());
    message.body = bytes.map(Bytes::copy_from_slice);
    message
}

/// How often a followed file is looked at when nothing came.
const POLL: Duration = Duration::from_millis(100);

/// Messages in a batch at most, whatever the window.
const LARGEST_BATCH: usize = 256;

/// Bytes of bodies after which a batch is sent, so that large messages are not hoarded.
const BATCH_BYTES: usize = 256 * 1024;
