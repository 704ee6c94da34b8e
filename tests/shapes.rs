//! Messages as real systems send them, through the configuration as people write it: which key each gives, and which it must
//! not give. `tests/shapes/*.json` holds them, in the message format of JSON lines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ackord::config::{Config, Sources};
use ackord::flow::Flow;
use ackord::flow::shape::Reading;
use ackord::key::preset::Preset;
use ackord::key::reader::View;
use ackord_broker::Message;
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sample {
    /// For people.
    #[serde(rename = "shape")]
    _shape: String,
    /// In the message format.
    message: Box<RawValue>,
    cases: Vec<Case>,
    /// The presets that read it.
    looks_like: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// Lines of the flow's table.
    flow: String,
    /// The parts of the key of each effect.
    keys: Option<Vec<Vec<String>>>,
    /// The control record that it is.
    control: Option<String>,
    /// A part of the reason why it has no key.
    refused: Option<String>,
}

fn samples() -> BTreeMap<String, Sample> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shapes");
    let files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() > 50, "the samples are gone");
    let read = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let sample = serde_json::from_str(&std::fs::read_to_string(&path).unwrap());
        (name.clone(), sample.unwrap_or_else(|error| panic!("{name}: {error}")))
    };
    files.into_iter().map(read).collect()
}

impl Sample {
    fn message(&self) -> Arc<Message> {
        // The format has one message a line; this one is spread over several.
        Arc::new(ackord_file::parse_line(self.message.get().as_bytes()).unwrap())
    }
}

fn flow(lines: &str) -> Flow {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ackord.toml");
    let text = format!(
        "[store]\nkind = \"memory\"\n[brokers.log]\nkind = \"file\"\n[flows.f]\nsource = {{ broker = \"log\", path = \
         \"in\" }}\n{lines}\n[[flows.f.steps]]\nname = \"s\"\ncommand = {{ run = [\"true\"] }}\n"
    );
    std::fs::write(&path, text).unwrap();
    let config = Config::load(Sources { file: Some(path), ..Sources::default() });
    let config = config.unwrap_or_else(|faults| panic!("{lines}: {faults}"));
    let parts = ackord::registry::parts(&config).unwrap_or_else(|faults| panic!("{lines}: {faults}"));
    parts.flows.into_iter().next().unwrap()
}

/// As the documentation says that parts are joined.
fn joined(parts: &[String]) -> String {
    match parts {
        [only] => only.clone(),
        parts => {
            let escaped = parts.iter().map(|part| part.replace('%', "%25").replace('|', "%7C"));
            escaped.collect::<Vec<_>>().join("|")
        }
    }
}

/// A preset always joins, also when there is one part.
fn is_id(id: &str, parts: &[String]) -> bool {
    let one = [parts[0].replace('%', "%25").replace('|', "%7C")];
    id == joined(parts) || (parts.len() == 1 && id == joined(&one))
}

