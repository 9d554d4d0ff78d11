//! Submission ids: `[namespace:]name`, where the name may be a pattern.

use glob::{MatchOptions, Pattern};

use usher_spark::text::{is_dns_label, is_dns_subdomain, is_label_value};

/// The name of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Names {
    /// The name of a driver's pod, or the id of an application.
    Exact(String),
    /// Matched as a shell does: `*`, `?`, `[…]` or `[!…]`.
    Glob(Pattern),
    /// What spark-submit does with a `*` at the end: names that begin with the rest, in which a `*` is an ordinary character.
    Prefix(String),
}

/// `[namespace:]name`: spark-submit's submission id is `namespace:name-of-the-driver's-pod`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmissionId {
    /// As it was given.
    pub text: String,
    /// The namespace, if one was given.
    pub namespace: Option<String>,
    pub names: Names,
    /// Whether it is said to be that of a pod, by `pod/`, and so no application's.
    pub is_pod: bool,
}

const OPTIONS: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: false, require_literal_leading_dot: false };

impl SubmissionId {
    /// Parses an id. `pod/` before the name is accepted, as `kubectl get -o name` prints it.
    pub fn parse(text: &str) -> Result<SubmissionId, String> {
        let expected = |what: &str| format!("expected [NAMESPACE:]NAME, a submission id or an application id: {what}");
        let (namespace, name) = split_as_shown(text);
        if let Some(namespace) = namespace.filter(|namespace| !is_dns_label(namespace)) {
            let all = "; a pattern in it is not supported: --all-namespaces, with a pattern of names, finds drivers everywhere";
            let hint = if is_glob(namespace) { all } else { "" };
            return Err(expected(&format!("{namespace:?} is no name of a namespace{hint}")));
        }
        let of_pod = name.strip_prefix("pod/").or_else(|| name.strip_prefix("pods/"));
        let (name, is_pod) = (of_pod.unwrap_or(name), of_pod.is_some());
        let names = if is_glob(name) {
            // Names have no folders, for which ** has a meaning.
            let pattern = name.split("**").collect::<Vec<_>>().join("*");
            Names::Glob(
                Pattern::new(&pattern).map_err(|error| expected(&format!("the pattern {name:?}: {}", error.msg)))?,
            )
        } else if is_dns_subdomain(name) || (!name.is_empty() && is_label_value(name)) {
            Names::Exact(name.to_owned())
        } else if name.is_empty() {
            return Err(expected("the name is empty; * stands for any name"));
        } else {
            return Err(expected(&format!("{name:?} is no name of a pod, and no application id")));
        };
        Ok(SubmissionId { text: text.to_owned(), namespace: namespace.map(str::to_owned), names, is_pod })
    }

    /// Parses an id as spark-submit does: only a `*` at the end makes a pattern, and the name may be anything (`K8sSubmitOps`).
    pub fn parse_as_spark(text: &str) -> Result<SubmissionId, String> {
        let (namespace, name) = split(text);
        if name.is_empty() {
            return Err(format!("expected a submission id, [NAMESPACE:]NAME: {text:?} has no name"));
        }
        let names =
            name.strip_suffix('*').map_or_else(|| Names::Exact(name.to_owned()), |rest| Names::Prefix(rest.to_owned()));
        Ok(SubmissionId { text: text.to_owned(), namespace: namespace.map(str::to_owned), names, is_pod: false })
    }

    /// Whether it may name several submissions.
    pub fn is_pattern(&self) -> bool {
        !matches!(self.names, Names::Exact(_))
    }

    /// Whether it names a driver with this pod name and application id.
    pub fn matches(&self, pod: &str, app_id: Option<&str>) -> bool {
        match &self.names {
            Names::Exact(name) => name == pod || Some(name.as_str()) == app_id,
            Names::Glob(pattern) => {
                pattern.matches_with(pod, OPTIONS) || app_id.is_some_and(|id| pattern.matches_with(id, OPTIONS))
            }
            Names::Prefix(prefix) => pod.starts_with(prefix.as_str()),
        }
    }
}

/// Namespace and name: the first colon separates them.
fn split(text: &str) -> (Option<&str>, &str) {
    text.split_once(':').map_or((None, text), |(namespace, name)| (Some(namespace), name))
}

/// The same; reports say `namespace/name`, which is accepted, too.
fn split_as_shown(text: &str) -> (Option<&str>, &str) {
    match text.split_once('/') {
        Some((namespace, name)) if !matches!(namespace, "pod" | "pods") && !text.contains(':') => {
            (Some(namespace), name)
        }
        _ => split(text),
    }
}

fn is_glob(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(id: &str, pod: &str) -> bool {
        SubmissionId::parse(id).unwrap().matches(pod, Some("spark-App_1"))
    }

    #[test]
    fn name_and_namespace_are_separated_by_the_first_colon() {
        for (text, namespace, pod) in [
            ("team-a:pi-driver", Some("team-a"), "pi-driver"),
            ("pi-driver", None, "pi-driver"),
            ("pod/pi-driver", None, "pi-driver"),
            ("team-a:pod/pi-driver", Some("team-a"), "pi-driver"),
            ("team-a/pi-driver", Some("team-a"), "pi-driver"),
        ] {
            let id = SubmissionId::parse(text).unwrap();
            assert_eq!((id.namespace.as_deref(), &id.names), (namespace, &Names::Exact(pod.to_owned())), "{text}");
        }
    }

    #[test]
    fn patterns_match_anywhere_in_the_name_or_the_application_id() {
        for (id, pod, expected) in [
            ("etl-*", "etl-1-driver", true),
            ("*-driver", "etl-1-driver", true),
            ("etl-?-driver", "etl-1-driver", true),
            ("etl-[0-9]-driver", "etl-1-driver", true),
            ("etl-[!0-9]-driver", "etl-1-driver", false),
            ("etl-??-driver", "etl-1-driver", false),
            ("n:*", "x", true),
            ("etl**", "etl-1-driver", true),
            ("***", "x", true),
            ("spark-App_1", "x", true),
            ("spark-A*", "x", true),
            ("etl", "etl-1", false),
        ] {
            assert_eq!(matches(id, pod), expected, "{id} {pod}");
        }
    }

    #[test]
    fn bad_ids_say_what_was_expected() {
        for (text, words) in [
            ("", "the name is empty"),
            ("team-a:", "the name is empty"),
            (":x", "\"\" is no name of a namespace"),
            ("te*:x", "--all-namespaces"),
            ("a:b:c", "\"b:c\" is no name of a pod"),
            ("etl-[", "the pattern"),
            ("a b", "\"a b\" is no name of a pod"),
        ] {
            let error = SubmissionId::parse(text).unwrap_err();
            assert!(error.starts_with("expected [NAMESPACE:]NAME") && error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn spark_knows_only_a_star_at_the_end_and_no_application_ids() {
        let id = |text: &str| SubmissionId::parse_as_spark(text).unwrap();
        assert!(id("n:etl-*").matches("etl-1", None) && !id("etl-*").matches("x", Some("etl-1")));
        assert!(id("n:*").matches("anything", None));
        assert_eq!(id("e*l-?").names, Names::Exact("e*l-?".into()));
        assert!(id("e*l-*").matches("e*l-1", None) && !id("e*l-*").matches("etl-1", None));
        assert!(SubmissionId::parse_as_spark("n:").unwrap_err().contains("has no name"));
    }
}
