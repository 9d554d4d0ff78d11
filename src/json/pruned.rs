//! A document without its bulk, so that a parser sees only the relevant parts.
//!
//! Most of a review is `managedFields`, containers and volumes, and a parser spends most of its time on their tokens.
//! Here an unwanted value is skipped in blocks of 64 bytes: a mask of the quotes shows which bytes are inside strings,
//! and only brackets outside of them count (the technique of simdjson, Langdale and Lemire 2019, section 3.1). The
//! skipped text is not checked to be JSON, and is not trusted either.

use std::io::Write;

use memchr::memchr;
use wide::u8x16;

/// Bytes examined together: one bit of a mask each.
const BLOCK: usize = 64;

/// A document without its bulk.
#[derive(Clone, Debug)]
pub struct Pruned<'b> {
    whole: &'b [u8],
    text: Vec<u8>,
}

impl<'b> Pruned<'b> {
    /// Replaces the lists and maps under these keys, at any depth: those of `dropped` become `null`, those of `kept`
    /// become `[begin,end]`, their position in the whole document ([`Pruned::part`]). Values of other kinds stay.
    pub fn of(whole: &'b [u8], dropped: &[&str], kept: &[&str]) -> Pruned<'b> {
        // Growth by doubling would allocate three times what a large document needs.
        let mut text = Vec::with_capacity(whole.len());
        let (mut at, mut copied) = (0, 0);
        // Most keys differ from the wanted ones in their length already.
        let lengths = dropped.iter().chain(kept).fold(0u64, |lengths, name| lengths | 1 << (name.len() & 63));
        while let Some(quote) = find(whole, at, b'"') {
            let Some(end) = string_end(whole, quote + 1) else { break };
            at = end + 1;
            if lengths & 1 << ((end - quote - 1) & 63) == 0 {
                continue;
            }
            let Some(colon) = after_space(whole, at).filter(|at| whole.get(*at) == Some(&b':')) else { continue };
            let key = whole.get(quote + 1..end).unwrap_or_default();
            let named = |keys: &[&str]| keys.iter().any(|name| name.as_bytes() == key);
            let (drop, keep) = (named(dropped), named(kept));
            if !(drop || keep) {
                continue;
            }
            let Some(begin) = after_space(whole, colon + 1).filter(|at| matches!(whole.get(*at), Some(b'{' | b'[')))
            else {
                continue;
            };
            let Some(end) = container_end(whole, begin) else { break };
            text.extend_from_slice(whole.get(copied..begin).unwrap_or_default());
            if keep {
                // Writing to memory does not fail.
                let _ = write!(text, "[{begin},{end}]");
            } else {
                text.extend_from_slice(b"null");
            }
            (at, copied) = (end, end);
        }
        text.extend_from_slice(whole.get(copied..).unwrap_or_default());
        Pruned { whole, text }
    }

    /// The remaining text.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// The part of the whole document that `[begin,end]` replaces; `None` for any other text.
    pub fn part(&self, span: &str) -> Option<&'b str> {
        let (begin, end) = span.strip_prefix('[')?.strip_suffix(']')?.split_once(',')?;
        std::str::from_utf8(self.whole.get(begin.parse().ok()?..end.parse().ok()?)?).ok()
    }
}

fn find(bytes: &[u8], from: usize, byte: u8) -> Option<usize> {
    memchr(byte, bytes.get(from..)?).map(|at| from + at)
}

fn after_space(bytes: &[u8], from: usize) -> Option<usize> {
    bytes.get(from..)?.iter().position(|byte| !byte.is_ascii_whitespace()).map(|at| from + at)
}

/// The closing quote of the string whose text begins here.
fn string_end(bytes: &[u8], begin: usize) -> Option<usize> {
    let mut at = begin;
    loop {
        let quote = find(bytes, at, b'"')?;
        let text = bytes.get(begin..quote)?;
        // An even number of backslashes before it escape each other.
        if text.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 0 {
            return Some(quote);
        }
        at = quote + 1;
    }
}

