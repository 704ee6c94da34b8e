//! The real program, killed at random moments of one run of 2,000 messages and started again each time.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const MESSAGES: usize = 2_000;
const KILLS: usize = 50;

struct Scene {
    folder: tempfile::TempDir,
}

/// What a run said before it ended.
#[derive(Default)]
struct Said {
    taken_over: BTreeSet<String>,
    summary: Option<Value>,
    exit_code: Option<i32>,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let lines: String = (0..MESSAGES)
            .map(|n| {
                format!("{{\"id\":\"m{n}\",\"headers\":{{\"idempotency-key\":\"k{n}\"}},\"body\":{n}}}\n")
            })
            .collect();
        std::fs::write(folder.path().join("in.jsonl"), lines).unwrap();
        let step =
            r#"command = { run = ["sh", "-c", "cat >/dev/null; echo $ACKORD_STEP $ACKORD_KEY >>ledger"] }"#;
        let config = format!(
            r#"
            [worker]
            drain = "20s"
            [brokers.inbox]
            kind = "file"
            [flows.f]
            source = {{ broker = "inbox", path = "in.jsonl" }}
            key = "header:idempotency-key"
            concurrency = 8
            # So many kills in one run may meet one message often; here that is no sign of poison.
            max_crashes = 1000
            [[flows.f.steps]]
            name = "charge"
            {step}
            [[flows.f.steps]]
            name = "receipt"
            {step}
            "#
        );
        std::fs::write(folder.path().join("ackord.toml"), config).unwrap();
        std::fs::write(folder.path().join("ledger"), "").unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start(&self) -> Child {
        Command::new(env!("CARGO_BIN_EXE_ackord"))
            .args(["run", "--format", "json", "--log-level", "warn", "--config"])
            .arg(self.path("ackord.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn effects(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for line in std::fs::read_to_string(self.path("ledger")).unwrap().lines() {
            *counts.entry(line.split(' ').next_back().unwrap().to_owned()).or_default() += 1;
        }
        counts
    }

    fn ledger_size(&self) -> u64 {
        std::fs::metadata(self.path("ledger")).unwrap().len()
    }
}

/// Waits until the ledger has grown to `size` or the program has ended; `false` when it has ended.
fn wait_for_growth(scene: &Scene, child: &mut Child, size: u64) -> bool {
    let deadline = Instant::now() + Duration::from_secs(60);
    while scene.ledger_size() < size {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        assert!(Instant::now() < deadline, "the ledger does not grow");
        std::thread::yield_now();
    }
    true
}

fn listen(mut child: Child) -> Said {
    let errors = BufReader::new(child.stderr.take().unwrap());
    let mut said = Said::default();
    for line in errors.lines() {
        let line = line.unwrap();
        let line: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line:?}"));
        if line["message"].as_str().unwrap().starts_with("took over a step") {
            said.taken_over.insert(line["key"].as_str().unwrap().to_owned());
        }
    }
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    said.summary = text.lines().last().map(|line| serde_json::from_str(line).unwrap());
    said.exit_code = output.status.code();
    said
}

/// Runs the scene to its end with that signal in between; all takeovers that were reported, and the signals sent.
fn run_with(scene: &Scene, signal: Signal, seed: u64) -> (BTreeSet<String>, usize) {
    let mut random = rand::rngs::SmallRng::seed_from_u64(seed);
    let mut taken_over = BTreeSet::new();
    let mut signals = 0;
    let line = "receipt ff:idemp:::flow:f:k1000\n".len() as u64;
    loop {
        let mut child = scene.start();
        let alive = if signals < KILLS {
            let grow = random.random_range(0..70) * line + random.random_range(0..line);
            let size = scene.ledger_size() + grow;
            wait_for_growth(scene, &mut child, size)
        } else {
            false
        };
        if alive {
            kill_process(Pid::from_child(&child), signal).unwrap();
            signals += 1;
        }
        let said = listen(child);
        taken_over.extend(said.taken_over);
        if signal == Signal::TERM {
            assert_eq!(said.exit_code, Some(0), "a stop that finishes its work is clean");
        }
        // A signal may come just when everything is done.
        if !alive {
            assert_eq!(said.exit_code, Some(0));
            let summary = said.summary.expect("a run to the end has a summary");
            assert_eq!((&summary["unsettled"], &summary["dead_letters"]), (&0.into(), &0.into()));
            return (taken_over, signals);
        }
    }
}

