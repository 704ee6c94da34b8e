use ackord_broker::Message;

use super::*;

fn read(message: &Message, reader: &str) -> Result<Option<String>, Refused> {
    let reader: Reader = reader.parse().unwrap();
    let view = View::new(message);
    reader.read(&view).map(|found| found.map(Cow::into_owned))
}

fn with_body(body: &'static str) -> Message {
    Message::new("m1", body)
}

#[test]
fn each_place_is_read() {
    let mut message =
        with_body(r#"{"order":{"id":"o-1","a/b":7}}"#).with_header("X-Key", "h").with_record_key("r");
    message.properties.push("message_id", Some(Bytes::from_static(b"p")));
    message.attributes.push("kind", Some(Bytes::from_static(b"a")));
    message.origin.broker = "shop".into();
    message.origin.source = "orders".into();
    message.origin.position = Some("3/17".into());
    let expected = [
        ("header:x-key", "h"),
        ("property:message_id", "p"),
        ("system:message_id", "p"),
        ("attribute:kind", "a"),
        ("record-key", "r"),
        ("message-id", "m1"),
        ("body:/order/id", "o-1"),
        ("body:/order/a~1b", "7"),
        ("position", "shop/orders@3/17"),
        ("const:all", "all"),
    ];
    for (reader, text) in expected {
        assert_eq!(read(&message, reader), Ok(Some(text.to_owned())), "{reader}");
        assert_eq!(reader.parse::<Reader>().unwrap().to_string(), reader.replace("system:", "property:"));
    }
}

#[test]
fn what_is_not_there_is_absent_and_what_is_unusable_is_refused() {
    let mut message =
        with_body(r#"{"null":null,"blank":" ","list":[1],"object":{}}"#).with_header("blank", " ");
    message.headers.push("null", None);
    message.headers.push("bytes", Some(Bytes::from_static(b"\xff")));
    message = message.with_header("twice", "a").with_header("TWICE", "b");
    message = message.with_header("same", "a").with_header("same", "a");
    for absent in ["header:none", "body:/none", "record-key", "position", "body:/blank/deeper"] {
        assert_eq!(read(&message, absent), Ok(None), "{absent}");
    }
    for refused in
        ["body:/null", "body:/blank", "body:/list", "body:/object", "body:", "header:blank", "header:null"]
    {
        assert!(read(&message, refused).is_err(), "{refused}");
    }
    assert!(read(&message, "header:bytes").is_err());
    assert!(read(&message, "header:twice").is_err());
    assert_eq!(read(&message, "header:same"), Ok(Some("a".to_owned())));
}

#[test]
fn a_number_keeps_its_text() {
    for number in ["9007199254740993", "123456789012345678901234567890", "1.10", "-0"] {
        let message = Message::new("m", format!("{{\"n\":{number}}}"));
        assert_eq!(read(&message, "body:/n"), Ok(Some(number.to_owned())));
    }
}

#[test]
fn one_pair_of_quotes_belongs_to_the_syntax_of_idempotency_key_only() {
    let message = with_body("{}").with_header("Idempotency-Key", "\"a\"").with_header("other", "\"a\"");
    assert_eq!(read(&message, "header:idempotency-key"), Ok(Some("a".to_owned())));
    assert_eq!(read(&message, "header:other"), Ok(Some("\"a\"".to_owned())));
    let empty = with_body("{}").with_header("Idempotency-Key", "\"\"");
    assert!(read(&empty, "header:idempotency-key").is_err());
}

#[test]
fn first_of_goes_past_absent_places_but_never_past_unusable_ones() {
    let expr = KeyExpr::FirstOf(vec!["header:k".parse().unwrap(), "body:/id".parse().unwrap()]);
    let absent = with_body(r#"{"id":"b"}"#);
    assert_eq!(expr.read(&View::new(&absent)), Ok("b".to_owned()));
    let blank = with_body(r#"{"id":"b"}"#).with_header("k", "");
    assert!(expr.read(&View::new(&blank)).is_err());
    let neither = with_body("{}");
    let refused = expr.read(&View::new(&neither)).unwrap_err();
    assert_eq!(refused.to_string(), "none of header:k, body:/id is there");
}

#[test]
fn all_of_needs_each_place_and_keeps_the_border_between_them() {
    let expr = KeyExpr::AllOf(vec!["header:a".parse().unwrap(), "header:b".parse().unwrap()]);
    let id = |a: &'static str, b: &'static str| {
        let message = with_body("{}").with_header("a", a).with_header("b", b);
        expr.read(&View::new(&message)).unwrap()
    };
    assert_eq!(id("x", "y"), "x|y");
    assert_ne!(id("x|y", "z"), id("x", "y|z"));
    assert_ne!(id("x%7Cy", "z"), id("x|y", "z"));
    let half = with_body("{}").with_header("a", "x");
    assert!(expr.read(&View::new(&half)).is_err());
}

#[test]
fn a_place_that_does_not_exist_is_named() {
    for wrong in ["headr:x", "header:", "body:order", "id", ""] {
        assert_eq!(wrong.parse::<Reader>(), Err(UnknownPlace::Place(wrong.to_owned())));
    }
}
