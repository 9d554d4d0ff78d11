//! A gang's name: a pure function of review and policy, the same on every replica, also right after its start.

use std::fmt;
use std::str::FromStr;
use usher_spark::text::is_dns_byte;

use ring::digest::{SHA256, digest};

/// The longest name: it must also be a valid label value.
const MAX: usize = 63;
/// Hex digits of `{app8}`.
const APP8: usize = 8;
/// Length that any template leaves for the driver's name.
const MIN_DRIVER_ROOM: usize = 16;

/// `gang.name`, such as `{driver}-{app8}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameTemplate(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Driver,
    App8,
}

/// Why a text is not a template for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTemplate {
    /// Without `{app8}`, two applications of one driver pod would share a PodGroup.
    #[error("expected {{app8}} exactly once and {{driver}} at most once, such as {{driver}}-{{app8}}")]
    NoApp,
    /// An unknown placeholder.
    #[error("unknown placeholder: expected {{driver}} and {{app8}} only")]
    Placeholder,
    /// Characters that are invalid in a name.
    #[error("expected only a-z, 0-9 and - around the placeholders")]
    Characters,
    /// The text besides the placeholders is too long.
    #[error("too long: expected at most 40 characters besides the placeholders")]
    TooLong,
}

impl Default for NameTemplate {
    fn default() -> Self {
        NameTemplate(vec![Part::Driver, Part::Literal("-".into()), Part::App8])
    }
}

impl FromStr for NameTemplate {
    type Err = BadTemplate;

    fn from_str(text: &str) -> Result<Self, BadTemplate> {
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix("{driver}") {
                parts.push(Part::Driver);
                rest = after;
            } else if let Some(after) = rest.strip_prefix("{app8}") {
                parts.push(Part::App8);
                rest = after;
            } else if rest.starts_with(['{', '}']) {
                return Err(BadTemplate::Placeholder);
            } else {
                let (literal, after) = rest.split_at(rest.find(['{', '}']).unwrap_or(rest.len()));
                if !literal.bytes().all(is_dns_byte) {
                    return Err(BadTemplate::Characters);
                }
                parts.push(Part::Literal(literal.to_owned()));
                rest = after;
            }
        }
        let count = |which: &Part| parts.iter().filter(|part| *part == which).count();
        if count(&Part::App8) != 1 || count(&Part::Driver) > 1 {
            return Err(BadTemplate::NoApp);
        }
        let template = NameTemplate(parts);
        if template.fixed_len() + MIN_DRIVER_ROOM > MAX + 1 {
            return Err(BadTemplate::TooLong);
        }
        Ok(template)
    }
}

impl fmt::Display for NameTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.0 {
            f.write_str(match part {
                Part::Literal(text) => text,
                Part::Driver => "{driver}",
                Part::App8 => "{app8}",
            })?;
        }
        Ok(())
    }
}

impl NameTemplate {
    fn fixed_len(&self) -> usize {
        self.0
            .iter()
            .map(|part| match part {
                Part::Literal(text) => text.len(),
                Part::Driver => 0,
                Part::App8 => APP8,
            })
            .sum()
    }

    /// The gang's name: a DNS-1123 label of at most 63 characters. Without a driver, `{driver}` stays empty. A driver's name
    /// that is changed for it (long ones are truncated, a dot becomes a dash) is added to the hash, which is then twice as
    /// long: two drivers never share a gang.
    pub fn render(&self, driver: Option<&str>, selector: &str) -> String {
        let stands = |driver: &&str| {
            let plain = driver.bytes().all(is_dns_byte);
            plain && self.0.contains(&Part::Driver) && driver.len() <= MAX - self.fixed_len()
        };
        match driver {
            Some(driver) if !stands(&driver) => self.write(Some(driver), selector, Some(driver)),
            _ => self.write(driver, selector, None),
        }
    }

    /// The name of a gang whose driver is unknown: the hash includes `whom`, the requester that it is for.
    pub(crate) fn render_for(&self, whom: &str, selector: &str) -> String {
        self.write(None, selector, Some(whom))
    }

    fn write(&self, driver: Option<&str>, selector: &str, salt: Option<&str>) -> String {
        let digits = if salt.is_some() { 2 * APP8 } else { APP8 };
        let room = MAX - (self.fixed_len() - APP8 + digits);
        let mut name = String::with_capacity(MAX);
        for part in &self.0 {
            match part {
                Part::Literal(text) => name.push_str(text),
                Part::App8 => push_hash(&mut name, selector, salt, digits),
                Part::Driver => {
                    let driver = driver.unwrap_or_default().bytes().take(room);
                    name.extend(driver.map(|b| match b {
                        b'a'..=b'z' | b'0'..=b'9' => char::from(b),
                        b'A'..=b'Z' => char::from(b.to_ascii_lowercase()),
                        _ => '-',
                    }));
                }
            }
        }
        let trimmed = name.trim_matches('-');
        if trimmed.len() == name.len() { name } else { trimmed.to_owned() }
    }
}

