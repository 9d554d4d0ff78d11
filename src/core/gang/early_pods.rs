//! Versions of Volcano whose webhook rejects pods that are created before their PodGroup.
//!
//! All versions up to v1.11.2 (`pkg/webhooks/admission/pods/validate`). The check is as old as the webhook, whose first tests, for
//! `v1alpha2`, contain the case; it was removed on 2025-03-21. spark-usher creates a PodGroup after it has observed an executor, so with
//! such a version no gang starts.

use std::fmt;

/// A version of Volcano.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}.{}", self.0, self.1, self.2)
    }
}

/// The last version that rejects them.
pub const LAST: Version = Version(1, 11, 2);
/// The remedy, for messages.
pub const FIX: &str =
    "upgrade Volcano to v1.12.0 or newer, or remove /pods/validate from --enabled-admission of its webhook";
/// The namespace of the webhook in Volcano's own manifests. A tenant could create such a pod in another one.
pub const NAMESPACE: &str = "volcano-system";
/// Selects the pods of the webhook by the label of Volcano's own manifests.
pub const SELECTOR: &str = "app=volcano-admission";

impl Version {
    /// The version in the tag of one of Volcano's own images (`vc-webhook-manager:v1.9.1`).
    pub fn of_image(image: &str) -> Option<Version> {
        let (repository, tag) = image.split('@').next()?.rsplit_once(':')?;
        repository.rsplit('/').next().filter(|name| name.starts_with("vc-"))?;
        let mut parts = tag.strip_prefix('v').unwrap_or(tag).split('.');
        let (major, minor, patch) = (parts.next()?, parts.next()?, parts.next()?);
        let patch: String = patch.chars().take_while(char::is_ascii_digit).collect();
        Some(Version(major.parse().ok()?, minor.parse().ok()?, patch.parse().ok()?))
    }

    /// Whether its webhook rejects pods whose PodGroup does not exist yet.
    pub fn refuses(self) -> bool {
        self <= LAST
    }
}

/// The version of a container of Volcano's webhook, if it rejects pods whose PodGroup does not exist yet: by its image and its
/// arguments, which may disable that webhook.
pub fn refuses<'a>(image: &str, args: impl IntoIterator<Item = &'a str>) -> Option<Version> {
    let version = Version::of_image(image).filter(|version| version.refuses())?;
    // A container's command may be a single shell line.
    let mut words = args.into_iter().flat_map(str::split_whitespace);
    let enabled = words.find_map(|word| word.trim_start_matches('-').strip_prefix("enabled-admission="));
    let validates = enabled.is_none_or(|enabled| enabled.split(',').any(|path| path.trim() == "/pods/validate"));
    validates.then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denying_volcano_webhook_is_identified_by_image_and_arguments() {
        let image = "docker.io/volcanosh/vc-webhook-manager:v1.11.0";
        assert_eq!(refuses(image, []), Some(Version(1, 11, 0)));
        assert_eq!(refuses("volcanosh/vc-webhook-manager:v1.7.0", []), Some(Version(1, 7, 0)));
        let args = ["--enabled-admission=/jobs/mutate,/pods/validate,/queues/validate", "--v=4"];
        assert_eq!(refuses(image, args).unwrap().to_string(), "v1.11.0");
        assert_eq!(refuses(image, ["--enabled-admission=/jobs/mutate,/pods/mutate"]), None);
        assert_eq!(refuses(image, ["./gen.sh; /vc-webhook-manager --enabled-admission=/jobs/mutate --v=4"]), None);
        for other in ["volcanosh/vc-webhook-manager:v1.12.0", "redis:v1.10.0", "vc-x:latest"] {
            assert_eq!(refuses(other, []), None, "{other}");
        }
    }
}
