//! The broker conformance kit on a file that is followed.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ackord_broker::conformance::{BrokerHarness, Disruption, Mistake, trials};
use ackord_broker::{Broker, Message, Subscription};
use ackord_file::{FileBroker, FileConfig, parse_line, write_line};
use async_trait::async_trait;
use libtest_mimic::Arguments;

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let harness: Arc<dyn BrokerHarness> = Arc::new(Files { folder: tempfile::tempdir().unwrap() });
    libtest_mimic::run(&args, trials("file", &harness)).exit_code()
}

struct Files {
    folder: tempfile::TempDir,
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
        let path = self.folder.path().join(case);
        std::fs::write(&path, "").unwrap();
        Subscription::new(path.to_str().unwrap())
    }

    async fn publish(&self, to: &Subscription, messages: Vec<Message>) {
        let lines: String = messages.iter().map(|message| write_line(message, None) + "\n").collect();
        OpenOptions::new().append(true).open(&to.source).unwrap().write_all(lines.as_bytes()).unwrap();
    }

    async fn parked(&self, of: &Subscription) -> Vec<(Message, String)> {
        let text = std::fs::read_to_string(dead_letters(of)).unwrap_or_default();
        let parse = |line: &str| {
            let json: serde_json::Value = serde_json::from_str(line).unwrap();
            let reason = json["dead_letter"]["reason"].as_str().unwrap().to_owned();
            (parse_line(line.as_bytes()).unwrap(), reason)
        };
        text.lines().map(parse).collect()
    }

    fn can(&self, how: Disruption) -> bool {
        matches!(how, Disruption::LoseDeadLetters | Disruption::RestoreDeadLetters)
    }

    async fn disrupt(&self, source: &Subscription, how: Disruption) {
        match how {
            Disruption::LoseDeadLetters => std::fs::create_dir(dead_letters(source)).unwrap(),
            Disruption::RestoreDeadLetters => std::fs::remove_dir(dead_letters(source)).unwrap(),
            Disruption::CutConnection | Disruption::RestartServer => unreachable!("a file has neither"),
        }
    }

    fn misconfigured(&self, how: Mistake) -> Option<Arc<dyn Broker>> {
        let progress = Some(self.folder.path().join("no such folder/progress"));
        match how {
            Mistake::Refused => {
                Some(Arc::new(FileBroker::new(FileConfig { progress, ..FileConfig::default() })))
            }
            Mistake::NobodyListens => None,
        }
    }

    fn shares_sources(&self) -> bool {
        false
    }

    fn within(&self) -> Duration {
        Duration::from_secs(10)
    }
}
