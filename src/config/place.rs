//! Where each value of a configuration came from.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use toml_edit::{Document, Item};

use super::fault::{Fault, Place};

/// Where each value came from.
#[derive(Debug, Default)]
pub struct Layers {
    pub(super) file: Option<(PathBuf, String)>,
    /// The variable for each key path.
    pub(super) variables: BTreeMap<String, String>,
    /// The key paths of the flags.
    pub(super) sets: Vec<String>,
}

impl Layers {
    pub(super) fn fault(&self, key: String, problem: String) -> Fault {
        Fault { place: self.place(&key), key, problem }
    }

    /// The place of the key, or of the nearest key above it that is written down.
    pub fn place(&self, key: &str) -> Option<Place> {
        let mut path = key;
        loop {
            if self.sets.iter().any(|set| set == path) {
                return Some(Place::Set);
            }
            if let Some(variable) = self.variables.get(path) {
                return Some(Place::Variable(variable.clone()));
            }
            if let Some((file, text)) = &self.file
                && let Some(span) = span_of(text, path)
            {
                return Some(Place::File {
                    path: file.clone(),
                    line: line_and_column(text, span.start).0,
                    column: None,
                });
            }
            path = &path[..path.rfind('.')?];
        }
    }
}

/// Both counted from 1, the column in characters.
pub(super) fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |end| end + 1);
    (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
}

fn span_of(text: &str, key: &str) -> Option<Range<usize>> {
    let document = Document::parse(text).ok()?;
    let parts: Vec<&str> = key.split('.').collect();
    span_in(document.as_item(), &parts)
}

fn span_in(item: &Item, parts: &[&str]) -> Option<Range<usize>> {
    let (first, rest) = parts.split_first()?;
    if item.is_array() || item.is_array_of_tables() {
        let (span, element) = element(item, first)?;
        return if rest.is_empty() { span } else { span_in(element, rest) };
    }
    let table = item.as_table_like()?;
    // A quoted name may hold dots itself.
    (1..=parts.len()).find_map(|count| {
        let (key, next) = table.get_key_value(&parts[..count].join("."))?;
        match &parts[count..] {
            [] => key.span().or_else(|| next.span()),
            rest => span_in(next, rest),
        }
    })
}

/// An element by its index, or by its name: of two with one name the later, which is the one to blame.
fn element<'a>(list: &'a Item, part: &str) -> Option<(Option<Range<usize>>, &'a Item)> {
    if let Some(element) = part.parse::<usize>().ok().and_then(|index| list.get(index)) {
        return Some((element.span(), element));
    }
    let elements: Vec<&Item> = (0..).map_while(|index| list.get(index)).collect();
    elements.into_iter().rev().find_map(|element| {
        let (key, name) = element.as_table_like()?.get_key_value("name")?;
        (name.as_str() == Some(part)).then(|| (key.span(), element))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[flows.\"a.b\"]\nkey = \"é\"\n[[flows.\"a.b\".steps]]\nname = \"one\"\nhttp = { url = \"x\" }\n\
                        [[flows.\"a.b\".steps]]\nname = \"two\"\n";

    fn line(key: &str) -> Option<usize> {
        span_of(TEXT, key).map(|span| line_and_column(TEXT, span.start).0)
    }

    #[test]
    fn a_key_is_found_by_its_path_with_steps_by_index_or_by_name() {
        assert_eq!(line("flows.a.b.key"), Some(2));
        assert_eq!(line("flows.a.b.steps.0.http.url"), Some(5));
        assert_eq!(line("flows.a.b.steps.one.http.url"), Some(5));
        assert_eq!(line("flows.a.b.steps.two"), Some(7));
        assert_eq!(line("flows.a.b.steps.three"), None);
    }

    #[test]
    fn a_column_counts_characters() {
        assert_eq!(line_and_column("a\né=", 4), (2, 2));
    }
}
