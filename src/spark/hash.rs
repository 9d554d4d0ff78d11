//! Hashes of what tenants write, such as names. They mean the same within one process only.

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::OnceLock;

static KEY: OnceLock<Option<RandomState>> = OnceLock::new();

/// Sets the key of this process's hashes: without a secret key, any tenant could compute names with the same hash, which would
/// hide one another. The program sets one before it does anything else; tests and simulations do not, so that they can be repeated.
pub fn set_key(key: RandomState) {
    let is_first = KEY.set(Some(key)).is_ok();
    debug_assert!(is_first, "the key is set once, before the first hash");
}

pub fn hash_of(value: &(impl Hash + ?Sized)) -> u64 {
    with_key(value, KEY.get_or_init(|| None).as_ref())
}

fn with_key(value: &(impl Hash + ?Sized), key: Option<&RandomState>) -> u64 {
    let mut hasher = key.map_or_else(DefaultHasher::new, BuildHasher::build_hasher);
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_decides_the_hash() {
        let (a, b) = (RandomState::new(), RandomState::new());
        let hash = |key| with_key(&("team-a", "spark-1"), key);
        assert_eq!(hash(Some(&a)), hash(Some(&a)));
        assert!(hash(Some(&a)) != hash(Some(&b)) && hash(None) != hash(Some(&a)));
        assert_eq!(hash(None), hash_of(&("team-a", "spark-1")), "tests are repeatable");
    }
}
