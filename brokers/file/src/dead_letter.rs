//! The file that rejected messages are appended to.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::Mutex;

use ackord_broker::Rejection;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::backlog::{Entry, Unheld};
use crate::format::{head, write_line};

/// Appends dead letters. The file is opened anew for each, so that one that was moved away, or a disk that was full,
/// needs no restart.
#[derive(Debug)]
pub(crate) struct DeadLetters {
    path: PathBuf,
    /// The source once more, to copy lines from that were not held in memory; `None` for stdin, where all are. The
    /// mutex also keeps our own letters apart.
    source: Mutex<Option<File>>,
}

impl DeadLetters {
    pub(crate) fn new(path: PathBuf, source: Option<File>) -> Self {
        Self { path, source: Mutex::new(source) }
    }

    /// Appends one letter and returns when it is on the disk. When that fails, nothing of it is left in the file.
    /// Blocks.
    pub(crate) fn append(&self, entry: &Entry, rejection: &Rejection) -> io::Result<()> {
        let mut source = self.source.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(&self.path)
            .map_err(|error| self.with_path(error))?;
        // Other processes may append to the same file; given back when it is closed.
        match file.lock() {
            Err(error) if error.kind() != io::ErrorKind::Unsupported => return Err(self.with_path(error)),
            _ => {}
        }
        let before = file.metadata()?.len();
        write_letter(&mut file, before, source.as_mut(), entry, rejection)
            .and_then(|()| self.sync(&file, before == 0))
            .map_err(|error| {
                // Best effort: if this fails too, the next letter still begins on a line of its own.
                let _ = file.set_len(before);
                self.with_path(error)
            })
    }

    fn sync(&self, file: &File, is_new: bool) -> io::Result<()> {
        // A pipe or a terminal cannot be synced.
        if !file.metadata()?.is_file() {
            return Ok(());
        }
        file.sync_data()?;
        // A new file also needs its name on the disk; only Unix opens directories for that.
        if is_new && cfg!(unix) {
            let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(parent.unwrap_or(".".as_ref()))?.sync_all()?;
        }
        Ok(())
    }

    fn with_path(&self, error: io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("dead letter {}: {error}", self.path.display()))
    }
}

fn write_letter(
    file: &mut File,
    before: u64,
    source: Option<&mut File>,
    entry: &Entry,
    rejection: &Rejection,
) -> io::Result<()> {
    if before > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    match (entry.unheld, source) {
        (Some(line), Some(source)) => {
            let mut out = BufWriter::with_capacity(CHUNK, file);
            out.write_all(head(&entry.message, Some(rejection)).as_bytes())?;
            out.write_all(b"\"body_base64\":\"")?;
            copy_base64(source, line, &mut out)?;
            out.write_all(b"\"}\n")?;
            out.flush()
        }
        _ => {
            let mut line = write_line(&entry.message, Some(rejection));
            line.push('\n');
            file.write_all(line.as_bytes())
        }
    }
}

/// Copies a line of any length with the memory of a chunk. In base64, because whether it is text is only known at its
/// end.
fn copy_base64(source: &mut File, line: Unheld, out: &mut impl Write) -> io::Result<()> {
    source.seek(SeekFrom::Start(line.at))?;
    let mut chunk = vec![0; CHUNK];
    let mut text = String::with_capacity(CHUNK * 4 / 3);
    let mut left = line.length;
    while left > 0 {
        let count = chunk.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        source.read_exact(&mut chunk[..count])?;
        text.clear();
        STANDARD.encode_string(&chunk[..count], &mut text);
        out.write_all(text.as_bytes())?;
        left -= count as u64;
    }
    Ok(())
}

/// Bytes copied at once: a multiple of three, so that base64 is padded at the end of the line only.
const CHUNK: usize = 96 * 1024;
