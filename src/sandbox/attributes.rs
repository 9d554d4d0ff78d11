//! Attributes of a request as an authorizer sees them, and a record of what service accounts have done.

use std::collections::BTreeSet;
use std::sync::Mutex;

use super::auth::User;

/// The access that a user requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct AccessAttributes<'w> {
    pub(super) verb: &'w str,
    pub(super) group: &'w str,
    pub(super) resource: &'w str,
    pub(super) sub: Option<&'w str>,
    pub(super) namespace: Option<&'w str>,
    pub(super) name: Option<&'w str>,
}

/// What service accounts have done, as `account verb resource.group/sub`.
#[derive(Debug, Default)]
pub(super) struct Used(Mutex<BTreeSet<String>>);

impl Used {
    pub(super) fn note(&self, user: &User, attributes: &AccessAttributes<'_>) {
        if !user.username.starts_with("system:serviceaccount:") {
            return;
        }
        let line = format!("{} {} {}", user.username, attributes.verb, attributes.what());
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(line);
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).iter().cloned().collect()
    }
}

impl AccessAttributes<'_> {
    fn what(&self) -> String {
        let sub = self.sub.map(|sub| format!("/{sub}")).unwrap_or_default();
        let group = if self.group.is_empty() { String::new() } else { format!(".{}", self.group) };
        format!("{}{group}{sub}", self.resource)
    }

    /// The refusal in the API server's words.
    pub(super) fn refusal(&self, user: &User) -> String {
        let sub = self.sub.map(|sub| format!("/{sub}")).unwrap_or_default();
        let scope = match self.namespace {
            Some(namespace) => format!("in the namespace {namespace:?}"),
            None => "at the cluster scope".to_owned(),
        };
        format!(
            "User {:?} cannot {} resource \"{}{sub}\" in API group {:?} {scope}",
            user.username, self.verb, self.resource, self.group
        )
    }
}
