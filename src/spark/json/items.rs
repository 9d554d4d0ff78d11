//! Parses the items of a list one by one, as its bytes arrive: a list of a hundred thousand objects is never held whole.

use serde::Deserialize;
use serde_json::error::Category;

/// Longest text before or after the items, and longest item: more than any API server's object (3 MiB with its overhead).
const MAX_BUFFERED: usize = 4 << 20;
/// The same for a bare list, which a tenant writes.
const MAX_BUFFERED_BARE: usize = 64 << 10;

/// A list that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BadList {
    /// Not JSON, or not of this shape.
    #[error("expected a list of items: {0}")]
    Shape(String),
    /// An item, or the text beside the items, is larger than this.
    #[error("expected items of at most {0} bytes")]
    TooLong(usize),
    /// The bytes end within the list.
    #[error("expected a complete list: the response ended within it")]
    BrokenOff,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before the opening bracket of `items`.
    Head,
    /// Before an item, or the closing bracket.
    Item,
    /// After the closing bracket.
    Tail,
}

/// Parses the bytes of `{…, "items": […], …}`, or of a bare `[…]`, in pieces, and passes on each item.
#[derive(Debug)]
pub struct Items {
    place: Place,
    /// Whether the whole document is the list.
    is_bare: bool,
    held: Vec<u8>,
    /// The search for the end of the first item in `held`, if that is incomplete.
    scan: Option<Scan>,
    /// Everything but the items.
    rest: Vec<u8>,
}

/// Finds the end of an item that arrives in several pieces: it reads each byte once.
#[derive(Debug, Default)]
struct Scan {
    at: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Scan {
    /// Whether an item that is a list or an object ends in these bytes, or another one may.
    fn ends_in(&mut self, item: &[u8]) -> bool {
        while let Some(byte) = item.get(self.at) {
            self.at += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            if self.depth == 0 && !self.in_string {
                return true;
            }
        }
        false
    }
}

impl Default for Items {
    fn default() -> Self {
        Items { place: Place::Head, is_bare: false, held: Vec::new(), scan: None, rest: Vec::new() }
    }
}

impl Items {
    /// For a document that is a list itself.
    pub fn bare() -> Items {
        Items { is_bare: true, ..Items::default() }
    }

    /// Processes the next bytes and calls `each` for every item that they complete.
    pub fn feed<T>(&mut self, bytes: &[u8], mut each: impl FnMut(T)) -> Result<(), BadList>
    where
        T: for<'de> Deserialize<'de>,
    {
        self.held.extend_from_slice(bytes);
        if self.place == Place::Head {
            if self.is_bare {
                let blank = self.held.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
                match self.held.get(blank) {
                    None => return self.bounded(),
                    Some(b'[') => self.held.drain(..=blank),
                    Some(_) => return Err(BadList::Shape("no list".to_owned())),
                };
            } else {
                let Some(begin) = items_begin(&self.held) else { return self.bounded() };
                self.rest = self.held.drain(..begin).collect();
            }
            self.place = Place::Item;
        }
        let mut at = 0;
        while self.place == Place::Item {
            let left = self.held.get(at..).unwrap_or_default();
            let skipped = left.iter().take_while(|byte| byte.is_ascii_whitespace() || **byte == b',').count();
            let left = left.get(skipped..).unwrap_or_default();
            at += skipped;
            match left.first() {
                None => break,
                Some(b']') => self.place = Place::Tail,
                Some(_) => {
                    if let Some(scan) = &mut self.scan {
                        if !scan.ends_in(left) {
                            break;
                        }
                        self.scan = None;
                    }
                    let mut items = serde_json::Deserializer::from_slice(left).into_iter::<T>();
                    match items.next() {
                        Some(Ok(item)) => each(item),
                        Some(Err(error)) if error.classify() == Category::Eof => {
                            let mut scan = Scan::default();
                            // Numbers and words are short: they are parsed again.
                            self.scan = (!scan.ends_in(left)).then_some(scan);
                            break;
                        }
                        Some(Err(error)) => return Err(BadList::Shape(error.to_string())),
                        None => break,
                    }
                    at += items.byte_offset();
                }
            }
        }
        self.held.drain(..at);
        if self.place == Place::Tail {
            self.rest.append(&mut self.held);
        }
        self.bounded()
    }

    fn bounded(&self) -> Result<(), BadList> {
        let max = if self.is_bare { MAX_BUFFERED_BARE } else { MAX_BUFFERED };
        if self.held.len().max(self.rest.len()) > max { Err(BadList::TooLong(max)) } else { Ok(()) }
    }

    /// Ends the input of a bare list.
    pub fn finish_bare(self) -> Result<(), BadList> {
        match self.place {
            Place::Tail if self.rest.trim_ascii() == b"]" => Ok(()),
            Place::Tail => Err(BadList::Shape("text after the list".to_owned())),
            Place::Head | Place::Item => Err(BadList::BrokenOff),
        }
    }

