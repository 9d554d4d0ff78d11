//! Keys and values of labels.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// A text that YAML 1.1, and with it Helm and kubectl, reads as one. An unquoted `y`, `on` or `1` is a boolean or a number there: Helm
/// refuses it as the value of a label, and it would select other objects than the same text in quotes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[schemars(inline, transparent, description = "Write y, n, yes, no, on, off, true, false and numbers in quotes.")]
pub(crate) struct LabelText(pub String);

impl<'de> Deserialize<'de> for LabelText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl Visitor<'_> for TextVisitor {
    type Value = LabelText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string: write it in quotes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<LabelText, E> {
        Ok(LabelText(text.to_owned()))
    }
}

pub(super) fn texts(entries: &BTreeMap<LabelText, LabelText>) -> BTreeMap<String, String> {
    entries.iter().map(|(key, value)| (key.0.clone(), value.0.clone())).collect()
}
