//! The message format, from outside.

use ackord_broker::{Fault, Header, Headers, Message, Origin, RejectReason, Rejection};
use ackord_file::{parse_line, write_line};
use bytes::Bytes;
use proptest::prelude::*;

fn parse(line: &str) -> Message {
    parse_line(line.as_bytes()).unwrap()
}

fn error(line: &[u8]) -> String {
    parse_line(line).unwrap_err().to_string()
}

fn pairs(headers: &Headers) -> Vec<(&[u8], Option<&[u8]>)> {
    headers.iter().map(|header| (&header.name[..], header.value.as_deref())).collect()
}

#[test]
fn a_body_keeps_its_bytes() {
    for body in
        [r#"{"b" : 1.50, "a":1e3}"#, "[ 1 ]", "12345678901234567890.10", r#""text""#, "true", r#""\u00e9""#]
    {
        assert_eq!(parse(&format!("{{\"body\": {body} }}")).body.unwrap(), body);
    }
}

#[test]
fn no_body_and_an_empty_body_differ() {
    assert_eq!(parse("{}").body, None);
    assert_eq!(parse(r#"{"body":null}"#).body, None);
    assert_eq!(parse(r#"{"body_text":""}"#).body.unwrap(), "");
    assert_eq!(parse(r#"{"body_base64":""}"#).body.unwrap(), "");
}

#[test]
fn text_and_bytes_can_stand_for_a_body() {
    assert_eq!(parse(r#"{"body_text":"a\nb"}"#).body.unwrap(), "a\nb");
    assert_eq!(parse(r#"{"body_base64":"/wA="}"#).body.unwrap(), &b"\xff\0"[..]);
}

#[test]
fn header_values_are_text_bytes_null_numbers_and_truths() {
    let message = parse(r#"{"headers":{"a":"x","b":{"base64":"/w=="},"c":null,"d":1.50,"e":true,"a":""}}"#);
    let expected: Vec<(&[u8], Option<&[u8]>)> = vec![
        (b"a", Some(b"x")),
        (b"b", Some(b"\xff")),
        (b"c", None),
        (b"d", Some(b"1.50")),
        (b"e", Some(b"true")),
        (b"a", Some(b"")),
    ];
    assert_eq!(pairs(&message.headers), expected);
}

#[test]
fn headers_can_be_pairs_with_names_that_are_not_text() {
    let message = parse(r#"{"headers":[["a","1"],["a","2"],[{"base64":"/w=="},null]]}"#);
    let expected: Vec<(&[u8], Option<&[u8]>)> = vec![(b"a", Some(b"1")), (b"a", Some(b"2")), (b"\xff", None)];
    assert_eq!(pairs(&message.headers), expected);
}

#[test]
fn an_id_can_be_a_number_and_a_key_can_be_bytes() {
    let message = parse(r#"{"id":12345678901234567890,"key":{"base64":"AAE="}}"#);
    assert_eq!(message.id.as_str(), "12345678901234567890");
    assert_eq!(message.record_key.unwrap(), &b"\0\x01"[..]);
    assert_eq!(parse(r#"{"key":null}"#).record_key, None);
    assert_eq!(parse(r#"{"key":""}"#).record_key.unwrap(), "");
}

#[test]
fn a_dead_letter_is_read_as_the_message_that_it_was() {
    let message = Message::new("a", r#"{"x":1}"#).with_header("h", "1");
    let mut rejection = Rejection::new(RejectReason::Declined, "no \"stock\"");
    rejection.notes = vec![("flow", "orders".into()), ("reason", "another".into())];
    let line = write_line(&message, Some(&rejection));
    assert!(
        line.contains(r#""dead_letter":{"reason":"declined","detail":"no \"stock\"","flow":"orders"}"#),
        "{line}"
    );
    assert_eq!(parse(&line), message);
}

#[test]
fn a_message_with_a_fault_is_not_written_as_json() {
    let mut message = Message::new("a", r#"{"ident":1}"#);
    message.fault = Some(Fault::Undecodable("unknown field".into()));
    assert_eq!(write_line(&message, None), r#"{"id":"a","body_text":"{\"ident\":1}"}"#);
}

#[test]
fn what_is_wrong_is_named() {
    for (line, named) in [
        (&br#"{"ident":1}"#[..], "unknown field `ident`"),
        (br#"{"id":1,"id":2}"#, "duplicate field `id`"),
        (br#"{"id":[1]}"#, "field `id`: must be text or a number"),
        (br#"{"body":1,"body_text":"1"}"#, "`body` and `body_text`"),
        (br#"{"body_text":1}"#, "field `body_text`: must be text"),
        (br#"{"body_base64":"%"}"#, "field `body_base64`: not base64"),
        (br#"{"headers":1}"#, "field `headers`: must be"),
        (br#"{"headers":{"a":[1]}}"#, "field `headers.a`: a list is not a value"),
        (br#"{"headers":{"a":{"b64":""}}}"#, "field `headers.a`: unknown field `b64`"),
        (br#"{"attributes":[["a"]]}"#, "field `attributes`: invalid length 1"),
        (br#"{"headers":[[null,"a"]]}"#, "field `headers`: a name must be text"),
        (br#"{"origin":{"topic":"a"}}"#, "field `origin`: unknown field `topic`"),
        (br#"{"origin":["a","b","c"]}"#, "field `origin`: must be an object"),
        (br#"{"dead_letter":"x"}"#, "field `dead_letter`: must be an object"),
        (br#"{"key":"\ud800"}"#, "field `key`"),
        (br#"["a"]"#, "not a JSON object"),
        (b"{\"id\":", "EOF"),
        (b"plain", "expected"),
        (b"", "EOF"),
        (b"{\"id\":\"\xff\"}", "byte 7"),
    ] {
        let text = error(line);
        assert!(text.contains(named), "{}: {text}", String::from_utf8_lossy(line));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_back_byte_for_byte(message in message()) {
        let line = write_line(&message, None);
        prop_assert!(!line.contains('\n'), "{line}");
        prop_assert_eq!(parse_line(line.as_bytes()).unwrap(), message);
    }

    #[test]
    fn no_line_makes_the_reader_panic(line in any::<Vec<u8>>()) {
        let _ = parse_line(&line);
    }
}

fn message() -> impl Strategy<Value = Message> {
    let body = proptest::option::of(prop_oneof![some_bytes(), json().prop_map(Bytes::from)]);
    let origin = ("\\PC{0,5}", "\\PC{0,5}", proptest::option::of("\\PC{0,5}")).prop_map(
        |(broker, source, position)| Origin {
            broker: broker.into(),
            source: source.into(),
            position: position.map(Into::into),
        },
    );
    let key = proptest::option::of(some_bytes());
    (".{0,8}", key, headers(), headers(), headers(), body, origin).prop_map(
        |(id, record_key, headers, properties, attributes, body, origin)| Message {
            id: id.into(),
            record_key,
            headers,
            properties,
            attributes,
            body,
            origin,
            fault: None,
        },
    )
}

fn headers() -> impl Strategy<Value = Headers> {
    let header =
        (some_bytes(), proptest::option::of(some_bytes())).prop_map(|(name, value)| Header { name, value });
    proptest::collection::vec(header, 0..4).prop_map(Headers::from_iter)
}

/// Bytes that are often text.
fn some_bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        ".{0,6}".prop_map(Bytes::from),
        proptest::collection::vec(any::<u8>(), 0..6).prop_map(Bytes::from),
        "[ab]".prop_map(Bytes::from),
    ]
}

/// JSON with the odd forms that a rewriting parser would lose.
fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just(" 1".to_owned()),
        Just("{\n}".to_owned()),
        Just("1.50e+3".to_owned()),
        Just(r#""\u00e9\/""#.to_owned()),
        "[0-9]{1,30}",
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        proptest::collection::vec(inner, 0..3).prop_map(|items| format!("[{} ]", items.join(" ,")))
    })
}
