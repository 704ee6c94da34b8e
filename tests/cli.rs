//! The program with bad input: each a clear error that names the place and the cure, with its exit code, and nothing lost.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> &Self {
        std::fs::write(self.path(name), text).unwrap();
        self
    }

    fn ackord(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_ackord"))
            .args(args)
            .args(["--config", self.path("ackord.toml").to_str().unwrap()])
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    fn run_json(&self) -> (Value, i32) {
        let output = self.ackord(&["run", "--format", "json", "--log-level", "error"]);
        let text = String::from_utf8(output.stdout).unwrap();
        let last =
            text.lines().last().unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        (serde_json::from_str(last).unwrap(), output.status.code().unwrap())
    }

    fn ledger(&self) -> usize {
        std::fs::read_to_string(self.path("ledger")).unwrap_or_default().lines().count()
    }
}

const SOUND: &str = r#"[store]
kind = "sqlite"
path = "ackord.db"

[brokers.inbox]
kind = "file"

[flows.charge]
source = { broker = "inbox", path = "in.jsonl" }
key = "body:/id"

[[flows.charge.steps]]
name = "charge"
command = { run = ["sh", "-c", "cat >/dev/null; echo $ACKORD_KEY >>ledger"] }
"#;

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The configuration is refused with exit code 2, and the report has all of these.
fn assert_refused(config: &str, parts: &[&str]) {
    let place = Place::new();
    place.write("ackord.toml", config).write("in.jsonl", "{\"body\":{\"id\":1}}\n");
    for verb in ["check", "run"] {
        let output = place.ackord(&[verb]);
        let text = errors(&output);
        assert_eq!(output.status.code(), Some(2), "{verb}: {text}");
        for part in parts {
            assert!(text.contains(part), "{verb}: `{part}` is not in: {text}");
        }
    }
    assert_eq!(place.ledger(), 0);
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_nearest_known_one() {
    assert_refused(
        &SOUND.replace("key = \"body", "kee = \"body"),
        &["ackord.toml:10: flows.charge.kee: unknown key; did you mean `key`?"],
    );
    assert_refused(&format!("{SOUND}\n[wroker]\n"), &["wroker: unknown key; did you mean `worker`?"]);
    assert_refused(
        &SOUND.replace("kind = \"file\"", "kind = \"file\"\nmax_lines = 5"),
        &["ackord.toml:7: brokers.inbox.max_lines: unknown key; did you mean `max_line`?"],
    );
    assert_refused(
        &SOUND.replace("path = \"ackord.db\"", "pth = \"ackord.db\""),
        &["ackord.toml:3: store.pth: unknown key; did you mean `path`?"],
    );
}

#[test]
fn a_wrong_type_is_named_with_its_line_and_an_example() {
    assert_refused(
        &SOUND.replace("[flows.charge]", "[flows.charge]\nlease = 30"),
        &["ackord.toml:9: flows.charge.lease:", "for example \"30s\""],
    );
    assert_refused(
        &SOUND.replace("[flows.charge]", "[flows.charge]\nconcurrency = \"many\""),
        &["ackord.toml:9: flows.charge.concurrency:", "many"],
    );
    assert_refused(
        &SOUND.replace("kind = \"sqlite\"", "kind = \"sqlight\""),
        &["store.kind", "memory, sqlite"],
    );
    assert_refused("[flows\n", &["ackord.toml:1:"]);
}

#[test]
fn a_missing_variable_is_named_and_all_faults_come_at_once() {
    assert_refused(
        &SOUND.replace("\"ackord.db\"", "\"${ACKORD_TEST_MISSING}\""),
        &["ackord.toml:3: store.path: environment variable ACKORD_TEST_MISSING is not set"],
    );
    let many = SOUND
        .replace("broker = \"inbox\"", "broker = \"inbx\"")
        .replace("[flows.charge]", "[flows.charge]\nretry = { initial = \"5m\", max = \"1s\" }")
        .replace("\"body:/id\"", "\"bdy:/id\"");
    assert_refused(
        &many,
        &[
            "flows.charge.source.broker: `inbx`",
            "did you mean `inbox`",
            "flows.charge.retry.max",
            "`bdy:/id` names no place",
        ],
    );
}

#[test]
fn two_steps_of_one_name_are_refused() {
    let step = &SOUND[SOUND.find("[[flows").unwrap()..];
    assert_refused(&format!("{SOUND}\n{step}"), &["flows.charge.steps.charge: two steps have this name"]);
}

#[test]
fn a_source_that_cannot_be_read_ends_the_run_with_its_path() {
    let place = Place::new();
    place.write("ackord.toml", SOUND);
    let output = place.ackord(&["run", "--log-level", "error"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        errors(&output).contains("in.jsonl") && errors(&output).contains("cannot be read"),
        "{}",
        errors(&output)
    );
    std::fs::create_dir(place.path("in.jsonl")).unwrap();
    let output = place.ackord(&["run", "--log-level", "error"]);
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
}

#[test]
fn a_line_of_ten_megabytes_is_kept_aside_and_the_others_pass() {
    let place = Place::new();
    let long = format!("{{\"body\":{{\"id\":\"{}\"}}}}", "x".repeat(10 * 1024 * 1024));
    place
        .write("ackord.toml", SOUND)
        .write("in.jsonl", &format!("{{\"body\":{{\"id\":1}}}}\n{long}\n{{\"body\":{{\"id\":2}}}}\n"));
    let (summary, code) = place.run_json();
    assert_eq!(
        (code, &summary["effects"], &summary["dead_letters_by_reason"]["oversize"]),
        (0, &2.into(), &1.into())
    );
    let dead = std::fs::read_to_string(place.path("in.jsonl.dlq.jsonl")).unwrap();
    let dead = ackord_file::parse_line(dead.trim_end().as_bytes()).unwrap();
    assert_eq!(dead.body.as_deref(), Some(long.as_bytes()));
}

#[test]
fn a_store_that_another_process_holds_is_refused_with_its_pid() {
    let place = Place::new();
    place.write("ackord.toml", SOUND).write("in.jsonl", "{\"body\":{\"id\":1}}\n");
    let held = ackord::idempotency::sqlite::SqliteStore::open(place.path("ackord.db")).unwrap();
    let output = place.ackord(&["run", "--log-level", "error"]);
    let text = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("in use by another worker") && text.contains(&std::process::id().to_string()),
        "{text}"
    );
    assert_eq!(place.ackord(&["run", "--fail-fast", "--log-level", "error"]).status.code(), Some(3));
    drop(held);
    assert_eq!(place.run_json().1, 0);
    assert_eq!(place.ledger(), 1);
}

#[test]
fn a_file_that_is_no_database_and_a_folder_that_is_missing_are_refused() {
    let place = Place::new();
    place
        .write("ackord.toml", SOUND)
        .write("in.jsonl", "")
        .write("ackord.db", &"not a database ".repeat(100));
    let output = place.ackord(&["run", "--log-level", "error"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("not a SQLite database"), "{}", errors(&output));
    place.write("ackord.toml", &SOUND.replace("ackord.db", "none/ackord.db"));
    let output = place.ackord(&["run", "--log-level", "error"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("folder does not exist"), "{}", errors(&output));
}

/// A file system of a few hundred KiB, unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path, options: &str) -> Self {
        std::fs::create_dir(at).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at).status();
        assert!(mounted.is_ok_and(|status| status.success()), "this test mounts a tmpfs, so it needs root");
        Self(at.to_owned())
    }

    fn remount(&self, options: &str) {
        let done = Command::new("mount").args(["-o", options]).arg(&self.0).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_ends_the_run_with_its_path_and_the_next_run_goes_on() {
    let place = Place::new();
    let disk = SmallDisk::mount(&place.path("disk"), "size=256k");
    let lines: String =
        (0..2000).map(|n| format!("{{\"body\":{{\"id\":{n},\"pad\":\"{}\"}}}}\n", "x".repeat(100))).collect();
    let config = SOUND
        .replace("\"ackord.db\"", "\"disk/ackord.db\"")
        .replace("cat >/dev/null; echo $ACKORD_KEY >>ledger", "cat; echo $ACKORD_KEY >>ledger");
    let config = format!("[worker]\ndrain = \"2s\"\n{config}");
    place.write("ackord.toml", &config).write("in.jsonl", &lines);
    let output = place.ackord(&["run", "--log-level", "error"]);
    let text = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("disk/ackord.db") && text.contains("disk is full"), "{text}");
    let before = place.ledger();
    assert!(before > 0 && before < 2000, "{before} effects before the disk was full");
    disk.remount("remount,size=64m");
    let (summary, code) = place.run_json();
    assert_eq!((code, &summary["unsettled"]), (0, &0.into()));
    let text = std::fs::read_to_string(place.path("ledger")).unwrap();
    let distinct: std::collections::BTreeSet<_> = text.lines().collect();
    assert_eq!(distinct.len(), 2000, "nothing is lost");
    let doubled = text.lines().count() - 2000;
    // Only what ran when the disk was full, and could not be put on record before the drain time was over.
    assert!(doubled as u64 <= summary["takeovers"].as_u64().unwrap(), "{doubled} doubled, {summary}");
}

#[test]
fn a_read_only_folder_is_refused_before_anything_runs() {
    let place = Place::new();
    let disk = SmallDisk::mount(&place.path("disk"), "size=1m");
    place.write("disk/in.jsonl", "{\"body\":{\"id\":1}}\n");
    disk.remount("remount,ro");
    // First the store, then the progress of the source cannot be written.
    for (config, part) in [
        (
            SOUND.replace("\"ackord.db\"", "\"disk/ackord.db\"").replace("\"in.jsonl\"", "\"disk/in.jsonl\""),
            "disk/ackord.db",
        ),
        (SOUND.replace("\"in.jsonl\"", "\"disk/in.jsonl\""), "disk/in.jsonl"),
    ] {
        place.write("ackord.toml", &config);
        let output = place.ackord(&["run", "--log-level", "error"]);
        let text = errors(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(part) && text.to_lowercase().contains("read-only"), "{text}");
    }
    assert_eq!(place.ledger(), 0);
}

#[test]
fn a_variable_goes_over_the_file_and_a_flag_over_both() {
    let place = Place::new();
    place.write("ackord.toml", SOUND).write("in.jsonl", "");
    let check = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_ackord"))
            .args(["check", "--config", place.path("ackord.toml").to_str().unwrap()])
            .args(args)
            .env("ACKORD__FLOWS__CHARGE__CONCURRENCY", "7")
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(check(&[]).contains("7 at a time"), "{}", check(&[]));
    assert!(check(&["--set", "flows.charge.concurrency=9"]).contains("9 at a time"));
}
