//! The progress file: a journal of settled spans beside the source.
//!
//! ```text
//! ackord progress 1
//! head 4096 <hash of the source's first 4096 bytes>;
//! done 1200;
//! 1300 1400;
//! ```
//!
//! A record without its `;` was torn and counts for nothing: its line is delivered once more.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::progress::{Progress, Span};

/// An open progress file, locked for as long as this lives.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    size: u64,
    /// The last write was cut short, so that the next must begin on a line of its own.
    torn: bool,
    /// A handle of our own, so that reading the head moves nobody else's position.
    source: File,
    head: Head,
    progress: Progress,
    /// Held, never read: closing it gives the lock back. A file of its own, because the journal is replaced by
    /// renaming when it is compacted, and a lock does not move with a name.
    _lock: File,
}

/// Why a progress file cannot be used.
#[derive(Debug, Error)]
pub(crate) enum JournalError {
    #[error(
        "another consumer reads this source: {0} is locked. Stop it, or give this one a `progress` of its own"
    )]
    Locked(PathBuf),
    #[error(
        "{progress} remembers another file than the one that {source_path} names now ({difference}). \
         Remove {progress} to read this one from its start"
    )]
    OtherFile { progress: PathBuf, source_path: PathBuf, difference: &'static str },
    #[error("{0} is not a progress file. Set `progress` to another path, or remove that file")]
    NotOurs(PathBuf),
    #[error("{path} cannot be written ({cause}). Make it writable, or set `progress` to a path that is")]
    Io { path: PathBuf, cause: io::Error },
}

impl Journal {
    /// Locks and reads the progress of `source`, which `source_path` names, and compacts it.
    pub(crate) fn open(path: &Path, mut source: File, source_path: &Path) -> Result<Self, JournalError> {
        let lock_path = beside(path, ".lock");
        let io_error = |path: &Path| {
            let path = path.to_owned();
            move |cause| JournalError::Io { path, cause }
        };
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock_path)
            .map_err(io_error(&lock_path))?;
        match lock_soon(&lock) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(JournalError::Locked(lock_path)),
            Err(TryLockError::Error(cause)) => return Err(JournalError::Io { path: lock_path, cause }),
        }

        let mut progress = Progress::default();
        match std::fs::read(path) {
            Ok(text) if text.is_empty() => {}
            Ok(text) => {
                let (head, known) =
                    read_records(&text).ok_or_else(|| JournalError::NotOurs(path.to_owned()))?;
                let difference = differs(&mut source, &head, &known).map_err(io_error(source_path))?;
                if let Some(difference) = difference {
                    return Err(JournalError::OtherFile {
                        progress: path.to_owned(),
                        source_path: source_path.to_owned(),
                        difference,
                    });
                }
                progress = known;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => return Err(JournalError::Io { path: path.to_owned(), cause }),
        }
        let head = Head::of(&mut source, HEAD).map_err(io_error(source_path))?;
        let (file, size) = write_compacted(path, &head, &progress).map_err(io_error(path))?;
        Ok(Self { path: path.to_owned(), file, size, torn: false, source, head, progress, _lock: lock })
    }

    /// What was settled when the journal was opened, and since.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Writes down that a span is settled. Returns when the operating system has it: it survives the end of this
    /// process. A loss of power may undo it, and then the line is delivered again.
    pub(crate) fn settle(&mut self, span: Span) -> io::Result<()> {
        let mut record = String::with_capacity(48);
        if self.torn {
            record.push('\n');
        }
        // A file that was short when it was opened is only recognised by what we saw of it: look again.
        let mut longer = None;
        if self.head.length < HEAD && span.to > self.head.length {
            let head = Head::of(&mut self.source, HEAD)?;
            record.push_str(&head.record());
            longer = Some(head);
        }
        record.push_str(&span_record(span));
        if let Err(error) = self.file.write_all(record.as_bytes()) {
            self.torn = true;
            return Err(error);
        }
        self.torn = false;
        self.size += record.len() as u64;
        self.head = longer.unwrap_or(self.head);
        self.progress.settle(span);
        if self.size > COMPACT_ABOVE {
            self.compact();
        }
        Ok(())
    }

    /// Replaces a journal that has grown long. Nothing depends on it, so a failure is only tried again later.
    fn compact(&mut self) {
        match write_compacted(&self.path, &self.head, &self.progress) {
            Ok((file, size)) => (self.file, self.size) = (file, size),
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "the progress file could not be compacted");
                self.size = 0;
            }
        }
    }
}

/// A path with something added behind its whole name.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The beginning of a file, by which it is told from another of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    length: u64,
    hash: blake3::Hash,
}

impl Head {
    /// Of up to `limit` bytes.
    fn of(source: &mut File, limit: u64) -> io::Result<Self> {
        source.seek(SeekFrom::Start(0))?;
        let mut bytes = Vec::new();
        source.take(limit).read_to_end(&mut bytes)?;
        Ok(Self { length: bytes.len() as u64, hash: blake3::hash(&bytes) })
    }

    fn record(&self) -> String {
        format!("head {} {};\n", self.length, self.hash)
    }
}

fn differs(source: &mut File, head: &Head, known: &Progress) -> io::Result<Option<&'static str>> {
    Ok(if source.metadata()?.len() < known.end() {
        Some("it is shorter than what was settled of it")
    } else if Head::of(source, head.length)? != *head {
        Some("its beginning differs")
    } else {
        None
    })
}

fn span_record(span: Span) -> String {
    format!("{} {};\n", span.from, span.to)
}

