//! The version of the Spark that created a pod, as far as the pod shows it.

use super::labels;
use super::pod::Pod;

/// Major and minor number of a Spark version, and the patch where it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SparkVersion {
    /// `4` of `4.3.0`.
    pub major: u16,
    /// `3` of `4.3.0`.
    pub minor: u16,
    /// `0` of `4.3.0`.
    pub patch: u16,
}

impl std::fmt::Display for SparkVersion {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl SparkVersion {
    /// Assumed if a version cannot be parsed: the newest whose source was read.
    pub const NEWEST: SparkVersion = SparkVersion::new(4, 3, 0);

    /// A version by its numbers.
    pub const fn new(major: u16, minor: u16, patch: u16) -> SparkVersion {
        SparkVersion { major, minor, patch }
    }

    /// Reads `4.3.0`, `3.5.1-amzn-0`, `3.4`.
    pub fn parse(text: &str) -> Option<SparkVersion> {
        let mut numbers = text.split(['.', '-', '_', '+']);
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next()?.parse().ok()?;
        let patch = numbers.next().and_then(|patch| patch.parse().ok()).unwrap_or_default();
        Some(SparkVersion { major, minor, patch })
    }

    /// The Spark that created this executor: by the label `spark-version` (since 3.3), else by other fields that it writes.
    /// The resource profile label came with 3.1, the container name `spark-kubernetes-executor` with 3.0.
    pub fn of(pod: &Pod<'_>) -> SparkVersion {
        if let Some(version) = pod.label(labels::VERSION) {
            return SparkVersion::parse(version).unwrap_or(SparkVersion::NEWEST);
        }
        if pod.label(labels::PROFILE_ID).is_some() {
            return SparkVersion::new(3, 1, 0);
        }
        let old = pod.container_names().any(|name| name == labels::OLD_EXECUTOR_CONTAINER);
        if old { SparkVersion::new(2, 4, 0) } else { SparkVersion::new(3, 0, 0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_parsed_with_vendor_suffix() {
        assert_eq!(SparkVersion::parse("4.3.0"), Some(SparkVersion::new(4, 3, 0)));
        assert_eq!(SparkVersion::parse("3.5.1-amzn-0"), Some(SparkVersion::new(3, 5, 1)));
        assert_eq!(SparkVersion::parse("3.4"), Some(SparkVersion::new(3, 4, 0)));
        assert_eq!(SparkVersion::parse("4.1.0-preview1"), Some(SparkVersion::new(4, 1, 0)));
        assert_eq!(SparkVersion::parse("master"), None);
    }

    #[test]
    fn version_without_label_is_inferred_from_pod() {
        let version = |labels: &str, container: &str| {
            let json =
                format!(r#"{{"metadata":{{"labels":{labels}}},"spec":{{"containers":[{{"name":"{container}"}}]}}}}"#);
            SparkVersion::of(&Pod::read_whole(json.as_bytes()).unwrap())
        };
        assert_eq!(version(r#"{"spark-version":"4.2.1"}"#, "x"), SparkVersion::new(4, 2, 1));
        assert_eq!(version(r#"{"spark-version":"nightly"}"#, "x"), SparkVersion::NEWEST);
        assert_eq!(version(r#"{"spark-exec-resourceprofile-id":"0"}"#, "x"), SparkVersion::new(3, 1, 0));
        assert_eq!(version("{}", "spark-kubernetes-executor"), SparkVersion::new(3, 0, 0));
        assert_eq!(version("{}", "executor"), SparkVersion::new(2, 4, 0));
    }
}
