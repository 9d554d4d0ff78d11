//! Java properties, the format of `spark.properties` (java.util.Properties#load).
//!
//! The published crate decodes ISO-8859-1 and `\uXXXX` but Spark writes non-ASCII raw in UTF-8. A tenant writes the text:
//! parsing must never fail, and only the keys that the caller copies may be kept (the file contains credentials).

use std::borrow::Cow;

/// Whether each `\u` has four hexadecimal digits after it: java.util.Properties refuses a file in which one has not.
pub fn is_well_formed(text: &str) -> bool {
    let mut is_escaped = false;
    text.char_indices().all(|(at, c)| {
        let is_unicode = is_escaped && c == 'u';
        is_escaped = c == '\\' && !is_escaped;
        !is_unicode || hex(text.get(at + 1..).unwrap_or_default()).is_some()
    })
}

/// The UTF-16 unit that a text begins with, as four digits.
fn hex(text: &str) -> Option<u16> {
    let digits = text.get(..4).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u16::from_str_radix(digits, 16).ok()
}

/// Calls `keep` with each key and its value; entries that `keep` does not copy are dropped.
///
/// Follows java.util.Properties: `#` and `!` start comments, `=`, `:` or white space end a key, a backslash escapes,
/// an odd number of them at the end of a line continues it. A malformed `\u` escape is taken literally.
pub fn each(text: &str, mut keep: impl FnMut(&str, &str)) {
    // CR, LF or both end a line.
    let text = if text.contains('\r') { Cow::Owned(text.replace("\r\n", "\n")) } else { Cow::Borrowed(text) };
    let mut lines = text.split(['\n', '\r']);
    while let Some(line) = lines.next() {
        let line = line.trim_start_matches([' ', '\t', '\u{c}']);
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let mut logical = line.to_owned();
        while continues(&logical) {
            logical.pop();
            match lines.next() {
                Some(next) => logical.push_str(next.trim_start_matches([' ', '\t', '\u{c}'])),
                None => break,
            }
        }
        let (key, value) = split(&logical);
        keep(&unescape(key), &unescape(value));
    }
}

/// Writes an entry as java.util.Properties#store does to a writer: text beyond ASCII stays as it is.
pub fn write(key: &str, value: &str, out: &mut String) {
    let mut escaped = |text: &str, is_key: bool| {
        for (at, c) in text.chars().enumerate() {
            match c {
                ' ' if is_key || at == 0 => out.push_str("\\ "),
                '\t' => out.push_str("\\t"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\u{c}' => out.push_str("\\f"),
                '=' | ':' | '#' | '!' | '\\' => {
                    out.push('\\');
                    out.push(c);
                }
                c => out.push(c),
            }
        }
        out.push(if is_key { '=' } else { '\n' });
    };
    escaped(key, true);
    escaped(value, false);
}

/// Whether a line continues on the next one: it ends in an odd number of backslashes.
fn continues(line: &str) -> bool {
    line.bytes().rev().take_while(|b| *b == b'\\').count() % 2 == 1
}

/// Splits at the first unescaped separator; white space around it belongs to neither side.
fn split(line: &str) -> (&str, &str) {
    let blank = [' ', '\t', '\u{c}'];
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == '=' || c == ':' || blank.contains(&c) {
            let (key, rest) = line.split_at(at);
            let rest = rest.trim_start_matches(blank);
            let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
            return (key, rest.trim_start_matches(blank));
        }
    }
    (line, "")
}

fn is_surrogate(unit: u16) -> bool {
    (0xD800..0xDC00).contains(&unit)
}

