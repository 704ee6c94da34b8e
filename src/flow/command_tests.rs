use std::sync::Arc;

use ackord_broker::{Message, Origin};
use tokio::net::unix::pipe;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::flow::StepCall;
use crate::key::{IdempotencyKey, Scope};

fn settings(script: &str) -> CommandSettings {
    CommandSettings { run: ["sh", "-c", script].map(str::to_owned).to_vec(), ..CommandSettings::default() }
}

fn step(script: &str) -> CommandStep {
    CommandStep::new(settings(script))
}

fn context_of(message: Message, outputs: Vec<(Arc<str>, Value)>) -> StepContext {
    let key = IdempotencyKey::for_flow("charge", "order-1", Scope::default()).unwrap();
    StepCall {
        message: Arc::new(message),
        flow: "charge".into(),
        step: "receipt".into(),
        key,
        attempt: 2,
        max_attempts: 5,
        outputs: Arc::new(outputs),
        lost: CancellationToken::new(),
    }
    .into()
}

fn context(body: impl Into<Vec<u8>>) -> StepContext {
    context_of(Message::new("m-1", body.into()), Vec::new())
}

async fn result(script: &str) -> Value {
    step(script).run(&context("body")).await.unwrap()
}

async fn error(script: &str) -> StepError {
    step(script).run(&context("body")).await.unwrap_err()
}

