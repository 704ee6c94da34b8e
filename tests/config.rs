//! The configuration as a person meets it: the reports on bad ones word for word, and which layer wins.

use ackord::config::{Config, Place, Sources};

const SOUND: &str = r#"[store]
kind = "memory"

[brokers.inbox]
kind = "file"

[flows.charge]
source = { broker = "inbox", path = "in.jsonl" }
key = "body:/id"

[[flows.charge.steps]]
name = "charge"
command = { run = ["true"] }
"#;

struct Case {
    folder: tempfile::TempDir,
    sources: Sources,
}

fn file(text: &str) -> Case {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ackord.toml");
    std::fs::write(&path, text).unwrap();
    Case { folder, sources: Sources { file: Some(path), ..Sources::default() } }
}

fn sound_with(old: &str, new: &str) -> Case {
    assert!(SOUND.contains(old), "{old}");
    file(&SOUND.replace(old, new))
}

impl Case {
    fn variable(mut self, name: &str, value: &str) -> Self {
        self.sources.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    fn set(mut self, set: &str) -> Self {
        self.sources.sets.push(set.to_owned());
        self
    }

    fn load(&self) -> Config {
        Config::load(self.sources.clone()).unwrap_or_else(|faults| panic!("{faults}"))
    }

    /// The report, of loading or else of the registry, with the folder left out.
    fn report(&self) -> String {
        let faults = match Config::load(self.sources.clone()) {
            Ok(config) => ackord::registry::parts(&config).expect_err("the configuration is sound"),
            Err(faults) => faults,
        };
        faults.to_string().replace(&format!("{}/", self.folder.path().display()), "")
    }

    #[track_caller]
    fn is_refused_with(&self, lines: &[&str]) {
        let noun = if lines.len() == 1 { "fault" } else { "faults" };
        let expected: String = lines.iter().map(|line| format!("\n  {line}")).collect();
        let expected = format!("the configuration has {} {noun}:{expected}", lines.len());
        let report = self.report();
        assert!(report == expected, "\n--- expected\n{expected}\n--- found\n{report}\n");
    }
}

#[test]
fn an_unknown_key_is_named_with_the_nearest_known_one_and_nothing_follows_from_it() {
    sound_with("key = ", "kee = ")
        .is_refused_with(&["ackord.toml:9: flows.charge.kee: unknown key; did you mean `key`?"]);
    sound_with("run = ", "rum = ").is_refused_with(&[
        "ackord.toml:13: flows.charge.steps.0.command.rum: unknown key; did you mean `run`?",
    ]);
    file(&format!("{SOUND}[wroker]\n"))
        .is_refused_with(&["ackord.toml:14: wroker: unknown key; did you mean `worker`?"]);
    file(&format!("{SOUND}[worker]\ncolour = 1\n"))
        .is_refused_with(&["ackord.toml:15: worker.colour: unknown key; known are drain, name"]);
}

#[test]
fn an_unknown_key_inside_a_value_of_several_forms_is_named_too() {
    sound_with("[[flows", "match = { heder = \"type\", equals = \"x\" }\n[[flows")
        .is_refused_with(&["ackord.toml:11: flows.charge.match.heder: unknown key; did you mean `header`?"]);
    sound_with("[[flows", "match = [{ heder = \"type\", equals = \"x\" }]\n[[flows").is_refused_with(&[
        "ackord.toml:11: flows.charge.match.0.heder: unknown key; did you mean `header`?",
    ]);
    sound_with("[[flows", "circuit = { failure = 3 }\n[[flows").is_refused_with(&[
        "ackord.toml:11: flows.charge.circuit.failure: unknown key; did you mean `failures`?",
    ]);
    sound_with("\"body:/id\"", "{ al = [\"body:/id\"] }")
        .is_refused_with(&["ackord.toml:9: flows.charge.key.al: unknown key; did you mean `all`?"]);
    file(&format!("{SOUND}idempotency = {{ kei = \"x\" }}\n")).is_refused_with(&[
        "ackord.toml:14: flows.charge.steps.0.idempotency.kei: unknown key; did you mean `key`?",
    ]);
    file(&format!("{SOUND}idempotency = \"manuel\"\n")).is_refused_with(&[
        "ackord.toml:14: flows.charge.steps.0.idempotency: invalid value: string \"manuel\", expected \"manual\" or \
         { key = \"receipt:{body:/order/id}\", retention = \"7d\", wait = \"3s\" }",
    ]);
}

#[test]
fn a_wrong_type_is_named_with_what_is_needed() {
    sound_with("[[flows", "concurrency = \"many\"\n[[flows").is_refused_with(&[
        "ackord.toml:11: flows.charge.concurrency: invalid type: string \"many\", expected a nonzero usize",
    ]);
    sound_with("[[flows", "concurrency = 0\n[[flows").is_refused_with(&[
        "ackord.toml:11: flows.charge.concurrency: invalid value: integer `0`, expected a nonzero usize",
    ]);
    sound_with("kind = \"memory\"", "kind = 5")
        .is_refused_with(&["ackord.toml:2: store.kind: invalid type: number, expected a string"]);
    sound_with("kind = \"file\"", "kind = 5")
        .is_refused_with(&["ackord.toml:5: brokers.inbox.kind: invalid type: number, expected a string"]);
    sound_with("[[flows", "on_retry = \"hold_kye\"\n[[flows").is_refused_with(&[
        "ackord.toml:11: flows.charge.on_retry: `hold_kye` is none of hold_key, divert; did you mean `hold_key`?",
    ]);
}

#[test]
fn a_duration_and_a_size_without_sense_come_with_an_example() {
    let cure = "write a number and its unit, for example \"30s\", \"5m\" or \"7d\"";
    sound_with("[[flows", "lease = \"soon\"\n[[flows")
        .is_refused_with(&[&format!("ackord.toml:11: flows.charge.lease: `soon` is no duration; {cure}")]);
    sound_with("[[flows", "lease = 30\n[[flows").is_refused_with(&[
        "ackord.toml:11: flows.charge.lease: invalid type: integer `30`, expected a duration with its unit, for example \
         \"30s\", \"5m\" or \"7d\"",
    ]);
    sound_with("[[flows", "result_cap = \"256 cats\"\n[[flows").is_refused_with(&[
        "ackord.toml:11: flows.charge.result_cap: \"256 cats\" is no size; write a number of bytes, for example 65536, \
         \"256KiB\" or \"1MiB\"",
    ]);
}

#[test]
fn a_missing_key_is_named_at_the_table_that_needs_it() {
    sound_with("key = \"body:/id\"\n", "").is_refused_with(&["ackord.toml:7: flows.charge.key: is missing"]);
    sound_with("name = \"charge\"\n", "")
        .is_refused_with(&["ackord.toml:11: flows.charge.steps.0.name: is missing"]);
    sound_with("kind = \"file\"", "").is_refused_with(&["ackord.toml:4: brokers.inbox.kind: is missing"]);
}

#[test]
fn a_missing_variable_hides_no_other_fault_and_causes_none() {
    sound_with("[[flows", "lease = \"${LEASE}\"\non_missing = \"prk\"\n[[flows").is_refused_with(&[
        "ackord.toml:11: flows.charge.lease: environment variable LEASE is not set; set it, or write ${LEASE:-default}",
        "ackord.toml:12: flows.charge.on_missing: `prk` is none of park, ignore; did you mean `park`?",
    ]);
    sound_with("broker = \"inbox\"", "broker = \"${BROKER}\"").is_refused_with(&[
        "ackord.toml:8: flows.charge.source.broker: environment variable BROKER is not set; set it, or write \
         ${BROKER:-default}",
    ]);
    let run = "[\"${PROGRAM}\", \"${ARGUMENT:-x}\"]";
    sound_with("[\"true\"]", run).is_refused_with(&[
        "ackord.toml:13: flows.charge.steps.0.command.run.0: environment variable PROGRAM is not set; set it, or write \
         ${PROGRAM:-default}",
    ]);
    assert_eq!(
        match &sound_with("[\"true\"]", run).variable("PROGRAM", "env").load().flows[0].1.steps[0].command {
            Some(command) => command.run.clone(),
            None => Vec::new(),
        },
        ["env", "x"]
    );
}

#[test]
fn two_steps_of_one_name_are_refused_at_the_second() {
    let step = &SOUND[SOUND.find("[[flows").unwrap()..];
    file(&format!("{SOUND}{step}")).is_refused_with(&[
        "ackord.toml:15: flows.charge.steps.charge: two steps have this name; each needs its own",
    ]);
}

#[test]
fn two_flows_that_take_the_same_messages_are_refused_and_a_match_tells_them_apart() {
    let second = SOUND[SOUND.find("[flows").unwrap()..].replace("flows.charge", "flows.refund");
    let both = format!("{SOUND}{second}");
    file(&both).is_refused_with(&[
        "ackord.toml:15: flows.refund.source: flow charge takes every message of in.jsonl too; give one of them a `match`",
    ]);
    let apart = both.replacen(
        "[[flows.charge",
        "match = { header = \"type\", equals = \"paid\" }\n[[flows.charge",
        1,
    );
    assert_eq!(file(&apart).load().flows.len(), 2);
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    file(&format!("{SOUND}idempotency = {{ poll = \"50ms\" }}\n")).is_refused_with(&[
        "ackord.toml:14: flows.charge.steps.charge.idempotency.poll: has no meaning without `wait`",
    ]);
    file(&format!("{SOUND}idempotency = {{ wait = \"3s\", settleTimeoutMs = 5 }}\n")).is_refused_with(&[
        "ackord.toml:14: flows.charge.steps.charge.idempotency.settleTimeoutMs: says the same as `wait`; keep one of them",
    ]);
    sound_with("[[flows", "circuit = { probe_initial = \"5m\" }\nretry = { initial = \"1h\" }\n[[flows")
        .is_refused_with(&[
            "ackord.toml:11: flows.charge.circuit.probe_max: is shorter than circuit.probe_initial",
            "ackord.toml:12: flows.charge.retry.max: is shorter than retry.initial",
        ]);
}

#[test]
fn what_is_wrong_with_the_shape_of_messages_is_named_with_its_cure() {
    sound_with("\"body:/id\"", "{ preset = \"auto\" }").is_refused_with(&[
        "ackord.toml:9: flows.charge.key: `auto` would choose by how each message looks, and a flow never guesses; name the \
         preset: message-id, cloudevents, debezium, debezium-outbox, s3-event, sns, sns-raw, eventbridge, stripe, shopify, \
         github, celery, masstransit, nservicebus, bullmq",
    ]);
    sound_with("\"body:/id\"", "{ preset = \"cloudevent\" }").is_refused_with(&[
        "ackord.toml:9: flows.charge.key: `cloudevent`: no such preset; did you mean `cloudevents`?",
    ]);
    sound_with("\"body:/id\"", "{ presett = \"stripe\" }")
        .is_refused_with(&["ackord.toml:9: flows.charge.key.presett: unknown key; did you mean `preset`?"]);
    sound_with("\"body:/id\"", "{ preset = \"stripe\", all = [\"body:/id\"] }")
        .is_refused_with(&["ackord.toml:9: flows.charge.key: needs exactly one of all and preset"]);
    let steps = "steps are base64, base64url, gunzip, gunzip:<bytes>, frame:avro, frame:json, frame:protobuf, \
                 json:/<json/pointer>, columns, hex";
    sound_with("\"body:/id\"", "\"body | unzip | json:/id\"")
        .is_refused_with(&[&format!("ackord.toml:9: flows.charge.key: `unzip` is no decode step; {steps}")]);
    sound_with("[[flows", "namespace = \"body | unzip | json:/t\"\n[[flows").is_refused_with(&[&format!(
        "ackord.toml:11: flows.charge.namespace: `unzip` is no decode step; {steps}"
    )]);
    sound_with(
        "[[flows",
        "decode = \"base46\"\nsplit = \"header:x\"\ncontrol = [\"tombston\"]\non_control = \"prk\"\n[[flows",
    )
    .is_refused_with(&[
        &format!("ackord.toml:11: flows.charge.decode: `base46` is no decode step; {steps}"),
        "ackord.toml:12: flows.charge.split: `header:x` is not in the body; write body:/<json/pointer>",
        "ackord.toml:13: flows.charge.control.0: invalid value: string \"tombston\", expected \"tombstone\" or a condition \
         such as { place = \"body:/Event\", equals = \"s3:TestEvent\" }",
        "ackord.toml:14: flows.charge.on_control: `prk` is none of ignore, park; did you mean `park`?",
    ]);
    sound_with(
        "[[flows",
        "control = [{ place = \"bdy:/x\", equals = \"y\" }]\nfingerprint = { exclude = [\"sent\"] }\n[[flows",
    )
    .is_refused_with(&[
        "ackord.toml:11: flows.charge.control: `bdy:/x` names no place in a message; places are header:<name>, \
         property:<name>, attribute:<name>, record-key, message-id, body:/<json/pointer>, position, const:<text>",
        "ackord.toml:12: flows.charge.fingerprint.exclude: `sent` is no JSON pointer; write /<name>, for example /sentTime",
    ]);
    sound_with("key = \"body:/id\"", "key = { preset = \"s3-event\" }\nsplit = \"body:/Records\"")
        .is_refused_with(&[
            "ackord.toml:10: flows.charge.split: the preset s3-event brings its own; leave it out",
        ]);
    sound_with("[[flows", "fingerprint = {}\n[[flows")
        .is_refused_with(&["ackord.toml:11: flows.charge.fingerprint.fields: names no place"]);
    sound_with("[[flows", "fingerprint = { fields = [], exclude = [] }\n[[flows").is_refused_with(&[
        "ackord.toml:11: flows.charge.fingerprint: needs exactly one of fields and exclude",
    ]);
}

#[test]
fn an_unknown_broker_is_named_with_the_nearest_one() {
    sound_with("broker = \"inbox\"", "broker = \"inbx\"").is_refused_with(&[
        "ackord.toml:8: flows.charge.source.broker: `inbx`: no such broker; did you mean `inbox`?",
    ]);
}

#[test]
fn every_fault_of_every_kind_is_in_one_report_in_the_order_of_the_file() {
    let text = r#"[worker]
drian = "25s"

[brokers.inbox]
kind = "file"

[flows.charge]
source = { broker = "inbx", path = "in.jsonl" }
key = "bdy:/id"
lease = 30
retry = { attempts = 0, initial = "5m", max = "1s", jitter = true }

[[flows.charge.steps]]
name = "charge"
command = { run = ["${PROGRAM}"], timeout = "soon" }

[[flows.charge.steps]]
name = "receipt"
comand = { run = ["true"] }

[flows.refund]
source = { broker = "inbox", topic = "a", path = "b" }
steps = [5]
"#;
    file(text).set("log.level=loud").variable("ACKORD__FLOWS__REFUND__MAX_CRASHES", "0").is_refused_with(&[
        "ackord.toml:2: worker.drian: unknown key; did you mean `drain`?",
        "ackord.toml:8: flows.charge.source.broker: `inbx`: no such broker; did you mean `inbox`?",
        "ackord.toml:9: flows.charge.key: `bdy:/id` names no place in a message; places are header:<name>, \
         property:<name>, attribute:<name>, record-key, message-id, body:/<json/pointer>, position, const:<text>",
        "ackord.toml:10: flows.charge.lease: invalid type: integer `30`, expected a duration with its unit, for example \
         \"30s\", \"5m\" or \"7d\"",
        "ackord.toml:11: flows.charge.retry.attempts: invalid value: integer `0`, expected a nonzero u32",
        "ackord.toml:11: flows.charge.retry.jitter: unknown key; known are attempts, initial, max",
        "ackord.toml:15: flows.charge.steps.0.command.run.0: environment variable PROGRAM is not set; set it, or write \
         ${PROGRAM:-default}",
        "ackord.toml:15: flows.charge.steps.0.command.timeout: `soon` is no duration; write a number and its unit, for \
         example \"30s\", \"5m\" or \"7d\"",
        "ackord.toml:19: flows.charge.steps.1.comand: unknown key; did you mean `command`?",
        "ackord.toml:21: flows.refund.key: is missing",
        "ackord.toml:22: flows.refund.source: needs exactly one of queue, topic and path",
        "ackord.toml:23: flows.refund.steps.0: invalid type: number, expected a step: a table with a name, and \
         command = { ... } or http = { ... }",
        "environment variable ACKORD__FLOWS__REFUND__MAX_CRASHES: flows.refund.max_crashes: invalid value: integer `0`, \
         expected a nonzero u32",
        "--set: log.level: `loud` is none of error, warn, info, debug, trace",
    ]);
}

#[test]
fn a_section_that_is_no_table_is_named_and_nothing_follows_from_it() {
    let source = "a table with source, key and steps";
    file("brokers = 5\nworker = 5\n[flows]\ncharge = 5\n").is_refused_with(&[
        "ackord.toml:1: brokers: needs tables, [brokers.<name>]",
        "ackord.toml:2: worker: invalid type: number, expected a table, [worker]",
        &format!("ackord.toml:4: flows.charge: invalid type: number, expected {source}"),
    ]);
    file("flows = 5\n").is_refused_with(&["ackord.toml:1: flows: needs tables, [flows.<name>]"]);
    file("").is_refused_with(&["there is no flow; add a table [flows.<name>]"]);
}

#[test]
fn a_file_that_is_not_there_or_no_toml_is_named_with_line_and_column() {
    let mut case = file(SOUND);
    case.sources.file = Some(case.folder.path().join("none.toml"));
    case.is_refused_with(&[
        "none.toml cannot be read: No such file or directory (os error 2); name a file with --config",
    ]);
    file("[store]\nkind = memory\n")
        .is_refused_with(&["ackord.toml:2:8: string values must be quoted, expected literal string"]);
    file("[store]\nkind = \"memory\"\nkind = \"sqlite\"\n")
        .is_refused_with(&["ackord.toml:3:1: duplicate key"]);
}

#[test]
fn a_fault_from_a_variable_or_a_flag_names_it() {
    file(SOUND).variable("ACKORD__FLOWS__CHARGE__CONCURRENCY", "many").is_refused_with(&[
        "environment variable ACKORD__FLOWS__CHARGE__CONCURRENCY: flows.charge.concurrency: invalid type: string \
         \"many\", expected a nonzero usize",
    ]);
    file(SOUND)
        .set("worker.drian=5s")
        .is_refused_with(&["--set: worker.drian: unknown key; did you mean `drain`?"]);
    file(SOUND).set("drain").variable("ACKORD____DRAIN", "1").is_refused_with(&[
        "environment variable ACKORD____DRAIN: names no key; write ACKORD__WORKER__DRAIN for worker.drain",
        "--set: `drain` is not path=value, for example worker.drain=10s",
    ]);
}

#[test]
fn a_flag_goes_over_a_variable_over_the_file_over_the_default() {
    let text = SOUND.replace("flows.charge", "flows.Charge");
    let concurrency = |case: &Case| case.load().flows[0].1.concurrency.get();
    let case = file(&text);
    assert_eq!(concurrency(&case), 16);
    let case = file(&text.replace("[[flows", "concurrency = 7\n[[flows"));
    assert_eq!(concurrency(&case), 7);
    let case = case.variable("ACKORD__FLOWS__CHARGE__CONCURRENCY", "8");
    assert_eq!(concurrency(&case), 8);
    let place = case.load().place("flows.Charge.concurrency");
    assert_eq!(place, Some(Place::Variable("ACKORD__FLOWS__CHARGE__CONCURRENCY".to_owned())));
    let case = case.set("flows.Charge.concurrency=9");
    assert_eq!(concurrency(&case), 9);
    assert_eq!(case.load().place("flows.Charge.concurrency"), Some(Place::Set));
}

#[test]
fn every_value_that_can_be_left_out_has_its_default() {
    let case = file(SOUND);
    let config = case.load();
    assert_eq!(config.worker.drain.0.as_secs(), 25);
    assert_eq!(config.folder, case.folder.path());
    let flow = &config.flows[0].1;
    let seconds = [
        flow.lease,
        flow.retention,
        flow.retry.initial,
        flow.retry.max,
        flow.steps[0].command.as_ref().unwrap().timeout,
    ];
    assert_eq!(seconds.map(|span| span.0.as_secs()), [30, 86_400, 1, 300, 30]);
    assert_eq!((flow.max_held, flow.retry.attempts.get(), flow.result_cap.0), (4096, 5, 256 * 1024));
    assert_eq!((flow.max_crashes.get(), flow.fault_after.get()), (3, 3));
    let place = config.place("flows.charge.steps.charge.command.timeout").map(|place| place.to_string());
    assert_eq!(place, Some(format!("{}:13", case.folder.path().join("ackord.toml").display())));
}
