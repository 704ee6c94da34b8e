//! The broker conformance kit on a file that is followed.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ackord_broker::conformance::{BrokerHarness, Disruption, Parked, Supported, trials};
use ackord_broker::{Broker, Message, Subscription};
use ackord_file::{FileBroker, FileConfig, parse_line, write_line};
use async_trait::async_trait;
use libtest_mimic::Arguments;

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let harness: Arc<dyn BrokerHarness> =
        Arc::new(Files { folder: tempfile::tempdir().unwrap(), made: AtomicU32::new(0) });
    libtest_mimic::run(&args, trials(harness, "file")).exit_code()
}

struct Files {
    folder: tempfile::TempDir,
    made: AtomicU32,
}

fn dead_letters(source: &Subscription) -> PathBuf {
    PathBuf::from(format!("{}.dlq.jsonl", source.source))
}

#[async_trait]
impl BrokerHarness for Files {
    fn broker(&self) -> Arc<dyn Broker> {
        Arc::new(FileBroker::new(FileConfig { follow: true, ..FileConfig::default() }))
    }

    async fn fresh_source(&self, case: &str) -> Subscription {
        let path = self.folder.path().join(format!("{case}-{}", self.made.fetch_add(1, Ordering::SeqCst)));
        std::fs::write(&path, "").unwrap();
        Subscription::new(path.to_str().unwrap())
    }

    async fn publish(&self, to: &Subscription, messages: Vec<Message>) {
        let lines: String = messages.iter().map(|message| write_line(message, None) + "\n").collect();
        OpenOptions::new().append(true).open(&to.source).unwrap().write_all(lines.as_bytes()).unwrap();
    }

    async fn parked(&self, of: &Subscription) -> Vec<Parked> {
        let text = std::fs::read_to_string(dead_letters(of)).unwrap_or_default();
        let parse = |line: &str| {
            let json: serde_json::Value = serde_json::from_str(line).unwrap();
            let reason = json["dead_letter"]["reason"].as_str().unwrap().to_owned();
            Parked { message: parse_line(line.as_bytes()).unwrap(), reason }
        };
        text.lines().map(parse).collect()
    }

    fn supports(&self, how: Disruption) -> bool {
        how == Disruption::LoseDeadLetters
    }

    async fn disrupt(&self, source: &Subscription, how: Disruption) -> Supported {
        if how != Disruption::LoseDeadLetters {
            return Supported::No("a file has neither server nor connection".to_owned());
        }
        std::fs::create_dir(dead_letters(source)).unwrap();
        Supported::Yes
    }

    async fn restore(&self, source: &Subscription, _how: Disruption) {
        std::fs::remove_dir(dead_letters(source)).unwrap();
    }

    fn shares_sources(&self) -> bool {
        false
    }
}
