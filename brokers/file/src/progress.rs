//! What is settled, remembered beside the file. Power loss may forget the last of it; what is then read again is answered
//! from the store.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

/// How much of the file's head tells it from another file of the same name.
const HEAD: usize = 1024;
/// After this many settled lines the watermark is written, so that the journal can be cut at the next start.
const MARK_EVERY: u32 = 1024;

/// Which lines are settled. Pure; lines are named by the offset of their first byte.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    /// Everything before it is settled.
    watermark: u64,
    /// Settled lines after the watermark.
    beyond: BTreeSet<u64>,
    /// Lines that have been read since the watermark, with their ends.
    known: BTreeMap<u64, u64>,
}

impl Settled {
    pub(crate) fn watermark(&self) -> u64 {
        self.watermark
    }

    /// Takes note of a line; `false` when it is settled already.
    pub(crate) fn read(&mut self, start: u64, end: u64) -> bool {
        self.known.insert(start, end);
        if self.beyond.contains(&start) {
            self.advance();
            return false;
        }
        true
    }

    pub(crate) fn settle(&mut self, start: u64) {
        self.beyond.insert(start);
        self.advance();
    }

    fn advance(&mut self) {
        while let Some(first) = self.known.first_entry().filter(|line| self.beyond.contains(line.key())) {
            let (start, end) = first.remove_entry();
            self.beyond.remove(&start);
            self.watermark = end;
        }
    }
}

/// The journal on disk.
#[derive(Debug)]
pub(crate) struct Progress {
    settled: Settled,
    journal: Option<File>,
    since_mark: u32,
}

impl Progress {
    /// Keeps it in memory only, as for stdin.
    pub(crate) fn forgetful() -> Self {
        Self { settled: Settled::default(), journal: None, since_mark: 0 }
    }

    /// Opens the journal of that source file, or begins one.
    ///
    /// # Errors
    /// A sentence with the cure.
    pub(crate) fn open(path: &Path, source: &mut File) -> Result<Self, String> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(format!("progress {} cannot be read: {error}", path.display())),
        };
        let settled = parse(&text, source).map_err(|problem| {
            format!("{problem}; delete {} to read the file from its start", path.display())
        })?;
        let head = head_of(source, HEAD).map_err(|error| format!("cannot be read: {error}"))?;
        let written = rewrite(path, &head, &settled);
        let journal = written.map_err(|error| {
            format!("progress {} cannot be written: {error}; make its folder writable, or name another in `progress`", path.display())
        })?;
        Ok(Self { settled, journal: Some(journal), since_mark: 0 })
    }

    pub(crate) fn watermark(&self) -> u64 {
        self.settled.watermark()
    }

    /// Takes note of a line; `false` when it is settled already.
    pub(crate) fn read(&mut self, start: u64, end: u64) -> bool {
        self.settled.read(start, end)
    }

    /// Remembers that a line is settled.
    pub(crate) fn settle(&mut self, start: u64) -> io::Result<()> {
        if let Some(journal) = &mut self.journal {
            let mut entry = format!("d {start}\n");
            if self.since_mark >= MARK_EVERY {
                entry.push_str(&format!("w {}\n", self.settled.watermark()));
                self.since_mark = 0;
            }
            self.since_mark += 1;
            journal.write_all(entry.as_bytes())?;
        }
        self.settled.settle(start);
        Ok(())
    }
}

fn parse(text: &str, source: &mut File) -> Result<Settled, String> {
    let mut settled = Settled::default();
    let Some((head, entries)) = text.split_once('\n') else { return Ok(settled) };
    let mut words = head.split(' ');
    let (Some("ackord-progress"), Some("1"), Some(length), Some(hash)) =
        (words.next(), words.next(), words.next().and_then(|word| word.parse::<usize>().ok()), words.next())
    else {
        return Err("the progress beside it is damaged or of another version".to_owned());
    };
    let now = head_of(source, length).map_err(|error| format!("cannot be read: {error}"))?;
    if now.len() != length || blake3::hash(&now).to_hex().as_str() != hash {
        return Err("is another file than the one that the progress beside it belongs to".to_owned());
    }
    // The last entry may be torn; then it has no newline and is not counted.
    let whole = entries.rfind('\n').map_or("", |end| &entries[..end]);
    for entry in whole.lines() {
        match entry.split_once(' ').map(|(kind, offset)| (kind, offset.parse::<u64>())) {
            Some(("d", Ok(offset))) => drop(settled.beyond.insert(offset)),
            Some(("w", Ok(offset))) => settled.watermark = settled.watermark.max(offset),
            _ => return Err("the progress beside it is damaged".to_owned()),
        }
    }
    let watermark = settled.watermark;
    settled.beyond.retain(|offset| *offset >= watermark);
    Ok(settled)
}

fn head_of(source: &mut File, length: usize) -> io::Result<Vec<u8>> {
    use std::io::Seek;
    source.rewind()?;
    let mut head = Vec::with_capacity(length);
    source.take(length as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// Writes what counts into a new file and puts it in the place of the old one.
fn rewrite(path: &Path, head: &[u8], settled: &Settled) -> io::Result<File> {
    let mut text = format!("ackord-progress 1 {} {}\n", head.len(), blake3::hash(head).to_hex());
    text.push_str(&format!("w {}\n", settled.watermark));
    for offset in &settled.beyond {
        text.push_str(&format!("d {offset}\n"));
    }
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    std::fs::write(&new, text)?;
    std::fs::rename(&new, path)?;
    OpenOptions::new().append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watermark_never_passes_an_unsettled_line() {
        let mut settled = Settled::default();
        for start in [0, 10, 20, 30] {
            assert!(settled.read(start, start + 10));
        }
        settled.settle(20);
        settled.settle(10);
        assert_eq!(settled.watermark(), 0);
        settled.settle(0);
        assert_eq!(settled.watermark(), 30);
        settled.settle(30);
        assert_eq!(settled, Settled { watermark: 40, ..Settled::default() });
    }

    #[test]
    fn a_line_that_was_settled_in_an_earlier_run_is_not_read_again() {
        let mut settled = Settled { watermark: 10, beyond: BTreeSet::from([20]), known: BTreeMap::new() };
        assert!(settled.read(10, 20));
        assert!(!settled.read(20, 30));
        settled.settle(10);
        assert_eq!(settled.watermark(), 30);
    }
}
