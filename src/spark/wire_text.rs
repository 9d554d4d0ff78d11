//! Strings that borrow from the bytes of a review where they can, and own their text where they must (escapes, watches).

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Most entries of a map, or items of a list, that are read: more than any pod has. A longer one is an error that
/// [`is_too_many`] recognizes, so that a small document cannot become a large one in memory.
pub const MAX_ITEMS: usize = 1024;
/// Most containers of a pod, and most resources of a container: read into structures that are larger than their text.
pub const FEW: usize = 64;
/// The message of such an error.
const TOO_MANY: &str = "more items than any pod has";

/// Whether a document could not be read because a list or a map is too long.
pub fn is_too_many(error: &serde_json::Error) -> bool {
    error.is_data() && error.to_string().starts_with(TOO_MANY)
}

/// Go sometimes writes an absent list as null.
pub(super) fn null_is_empty<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(bounded(deserializer)?.unwrap_or_default())
}

/// Reads a list of bounded length; null is none.
pub fn bounded<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    bounded_to::<MAX_ITEMS, D, T>(deserializer)
}

/// Reads a list of at most `MAX` items; null is none.
pub(crate) fn bounded_to<'de, const MAX: usize, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_any(ListVisitor::<MAX, false, T>(PhantomData))
}

/// Reads the first items of a list and skips the rest; null is none.
pub fn first_of<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_any(ListVisitor::<MAX_ITEMS, true, T>(PhantomData))
}

/// Reads at most `MAX` items. Further items are skipped, or are an error.
struct ListVisitor<const MAX: usize, const SKIPS: bool, T>(PhantomData<T>);

impl<'de, const MAX: usize, const SKIPS: bool, T: Deserialize<'de>> Visitor<'de> for ListVisitor<MAX, SKIPS, T> {
    type Value = Option<Vec<T>>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }
    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while list.len() < MAX {
            match seq.next_element()? {
                Some(item) => list.push(item),
                None => return Ok(Some(list)),
            }
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {
            if !SKIPS {
                return Err(A::Error::custom(TOO_MANY));
            }
        }
        Ok(Some(list))
    }
}

/// A string from a JSON document. Borrowed unless it contained an escape sequence or came from a reader.
///
/// serde's own `Cow` borrows only as a direct field with `#[serde(borrow)]`, never inside `Option`, `Vec` or a map.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<'a>(Cow<'a, str>);

impl<'a> Text<'a> {
    /// The text itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same text without a borrow from the document.
    pub fn into_owned(self) -> Text<'static> {
        Text(Cow::Owned(self.0.into_owned()))
    }
}

impl Deref for Text<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Text(Cow::Borrowed(text))
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        Text(Cow::Owned(text))
    }
}

impl PartialEq<str> for Text<'_> {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Text<'_> {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
            fn visit_string<E: Error>(self, text: String) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text)))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// A string, or a number as people write quantities in YAML (`cpu: 1`); an API server converts it to a string.
struct Scalar<'a>(Text<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for Scalar<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ScalarVisitor;
        impl<'de> Visitor<'de> for ScalarVisitor {
            type Value = Scalar<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a number")
            }
            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Scalar(Text(Cow::Borrowed(text))))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Scalar(Text(Cow::Owned(text.to_owned()))))
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
                Ok(Scalar(Text(Cow::Owned(number.to_string()))))
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
                Ok(Scalar(Text(Cow::Owned(number.to_string()))))
            }
            fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
                Ok(Scalar(Text(Cow::Owned(number.to_string()))))
            }
        }
        deserializer.deserialize_any(ScalarVisitor)
    }
}

/// A map of strings (labels, annotations, resource lists) in the order of the document.
///
/// Small and read a few times, so a list beats a tree. A later entry of the same key wins, as in Go's decoder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries<'a>(Vec<(Text<'a>, Text<'a>)>);

impl<'a> Entries<'a> {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().rev().find(|(k, _)| *k == key).map(|(_, v)| v.as_str())
    }

    /// All entries in the order of the document.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// Sets `key`, as a JSON Patch `add` does.
    pub fn set(&mut self, key: &'static str, value: String) {
        self.remove(key);
        self.0.push((key.into(), value.into()));
    }

    pub fn remove(&mut self, key: &str) {
        self.0.retain(|(k, _)| *k != key);
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same entries without a borrow from the document.
    pub fn into_owned(self) -> Entries<'static> {
        Entries(self.0.into_iter().map(|(k, v)| (k.into_owned(), v.into_owned())).collect())
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Entries<'a> {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(iter: I) -> Self {
        Entries(iter.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor { max: MAX_ITEMS })
    }
}

struct EntriesVisitor {
    max: usize,
}

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries<'de>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of strings")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<'de>, A::Error> {
        let mut entries = Vec::with_capacity(8);
        // Go decodes a null as the empty string.
        while let Some((key, value)) = map.next_entry::<Text<'de>, Option<Scalar<'de>>>()? {
            if entries.len() == self.max {
                return Err(A::Error::custom(TOO_MANY));
            }
            entries.push((key, value.map(|value| value.0).unwrap_or_default()));
        }
        Ok(Entries(entries))
    }
}

/// A map of strings with few entries, such as a container's requests.
#[derive(Clone, Debug, Default)]
pub struct FewEntries<'a>(pub Entries<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for FewEntries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor { max: FEW }).map(FewEntries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_borrows_and_escaped_text_is_owned() {
        let plain: Text<'_> = serde_json::from_str(r#""spark""#).unwrap();
        assert!(matches!(plain.0, Cow::Borrowed("spark")));
        let escaped: Text<'_> = serde_json::from_str(r#""a\"b\u00e9""#).unwrap();
        assert_eq!(escaped, "a\"bé");
        let mut reader = serde_json::Deserializer::from_reader(&b"\"spark\""[..]);
        assert_eq!(Text::deserialize(&mut reader).unwrap(), "spark");
    }

    #[test]
    fn entries_keep_order_and_the_last_value_wins() {
        let entries: Entries<'_> = serde_json::from_str(r#"{"b":"1","a":null,"b":"2"}"#).unwrap();
        assert_eq!(entries.get("b"), Some("2"));
        assert_eq!(entries.get("a"), Some(""));
        assert_eq!(entries.get("c"), None);
        assert_eq!(entries.iter().map(|(k, _)| k).collect::<Vec<_>>(), ["b", "a", "b"]);
    }

    #[test]
    fn entries_reject_lists_and_non_scalar_values() {
        assert!(serde_json::from_str::<Entries<'_>>("[1]").is_err());
        assert!(serde_json::from_str::<Entries<'_>>(r#"{"a":[]}"#).is_err());
        assert_eq!(serde_json::from_str::<Entries<'_>>(r#"{"cpu":1,"x":0.5}"#).unwrap().get("cpu"), Some("1"));
    }
}
