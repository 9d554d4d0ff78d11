//! What we may not do: an action that the API server forbids (403) is not tried again at once, nor for each executor.
//!
//! Rights are those of a role, and admission plugins decide by kind: adoption needs `delete` on pods where
//! `OwnerReferencesPermissionEnforcement` is on, as on OpenShift.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::recent::Recent;

/// The first pause; each further one is twice as long.
const PAUSE: Duration = Duration::from_secs(60);
/// The longest: rights that are granted are noticed within it.
const LONGEST: Duration = Duration::from_secs(600);
/// So many are remembered at least.
const REMEMBERED: usize = 4096;

/// See the module's text. By kind of action, and the namespace or the object that it is forbidden for.
#[derive(Debug)]
pub(super) struct Forbidden(Recent<(&'static str, Arc<str>), (u32, Instant)>);

impl Default for Forbidden {
    fn default() -> Self {
        Forbidden(Recent::new(REMEMBERED))
    }
}

impl Forbidden {
    /// Whether an action is not tried now.
    pub(super) fn is_paused(&mut self, action: &'static str, of: &str, now: Instant) -> bool {
        self.0.get(&(action, of.into())).is_some_and(|(_, until)| now < *until)
    }

    /// The API server forbids it. Returns whether that is news.
    pub(super) fn refused(&mut self, action: &'static str, of: &str, now: Instant) -> bool {
        let key = (action, Arc::from(of));
        let count = self.0.get(&key).map_or(0, |(count, _)| *count).saturating_add(1);
        let pause = PAUSE.saturating_mul(1 << count.saturating_sub(1).min(4)).min(LONGEST);
        self.0.insert(key, (count, now + pause));
        count == 1
    }

    /// The API server allows it.
    pub(super) fn allowed(&mut self, action: &'static str, of: &str) {
        self.0.remove(&(action, of.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::clock;

    #[test]
    fn what_is_forbidden_is_tried_ever_more_rarely_and_for_all_executors_of_a_namespace_together() {
        let start = clock::instant();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut forbidden = Forbidden::default();
        assert!(!forbidden.is_paused("adopt", "a", start));
        assert!(forbidden.refused("adopt", "a", start));
        assert!(forbidden.is_paused("adopt", "a", at(59)) && !forbidden.is_paused("adopt", "a", at(60)));
        assert!(!forbidden.is_paused("adopt", "b", at(1)) && !forbidden.is_paused("label-executor", "a", at(1)));
        assert!(!forbidden.refused("adopt", "a", at(60)), "it is said once");
        assert!(forbidden.is_paused("adopt", "a", at(179)) && !forbidden.is_paused("adopt", "a", at(180)));
        for _ in 0..20 {
            forbidden.refused("adopt", "a", at(200));
        }
        assert!(!forbidden.is_paused("adopt", "a", at(801)));
        forbidden.allowed("adopt", "a");
        assert!(forbidden.refused("adopt", "a", at(900)));
    }
}
