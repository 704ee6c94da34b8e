//! Lines from a file or stdin, read on a thread of their own, so that a slow stdin never blocks the worker.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ackord_broker::{Fault, Message, Origin};
use bytes::Bytes;
use tokio::sync::mpsc::Sender;

use crate::config::{FileConfig, LineFormat};
use crate::format;

/// The most lines handed over at once.
const BATCH: usize = 256;
const FOLLOW_EVERY: Duration = Duration::from_millis(100);
const BOM: &[u8] = b"\xef\xbb\xbf";

/// A line as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) message: Message,
    /// Offset of its first byte, and of the first byte after it and its newline.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) deliveries: u32,
    /// A line without a message: it is passed over and counts as settled.
    pub(crate) blank: bool,
}

/// What the thread hands over: lines, or why there are no more.
pub(crate) type Batch = io::Result<Vec<Line>>;

/// What is read.
#[derive(Debug)]
pub(crate) enum Input {
    File(File, PathBuf),
    Stdin,
}

pub(crate) fn start(input: Input, from: u64, config: FileConfig, lines: Sender<Batch>) -> io::Result<()> {
    let run = move || {
        let result = match input {
            Input::Stdin => {
                Reader::new(BufReader::new(io::stdin()), "stdin".into(), false, 0, config, lines.clone())
                    .run()
            }
            Input::File(mut file, path) => file.seek(SeekFrom::Start(from)).and_then(|_| {
                let name = path.display().to_string().into();
                Reader::new(
                    BufReader::with_capacity(256 * 1024, file),
                    name,
                    true,
                    from,
                    config,
                    lines.clone(),
                )
                .run()
            }),
        };
        if let Err(error) = result {
            // A receiver that is gone needs no answer.
            let _ = lines.blocking_send(Err(error));
        }
    };
    std::thread::Builder::new().name("ackord-lines".to_owned()).spawn(run).map(drop)
}

struct Reader<R> {
    input: R,
    name: Arc<str>,
    /// Whether what was passed over can be read again from its offset.
    can_reread: bool,
    offset: u64,
    config: FileConfig,
    lines: Sender<Batch>,
}

/// One raw line.
struct Raw {
    bytes: Vec<u8>,
    /// Its length without the newline; more than `bytes` when it was passed over.
    length: u64,
    ended: bool,
}

impl<R: BufRead> Reader<R> {
    fn new(
        input: R,
        name: Arc<str>,
        can_reread: bool,
        offset: u64,
        config: FileConfig,
        lines: Sender<Batch>,
    ) -> Self {
        Self { input, name, can_reread, offset, config, lines }
    }

    fn run(mut self) -> io::Result<()> {
        let mut batch = Vec::new();
        let mut partial: Option<Raw> = None;
        loop {
            let raw = self.next(partial.take())?;
            let at_end = !raw.ended;
            if at_end && self.config.follow && self.can_reread {
                // A line is complete only when its newline has come.
                partial = Some(raw);
            } else if raw.length > 0 || raw.ended {
                self.push(raw, &mut batch);
            }
            let hand_over = batch.len() >= BATCH || at_end || self.would_block();
            if hand_over
                && !batch.is_empty()
                && self.lines.blocking_send(Ok(std::mem::take(&mut batch))).is_err()
            {
                return Ok(());
            }
            if at_end {
                if !(self.config.follow && self.can_reread) || self.lines.is_closed() {
                    return Ok(());
                }
                std::thread::sleep(FOLLOW_EVERY);
            }
        }
    }

    /// Whether the next line is not here yet, as on a slow stdin.
    fn would_block(&self) -> bool {
        !self.can_reread
    }

    /// Reads up to a newline, or to the end of what there is.
    fn next(&mut self, partial: Option<Raw>) -> io::Result<Raw> {
        let mut raw = partial.unwrap_or(Raw { bytes: Vec::new(), length: 0, ended: false });
        loop {
            let chunk = match self.input.fill_buf() {
                Ok(chunk) => chunk,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if chunk.is_empty() {
                return Ok(raw);
            }
            let newline = chunk.iter().position(|byte| *byte == b'\n');
            let text = &chunk[..newline.unwrap_or(chunk.len())];
            raw.length += text.len() as u64;
            // Of a line that is too long only what a file can give again is passed over.
            if !self.can_reread || raw.length <= self.config.max_line as u64 {
                raw.bytes.extend_from_slice(text);
            } else {
                raw.bytes.clear();
            }
            let used = text.len() + usize::from(newline.is_some());
            self.input.consume(used);
            if newline.is_some() {
                raw.ended = true;
                return Ok(raw);
            }
        }
    }

    fn push(&mut self, raw: Raw, batch: &mut Vec<Line>) {
        let mut start = self.offset;
        let end = start + raw.length + u64::from(raw.ended);
        self.offset = end;
        let mut bytes = raw.bytes;
        if start == 0 && bytes.starts_with(BOM) {
            bytes.drain(..BOM.len());
            start += BOM.len() as u64;
        }
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
        if raw.length > self.config.max_line as u64 {
            let fault = Fault::Oversize { size: raw.length, limit: self.config.max_line as u64 };
            let body = (!self.can_reread).then(|| Bytes::from(bytes));
            batch.push(self.line(Message { body, fault: Some(fault), ..Message::new("", "") }, start, end));
            return;
        }
        if bytes.iter().all(u8::is_ascii_whitespace) {
            batch.push(Line { blank: true, ..self.line(Message::new("", ""), start, end) });
            return;
        }
        let message = match self.config.format {
            LineFormat::Body => Message::new("", bytes),
            LineFormat::Message => format::parse_line(&bytes).unwrap_or_else(|error| Message {
                fault: Some(Fault::Undecodable(error.to_string())),
                ..Message::new("", bytes)
            }),
        };
        batch.push(self.line(message, start, end));
    }

    fn line(&self, mut message: Message, start: u64, end: u64) -> Line {
        if message.id.as_str().is_empty() {
            message.id = format!("{}@{start}", self.name).into();
        }
        message.origin = Origin {
            broker: "file".into(),
            source: Arc::clone(&self.name),
            position: Some(start.to_string().into()),
        };
        Line { message, start, end, deliveries: 0, blank: false }
    }
}