/// The position after the closing bracket of the list or map that begins here.
fn container_end(bytes: &[u8], begin: usize) -> Option<usize> {
    let (mut depth, mut state, mut at) = (0usize, State::default(), begin);
    while at < bytes.len() {
        let (opens, closes) = brackets(&block(bytes, at), &mut state);
        // Only a block with as many closing brackets as are open can hold the end.
        if closes.count_ones() as usize >= depth {
            let mut both = opens | closes;
            while both != 0 {
                let bit = both & both.wrapping_neg();
                if opens & bit != 0 {
                    depth += 1;
                } else {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return Some(at + bit.trailing_zeros() as usize + 1);
                    }
                }
                both ^= bit;
            }
        } else {
            depth = depth + opens.count_ones() as usize - closes.count_ones() as usize;
        }
        at += BLOCK;
    }
    None
}

/// The block at a position; spaces follow after the end.
fn block(bytes: &[u8], at: usize) -> [u8; BLOCK] {
    match bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        Some(whole) => *whole,
        None => {
            let mut padded = [b' '; BLOCK];
            let rest = bytes.get(at..).unwrap_or_default();
            padded.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            padded
        }
    }
}

/// What one block passes to the next.
#[derive(Default)]
struct State {
    /// All ones while inside of a string.
    in_string: u64,
    /// One when the first byte of the next block is escaped.
    escaped: u64,
}

/// Opening and closing brackets outside of strings, one bit each.
fn brackets(block: &[u8; BLOCK], state: &mut State) -> (u64, u64) {
    let (mut quotes, mut backslashes, mut opens, mut closes) = (0u64, 0u64, 0u64, 0u64);
    for (n, part) in block.as_chunks::<16>().0.iter().enumerate() {
        let part = u8x16::new(*part);
        // The square brackets differ from the curly ones by one bit.
        let curly = part | u8x16::splat(0x20);
        let mask = |found: u8x16| u64::from(found.to_bitmask() & 0xffff) << (16 * n);
        quotes |= mask(part.simd_eq(u8x16::splat(b'"')));
        backslashes |= mask(part.simd_eq(u8x16::splat(b'\\')));
        opens |= mask(curly.simd_eq(u8x16::splat(b'{')));
        closes |= mask(curly.simd_eq(u8x16::splat(b'}')));
    }
    let quotes = quotes & !escaped(backslashes, &mut state.escaped);
    let in_string = prefix_xor(quotes) ^ state.in_string;
    state.in_string = 0u64.wrapping_sub(in_string >> 63);
    (opens & !in_string, closes & !in_string)
}

/// The bytes that a backslash before them escapes; a run of backslashes escapes every second one.
fn escaped(backslashes: u64, carry: &mut u64) -> u64 {
    const EVEN: u64 = 0x5555_5555_5555_5555;
    let backslashes = backslashes & !*carry;
    let follows = (backslashes << 1) | *carry;
    let odd_starts = backslashes & !EVEN & !follows;
    let (sequences, overflow) = odd_starts.overflowing_add(backslashes);
    *carry = u64::from(overflow);
    (EVEN ^ (sequences << 1)) & follows
}

