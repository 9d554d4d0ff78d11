//! Text of tenants in our messages, and the names that Kubernetes accepts (`apimachinery/pkg/util/validation`).

/// A tenant's text for a message: short, and without control characters, which could steer a terminal.
pub fn shown(text: &str) -> String {
    cut(text.chars().map(|c| if steers(c) { '\u{fffd}' } else { c }), MAX_SHOWN)
}

fn cut(text: impl Iterator<Item = char> + Clone, max: usize) -> String {
    if text.clone().nth(max).is_none() {
        return text.collect();
    }
    text.take(max.saturating_sub(1)).chain(['…']).take(max).collect()
}

/// The first line of a text, at most this many characters of it, for a row of a table or of a terminal.
pub fn first_line(text: &str, max: usize) -> String {
    cut(text.lines().next().unwrap_or_default().chars(), max)
}

/// A text whose first letter is a capital.
pub fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// A name of at most so many characters, cut in its middle: names often differ at their ends.
pub fn squeezed(name: &str, max: usize) -> String {
    let length = name.chars().count();
    if length <= max {
        return name.to_owned();
    }
    let end = max / 3;
    let begin = max.saturating_sub(1 + end);
    name.chars().take(begin).chain(['…']).chain(name.chars().skip(length - end)).collect()
}

/// Whether a character could control a terminal, or show the text after it in another order than it is written.
pub fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text without such characters; lines stay.
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if steers(c) && c != '\n' { '\u{fffd}' } else { c }).collect()
}

/// At most this many bytes of a text, up to a character boundary.
pub fn truncated(text: &str, max: usize) -> &str {
    text.get(..text.floor_char_boundary(max)).unwrap_or_default()
}

/// The longest text of a tenant in a message, in characters.
const MAX_SHOWN: usize = 80;

/// Whether a text is a valid label value: at most 63 characters, alphanumeric at both ends, `-_.` between; or empty.
pub fn is_label_value(value: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = value.as_bytes();
    value.is_empty()
        || (value.len() <= 63
            && edge(bytes.first())
            && edge(bytes.last())
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b)))
}

/// Whether a text is a valid key of labels and annotations: a name like a label's value, after an optional DNS prefix and a slash.
pub fn is_label_key(key: &str) -> bool {
    let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    !name.is_empty() && is_label_value(name) && prefix.is_none_or(is_dns_subdomain)
}

/// Whether a name may contain this byte, in a DNS-1123 label.
pub fn is_dns_byte(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
}

/// Whether a text is one part of a DNS-1123 name, of any length: a-z, 0-9 and -, with a letter or digit at both ends.
pub fn is_dns_part(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(is_dns_byte) && !text.starts_with('-') && !text.ends_with('-')
}

/// Whether a text is a DNS-1123 label: the name of a namespace, a Service, or one of our PodGroups.
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= 63 && is_dns_part(text)
}

/// Whether a text is a DNS-1123 subdomain: the name of a pod, and of most other objects.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_part)
}

/// A closed vocabulary: an enum with a word for each value, which metrics, JSON and annotations use, and its documentation as a text. A
/// vocabulary may have columns, which each row states by name:
///
/// ```text
/// vocabulary! {
///     /// Why.
///     Why {
///         /// What to do.
///         remedy: &'static str,
///     }
///     /// It is full.
///     Full = "full" { remedy: "Wait." };
/// }
/// ```
#[macro_export]
macro_rules! vocabulary {
    ($(#[$meta:meta])* $name:ident $($(#[doc = $doc:literal])+ $value:ident = $word:literal;)+) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[doc = $doc])+ $value,)+
        }

        impl $name {
            /// Every value, in the order of declaration.
            pub const ALL: [$name; [$($word),+].len()] = [$($name::$value),+];

            /// The value of a word.
            pub fn of(word: &str) -> Option<$name> {
                $name::ALL.into_iter().find(|value| value.as_str() == word)
            }

            /// Its word.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$value => $word,)+ }
            }

            /// Its documentation.
            pub fn text(self) -> &'static str {
                match self { $($name::$value => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
    (
        $(#[$meta:meta])* $name:ident { $($(#[doc = $about:literal])+ $column:ident: $type:ty),+ $(,)? }
        $($(#[doc = $doc:literal])+ $value:ident = $word:literal { $($cells:tt)+ };)+
    ) => {
        $crate::text::vocabulary! { $(#[$meta])* $name $($(#[doc = $doc])+ $value = $word;)+ }

        const _: () = {
            struct Row {
                $($column: $type,)+
            }

            impl $name {
                fn row(self) -> Row {
                    match self { $($name::$value => Row { $($cells)+ },)+ }
                }

                $(
                    $(#[doc = $about])+
                    pub fn $column(self) -> $type {
                        self.row().$column
                    }
                )+
            }
        };
    };
}
pub use vocabulary;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_value_is_validated_as_in_kubernetes() {
        for good in ["", "a", "root.team-a", "A_1", &"x".repeat(63)] {
            assert!(is_label_value(good), "{good}");
        }
        for bad in ["-a", "a.", "a/b", "a b", "é", &"x".repeat(64)] {
            assert!(!is_label_value(bad), "{bad}");
        }
    }

    #[test]
    fn harmless_text_controls_no_terminal_and_shows_no_text_backwards() {
        assert_eq!(harmless("a\x1b[2J\u{202e}b\n\tc é 日本"), "a\u{fffd}[2J\u{fffd}b\n\u{fffd}c é 日本");
        assert_eq!(shown("\u{2066}x"), "\u{fffd}x");
        assert_eq!(harmless("a\u{61c}b\u{2028}c\u{2029}d"), "a\u{fffd}b\u{fffd}c\u{fffd}d");
    }

    #[test]
    fn longer_text_ends_with_an_ellipsis() {
        assert_eq!(first_line("añb\nc", 3), "añb");
        assert_eq!(first_line("añbc\nd", 3), "añ…");
        assert_eq!((first_line("", 3), first_line("a", 0)), (String::new(), String::new()));
        assert_eq!((shown(&"x".repeat(80)), shown(&"x".repeat(81))), ("x".repeat(80), "x".repeat(79) + "…"));
    }

    #[test]
    fn dns_names_are_validated_as_in_kubernetes() {
        let long = |length| "a".repeat(length);
        for name in ["a", "0", "a-b", "a--b", &long(63)] {
            assert!(is_dns_label(name) && is_dns_subdomain(name), "{name}");
        }
        for name in ["", "-a", "a-", "A", "a_b", "a b", "é", "a/b"] {
            assert!(!is_dns_label(name) && !is_dns_subdomain(name), "{name}");
        }
        assert!(is_dns_subdomain("a.b-c.0") && !is_dns_label("a.b"));
        assert!(is_dns_subdomain(&long(253)) && !is_dns_label(&long(64)) && !is_dns_subdomain(&long(254)));
        for name in [".", "a.", ".a", "a..b", "a.-b", "a-.b"] {
            assert!(!is_dns_subdomain(name), "{name}");
        }
    }

    #[test]
    fn text_is_truncated_at_character_boundary() {
        assert_eq!(truncated("aé", 2), "a");
        assert_eq!(truncated("aé", 3), "aé");
        assert_eq!(truncated("aé", 9), "aé");
    }
}
