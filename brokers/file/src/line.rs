//! Cutting a stream of bytes into lines, with the offsets of each.

use std::io::{self, Read};
use std::ops::Range;

use crate::progress::{Progress, Span};

/// Cuts what it reads into lines. Knows nothing of what stands on them.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    /// The part of the buffer that was read and not yet given out.
    unread: Range<usize>,
    /// How much of the unread part is known to hold no newline, so that a long line is not searched twice.
    searched: usize,
    /// Offset in the source of the first unread byte.
    position: u64,
    /// Where the span of the next line begins: at `position`, or before it when empty lines were passed over.
    from: u64,
    /// What of the source is settled already and is passed over.
    settled: Progress,
    /// Settled bytes that are still to be passed over.
    pass_over: u64,
    /// A line that turned out too long and is read to its end without being kept.
    too_long: Option<TooLong>,
    limits: Limits,
}

/// What makes a line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The longest line in bytes, its end not counted.
    pub(crate) longest: usize,
    /// Whether a longer one is kept in memory all the same, because it cannot be read a second time.
    pub(crate) keep_longer: bool,
    /// Whether a line of nothing but space counts as empty.
    pub(crate) skip_space: bool,
}

/// One line as it stands in the source, its end not counted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    pub(crate) span: Span,
    /// Offset of its first byte.
    pub(crate) at: u64,
    /// Length in bytes.
    pub(crate) length: u64,
    /// Its bytes; `None` when it is too long and was not kept.
    pub(crate) bytes: Option<&'a [u8]>,
}

#[derive(Debug)]
struct TooLong {
    at: u64,
    length: u64,
    ends_in_cr: bool,
}

/// Offsets of a found line; its bytes are borrowed from the buffer only when it is given out.
struct Found {
    span: Span,
    at: u64,
    length: u64,
    kept: Option<Range<usize>>,
}

impl<R: Read> Lines<R> {
    /// Lines of `input`, whose next byte stands at the watermark of what is settled.
    pub(crate) fn new(input: R, settled: Progress, limits: Limits) -> Self {
        Self {
            input,
            buffer: vec![0; CHUNK],
            unread: 0..0,
            searched: 0,
            position: settled.watermark(),
            from: settled.watermark(),
            settled,
            pass_over: 0,
            too_long: None,
            limits,
        }
    }

    /// The next whole line of what has been read; `None` when more must be read first.
    pub(crate) fn next_line(&mut self) -> Option<Line<'_>> {
        let found = self.find()?;
        Some(self.give_out(found))
    }

    /// The last line, when the source ends without a newline. To be called when there is nothing more to read.
    pub(crate) fn last_line(&mut self) -> Option<Line<'_>> {
        let found = if let Some(line) = self.too_long.take() {
            self.end_too_long(line)
        } else {
            let rest = self.unread.clone();
            self.consume(rest.len());
            self.found(rest)?
        };
        Some(self.give_out(found))
    }

    /// Reads more. `Ok(0)` means that nothing more is there now.
    pub(crate) fn fill(&mut self) -> io::Result<usize> {
        if self.unread.start > 0 {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        if self.buffer.len() - self.unread.end < CHUNK / 2 {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        loop {
            match self.input.read(&mut self.buffer[self.unread.end..]) {
                Ok(count) => {
                    self.unread.end += count;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The source itself.
    pub(crate) fn input(&self) -> &R {
        &self.input
    }

    /// Offset behind everything that has been read.
    pub(crate) fn read_to(&self) -> u64 {
        self.position + self.unread.len() as u64
    }

    fn find(&mut self) -> Option<Found> {
        loop {
            if self.pass_over > 0 {
                let count = self.unread.len().min(usize::try_from(self.pass_over).unwrap_or(usize::MAX));
                self.consume(count);
                self.pass_over -= count as u64;
                if self.pass_over > 0 {
                    return None;
                }
            }
            if let Some(mut line) = self.too_long.take() {
                let data = &self.buffer[self.unread.clone()];
                let newline = data.iter().position(|byte| *byte == b'\n');
                let count = newline.unwrap_or(data.len());
                if count > 0 {
                    line.ends_in_cr = data[count - 1] == b'\r';
                }
                line.length += count as u64;
                self.consume(count + usize::from(newline.is_some()));
                if newline.is_some() {
                    return Some(self.end_too_long(line));
                }
                self.too_long = Some(line);
                return None;
            }
            if self.position == self.from
                && let Some(to) = self.settled.settled_from(self.from)
            {
                self.pass_over = to - self.from;
                self.from = to;
                continue;
            }
            let data = &self.buffer[self.unread.clone()];
            match data[self.searched..].iter().position(|byte| *byte == b'\n') {
                Some(index) => {
                    let start = self.unread.start;
                    let end = start + self.searched + index;
                    self.consume(end - start + 1);
                    if let Some(found) = self.found(start..end) {
                        return Some(found);
                    }
                }
                // A carriage return and a byte order mark may come off yet.
                None if data.len() > self.limits.longest + 1 + BOM.len() && !self.limits.keep_longer => {
                    let mark = if self.position == 0 && data.starts_with(BOM) { BOM.len() } else { 0 };
                    self.consume(mark);
                    self.too_long = Some(TooLong { at: self.position, length: 0, ends_in_cr: false });
                }
                None => {
                    self.searched = data.len();
                    return None;
                }
            }
        }
    }

    /// The line in that part of the buffer, which is consumed with its newline; `None` for an empty one.
    fn found(&mut self, mut part: Range<usize>) -> Option<Found> {
        let mut at = self.position - (self.unread.start - part.start) as u64;
        if at == 0 && self.buffer[part.clone()].starts_with(BOM) {
            part.start += BOM.len();
            at += BOM.len() as u64;
        }
        if self.buffer[part.clone()].ends_with(b"\r") {
            part.end -= 1;
        }
        let line = &self.buffer[part.clone()];
        if line.is_empty() || (self.limits.skip_space && line.trim_ascii().is_empty()) {
            return None;
        }
        let kept = (part.len() <= self.limits.longest || self.limits.keep_longer).then_some(part.clone());
        Some(Found { span: self.next_span(), at, length: part.len() as u64, kept })
    }

    fn end_too_long(&mut self, line: TooLong) -> Found {
        let length = line.length - u64::from(line.ends_in_cr);
        Found { span: self.next_span(), at: line.at, length, kept: None }
    }

    fn next_span(&mut self) -> Span {
        let span = Span { from: self.from, to: self.position };
        self.from = self.position;
        span
    }

    fn give_out(&self, found: Found) -> Line<'_> {
        Line {
            span: found.span,
            at: found.at,
            length: found.length,
            bytes: found.kept.map(|part| &self.buffer[part]),
        }
    }

    fn consume(&mut self, count: usize) {
        self.unread.start += count;
        self.position += count as u64;
        self.searched = 0;
    }
}

/// How much is read at once, in bytes.
const CHUNK: usize = 128 * 1024;

/// The byte order mark of UTF-8, which some editors put at the start of a file.
const BOM: &[u8] = b"\xEF\xBB\xBF";
