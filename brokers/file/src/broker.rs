use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ackord_broker::{
    Broker, BrokerError, Capabilities, Consumer, DeadLetters, DelayBounds, ErrorKind, Lease, Ordering,
    Redelivery, Subscription,
};
use async_trait::async_trait;
use tokio::sync::mpsc;

use crate::config::FileConfig;
use crate::consumer::{FileConsumer, Shared};
use crate::dead_letter::DeadLetterFile;
use crate::progress::Progress;
use crate::reader::{self, Input};

/// Batches that wait between the reading thread and the worker.
const BATCHES_AHEAD: usize = 4;

/// JSON lines as a source; a subscription's source is a path, or `-` for stdin.
#[derive(Debug)]
pub struct FileBroker {
    config: FileConfig,
}

impl FileBroker {
    /// A broker with that configuration. Nothing is opened yet.
    pub fn new(config: FileConfig) -> Self {
        Self { config }
    }

    fn open(&self, path: &Path) -> Result<(Input, Progress), String> {
        let mut file = File::open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => "does not exist; create it, or correct the source's path".to_owned(),
            io::ErrorKind::PermissionDenied => "may not be read; give this user the right to".to_owned(),
            _ => format!("cannot be read: {error}"),
        })?;
        let metadata = file.metadata().map_err(|error| format!("cannot be read: {error}"))?;
        if metadata.is_dir() {
            return Err("is a folder; name a file in it".to_owned());
        }
        // Two readers would each settle what the other is working on.
        file.try_lock().map_err(|_| "is being read by another worker; stop that one first".to_owned())?;
        let progress = self.config.progress.clone().unwrap_or_else(|| beside(path, ".progress"));
        let progress = Progress::open(&progress, &mut file)?;
        Ok((Input::File(file, path.to_owned()), progress))
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
            dead_letters: DeadLetters::Kept,
            delay: DelayBounds { max: Duration::from_secs(366 * 24 * 3600) },
            lease: Lease::Unlimited,
            stable_position: true,
        }
    }

    async fn subscribe(&self, to: &Subscription) -> Result<Box<dyn Consumer>, BrokerError> {
        let refused = |problem: String| {
            BrokerError::new(ErrorKind::Refused, "subscribe", format!("{}: {problem}", to.source))
        };
        let path = Path::new(&to.source);
        let (input, progress, default_dlq) = if to.source == "-" {
            (Input::Stdin, Progress::forgetful(), PathBuf::from("stdin.dlq.jsonl"))
        } else {
            let (input, progress) = self.open(path).map_err(refused)?;
            (input, progress, beside(path, ".dlq.jsonl"))
        };
        let named = to.dead_letter.as_ref().map(PathBuf::from).or_else(|| self.config.dead_letter.clone());
        let dead_letters = DeadLetterFile::new(named.unwrap_or(default_dlq));
        let from = progress.watermark();
        let (send, receive) = mpsc::channel(BATCHES_AHEAD);
        reader::start(input, from, self.config.clone(), send).map_err(|error| refused(error.to_string()))?;
        let shared = Arc::new(Shared::new(progress, dead_letters));
        Ok(Box::new(FileConsumer::new(shared, receive)))
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