/// Each bit: whether an odd number of bits up to and including it is set.
fn prefix_xor(bits: u64) -> u64 {
    [1, 2, 4, 8, 16, 32].into_iter().fold(bits, |bits, shift| bits ^ (bits << shift))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn pruned_text(text: &str) -> String {
        String::from_utf8(Pruned::of(text.as_bytes(), &["bulk"], &["part"]).text().to_vec()).unwrap()
    }

    #[test]
    fn bulk_is_replaced_by_null_and_parts_by_their_range() {
        assert_eq!(pruned_text(r#"{"a":1,"bulk":[{"b":"]"}],"c":2}"#), r#"{"a":1,"bulk":null,"c":2}"#);
        assert_eq!(pruned_text(r#"{"bulk" : {"b":"\"}\\"} }"#), r#"{"bulk" : null }"#);
        assert_eq!(pruned_text(r#"{"bulk":"text","part":3,"x":"bulk"}"#), r#"{"bulk":"text","part":3,"x":"bulk"}"#);
        let whole = r#"{"x":{"part":[{"name":"a"}]}}"#;
        let pruned = Pruned::of(whole.as_bytes(), &[], &["part"]);
        assert_eq!(pruned.text(), br#"{"x":{"part":[13,27]}}"#);
        assert_eq!(pruned.part("[13,27]"), Some(r#"[{"name":"a"}]"#));
        for other in ["", "[]", "[1]", "[1,x]", "[5,900]", "[27,13]", "\"x\"", "[-1,3]"] {
            assert_eq!(pruned.part(other), None, "{other}");
        }
    }

    #[test]
    fn truncated_document_stays_unchanged() {
        for truncated in [r#"{"bulk":[1,2"#, r#"{"bulk":{"a":"}"#, r#"{"bu"#, r#"{"a":"\"#, r#"{"bulk":"#, "", "\""] {
            assert_eq!(pruned_text(truncated), truncated);
        }
    }

    /// Documents with keys and texts that are hard to tell apart.
    fn document() -> impl Strategy<Value = Value> {
        let text = r#"[\\"{}\[\]:, a-cé]{0,40}"#;
        let leaf = prop_oneof![Just(Value::Null), any::<i32>().prop_map(Value::from), text.prop_map(Value::from)];
        leaf.prop_recursive(6, 200, 8, move |inner| {
            let key = prop_oneof![Just("bulk".to_owned()), Just("part".to_owned()), text.prop_map(String::from)];
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::vec((key, inner), 0..6)
                    .prop_map(|fields| json!(fields.into_iter().collect::<serde_json::Map<_, _>>())),
            ]
        })
    }

    /// The expected document, from a parser without blocks.
    fn expected(value: &Value) -> Value {
        let is_container = |value: &Value| value.is_array() || value.is_object();
        match value {
            Value::Array(list) => list.iter().map(expected).collect(),
            Value::Object(map) => {
                let field = |(key, value): (&String, &Value)| match key.as_str() {
                    "bulk" if is_container(value) => (key.clone(), Value::Null),
                    "part" if is_container(value) => (key.clone(), json!(["part", value])),
                    _ => (key.clone(), expected(value)),
                };
                Value::Object(map.iter().map(field).collect())
            }
            other => other.clone(),
        }
    }

    /// The pruned document with its parts restored.
    fn restored(value: Value, pruned: &Pruned<'_>) -> Value {
        match value {
            Value::Array(list) => list.into_iter().map(|value| restored(value, pruned)).collect(),
            Value::Object(map) => {
                let field = |(key, value): (String, Value)| {
                    let part = (key == "part" && value.is_array()).then(|| pruned.part(&value.to_string()));
                    match part {
                        Some(part) => {
                            let part: Value = serde_json::from_str(part.unwrap()).unwrap();
                            (key, json!(["part", part]))
                        }
                        None => (key, restored(value, pruned)),
                    }
                };
                Value::Object(map.into_iter().map(field).collect())
            }
            other => other,
        }
    }

    proptest! {
        #[test]
        fn pruned_document_is_equivalent_to_original(value in document(), pretty: bool, pad in 0usize..70) {
            let text = if pretty { format!("{value:#}") } else { value.to_string() };
            let text = format!("{}{text}", " ".repeat(pad));
            let pruned = Pruned::of(text.as_bytes(), &["bulk"], &["part"]);
            let read: Value = serde_json::from_slice(pruned.text()).unwrap();
            prop_assert_eq!(restored(read, &pruned), expected(&value));
        }

        #[test]
        fn arbitrary_input_never_panics(bytes: Vec<u8>, text in r#"[\\"{}\[\]:,bulk]{0,300}"#) {
            Pruned::of(&bytes, &["bulk"], &["part"]);
            Pruned::of(text.as_bytes(), &["bulk"], &["part"]);
        }
    }
}
