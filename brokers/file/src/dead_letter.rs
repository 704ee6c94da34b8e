//! The dead-letter file: appended to, flushed before the line counts as settled, never left with half a line.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use ackord_broker::{Message, Rejection};
use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;

use crate::format;

#[derive(Debug)]
pub(crate) struct DeadLetterFile {
    path: PathBuf,
}

/// The raw bytes of a line that was too long to be kept in memory.
#[derive(Debug, Clone)]
pub(crate) struct RawLine {
    pub(crate) path: PathBuf,
    pub(crate) start: u64,
    pub(crate) length: u64,
}

impl DeadLetterFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a message with its reason and waits until it is on disk.
    pub(crate) fn append(
        &self,
        message: &Message,
        rejection: &Rejection,
        raw: Option<&RawLine>,
    ) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        let before = file.metadata()?.len();
        let written = match raw {
            None => {
                let mut line = format::write_line(message, Some(rejection));
                line.push('\n');
                file.write_all(line.as_bytes())
            }
            Some(raw) => append_raw(&mut file, message, rejection, raw),
        };
        written.and_then(|()| file.sync_data()).inspect_err(|_| {
            // Half a line would spoil the next one. If this fails too, the error that is reported is still the first.
            let _ = file.set_len(before);
        })
    }
}

/// Copies the raw bytes from the source file as `body_base64`, a piece at a time.
fn append_raw(file: &mut File, message: &Message, rejection: &Rejection, raw: &RawLine) -> io::Result<()> {
    let line = format::write_line(message, Some(rejection));
    let head = line.strip_suffix('}').ok_or_else(|| io::Error::other("a line that is not an object"))?;
    let mut source = File::open(&raw.path)?;
    source.seek(SeekFrom::Start(raw.start))?;
    let mut out = io::BufWriter::new(file);
    out.write_all(head.as_bytes())?;
    out.write_all(b",\"body_base64\":\"")?;
    let mut encoder = EncoderWriter::new(&mut out, &STANDARD);
    let copied = io::copy(&mut source.take(raw.length), &mut encoder)?;
    encoder.finish()?;
    drop(encoder);
    if copied != raw.length {
        return Err(io::Error::other("the source file has become shorter"));
    }
    out.write_all(b"\"}\n")?;
    out.flush()
}
