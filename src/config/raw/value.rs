//! Durations and sizes, each written with its unit.

use std::fmt;
use std::time::Duration;

use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A duration, written with its unit: `"30s"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub struct Span(pub Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Span;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration with its unit, for example \"30s\", \"5m\" or \"7d\"")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Span, E> {
                humantime::parse_duration(text).map(Span).map_err(|_| {
                    E::custom(format!("`{text}` is no duration; write a number and its unit, for example \"30s\", \"5m\" or \"7d\""))
                })
            }
        }
        deserializer.deserialize_any(Text)
    }
}

/// A number of bytes: `65536` or `"256KiB"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub usize);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let wrong = || {
            let cure = "write a number of bytes, for example 65536, \"256KiB\" or \"1MiB\"";
            D::Error::custom(format!("{value} is no size; {cure}"))
        };
        match &value {
            Value::Number(number) => number.to_string().parse().map(Size).map_err(|_| wrong()),
            Value::String(text) => {
                let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                let (number, unit) = text.split_at(digits);
                let factor = match unit.trim() {
                    "" | "B" => 1,
                    "KiB" => 1024,
                    "MiB" => 1024 * 1024,
                    "GiB" => 1024 * 1024 * 1024,
                    _ => return Err(wrong()),
                };
                let number: usize = number.parse().map_err(|_| wrong())?;
                number.checked_mul(factor).map(Size).ok_or_else(wrong)
            }
            _ => Err(wrong()),
        }
    }
}