/// Reads a progress file; `None` when it does not begin as one. Later records that cannot be read are passed over,
/// which costs replays and nothing else.
fn read_records(text: &[u8]) -> Option<(Head, Progress)> {
    let mut records =
        text.split(|byte| *byte == b'\n').map(|record| std::str::from_utf8(record).unwrap_or("?"));
    if records.next()? != MAGIC {
        return None;
    }
    let mut head = read_head(records.next()?)?;
    let mut progress = Progress::default();
    for record in records.filter(|record| !record.is_empty()) {
        if let Some(later) = read_head(record) {
            head = later;
        } else if let Some(watermark) = read_watermark(record) {
            progress = Progress::starting_at(watermark);
        } else if let Some(span) = read_span(record) {
            progress.settle(span);
        } else {
            tracing::warn!(
                record,
                "a record of the progress file cannot be read; its line is delivered again"
            );
        }
    }
    Some((head, progress))
}

fn read_head(record: &str) -> Option<Head> {
    let (length, hash) = record.strip_prefix("head ")?.strip_suffix(';')?.split_once(' ')?;
    Some(Head { length: length.parse().ok()?, hash: blake3::Hash::from_hex(hash).ok()? })
}

fn read_watermark(record: &str) -> Option<u64> {
    record.strip_prefix("done ")?.strip_suffix(';')?.parse().ok()
}

fn read_span(record: &str) -> Option<Span> {
    let (from, to) = record.strip_suffix(';')?.split_once(' ')?;
    let span = Span { from: from.parse().ok()?, to: to.parse().ok()? };
    (span.from < span.to).then_some(span)
}

/// Writes a fresh journal beside the old one and puts it in its place, so that there is a whole one at any time.
fn write_compacted(path: &Path, head: &Head, progress: &Progress) -> io::Result<(File, u64)> {
    let mut text = format!("{MAGIC}\n{}done {};\n", head.record(), progress.watermark());
    text.extend(progress.later().map(span_record));
    let fresh = beside(path, ".new");
    let mut file = File::create(&fresh)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)?;
    Ok((file, text.len() as u64))
}

const MAGIC: &str = "ackord progress 1";

/// How much of a file is hashed to recognise it.
const HEAD: u64 = 4096;

/// Size in bytes above which a journal is compacted while it is in use.
const COMPACT_ABOVE: u64 = 16 * 1024 * 1024;

/// Locks, with a second's patience: when a process is killed just while it starts a command, that command holds its lock
/// until it has become another program.
fn lock_soon(file: &File) -> Result<(), TryLockError> {
    const TRIES: u32 = 100;
    for _ in 1..TRIES {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(std::time::Duration::from_millis(10)),
            answer => return answer,
        }
    }
    file.try_lock()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(tail: &str) -> Option<(u64, Vec<Span>)> {
        let head = Head { length: 0, hash: blake3::hash(b"") }.record();
        let (_, progress) = read_records(format!("{MAGIC}\n{head}{tail}").as_bytes())?;
        Some((progress.watermark(), progress.later().collect()))
    }

    #[test]
    fn a_torn_record_counts_for_nothing() {
        assert_eq!(records("done 10;\n10 20;\n20 3"), Some((20, vec![])));
        assert_eq!(records("done 10;\n10 2\n20 30;\n"), Some((10, vec![Span { from: 20, to: 30 }])));
        assert_eq!(records("done 10;\n\0\0\0\n10 20;\n"), Some((20, vec![])));
    }

    #[test]
    fn a_record_that_ends_before_it_begins_counts_for_nothing() {
        assert_eq!(records("done 0;\n0 0;\n5 4;\n"), Some((0, vec![])));
    }

    #[test]
    fn a_file_that_does_not_begin_as_a_journal_is_not_taken_for_one() {
        assert!(read_records(b"{\"id\":1}\n").is_none());
        assert!(read_records(b"").is_none());
        assert!(read_records(b"ackord progress 1\n").is_none());
    }

    #[test]
    fn a_journal_that_grows_long_is_compacted_while_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let (source, path) = (dir.path().join("in"), dir.path().join("in.progress"));
        std::fs::write(&source, "x\n".repeat(100)).unwrap();
        let mut journal = Journal::open(&path, File::open(&source).unwrap(), &source).unwrap();
        journal.settle(Span { from: 0, to: 2 }).unwrap();
        journal.size = COMPACT_ABOVE;
        journal.settle(Span { from: 4, to: 6 }).unwrap();
        journal.settle(Span { from: 2, to: 4 }).unwrap();
        drop(journal);
        assert_eq!(
            std::fs::read_to_string(&path).unwrap().lines().skip(2).collect::<Vec<_>>(),
            ["done 2;", "4 6;", "2 4;"]
        );
        let journal = Journal::open(&path, File::open(&source).unwrap(), &source).unwrap();
        assert_eq!(journal.progress().watermark(), 6);
    }

    #[test]
    fn a_record_that_could_not_be_written_is_not_settled_and_harms_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let (source, path) = (dir.path().join("in"), dir.path().join("in.progress"));
        std::fs::write(&source, "x\n".repeat(100)).unwrap();
        let mut journal = Journal::open(&path, File::open(&source).unwrap(), &source).unwrap();
        let writable = std::mem::replace(&mut journal.file, File::open(&path).unwrap());
        journal.settle(Span { from: 0, to: 2 }).unwrap_err();
        assert_eq!(journal.progress().watermark(), 0);
        journal.file = writable;
        // What a full disk may leave of a record.
        journal.file.write_all(b"0 2").unwrap();
        journal.settle(Span { from: 2, to: 4 }).unwrap();
        drop(journal);
        let journal = Journal::open(&path, File::open(&source).unwrap(), &source).unwrap();
        assert_eq!(journal.progress().later().collect::<Vec<_>>(), [Span { from: 2, to: 4 }]);
    }
}