#[test]
fn every_message_gives_its_stated_key_or_outcome() {
    let mut wrong = Vec::new();
    for (name, sample) in samples() {
        for case in &sample.cases {
            let read = flow(&case.flow).read(&sample.message());
            let sound = match (&read, &case.keys, &case.control, &case.refused) {
                (Ok(Reading::Effects(effects)), Some(keys), None, None) => {
                    effects.len() == keys.len()
                        && effects.iter().zip(keys).all(|(effect, parts)| is_id(&effect.id, parts))
                }
                (Ok(Reading::Control(what)), None, Some(expected), None) => what == expected,
                (Err(unnamed), None, None, Some(reason)) => unnamed.to_string().contains(reason),
                _ => false,
            };
            if !sound {
                let read = read.map(|reading| match reading {
                    Reading::Control(what) => vec![format!("control {what}")],
                    Reading::Effects(effects) => effects.into_iter().map(|effect| effect.id).collect(),
                });
                let read = read.map_err(|unnamed| unnamed.to_string());
                wrong.push(format!("{name}: {}\n    gave {read:?}", case.flow));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_message_looks_like_the_presets_that_read_it_and_like_no_other() {
    let mut wrong = Vec::new();
    for (name, sample) in samples() {
        let found = Preset::candidates(&View::new(&sample.message()));
        if found != sample.looks_like {
            wrong.push(format!("{name}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_preset_reads_a_message_and_refuses_one_that_looks_like_it() {
    let (mut read, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for (name, sample) in samples() {
        for case in &sample.cases {
            let Some((_, preset)) = case.flow.split_once("preset = \"") else { continue };
            let preset = preset.split('"').next().unwrap().to_owned();
            if case.keys.is_some() {
                read.insert(preset);
            } else if case.refused.is_some() && name.starts_with("refused-") {
                refused.insert(preset);
            }
        }
    }
    let all: BTreeSet<_> = Preset::names().map(str::to_owned).collect();
    assert_eq!(read, all);
    assert_eq!(refused, all);
}

#[test]
fn one_event_in_two_modes_is_one_effect_and_the_same_request() {
    let samples = samples();
    for (preset, one, other) in [
        ("cloudevents", "cloudevents-binary", "cloudevents-structured"),
        ("debezium", "debezium-row", "debezium-row-without-schemas"),
    ] {
        let flow = flow(&format!("key = {{ preset = \"{preset}\" }}"));
        let effect = |name: &str| match flow.read(&samples[name].message()) {
            Ok(Reading::Effects(mut effects)) => effects.remove(0),
            other => panic!("{other:?}"),
        };
        let (one, other) = (effect(one), effect(other));
        assert_eq!(one.key, other.key);
        assert_eq!(one.fingerprint, other.fingerprint);
    }
}

#[test]
fn what_a_redelivery_changes_does_not_make_another_request_and_what_defines_it_does() {
    let changes = [
        (
            "stripe-event",
            "stripe",
            ("\"pending_webhooks\":1", "\"pending_webhooks\":0"),
            ("\"open\"", "\"paid\""),
        ),
        (
            "eventbridge-replay",
            "eventbridge",
            ("\"replay-name\":\"backfill-jan\",", ""),
            ("\"orderId\":\"ord-7004\"", "\"orderId\":\"ord-7005\""),
        ),
        ("masstransit-envelope", "masstransit", ("00:00:00Z", "00:00:09Z"), ("a001\"\n }", "a002\"\n }")),
        ("debezium-row", "debezium", ("1767225600123", "1767225600999"), ("\"paid\"", "\"void\"")),
        ("sns-envelope", "sns", ("\"EXAMPLE\"", "\"OTHER\""), ("ord-7003", "ord-7009")),
    ];
    let samples = samples();
    for (name, preset, harmless, telling) in changes {
        let flow = flow(&format!("key = {{ preset = \"{preset}\" }}"));
        let message = samples[name].message();
        let body = String::from_utf8(message.body.clone().unwrap().to_vec()).unwrap();
        let effect = |body: String| {
            let message = Message { body: Some(body.into()), ..Message::clone(&message) };
            match flow.read(&Arc::new(message)) {
                Ok(Reading::Effects(mut effects)) => effects.remove(0),
                other => panic!("{name}: {other:?}"),
            }
        };
        let changed = |(old, new): (&str, &str)| {
            assert!(body.contains(old), "{name}: {old}");
            effect(body.replace(old, new))
        };
        let (first, again, other) = (effect(body.clone()), changed(harmless), changed(telling));
        assert_eq!((&first.key, first.fingerprint), (&again.key, again.fingerprint), "{name}");
        assert_eq!(first.key, other.key, "{name}");
        assert_ne!(first.fingerprint, other.fingerprint, "{name}");
    }
}

mod properties {
    use std::io::Write;

    use bytes::Bytes;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;
    use proptest::test_runner::FileFailurePersistence;

    use super::*;

    fn id(flow: &Flow, message: Message) -> String {
        match flow.read(&Arc::new(message)) {
            Ok(Reading::Effects(effects)) => effects[0].id.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// `PROPTEST_CASES` says how many more.
    fn config(cases: u32) -> ProptestConfig {
        let default = ProptestConfig::default();
        let corpus = FileFailurePersistence::Direct("tests/shapes.proptest-regressions");
        ProptestConfig {
            cases: cases.max(default.cases),
            failure_persistence: Some(Box::new(corpus)),
            ..default
        }
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_number_keeps_its_text_on_every_way() {
        let plain = flow("key = \"body:/n\"");
        let nested = flow("decode = \"json:/s\"\nkey = \"body:/n\"");
        let packed = flow("key = \"body | gunzip | json:/n\"");
        let split = flow("split = \"body:/l\"\nkey = \"body:/n\"");
        let columns = flow("key = \"record-key | columns\"");
        // An exponent has one spelling of several, so this is the one.
        let config = config(256);
        proptest!(config, |(n in "-?(0|[1-9][0-9]{0,60})(\\.[0-9]{1,30})?(e[+-][1-9][0-9]{0,2})?")| {
            let object = format!("{{\"n\":{n}}}");
            prop_assert_eq!(&id(&plain, Message::new("m", object.clone())), &n);
            let in_text = format!("{{\"s\":\"{{\\\"n\\\":{n}}}\"}}");
            prop_assert_eq!(&id(&nested, Message::new("m", in_text)), &n);
            prop_assert_eq!(&id(&packed, Message::new("m", gzip(object.as_bytes()))), &n);
            prop_assert_eq!(&id(&split, Message::new("m", format!("{{\"l\":[{object}]}}"))), &n);
            prop_assert_eq!(&id(&columns, Message::new("m", "").with_record_key(object)), &n);
        });
    }

    #[test]
    fn no_two_lists_of_parts_give_one_key() {
        let flow =
            flow("key = { all = [\"header:a\", \"header:b\", \"header:c\"] }\nnamespace = \"header:n\"");
        let part = "[a|:%7C25]{1,4}|\\PC{1,3}";
        proptest!(config(2_000), |(one in [part, part, part, part], other in [part, part, part, part])| {
            let key = |parts: &[String; 4]| {
                let [a, b, c, n] = parts.clone();
                let message = Message::new("m", "")
                    .with_header("a", a).with_header("b", b).with_header("c", c).with_header("n", n);
                match flow.read(&Arc::new(message)) {
                    Ok(Reading::Effects(effects)) => Some(effects[0].key.clone()),
                    _ => None,
                }
            };
            if let (Some(first), Some(second)) = (key(&one), key(&other)) {
                prop_assert_eq!(first == second, one == other);
            }
        });
    }

    fn every_flow() -> Vec<Flow> {
        let places = [
            "body | base64 | gunzip | json:/a",
            "body | base64url | hex",
            "body | frame:avro | hex",
            "body | frame:json | json:/a",
            "body | frame:protobuf | hex",
            "body | gunzip:64 | json:",
            "body | json:/a/0",
            "body:/a | json:/b",
            "body:",
            "body",
            "record-key | columns",
            "record-key | base64 | columns",
            "header:h",
            "header:h | json:/a",
            "body:/a | columns",
            "record-key | hex",
        ];
        let keyed = places.iter().map(|place| flow(&format!("key = \"{place}\"")));
        let presets = Preset::names().map(|name| flow(&format!("key = {{ preset = \"{name}\" }}")));
        let decoded = ["gunzip", "base64 | gunzip", "json:/Message", "frame:protobuf"]
            .map(|steps| flow(&format!("decode = \"{steps}\"\nkey = {{ preset = \"s3-event\" }}")));
        let prints =
            ["{ exclude = [\"/a\", \"/a/0\", \"/\"] }", "{ fields = [\"body | frame:avro\", \"body:/a\"] }"]
                .map(|print| flow(&format!("key = \"const:x\"\nfingerprint = {print}")));
        keyed.chain(presets).chain(decoded).chain(prints).collect()
    }

    #[test]
    fn arbitrary_bytes_panic_no_reader() {
        let flows = every_flow();
        let bytes = || vec(any::<u8>(), 0..64).prop_map(Bytes::from);
        let body = prop_oneof![
            bytes(),
            vec(any::<u8>(), 0..64).prop_map(|bytes| Bytes::from(gzip(&bytes))),
            (0u8..2, bytes()).prop_map(|(first, rest)| Bytes::from([&[first][..], &rest].concat())),
            "[\\[\\]{}\":,a0-9.eE\\\\ -]{0,64}".prop_map(Bytes::from),
        ];
        let headers = vec((bytes(), proptest::option::of(bytes())), 0..4);
        let message = (proptest::option::of(body), headers, proptest::option::of(bytes()));
        proptest!(config(2_000), |((body, headers, record_key) in message)| {
            let mut message = Message::new("m", "");
            for (name, value) in headers {
                message.attributes.push(name.clone(), value.clone());
                message.properties.push(name.clone(), value.clone());
                message.headers.push("h", value.clone());
                message.headers.push(name, value);
            }
            let message = Arc::new(Message { body, record_key, ..message });
            for flow in &flows {
                let _ = flow.read(&message);
            }
        });
    }

    #[test]
    fn a_real_message_with_a_fault_in_it_panics_no_reader() {
        let flows = every_flow();
        let messages: Vec<_> = samples().values().map(Sample::message).collect();
        proptest!(config(1_000), |(which: Index, at: Index, byte: u8, cut: bool)| {
            let message = Message::clone(&messages[which.index(messages.len())]);
            let mut body = message.body.clone().unwrap_or_default().to_vec();
            if !body.is_empty() {
                let at = at.index(body.len());
                body[at] = byte;
                if cut {
                    body.truncate(at);
                }
            }
            let message = Arc::new(Message { body: Some(body.into()), ..message });
            for flow in &flows {
                let _ = flow.read(&message);
            }
        });
    }

    #[test]
    fn json_that_is_nested_without_end_is_refused() {
        let deep = "[".repeat(1_000_000);
        for flow in every_flow() {
            let message = Message::new("m", deep.clone()).with_record_key(deep.clone());
            let read = flow.read(&Arc::new(message));
            if let Ok(Reading::Effects(effects)) = read {
                // Those that do not look into the JSON.
                assert!(
                    effects[0].id.starts_with("5b5b") || effects[0].id.starts_with("[["),
                    "{}",
                    effects[0].id
                );
            }
        }
    }
}