    /// Ends the input, and returns everything but the items.
    pub fn finish<T: for<'de> Deserialize<'de>>(self) -> Result<T, BadList> {
        if self.place != Place::Tail {
            // Some servers write an empty list as null, or omit it.
            return serde_json::from_slice(&self.held).map_err(|_| BadList::BrokenOff);
        }
        serde_json::from_slice(&self.rest).map_err(|error| BadList::Shape(error.to_string()))
    }
}

/// The position after the bracket that opens the list under the key `items` of the outermost object.
fn items_begin(bytes: &[u8]) -> Option<usize> {
    let (mut depth, mut string, mut escaped) = (0usize, None, false);
    for (at, byte) in bytes.iter().enumerate() {
        if let Some(begin) = string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => {
                    string = None;
                    let key = bytes.get(begin + 1..at) == Some(b"items");
                    if depth == 1
                        && key
                        && let Some(begin) = opens_list(bytes.get(at + 1..).unwrap_or_default())
                    {
                        return Some(at + 1 + begin);
                    }
                }
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => string = Some(at),
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// The length of `: [`.
fn opens_list(bytes: &[u8]) -> Option<usize> {
    let solid: Vec<(usize, &u8)> =
        bytes.iter().enumerate().filter(|(_, byte)| !byte.is_ascii_whitespace()).take(2).collect();
    match solid.as_slice() {
        [(_, b':'), (at, b'[')] => Some(at + 1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn read(text: &[u8], piece: usize) -> Result<(Vec<Value>, Value), BadList> {
        let (mut items, mut all) = (Items::default(), Vec::new());
        for bytes in text.chunks(piece.max(1)) {
            items.feed(bytes, |item: Value| all.push(item))?;
        }
        Ok((all, items.finish()?))
    }

    #[test]
    fn items_are_parsed_for_any_chunk_size() {
        let list = json!({"kind": "PodList", "metadata": {"items": [1], "resourceVersion": "7"},
            "items": [{"a": "]\"}"}, {"b": [1, {"c": null}]}, 3], "z": "items"});
        let text = serde_json::to_string(&list).unwrap();
        let pretty = serde_json::to_string_pretty(&list).unwrap();
        for piece in 1..text.len() {
            for text in [&text, &pretty] {
                let (items, rest) = read(text.as_bytes(), piece).unwrap();
                assert_eq!(items, *list["items"].as_array().unwrap());
                assert_eq!(
                    (&rest["metadata"], &rest["z"], &rest["items"]),
                    (&list["metadata"], &list["z"], &json!([]))
                );
            }
        }
    }

    #[test]
    fn empty_or_null_items_are_accepted_and_broken_lists_rejected() {
        assert_eq!(read(br#"{"items":[],"metadata":{}}"#, 3).unwrap().0, Vec::<Value>::new());
        assert_eq!(read(br#"{"items":null,"metadata":{"a":1}}"#, 3).unwrap().1["metadata"]["a"], 1);
        assert!(matches!(read(br#"{"items":[{"a":1},{"b""#, 5), Err(BadList::BrokenOff)));
        assert!(matches!(read(br#"{"items":[{"a":1}"#, 5), Err(BadList::BrokenOff)));
        assert!(matches!(read(br#"{"items":[{"a":x}]}"#, 5), Err(BadList::Shape(_))));
        let long = format!(r#"{{"items":["{}"#, "x".repeat(MAX_BUFFERED + 1));
        assert!(matches!(read(long.as_bytes(), 1 << 20), Err(BadList::TooLong(MAX_BUFFERED))));
    }

    #[test]
    fn items_of_a_bare_list_are_small_and_blanks_before_them_are_not_held() {
        let feed = |pieces: &[String]| {
            let mut items = Items::bare();
            pieces.iter().try_for_each(|piece| items.feed(piece.as_bytes(), |_: Value| ()))
        };
        let row = |length| format!(r#"["{}"#, "x".repeat(length));
        assert!(feed(&[row(MAX_BUFFERED_BARE - 10)]).is_ok());
        assert!(matches!(feed(&[row(MAX_BUFFERED_BARE)]), Err(BadList::TooLong(MAX_BUFFERED_BARE))));
        let mut items = Items::bare();
        items.feed(b"[", |_: Value| ()).unwrap();
        for _ in 0..100 {
            items.feed(" ,".repeat(MAX_BUFFERED_BARE / 4).as_bytes(), |_: Value| ()).unwrap();
            assert!(items.held.is_empty());
        }
    }

    #[test]
    fn incomplete_item_is_parsed_once_when_it_is_complete() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static PARSED: AtomicUsize = AtomicUsize::new(0);
        #[derive(Debug)]
        struct Counted;
        impl<'de> Deserialize<'de> for Counted {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                PARSED.fetch_add(1, Ordering::Relaxed);
                serde::de::IgnoredAny::deserialize(deserializer).map(|_| Counted)
            }
        }
        let text = format!(r#"[{{"a\\\"":["{}","\\\\"]}}]"#, "[x}".repeat(1000));
        let (mut items, mut found) = (Items::bare(), 0);
        for piece in text.as_bytes().chunks(3) {
            items.feed(piece, |_: Counted| found += 1).unwrap();
        }
        items.finish_bare().unwrap();
        assert_eq!((found, PARSED.load(Ordering::Relaxed)), (1, 2));
    }

    proptest! {
        #[test]
        fn arbitrary_input_never_panics(text in any::<Vec<u8>>(), piece in 1usize..9) {
            let _ = read(&text, piece);
            let _ = read(&[br#"{"items":["#.as_slice(), &text].concat(), piece);
        }
    }
}
