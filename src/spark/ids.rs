//! Keys: an application, a pod.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use equivalent::{Comparable, Equivalent};

use crate::hash::hash_of;

/// `namespace/name` in one allocation. Neither part can contain a `/`: the API server validates both.
fn join(namespace: &str, second: &str) -> String {
    let mut key = String::with_capacity(namespace.len() + 1 + second.len());
    key.push_str(namespace);
    key.push('/');
    key.push_str(second);
    key
}

/// Methods of a key that is `namespace/SECOND` in its field `text`.
macro_rules! slash_key {
    ($name:ident, $second:ident, $second_doc:literal) => {
        impl $name {
            pub fn namespace(&self) -> &str {
                self.text.split_once('/').map_or("", |(namespace, _)| namespace)
            }

            #[doc = $second_doc]
            pub fn $second(&self) -> &str {
                self.text.split_once('/').map_or(&*self.text, |(_, second)| second)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.text)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.text)
            }
        }
    };
}

/// A hash of an application's key, in this process. Two keys have the same with a probability that is negligible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppHash(u64);

/// A Spark application: its namespace and its app selector. Everything is keyed by this.
///
/// Keys are ordered by their hashes, and by their texts only where those are equal: a lookup in a tree of a hundred thousand
/// applications then reads its nodes, and not 17 texts elsewhere in memory. Sort by namespace and selector what people read.
#[derive(Clone)]
pub struct AppKey {
    hash: AppHash,
    text: Arc<str>,
}

slash_key!(AppKey, selector, "The app selector (label `spark-app-selector`).");

impl AppKey {
    /// Joins the two parts.
    pub fn new(namespace: &str, selector: &str) -> Self {
        AppKey { hash: AppHash::of(namespace, selector), text: join(namespace, selector).into() }
    }

    /// Its hash, which finds it in an ordered map of imbl.
    pub fn hash(&self) -> AppHash {
        self.hash
    }

    /// Whether this is the key of that application.
    pub fn is(&self, namespace: &str, selector: &str) -> bool {
        self.text.split_once('/') == Some((namespace, selector))
    }
}

impl AppHash {
    /// The hash of an application's key.
    pub fn of(namespace: &str, selector: &str) -> AppHash {
        AppHash(hash_of(&(namespace, selector)))
    }
}

impl Ord for AppKey {
    fn cmp(&self, other: &AppKey) -> Ordering {
        let by_text =
            || if Arc::ptr_eq(&self.text, &other.text) { Ordering::Equal } else { self.text.cmp(&other.text) };
        self.hash.cmp(&other.hash).then_with(by_text)
    }
}

impl PartialOrd for AppKey {
    fn partial_cmp(&self, other: &AppKey) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for AppKey {
    fn eq(&self, other: &AppKey) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for AppKey {}

impl Hash for AppKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

impl Equivalent<AppKey> for AppHash {
    fn equivalent(&self, key: &AppKey) -> bool {
        *self == key.hash
    }
}

impl Comparable<AppKey> for AppHash {
    fn compare(&self, key: &AppKey) -> Ordering {
        self.cmp(&key.hash)
    }
}

/// A pod by namespace and name. Names are reused: compare uids before acting.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodKey {
    text: Arc<str>,
}

slash_key!(PodKey, name, "The pod's name.");

impl PodKey {
    /// Joins the two parts.
    pub fn new(namespace: &str, name: &str) -> Self {
        PodKey { text: join(namespace, name).into() }
    }
}

/// A pod by namespace, name and uid: no other pod is ever the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodIdentity {
    /// Namespace and name.
    pub key: PodKey,
    pub uid: Arc<str>,
}

impl PodIdentity {
    /// The pod of this name and uid in a namespace.
    pub fn new(namespace: &str, name: &str, uid: &str) -> Self {
        PodIdentity { key: PodKey::new(namespace, name), uid: uid.into() }
    }
}

impl Borrow<str> for PodKey {
    fn borrow(&self) -> &str {
        &self.text
    }
}

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
    fn app_key_is_found_by_its_hash_and_equals_its_text_only() {
        let keys: Vec<AppKey> = (0..100).map(|number| AppKey::new("team-a", &format!("spark-{number}"))).collect();
        let map: imbl::OrdMap<AppKey, usize> = keys.iter().cloned().zip(0_usize..).collect();
        for (number, key) in keys.iter().enumerate() {
            let (found, value) = map.get_key_value(&key.hash()).unwrap();
            assert!(found == key && *value == number && found.is("team-a", key.selector()));
            assert_eq!(map.get(&AppKey::new("team-a", key.selector())), Some(&number));
        }
        assert!(!map.contains_key(&AppHash::of("team", "a-spark-1")));
        let (a, b) = (AppKey::new("team-a", "spark-1"), AppKey::new("team-a", "spark-2"));
        // A collision: the texts decide.
        let c = AppKey { hash: b.hash(), ..a.clone() };
        assert!(c != b && c.cmp(&b) == Ordering::Less && !c.is("team-a", "spark-2") && a == a.clone());
    }

    #[test]
    fn resource_versions_compare_as_numbers() {
        assert!(is_newer("10", "9") && !is_newer("9", "10") && !is_newer("9", "9"));
        assert!(is_newer("1", "0") && is_newer("100000000000000000000", "99999999999999999999"));
        assert!(!is_newer("b", "1") && !is_newer("2", "a") && !is_newer("", ""));
    }
}