fn assert_nothing_lost(scene: &Scene) -> Vec<String> {
    let effects = scene.effects();
    for n in 0..MESSAGES {
        for key in
            [format!("ff:idemp:::flow:f:k{n}:step:charge"), format!("ff:idemp:::flow:f:k{n}:step:receipt")]
        {
            assert!(effects.contains_key(&key), "lost: {key}");
        }
    }
    assert_eq!(effects.len(), 2 * MESSAGES, "nothing but what was asked for");
    effects.into_iter().filter(|(_, count)| *count > 1).map(|(key, _)| key).collect()
}

#[test]
fn killed_fifty_times_loses_nothing_and_every_double_was_reported() {
    let scene = Scene::new();
    let (taken_over, kills) = run_with(&scene, Signal::KILL, 1);
    let doubled = assert_nothing_lost(&scene);
    print(&format!(
        "SIGKILL {kills} times: lost 0, doubled {}, takeovers {}",
        doubled.len(),
        taken_over.len()
    ));
    assert!(kills >= KILLS, "the run ended after {kills} kills");
    for key in doubled {
        assert!(taken_over.contains(&key), "{key} was doubled and not reported");
    }
}

#[test]
fn stopped_fifty_times_loses_nothing_and_doubles_nothing() {
    let scene = Scene::new();
    let (taken_over, stops) = run_with(&scene, Signal::TERM, 2);
    let doubled = assert_nothing_lost(&scene);
    assert!(stops >= KILLS, "the run ended after {stops} stops");
    assert_eq!((doubled.len(), taken_over.len()), (0, 0));
}

#[expect(clippy::print_stdout, reason = "the figures belong into the test's output")]
fn print(text: &str) {
    println!("{text}");
}

#[test]
fn a_second_signal_ends_at_once_and_settles_nothing_falsely() {
    let scene = Scene::new();
    let config = std::fs::read_to_string(scene.path("ackord.toml")).unwrap();
    std::fs::write(
        scene.path("ackord.toml"),
        config.replace("cat >/dev/null;", "cat >/dev/null; echo $$ >>started; exec sleep 600;"),
    )
    .unwrap();
    let mut child = scene.start();
    wait_for_file(&scene.path("started"), &mut child);
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::TERM).unwrap();
    // The second may only come when the first has been seen: it says so in its log.
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let deadline = Instant::now() + Duration::from_secs(30);
    let code = loop {
        kill_process(pid, Signal::TERM).unwrap();
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        assert!(Instant::now() < deadline, "the second signal has no effect");
        std::thread::yield_now();
    };
    let mut log = String::new();
    errors.read_line(&mut log).unwrap();
    assert_eq!(code, Some(143), "{log}");
    assert!(scene.effects().is_empty());
    for pid in std::fs::read_to_string(scene.path("started")).unwrap().lines() {
        wait_for_end(pid);
    }
    // What was cut is unsettled: the next run does all of it.
    std::fs::write(scene.path("ackord.toml"), config).unwrap();
    assert_eq!(listen(scene.start()).exit_code, Some(0));
    assert!(assert_nothing_lost(&scene).is_empty());
}

fn wait_for_file(path: &Path, child: &mut Child) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !path.exists() {
        assert!(child.try_wait().unwrap().is_none() && Instant::now() < deadline, "no step starts");
        std::thread::yield_now();
    }
}

/// The commands of steps that were cut must end with the worker.
fn wait_for_end(pid: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        // A dead process that nobody has reaped yet is dead.
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        if status.is_empty() || status.contains("State:\tZ") {
            return;
        }
        assert!(Instant::now() < deadline, "command {pid} outlives the worker");
        std::thread::yield_now();
    }
}
