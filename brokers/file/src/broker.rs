//! Opening a source: what can be wrong with a path is found here, before the first message.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ackord_broker::{
    Broker, BrokerError, Capabilities, Consumer, DeadLetters as DeadLettersAre, DelayBounds, ErrorKind,
    Lease, Ordering, Redelivery, Subscription,
};
use async_trait::async_trait;

use crate::backlog::LONGEST_DELAY;
use crate::config::FileConfig;
use crate::consumer::FileConsumer;
use crate::dead_letter::DeadLetters;
use crate::journal::{Journal, beside};
use crate::reader::{self, Feed, Reading};
use crate::settle::{Ledger, Shared};

/// Files of JSON lines, and stdin, as sources of messages.
///
/// A subscription's source is a path, or `-` for stdin. One consumer at a time reads a file: its progress is
/// remembered beside it, in `<file>.progress`, and the next consumer goes on behind what is settled. A file may grow;
/// another file under the same name is refused. Stdin is read once, and what is not settled of it is gone with the
/// process.
///
/// A message is named by the offset of its line. One that is nacked comes again from the same consumer, when its delay
/// has passed; one that is rejected is appended to the dead-letter file, in the message format, before its line counts
/// as settled; an end of the process between the two leaves the letter and delivers the message once more. With the end of the file reached and everything settled, the source has ended.
#[derive(Debug, Clone)]
pub struct FileBroker {
    config: FileConfig,
}

impl FileBroker {
    /// A broker of that configuration. Opens nothing.
    pub fn new(config: FileConfig) -> Self {
        Self { config }
    }
}

#[async_trait]
impl Broker for FileBroker {
    fn name(&self) -> &'static str {
        "file"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            redelivery: Redelivery::OnDrop,
            ordering: Ordering::Total,
            dead_letters: DeadLettersAre::Kept,
            delay: DelayBounds { max: LONGEST_DELAY },
            lease: Lease::Unlimited,
            stable_position: true,
        }
    }

    async fn subscribe(&self, to: &Subscription) -> Result<Box<dyn Consumer>, BrokerError> {
        let (config, to) = (self.config.clone(), to.clone());
        let opened = tokio::task::spawn_blocking(move || open(&config, &to)).await;
        let (shared, feed) = opened
            .map_err(|stopped| BrokerError::new(ErrorKind::Unavailable, "subscribe", stopped))?
            .map_err(|text| BrokerError::new(ErrorKind::Refused, "subscribe", text))?;
        Ok(Box::new(FileConsumer::new(Arc::new(shared), feed)))
    }
}

/// Opens a source; the error is a sentence that names the path and the cure.
fn open(config: &FileConfig, to: &Subscription) -> Result<(Shared, Feed), String> {
    let is_stdin = to.source == "-";
    let dead_letter = match (&to.dead_letter, &config.dead_letter) {
        (Some(path), _) => path.into(),
        (None, Some(path)) => path.clone(),
        (None, None) if is_stdin => PathBuf::from("stdin.dlq.jsonl"),
        (None, None) => beside(to.source.as_ref(), ".dlq.jsonl"),
    };
    let path = Path::new(&to.source);
    let reading = Reading {
        source: to.source.clone(),
        name: if is_stdin {
            "stdin".into()
        } else {
            path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
        },
        format: config.format,
        longest: config.max_line.get(),
        window: to.window,
    };
    let no_thread = |error: io::Error| format!("no thread could be started to read {}: {error}", to.source);
    if is_stdin {
        let shared = Shared::new(Ledger::Unwritten, DeadLetters::new(dead_letter, None));
        let feed = reader::read_stream(io::stdin(), reading).map_err(no_thread)?;
        return Ok((shared, feed));
    }

    let mut file = open_source(path)?;
    let progress = config.progress.clone().unwrap_or_else(|| beside(path, ".progress"));
    for (what, other) in [("dead_letter", &dead_letter), ("progress", &progress)] {
        if is_same(path, other) {
            return Err(format!("{} is the source itself; set `{what}` to another path", other.display()));
        }
    }
    let journal = Journal::open(&progress, open_source(path)?, path).map_err(|error| error.to_string())?;
    let settled = journal.progress().clone();
    file.seek(SeekFrom::Start(settled.watermark())).map_err(|error| cannot_read(path, &error))?;
    let shared = Shared::new(
        Ledger::Journal(Box::new(journal)),
        DeadLetters::new(dead_letter, Some(open_source(path)?)),
    );
    let feed = reader::read_file(file, settled, reading, config.follow).map_err(no_thread)?;
    Ok((shared, feed))
}

fn open_source(path: &Path) -> Result<File, String> {
    // Looked at first: opening a named pipe would wait for its writer.
    let metadata = path.metadata().map_err(|error| cannot_read(path, &error))?;
    if metadata.is_dir() {
        return Err(format!("{} is a directory; name a file in it", path.display()));
    }
    if !metadata.is_file() {
        return Err(format!("{} is not a regular file; pipe it to stdin and name `-`", path.display()));
    }
    File::open(path).map_err(|error| cannot_read(path, &error))
}

fn cannot_read(path: &Path, error: &io::Error) -> String {
    let cure = match error.kind() {
        io::ErrorKind::NotFound => "check the path",
        io::ErrorKind::PermissionDenied => "let this user read it",
        _ => "make it readable",
    };
    format!("{} cannot be read ({error}); {cure}", path.display())
}

fn is_same(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}
