//! Decode steps: what is done to the bytes of a place before a key is read from them. Pure, and bounded in memory.

use std::borrow::Cow;
use std::fmt;
use std::io::Read;

use base64::Engine;
use base64::alphabet::{Alphabet, STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use flate2::read::MultiGzDecoder;
use serde_json::Value;

/// How much `gunzip` inflates when it is not told otherwise, in bytes.
pub const INFLATED_CAP: usize = 4 * 1024 * 1024;

/// One decode step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decode {
    /// `base64`: the standard alphabet, with or without padding.
    Base64,
    /// `base64url`: the alphabet for addresses, with or without padding.
    Base64Url,
    /// `gunzip` or `gunzip:<bytes>`: RFC 1952; what inflates beyond the cap (default [`INFLATED_CAP`]) is refused.
    Gunzip(usize),
    /// `frame:avro`, `frame:json`, `frame:protobuf`: takes off what the schema registry's serialisers put before the data.
    Frame(Frame),
    /// `json` or `json:<pointer>`: reads text as JSON, and goes to that place in it.
    Json(String),
    /// `columns`: the columns of a row's key, a JSON object of single values (perhaps under `payload`), as one text.
    Columns,
    /// `hex`: bytes as lower-case hexadecimal text, for ids that are no text.
    Hex,
}

/// Schema-registry frames: a 0 byte and a schema id of 4 bytes, or a 1 byte and a GUID of 16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// Avro: the data follows.
    Avro,
    /// JSON: the data follows.
    Json,
    /// Protobuf: a list of message indexes stands between.
    Protobuf,
}

/// What a decode step cannot be done to, and why.
pub(super) type Why = &'static str;

impl Decode {
    /// Bytes to bytes. `Json`, `Columns` and `Hex` are done by the reader, which knows what comes after.
    pub(super) fn bytes<'a>(&self, bytes: Cow<'a, [u8]>) -> Result<Cow<'a, [u8]>, Why> {
        match self {
            Self::Base64 => unbase64(&STANDARD, &bytes).map(Cow::Owned),
            Self::Base64Url => unbase64(&URL_SAFE, &bytes).map(Cow::Owned),
            Self::Gunzip(cap) => gunzip(&bytes, *cap).map(Cow::Owned),
            Self::Frame(frame) => {
                let head = frame.length(&bytes).ok_or("does not begin with such a schema frame")?;
                Ok(match bytes {
                    Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[head..]),
                    Cow::Owned(mut bytes) => Cow::Owned(bytes.split_off(head)),
                })
            }
            Self::Hex => Ok(Cow::Owned(hex(&bytes).into_bytes())),
            Self::Json(_) | Self::Columns => Ok(bytes),
        }
    }

    /// The step of that name, with its argument behind a colon.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (name, argument) = match text.split_once(':') {
            Some((name, argument)) => (name, Some(argument)),
            None => (text, None),
        };
        Some(match (name, argument) {
            ("base64", None) => Self::Base64,
            ("base64url", None) => Self::Base64Url,
            ("hex", None) => Self::Hex,
            ("columns", None) => Self::Columns,
            ("gunzip", None) => Self::Gunzip(INFLATED_CAP),
            ("gunzip", Some(bytes)) => Self::Gunzip(bytes.parse().ok().filter(|bytes| *bytes > 0)?),
            ("frame", Some("avro")) => Self::Frame(Frame::Avro),
            ("frame", Some("json")) => Self::Frame(Frame::Json),
            ("frame", Some("protobuf")) => Self::Frame(Frame::Protobuf),
            ("json", None) => Self::Json(String::new()),
            ("json", Some(pointer)) if pointer.is_empty() || pointer.starts_with('/') => {
                Self::Json(pointer.to_owned())
            }
            _ => return None,
        })
    }
}

impl fmt::Display for Decode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Base64 => f.write_str("base64"),
            Self::Base64Url => f.write_str("base64url"),
            Self::Gunzip(INFLATED_CAP) => f.write_str("gunzip"),
            Self::Gunzip(cap) => write!(f, "gunzip:{cap}"),
            Self::Frame(Frame::Avro) => f.write_str("frame:avro"),
            Self::Frame(Frame::Json) => f.write_str("frame:json"),
            Self::Frame(Frame::Protobuf) => f.write_str("frame:protobuf"),
            Self::Json(pointer) => write!(f, "json:{pointer}"),
            Self::Columns => f.write_str("columns"),
            Self::Hex => f.write_str("hex"),
        }
    }
}

fn unbase64(alphabet: &Alphabet, text: &[u8]) -> Result<Vec<u8>, Why> {
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    GeneralPurpose::new(alphabet, config).decode(text.trim_ascii()).map_err(|_| "is not base64")
}

/// Never holds more than the cap and one byte, however much there would be.
fn gunzip(bytes: &[u8], cap: usize) -> Result<Vec<u8>, Why> {
    let mut inflated = Vec::new();
    let limit = (cap as u64).saturating_add(1);
    match MultiGzDecoder::new(bytes).take(limit).read_to_end(&mut inflated) {
        _ if inflated.len() > cap => Err("inflates beyond the cap of its gunzip step"),
        Ok(_) => Ok(inflated),
        Err(_) => Err("is not whole gzip data"),
    }
}

impl Frame {
    /// How many bytes stand before the data.
    fn length(self, bytes: &[u8]) -> Option<usize> {
        let head = match bytes.first()? {
            0 => 1 + 4,
            1 => 1 + 16,
            _ => return None,
        };
        let rest = bytes.get(head..)?;
        match self {
            Self::Avro | Self::Json => Some(head),
            Self::Protobuf => Some(head + indexes(rest)?),
        }
    }
}

