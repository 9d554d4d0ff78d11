//! The id of an application, for a scheduler that keeps the applications of all namespaces under one name each.

use super::name::push_hash;

/// Characters of the app selector that stay legible: those of Spark's own, `spark-` and a uuid without dashes.
const LEGIBLE: usize = 38;
const MARK: &str = "-usher-";
/// Hex digits of the hash, 72 bits. With the others: the 63 characters of a label value.
const DIGITS: usize = 18;

/// The id of the application of a driver: `SELECTOR-usher-HASH`, a label value. The hash is of namespace, driver and selector, all of
/// which the API server vouches for or which only pods of the same namespace share: another namespace's pods never get it.
///
/// `driver` is the driver pod's name, or what stands for a driver without one.
pub fn application_id(namespace: &str, driver: &str, selector: &str) -> String {
    // A pod is mutated before the API server refuses it for its selector.
    let is_valid = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let legible = selector.bytes().filter(is_valid).take(LEGIBLE).map(char::from).collect::<String>();
    let mut id = legible.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned();
    id.push_str(if id.is_empty() { MARK.trim_start_matches('-') } else { MARK });
    push_hash(&mut id, selector, Some(&[namespace, "\n", driver].concat()), DIGITS);
    id
}

/// Whether a text has the form of an [`application_id`]: of this application, or of another.
pub fn is_application_id(text: &str) -> bool {
    let hash = text.rsplit_once(MARK.trim_start_matches('-')).map(|(_, hash)| hash);
    hash.is_some_and(|hash| {
        hash.len() == DIGITS && hash.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use usher_spark::text::is_label_value;

    const APP: &str = "spark-5ce218ea51d24d51bcb1500360dfa682";

    #[test]
    fn id_is_legible_and_of_namespace_driver_and_selector() {
        let id = application_id("team-a", "nb-driver", APP);
        // printf '%s\n%s\n%s' spark-5ce218ea51d24d51bcb1500360dfa682 team-a nb-driver | sha256sum | cut -c1-18
        assert_eq!(id, "spark-5ce218ea51d24d51bcb1500360dfa682-usher-189180f46d5f57b7f9");
        assert_eq!(id.len(), 63);
        for other in [
            application_id("team-b", "nb-driver", APP),
            application_id("team-a", "nb-driver-2", APP),
            application_id("team-a", "nb-driver", "spark-other"),
        ] {
            assert_ne!(id, other);
            assert!(is_application_id(&other));
        }
        assert!(!is_application_id(APP) && !is_application_id("") && !is_application_id("a-usher-0123"));
    }

    proptest! {
        #[test]
        fn id_is_a_label_value_and_recognized(namespace in "[a-z0-9-]{1,63}", driver in ".{0,80}", selector in ".{0,80}") {
            let id = application_id(&namespace, &driver, &selector);
            prop_assert!(is_label_value(&id), "{}", id);
            prop_assert!(is_application_id(&id), "{}", id);
        }
    }
}
