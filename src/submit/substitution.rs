//! References in values of the configuration: `${KEY}`, `${env:NAME}` and `${system:NAME}` (`ConfigReader.substitute`).
//!
//! Spark replaces them only where it reads a setting that it defines. What it reads by the beginning of its key, such as labels, and what
//! the driver gets, keeps them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::error::{Result, SubmitError};

/// What references can refer to.
pub(super) struct Bindings<'b> {
    pub(super) conf: &'b BTreeMap<String, String>,
    pub(super) variable: &'b dyn Fn(&str) -> Option<String>,
    /// A system property of the JVM.
    pub(super) property: &'b dyn Fn(&str) -> Option<String>,
    /// The values of names that are known.
    pub(super) memo: RefCell<BTreeMap<String, String>>,
}

/// The longest value, in bytes,
const MAX_LENGTH: usize = 1 << 20;
/// and the longest chain of references.
const MAX_DEPTH: usize = 100;

/// Why a value is not what it seems.
#[derive(Debug, Default)]
pub(super) struct Unresolved(pub(super) BTreeSet<String>);

impl Bindings<'_> {
    /// The value with its references replaced; those to nothing stay, and are added to `unresolved`.
    pub(super) fn substituted(&self, value: &str, unresolved: &mut Unresolved) -> Result<String> {
        self.replaced(value, &mut Vec::new(), unresolved)
    }

    fn replaced(&self, value: &str, used: &mut Vec<String>, unresolved: &mut Unresolved) -> Result<String> {
        let mut out = String::new();
        let mut rest = value;
        while let Some(at) = rest.find("${") {
            let (before, reference) = rest.split_at(at);
            out.push_str(before);
            let Some((name, after)) = reference.strip_prefix("${").and_then(|inner| inner.split_once('}')) else {
                rest = reference;
                break;
            };
            // A name has no blanks: what looks like a reference may be text.
            if name.is_empty() || name.contains(char::is_whitespace) {
                out.push_str("${");
                rest = reference.strip_prefix("${").unwrap_or_default();
                continue;
            }
            if used.iter().any(|used| used == name) {
                return Err(SubmitError::new(format!("requirement failed: Circular reference in {value}: {name}")));
            }
            let known = self.memo.borrow().get(name).cloned();
            match known.map(Ok).or_else(|| self.value(name).map(Err)) {
                Some(Ok(known)) => out.push_str(&known),
                Some(Err(found)) => {
                    if used.len() >= MAX_DEPTH {
                        return Err(SubmitError::expected(&format!(
                            "at most {MAX_DEPTH} references in a row, at {name}"
                        )));
                    }
                    used.push(name.to_owned());
                    let before = unresolved.0.len();
                    let replaced = self.replaced(&found, used, unresolved)?;
                    used.pop();
                    out.push_str(&replaced);
                    // What refers to nothing has to be said for each value.
                    if unresolved.0.len() == before {
                        self.memo.borrow_mut().insert(name.to_owned(), replaced);
                    }
                }
                None => {
                    unresolved.0.insert(format!("${{{name}}}"));
                    out.extend(["${", name, "}"]);
                }
            }
            if out.len() > MAX_LENGTH {
                return Err(SubmitError::expected(&format!(
                    "at most {MAX_LENGTH} bytes after references are replaced, at {name}"
                )));
            }
            rest = after;
        }
        out.push_str(rest);
        Ok(out)
    }

    fn value(&self, name: &str) -> Option<String> {
        let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        match name.split_once(':').filter(|(source, _)| is_word(source)) {
            Some(("env", name)) => (self.variable)(name),
            Some(("system", name)) => (self.property)(name),
            Some(_) => None,
            None if name.starts_with("spark.") => self.conf.get(name).cloned().or_else(|| default(name)),
            None => None,
        }
    }
}

/// The defaults of settings that Spark defines, to which people refer.
fn default(key: &str) -> Option<String> {
    let value = match key {
        "spark.kubernetes.namespace" => "default",
        "spark.driver.memory" | "spark.executor.memory" => "1g",
        "spark.driver.cores" | "spark.executor.cores" => "1",
        "spark.kubernetes.container.image.pullPolicy" => "IfNotPresent",
        "spark.kubernetes.memoryOverheadFactor" => "0.1",
        _ => return None,
    };
    Some(value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn substituted(value: &str) -> (Result<String>, Vec<String>) {
        let conf: BTreeMap<String, String> = [
            ("spark.a", "1"),
            ("spark.b", "b${spark.a}"),
            ("spark.x", "${spark.y}"),
            ("spark.y", "${spark.x}"),
            ("other", "2"),
            ("spark.odd:key", "o"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        let variable = |name: &str| (name == "TAG").then(|| "v".to_owned());
        let mut unresolved = Unresolved::default();
        let property = |name: &str| (name == "user.name").then(|| "v".to_owned());
        let found = Bindings { conf: &conf, variable: &variable, property: &property, memo: RefCell::default() }
            .substituted(value, &mut unresolved);
        (found, unresolved.0.into_iter().collect())
    }

    #[test]
    fn references_are_replaced_through_other_values() {
        for (value, expected) in [
            ("plain", "plain"),
            ("${spark.a}-${spark.b}${spark.a}", "1-b11"),
            ("${env:TAG}/${system:user.name}", "v/v"),
            ("$ {spark.a} ${} ${ x} ${spark.a", "$ {spark.a} ${} ${ x} ${spark.a"),
            ("é${spark.a}é", "é1é"),
            ("${spark.odd:key}${spark.kubernetes.namespace}", "odefault"),
        ] {
            assert_eq!(substituted(value).0.unwrap(), expected, "{value}");
        }
    }

    #[test]
    fn references_to_nothing_stay_and_are_known() {
        let (value, unresolved) = substituted("${spark.nope}${env:NOPE}${other}${odd:x}");
        assert_eq!(value.unwrap(), "${spark.nope}${env:NOPE}${other}${odd:x}");
        assert_eq!(unresolved, ["${env:NOPE}", "${odd:x}", "${other}", "${spark.nope}"]);
    }

    #[test]
    fn references_that_multiply_end() {
        let doubled = |level: usize| (format!("spark.l{level}"), format!("${{spark.l{0}}}${{spark.l{0}}}", level - 1));
        let mut conf: BTreeMap<String, String> = (1..40).map(doubled).collect();
        conf.insert("spark.l0".into(), "xx".into());
        conf.extend((1..3000).map(|level| (format!("spark.c{level}"), format!("${{spark.c{}}}", level - 1))));
        let none = |_: &str| None;
        let bindings = Bindings { conf: &conf, variable: &none, property: &none, memo: RefCell::default() };
        let substituted = |text: &str| bindings.substituted(text, &mut Unresolved::default());
        assert!(substituted("${spark.l39}").unwrap_err().to_string().contains("bytes after references"));
        assert_eq!(substituted("${spark.l3}").unwrap().len(), 16);
        assert!(substituted("${spark.c2999}").unwrap_err().to_string().contains("references in a row"));
    }

    #[test]
    fn reference_to_itself_is_an_error() {
        let error = substituted("${spark.x}").0.unwrap_err().to_string();
        assert_eq!(error, "requirement failed: Circular reference in ${spark.x}: spark.x");
    }
}
