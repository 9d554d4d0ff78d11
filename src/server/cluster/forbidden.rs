//! An action that the API server rejects is not retried immediately: a missing permission is missing for all objects of a
//! namespace, while a policy, webhook or validation rejects one object.
//!
//! Permissions are those of a role, and admission plugins decide by kind: adoption needs `delete` on pods where
//! `OwnerReferencesPermissionEnforcement` is on, as on OpenShift.

use std::time::{Duration, Instant};

use usher_kube::recent::Recent;
use usher_spark::hash::hash_of;

/// The first delay; each further one is twice as long.
const INITIAL_DELAY: Duration = Duration::from_secs(60);
/// The longest delay: permissions that are granted take effect within it.
const MAX_DELAY: Duration = Duration::from_secs(600);
/// At least this many refusals are remembered: a policy may deny every executor of a large cluster, one by one.
const MAX_REMEMBERED: usize = 65_536;

/// See the module's documentation. Keyed by the hash of the action's kind, and of the namespace or object that is affected.
#[derive(Debug)]
pub(super) struct Forbidden(Recent<u64, (u32, Instant)>);

fn key(action: &str, object: &str) -> u64 {
    hash_of(&(action, object))
}

impl Default for Forbidden {
    fn default() -> Self {
        Forbidden(Recent::new(MAX_REMEMBERED))
    }
}

impl Forbidden {
    /// Whether an action is paused now.
    pub(super) fn is_paused(&mut self, action: &'static str, object: &str, now: Instant) -> bool {
        self.0.get(&key(action, object)).is_some_and(|(_, until)| now < *until)
    }

    /// Records that the API server rejects an action. Returns whether that is the first time in a row.
    pub(super) fn refused(&mut self, action: &'static str, object: &str, now: Instant) -> bool {
        let key = key(action, object);
        let count = self.0.get(&key).map_or(0, |(count, _)| *count).saturating_add(1);
        let pause = INITIAL_DELAY.saturating_mul(1 << count.saturating_sub(1).min(4)).min(MAX_DELAY);
        self.0.insert(key, (count, now + pause));
        count == 1
    }

    /// Records that the API server allows an action.
    pub(super) fn allowed(&mut self, action: &'static str, object: &str) {
        self.0.remove(&key(action, object));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_runtime::clock;

    #[test]
    fn forbidden_action_backs_off_per_action_and_namespace() {
        let start = clock::instant();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut forbidden = Forbidden::default();
        assert!(!forbidden.is_paused("adopt", "a", start));
        assert!(forbidden.refused("adopt", "a", start));
        assert!(forbidden.is_paused("adopt", "a", at(59)) && !forbidden.is_paused("adopt", "a", at(60)));
        assert!(!forbidden.is_paused("adopt", "b", at(1)) && !forbidden.is_paused("label-executor", "a", at(1)));
        assert!(!forbidden.refused("adopt", "a", at(60)), "it is logged once");
        assert!(forbidden.is_paused("adopt", "a", at(179)) && !forbidden.is_paused("adopt", "a", at(180)));
        for _ in 0..20 {
            forbidden.refused("adopt", "a", at(200));
        }
        assert!(!forbidden.is_paused("adopt", "a", at(801)));
        forbidden.allowed("adopt", "a");
        assert!(forbidden.refused("adopt", "a", at(900)));
    }
}
