//! Values that the API server and schedulers generate on a pod without its creator's request: names and group keys.

use std::sync::Arc;

use usher_spark::pod::Pod;

/// The name that a signature covers, if that is not the pod's own: its base (`generateName`), because the pod may have had no
/// name yet when it was signed. `None` if the pod's name does not begin with the base, because it was not generated from it.
pub fn signed_name<'p>(pod: &'p Pod<'_>, name: Option<&str>) -> Option<&'p str> {
    let base = pod.metadata.generate_name.as_deref()?;
    // `k8s.io/apiserver/pkg/storage/names`: the suffix has five random characters.
    let base = base.get(..base.floor_char_boundary(MAX_BASE)).unwrap_or_default();
    (!base.is_empty() && name.is_none_or(|name| name.starts_with(base))).then_some(base)
}

/// Longest base of a generated name.
const MAX_BASE: usize = 58;

/// The same for a pod to be stored.
pub(super) fn kept_signed_name(pod: &Pod<'_>) -> Option<Arc<str>> {
    signed_name(pod, pod.metadata.name.as_deref()).map(Arc::from)
}

/// Whether a scheduler generated the value after the pod was created: it is then not a request of the creator, and not part of
/// what was signed. `owner` is the uid of the pod's controller.
pub(super) fn is_automatic(pod: &Pod<'_>, owner: Option<&str>, prefix: Option<&str>, value: &str) -> bool {
    let uid = prefix.and_then(|prefix| value.strip_prefix(prefix));
    uid.is_some() && (uid == owner || uid == pod.metadata.uid.as_deref())
}