/// The first hex digits of the SHA-256 of an app selector, and of a salt that distinguishes its gangs.
pub(super) fn push_hash(name: &mut String, selector: &str, salt: Option<&str>, digits: usize) {
    let text = salt.map(|salt| [selector, "\n", salt].concat());
    let hash = digest(&SHA256, text.as_deref().unwrap_or(selector).as_bytes());
    for byte in hash.as_ref().iter().take(digits / 2) {
        let nibbles = [byte >> 4, byte & 15];
        name.extend(nibbles.iter().filter_map(|nibble| char::from_digit(u32::from(*nibble), 16)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const APP: &str = "spark-5ce218ea51d24d51bcb1500360dfa682";

    #[test]
    fn default_name_is_driver_and_hash() {
        let name = NameTemplate::default().render(Some("notebook-driver"), APP);
        // printf %s spark-5ce218ea51d24d51bcb1500360dfa682 | sha256sum | cut -c1-8
        assert_eq!(name, "notebook-driver-f33e32ff");
        assert_eq!(NameTemplate::default().render(None, APP), "f33e32ff");
        assert_eq!(NameTemplate::default().to_string(), "{driver}-{app8}");
    }

    #[test]
    fn long_driver_name_is_truncated_before_hash() {
        let long = "d".repeat(253);
        let name = NameTemplate::default().render(Some(&long), APP);
        assert!(name.starts_with(&format!("{}-", "d".repeat(46))) && name.len() == 63, "{name}");
        let whole = "d".repeat(54);
        assert_eq!(NameTemplate::default().render(Some(&whole), APP), format!("{whole}-f33e32ff"));
        assert!(NameTemplate::default().render(Some("a.b.c"), APP).starts_with("a-b-c-"));
        assert!(NameTemplate::default().render(Some("NB-1"), APP).starts_with("nb-1-"));
    }

    #[test]
    fn drivers_with_similar_names_get_distinct_gang_names() {
        let long = |end: &str| format!("{}{end}", "d".repeat(60));
        let names = ["a.b", "a-b", "a.b.c", "a-b.c", &long("1"), &long("2"), &long("")];
        for template in ["{driver}-{app8}", "spark-{app8}", "{app8}", "x{app8}-{driver}y"] {
            let template: NameTemplate = template.parse().unwrap();
            let all: std::collections::BTreeSet<String> =
                names.iter().map(|name| template.render(Some(name), APP)).collect();
            assert_eq!(all.len(), names.len(), "{template}: {all:?}");
            assert_ne!(template.render_for("eve\n", APP), template.render_for("adam\n", APP));
            assert_ne!(template.render_for("a-b", APP), template.render(None, APP));
        }
    }

    #[test]
    fn invalid_name_template_is_rejected() {
        let parse = |text: &str| text.parse::<NameTemplate>();
        assert_eq!(parse("{driver}"), Err(BadTemplate::NoApp));
        assert_eq!(parse("{app8}-{app8}"), Err(BadTemplate::NoApp));
        assert_eq!(parse("{app}-{app8}"), Err(BadTemplate::Placeholder));
        assert_eq!(parse("X-{app8}"), Err(BadTemplate::Characters));
        assert_eq!(parse(&format!("{}{{app8}}", "x".repeat(41))), Err(BadTemplate::TooLong));
        assert!(parse(&format!("{}{{app8}}", "x".repeat(40))).is_ok(), "48 characters leave room for a driver");
        assert_eq!(parse("spark-{app8}").unwrap().render(None, APP), "spark-f33e32ff");
        assert_eq!(parse("{driver}-{app8}"), Ok(NameTemplate::default()));
    }

    proptest! {
        #[test]
        fn rendered_name_is_valid_label_value(
            driver in proptest::option::of("[a-z0-9]([a-z0-9.-]{0,250}[a-z0-9])?"), app in ".{0,80}",
            template in "[a-z0-9-]{0,10}(\\{driver\\}[a-z-]{0,5})?\\{app8\\}[a-z0-9-]{0,10}",
        ) {
            let name = template.parse::<NameTemplate>().unwrap().render(driver.as_deref(), &app);
            prop_assert!(!name.is_empty() && name.len() <= 63);
            prop_assert!(usher_spark::text::is_label_value(&name));
            prop_assert!(!name.contains(['_', '.']));
        }
    }
}