fn unescape(text: &str) -> String {
    if !text.contains('\\') {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('t') => out.push('\t'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('f') => out.push('\u{c}'),
            Some('u') => match hex(chars.as_str()) {
                Some(unit) => {
                    chars = chars.as_str().get(4..).unwrap_or_default().chars();
                    // Two of them make a character beyond the first 65,536.
                    let second = chars.as_str().strip_prefix("\\u").and_then(hex);
                    match second
                        .and_then(|second| String::from_utf16(&[unit, second]).ok().filter(|_| is_surrogate(unit)))
                    {
                        Some(both) => {
                            out.push_str(&both);
                            chars = chars.as_str().get(6..).unwrap_or_default().chars();
                        }
                        None => out.push(char::from_u32(unit.into()).unwrap_or(char::REPLACEMENT_CHARACTER)),
                    }
                }
                None => out.push('u'),
            },
            Some(other) => out.push(other),
            None => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Vec<(String, String)> {
        let mut all = Vec::new();
        each(text, |k, v| all.push((k.to_owned(), v.to_owned())));
        all
    }

    fn pair(k: &str, v: &str) -> (String, String) {
        (k.to_owned(), v.to_owned())
    }

    #[test]
    fn properties_of_spark_submit_are_parsed() {
        let text = "#Java properties built from Kubernetes config map with name: spark-drv-1-conf-map\n\
                    #Sat Nov 21 02:20:32 UTC 2026\n\
                    spark.master=k8s\\://http\\://127.0.0.1\\:18080\nspark.submit.pyFiles=\n\
                    spark.executor.instances=3\n";
        assert_eq!(
            read(text),
            [
                pair("spark.master", "k8s://http://127.0.0.1:18080"),
                pair("spark.submit.pyFiles", ""),
                pair("spark.executor.instances", "3"),
            ]
        );
    }

    #[test]
    fn java_properties_syntax_is_parsed() {
        assert_eq!(read("  a b"), [pair("a", "b")]);
        assert_eq!(read("a : b"), [pair("a", "b")]);
        assert_eq!(read("a\\=b=c"), [pair("a=b", "c")]);
        assert_eq!(read("a=b\\\n   c"), [pair("a", "bc")]);
        assert_eq!(read("a=b\\\\\nc=d"), [pair("a", "b\\"), pair("c", "d")]);
        assert_eq!(read("! no\n# no\n\nk"), [pair("k", "")]);
        assert_eq!(read("a=\\u00e9\\t!"), [pair("a", "é\t!")]);
        assert_eq!(read("a=Grüße"), [pair("a", "Grüße")]);
        assert_eq!(read("a=x\\"), [pair("a", "x")]);
        assert_eq!(read("a=\\uZZ"), [pair("a", "uZZ")]);
        assert_eq!(read("a=\\u00é0"), [pair("a", "u00é0")]);
        assert_eq!(read("a=x\\\r\n  y\r\nb=c\rd=e"), [pair("a", "xy"), pair("b", "c"), pair("d", "e")]);
        assert_eq!(read("a=\\ud83d\\ude00\\u00e9"), [pair("a", "😀é")]);
        assert_eq!(read("a=\\ud83d\\u00e9\\ud83d"), [pair("a", "\u{fffd}é\u{fffd}")]);
    }

    #[test]
    fn malformed_escapes_are_known() {
        for (text, expected) in [
            ("a=\\u00e9", true),
            ("a=\\\\u", true),
            ("a=\\uZZZZ", false),
            ("a=\\u12", false),
            ("\\u+123=x", false),
            ("é\\", true),
        ] {
            assert_eq!(is_well_formed(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(key in "[ -~é\t\n]{1,20}", value in "[ -~é\t\n\r]{0,30}") {
            let mut text = String::new();
            write(&key, &value, &mut text);
            prop_assert_eq!(read(&text), [pair(&key, &value)]);
        }

        #[test]
        fn arbitrary_input_never_panics(text in any::<String>()) {
            each(&text, |_, _| {});
        }

        #[test]
        fn properties_written_by_java_round_trip(key in "[a-z.]{1,20}", value in "[ -~é]{0,30}") {
            let mut escaped = String::new();
            for (i, c) in value.chars().enumerate() {
                if matches!(c, ':' | '=' | '#' | '!' | '\\') || (c == ' ' && i == 0) {
                    escaped.push('\\');
                }
                escaped.push(c);
            }
            prop_assert_eq!(read(&format!("{key}={escaped}\n")), [pair(&key, &value)]);
        }
    }
}
