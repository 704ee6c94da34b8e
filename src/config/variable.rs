//! `${NAME}` and `${NAME:-default}` in the texts of a file.

use std::collections::BTreeMap;

use serde_json::Value;

use super::read::STAND_IN;

/// Replaces what names a variable in every text; `$$` is a dollar sign. What cannot be replaced is told to `fault` with
/// its key path, and a stand-in takes its place, so that everything else is still checked.
pub(super) fn fill_in(
    value: &mut Value,
    key: &str,
    variables: &BTreeMap<&str, &str>,
    fault: &mut impl FnMut(String, String),
) {
    match value {
        Value::String(text) if text.contains('$') => match substitute(text, variables) {
            Ok(filled) => *text = filled,
            Err(problem) => {
                fault(key.to_owned(), problem);
                STAND_IN.clone_into(text);
            }
        },
        Value::Array(list) => {
            for (index, value) in list.iter_mut().enumerate() {
                fill_in(value, &format!("{key}.{index}"), variables, fault);
            }
        }
        Value::Object(map) => {
            for (name, value) in map.iter_mut() {
                fill_in(value, &format!("{key}.{name}"), variables, fault);
            }
        }
        _ => {}
    }
}

fn substitute(text: &str, variables: &BTreeMap<&str, &str>) -> Result<String, String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        filled.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            filled.push('$');
            rest = after;
        } else if let Some(inner) = rest.strip_prefix('{') {
            let end = inner.find('}').ok_or("has `${` without `}`; write `$$` for a dollar sign")?;
            let value = match inner[..end].split_once(":-") {
                // As in a shell: the default also stands for a variable that is empty.
                Some((name, default)) => {
                    variables.get(name).copied().filter(|value| !value.is_empty()).unwrap_or(default)
                }
                None => {
                    let name = &inner[..end];
                    variables.get(name).copied().ok_or_else(|| {
                        format!(
                            "environment variable {name} is not set; set it, or write ${{{name}:-default}}"
                        )
                    })?
                }
            };
            filled.push_str(value);
            rest = &inner[end + 1..];
        } else {
            filled.push('$');
        }
    }
    filled.push_str(rest);
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str) -> Result<String, String> {
        substitute(text, &BTreeMap::from([("A", "1"), ("EMPTY", "")]))
    }

    #[test]
    fn variables_defaults_and_dollar_signs_are_replaced() {
        for (text, expected) in [
            ("x${A}y${A}", "x1y1"),
            ("${A:-2}", "1"),
            ("${B:-2}", "2"),
            ("${EMPTY:-2}", "2"),
            ("${EMPTY}", ""),
            ("${B:-}", ""),
            ("$${A} $HOME $", "${A} $HOME $"),
        ] {
            assert_eq!(filled(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_variable_that_is_not_set_and_a_brace_that_is_not_closed_are_faults() {
        let missing = "environment variable B is not set; set it, or write ${B:-default}";
        assert_eq!(filled("${B}").unwrap_err(), missing);
        assert_eq!(filled("${A").unwrap_err(), "has `${` without `}`; write `$$` for a dollar sign");
    }
}
