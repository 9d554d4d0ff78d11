//! Keys: an application, a pod.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// `namespace/name` in one allocation. Neither part can contain a `/`: the API server validates both.
///
/// One string rather than two so that a lookup needs one temporary and no wrapper trait.
macro_rules! slash_key {
    ($(#[$doc:meta])* $name:ident, $second:ident, $second_doc:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Joins the two parts.
            pub fn new(namespace: &str, $second: &str) -> Self {
                let mut key = String::with_capacity(namespace.len() + 1 + $second.len());
                key.push_str(namespace);
                key.push('/');
                key.push_str($second);
                Self(key.into())
            }

            /// The namespace.
            pub fn namespace(&self) -> &str {
                self.0.split_once('/').map_or("", |(namespace, _)| namespace)
            }

            #[doc = $second_doc]
            pub fn $second(&self) -> &str {
                self.0.split_once('/').map_or(&*self.0, |(_, second)| second)
            }

            /// `namespace/name`, as people write it.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

slash_key!(
    /// A Spark application: its namespace and its app selector. Everything is keyed by this.
    AppKey, selector, "The app selector (label `spark-app-selector`)."
);
slash_key!(
    /// A pod by namespace and name. Names are reused: compare uids before acting.
    PodKey, name, "The pod's name."
);

/// Whether a resourceVersion is newer than another of the same resource. They compare as numbers (KEP-5504); `false` if either
/// is not a number, because their order is then unknown.
pub fn is_newer(version: &str, than: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (version, than) = (version.trim_start_matches('0'), than.trim_start_matches('0'));
    digits(version) && (digits(than) || than.is_empty()) && (version.len(), version) > (than.len(), than)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_splits_into_namespace_and_name() {
        let app = AppKey::new("team-a", "spark-1");
        assert_eq!((app.namespace(), app.selector()), ("team-a", "spark-1"));
        assert_eq!(app.to_string(), "team-a/spark-1");
        let map: std::collections::BTreeMap<PodKey, u8> = [(PodKey::new("a", "b"), 1)].into();
        assert_eq!(map.get("a/b"), Some(&1));
    }

    #[test]
    fn resource_versions_compare_as_numbers() {
        assert!(is_newer("10", "9") && !is_newer("9", "10") && !is_newer("9", "9"));
        assert!(is_newer("1", "0") && is_newer("100000000000000000000", "99999999999999999999"));
        assert!(!is_newer("b", "1") && !is_newer("2", "a") && !is_newer("", ""));
    }
}