/// The length of a list of message indexes: a count and that many numbers, zigzag; a count of 0 stands for the first type.
fn indexes(bytes: &[u8]) -> Option<usize> {
    let (count, mut at) = varint(bytes)?;
    // An odd number is a negative one in zigzag.
    let count = (count % 2 == 0).then_some(count / 2)?;
    // Each takes a byte at least, so a count that lies ends with the bytes.
    for _ in 0..count {
        let (_, length) = varint(bytes.get(at..)?)?;
        at += length;
    }
    Some(at)
}

fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (index, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f).checked_shl(7 * index as u32)?;
        if byte & 0x80 == 0 {
            return Some((value, index + 1));
        }
    }
    None
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The columns of a row's key in the order of their names, so that a producer that writes them in another order means the
/// same row.
pub(super) fn columns(key: &Value) -> Result<String, Why> {
    const NO_ROW: &str = "is not the key of a row: a JSON object of single values";
    let row = match key.get("payload") {
        Some(payload @ Value::Object(_)) if key.as_object().is_some_and(is_wrapper) => payload,
        _ => key,
    };
    let mut columns: Vec<_> = row.as_object().ok_or(NO_ROW)?.iter().collect();
    columns.sort_by_key(|(name, _)| *name);
    let mut texts = Vec::with_capacity(columns.len());
    for (_, value) in columns {
        texts.push(super::reader::single(value).map_err(|_| NO_ROW)?);
    }
    if texts.iter().all(|text| text.trim().is_empty()) {
        return Err(NO_ROW);
    }
    Ok(match &texts[..] {
        [only] => only.clone().into_owned(),
        several => super::reader::join(several),
    })
}

/// What the JSON converter with schemas makes: `payload`, and perhaps `schema`, and nothing else.
fn is_wrapper(key: &serde_json::Map<String, Value>) -> bool {
    key.keys().all(|name| name == "payload" || name == "schema")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(step: &str, bytes: &[u8]) -> Result<Vec<u8>, Why> {
        Decode::parse(step).unwrap().bytes(Cow::Borrowed(bytes)).map(Cow::into_owned)
    }

    #[test]
    fn steps_are_written_as_they_are_read() {
        for step in [
            "base64",
            "base64url",
            "gunzip",
            "gunzip:17",
            "frame:avro",
            "frame:json",
            "frame:protobuf",
            "json:",
            "json:/a/b",
            "columns",
            "hex",
        ] {
            assert_eq!(Decode::parse(step).unwrap().to_string(), step);
        }
        for wrong in
            ["", "gzip", "gunzip:", "gunzip:0", "gunzip:1MiB", "frame", "frame:xml", "json:a", "base64:x"]
        {
            assert_eq!(Decode::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_frame_is_taken_off_and_what_has_none_is_refused() {
        assert_eq!(done("frame:avro", b"\0\0\0\x04\xd2rest"), Ok(b"rest".to_vec()));
        assert_eq!(done("frame:json", b"\0\0\0\0\x01{}"), Ok(b"{}".to_vec()));
        let guid = [&[1u8][..], &[7; 16], b"rest"].concat();
        assert_eq!(done("frame:avro", &guid), Ok(b"rest".to_vec()));
        // The first type, in short; and the path 1, 2 written out.
        assert_eq!(done("frame:protobuf", b"\0\0\0\0\x01\0rest"), Ok(b"rest".to_vec()));
        assert_eq!(done("frame:protobuf", b"\0\0\0\0\x01\x04\x02\x04rest"), Ok(b"rest".to_vec()));
        for wrong in [&b""[..], b"{", b"\0\0\0\0", b"\x02\0\0\0\0\0", &[1; 16]] {
            assert!(done("frame:avro", wrong).is_err(), "{wrong:?}");
        }
        let endless = b"\0\0\0\0\x01\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\0";
        for wrong in [&b"\0\0\0\0\x01"[..], b"\0\0\0\0\x01\x01", b"\0\0\0\0\x01\x80", endless] {
            assert!(done("frame:protobuf", wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn base64_is_read_with_and_without_padding_and_never_half() {
        assert_eq!(done("base64", b"+/8="), Ok(vec![0xfb, 0xff]));
        assert_eq!(done("base64", b" +/8\n"), Ok(vec![0xfb, 0xff]));
        assert_eq!(done("base64url", b"-_8"), Ok(vec![0xfb, 0xff]));
        for wrong in [&b"-_8"[..], b"+/8=x", b"+", b"a b"] {
            assert!(done("base64", wrong).is_err());
        }
    }

    #[test]
    fn the_columns_of_a_row_are_one_text_whatever_their_order() {
        let of = |text: &str| columns(&serde_json::from_str(text).unwrap());
        assert_eq!(of(r#"{"id":31}"#), Ok("31".to_owned()));
        assert_eq!(of(r#"{"schema":{},"payload":{"id":31}}"#), Ok("31".to_owned()));
        assert_eq!(of(r#"{"b":2,"a":"x|y"}"#), Ok("x%7Cy|2".to_owned()));
        assert_eq!(of(r#"{"a":"x|y","b":2}"#), of(r#"{"b":2,"a":"x|y"}"#));
        // A table may have a column of that name.
        assert_eq!(of(r#"{"payload":"x","id":1}"#), Ok("1|x".to_owned()));
        for wrong in ["{}", "31", "[31]", "null", r#"{"id":null}"#, r#"{"id":{}}"#, r#"{"id":" "}"#] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
