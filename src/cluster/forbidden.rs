//! What we may not do: an action that the API server forbids (403) is not tried again at once, nor for each executor.
//!
//! Rights are those of a role, and admission plugins decide by kind: adoption needs `delete` on pods where
//! `OwnerReferencesPermissionEnforcement` is on, as on OpenShift.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The first pause; each further one is twice as long.
const PAUSE: Duration = Duration::from_secs(60);
/// The longest: rights that are granted are noticed within it.
const LONGEST: Duration = Duration::from_secs(600);
/// More than so many are not remembered.
const MOST: usize = 4096;

/// See the module's text. By kind of action, and the namespace or the object that it is forbidden for.
#[derive(Debug, Default)]
pub(super) struct Forbidden(HashMap<(&'static str, Arc<str>), (u32, Instant)>);

impl Forbidden {
    /// Whether an action is not tried now.
    pub(super) fn is_paused(&self, action: &'static str, namespace: &str, now: Instant) -> bool {
        !self.0.is_empty() && self.0.get(&(action, namespace.into())).is_some_and(|(_, until)| now < *until)
    }

    /// The API server forbids it. Returns whether that is news.
    pub(super) fn refused(&mut self, action: &'static str, namespace: &str, now: Instant) -> bool {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        let (count, until) = self.0.entry((action, namespace.into())).or_insert((0, now));
        *count = count.saturating_add(1);
        *until = now + PAUSE.saturating_mul(1 << count.saturating_sub(1).min(4)).min(LONGEST);
        *count == 1
    }

    /// The API server allows it.
    pub(super) fn allowed(&mut self, action: &'static str, namespace: &str) {
        if !self.0.is_empty() {
            self.0.remove(&(action, namespace.into()));
        }
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