#[tokio::test]
async fn the_body_goes_in_and_the_output_is_the_result() {
    assert_eq!(result("cat; echo").await, json!("body"));
    assert_eq!(result(r#"echo '{"id": 7}'"#).await, json!({ "id": 7 }));
    assert_eq!(result("true").await, Value::Null);
    assert_eq!(result(r"printf '\377\376'").await, json!({ "base64": "//4=" }));
}

#[tokio::test]
async fn an_input_that_is_not_read_and_an_output_that_is_large_block_nobody() {
    let cx = context(vec![b'x'; 2_000_000]);
    assert_eq!(step("echo done").run(&cx).await.unwrap(), json!("done"));
    let echo = CommandStep::new(CommandSettings { output_cap: 2_000_000, ..settings("cat") });
    assert_eq!(echo.run(&cx).await.unwrap().as_str().unwrap().len(), 2_000_000);
}

#[tokio::test]
async fn beyond_the_cap_one_byte_more_than_the_cap_is_returned() {
    let step = CommandStep::new(CommandSettings { output_cap: 10, ..settings("cat") });
    assert_eq!(step.run(&context(vec![b'x'; 300_000])).await.unwrap(), json!("xxxxxxxxxxx"));
    assert_eq!(step.run(&context("abcdefghij")).await.unwrap(), json!("abcdefghij"));
}

#[tokio::test]
async fn the_environment_tells_the_command_what_it_runs_for() {
    let mut message = Message::new("m\0 1", "").with_header("TraceParent", "00-aa-bb-01");
    message.origin = Origin { source: "orders.paid".into(), ..Origin::default() };
    let cx = context_of(message, vec![("charge".into(), json!({ "id": "c-9" }))]);
    let script = r#"printf '%s|' "$ACKORD_FLOW" "$ACKORD_STEP" "$ACKORD_KEY" "$ACKORD_ATTEMPT" "$ACKORD_MAX_ATTEMPTS" \
        "$ACKORD_MESSAGE_ID" "$ACKORD_SOURCE" "$TRACEPARENT" "$ACKORD_OUTPUTS" "$EXTRA""#;
    let step = CommandStep::new(CommandSettings {
        env: vec![("EXTRA".to_owned(), "more".to_owned())],
        ..settings(script)
    });
    let key = cx.key().to_string();
    let expected = format!(
        "charge|receipt|{key}|2|5|m\u{fffd} 1|orders.paid|00-aa-bb-01|{{\"charge\":{{\"id\":\"c-9\"}}}}|more|"
    );
    assert_eq!(step.run(&cx).await.unwrap(), json!(expected));
}

#[tokio::test]
async fn outputs_that_are_too_large_for_an_environment_are_left_out() {
    let large = Value::String("x".repeat(OUTPUTS_CAP));
    let cx = context_of(Message::new("m", ""), vec![("charge".into(), large)]);
    assert_eq!(step(r#"echo "${ACKORD_OUTPUTS-none}""#).run(&cx).await.unwrap(), json!("none"));
}

#[tokio::test]
async fn a_relative_program_is_looked_up_in_the_folder_of_the_step() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/bin/sh", dir.path().join("shell")).unwrap();
    let run = ["./shell", "-c", "pwd -P"].map(str::to_owned).to_vec();
    let step = CommandStep::new(CommandSettings { run, dir: Some(dir.path().to_owned()), ..settings("") });
    let expected = dir.path().canonicalize().unwrap();
    assert_eq!(step.run(&context("")).await.unwrap(), json!(expected.to_str().unwrap()));
}

#[tokio::test]
async fn exit_codes_have_their_verdicts_and_the_last_line_of_stderr_is_the_detail() {
    let cases = [
        (1, Verdict::Transient),
        (65, Verdict::Declined),
        (75, Verdict::Transient),
        (126, Verdict::WorkerFault),
        (127, Verdict::WorkerFault),
    ];
    for (code, expected) in cases {
        let error = error(&format!("echo first >&2; echo last >&2; exit {code}")).await;
        assert_eq!(error.verdict(), expected, "exit {code}");
        assert_eq!(error.code(), format!("exit_{code}"));
        assert!(error.detail_text().ends_with("last"), "{error}");
    }
}

#[tokio::test]
async fn a_hint_on_stdout_wins_over_the_exit_code() {
    let after = Some(Duration::from_secs(30));
    let cases = [
        (r#"{"status":"retry","after":"30s"}"#, 65, Verdict::Throttled { after }, "exit_65"),
        (r#"{"status":"retry"}"#, 65, Verdict::Transient, "exit_65"),
        (r#"{"status":"decline","code":"Closed"}"#, 1, Verdict::Declined, "Closed"),
        (r#"{"status":"fault"}"#, 1, Verdict::WorkerFault, "exit_1"),
        (r#"{"code":"CardDeclined"}"#, 1, Verdict::Declined, "CardDeclined"),
        (r#"{"code":"Odd"}"#, 65, Verdict::Declined, "Odd"),
        (r#"{"code":"Odd"}"#, 1, Verdict::Transient, "Odd"),
        (r#"{"code":"CardDeclined"}"#, 127, Verdict::WorkerFault, "CardDeclined"),
    ];
    for (hint, code, verdict, name) in cases {
        let error = error(&format!("echo '{hint}'; exit {code}")).await;
        assert_eq!((error.verdict(), error.code()), (verdict, name), "{hint} with {code}");
        assert_eq!(error.answer().is_some(), verdict == Verdict::Declined);
    }
    let error = error(r#"echo '{"code":"CardDeclined","detail":"no funds"}'; exit 65"#).await;
    assert_eq!(error.summary(), "CardDeclined: no funds");
}

#[tokio::test]
async fn a_command_that_cannot_be_started_is_the_workers_fault_and_is_named() {
    let run = vec!["no-such-program-here".to_owned()];
    let step = CommandStep::new(CommandSettings { run, ..CommandSettings::default() });
    let error = step.run(&context("")).await.unwrap_err();
    assert_eq!(error.verdict(), Verdict::WorkerFault);
    let expected = "not_started: cannot start no-such-program-here: No such file or directory (os error 2)";
    assert_eq!(error.summary(), expected);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("data"), "no program").unwrap();
    let run = vec!["./data".to_owned()];
    let step = CommandStep::new(CommandSettings { run, dir: Some(dir.path().to_owned()), ..settings("") });
    let error = step.run(&context("")).await.unwrap_err();
    assert_eq!(error.verdict(), Verdict::WorkerFault);
    let place = dir.path().display();
    let expected = format!("not_started: cannot start ./data in {place}: Permission denied (os error 13)");
    assert_eq!(error.summary(), expected);
    let empty = CommandStep::new(CommandSettings::default());
    assert_eq!(empty.run(&context("")).await.unwrap_err().verdict(), Verdict::WorkerFault);
}

#[tokio::test]
async fn a_command_that_dies_by_a_signal_is_in_doubt() {
    let error = error("echo dying >&2; kill -KILL $$").await;
    assert_eq!(error.verdict(), Verdict::InDoubt);
    assert_eq!(error.summary(), "signal_9: sh was ended by signal 9: dying");
}

#[tokio::test]
async fn what_a_command_leaves_running_neither_delays_nor_survives_it() {
    let (_dir, path, mut pipe) = fifo();
    let script = format!("exec 3>{path}; echo up >&3; sleep 600 & echo done");
    assert_eq!(result(&script).await, json!("done"));
    assert_eq!(all_of(&mut pipe).await, "up\n");
}

#[tokio::test]
async fn long_and_many_lines_on_stderr_are_cut_and_the_last_one_is_kept() {
    let script = "i=0; while [ $i -lt 300 ]; do echo line $i >&2; i=$((i+1)); done; head -c 5000 /dev/zero | tr '\\0' y >&2; exit 1";
    assert_eq!(error(script).await.detail_text(), "y".repeat(LINE_CAP));
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_ended_and_in_doubt() {
    let (_dir, path, mut pipe) = fifo();
    let script = format!("exec 3>{path}; echo up >&3; sleep 600 & wait");
    let step = CommandStep::new(CommandSettings { timeout: Duration::from_secs(1), ..settings(&script) });
    let error = step.run(&context("")).await.unwrap_err();
    assert_eq!(error.verdict(), Verdict::InDoubt);
    assert_eq!(error.summary(), "timeout: sh did not end within 1s");
    assert_eq!(all_of(&mut pipe).await, "up\n");
}

#[tokio::test]
async fn a_command_that_ignores_the_request_to_end_is_killed_with_its_children() {
    let (_dir, path, mut pipe) = fifo();
    let script = format!("trap '' TERM; exec 3>{path}; echo up >&3; sleep 600; sleep 600");
    let mut step = CommandStep::new(CommandSettings { timeout: Duration::from_secs(1), ..settings(&script) });
    step.term_grace = Duration::from_millis(50);
    assert_eq!(step.run(&context("")).await.unwrap_err().verdict(), Verdict::InDoubt);
    assert_eq!(all_of(&mut pipe).await, "up\n");
}

#[tokio::test]
async fn a_step_that_is_given_up_leaves_nothing_running() {
    let (_dir, path, mut pipe) = fifo();
    let step = step(&format!("exec 3>{path}; echo up >&3; sleep 600 & wait"));
    let cx = context("");
    let mut first = [0; 3];
    tokio::select! {
        ended = step.run(&cx) => panic!("it ended: {ended:?}"),
        read = pipe.read_exact(&mut first) => { read.unwrap(); }
    }
    assert_eq!(&first, b"up\n");
    assert_eq!(all_of(&mut pipe).await, "");
}

/// A pipe with a name: as long as a process of the command holds it open, reading it does not end.
fn fifo() -> (tempfile::TempDir, String, pipe::Receiver) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let receiver = pipe::OpenOptions::new().open_receiver(&path).unwrap();
    (dir, path.to_str().unwrap().to_owned(), receiver)
}

async fn all_of(pipe: &mut pipe::Receiver) -> String {
    let mut text = String::new();
    let read = tokio::time::timeout(Duration::from_secs(60), pipe.read_to_string(&mut text)).await;
    read.expect("a process of the command is still there").unwrap();
    text
}
