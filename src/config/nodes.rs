//! The settings of nodes in the policy file.

use schemars::JsonSchema;
use serde::Deserialize;

use super::duration::{DurationText, LONGEST};
use usher_core::nodes::MAX_FAULTS;
use usher_core::policy::NodeSettings;

/// Nodes that refuse or break executors.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Nodes {
    /// Whether faults of nodes are recorded. If false, Nodes are not watched.
    pub enabled: bool,
    /// The time within which failures count.
    pub window: DurationText,
    /// How many different executors must fail on a node to make it suspect, at most 64.
    #[schemars(range(min = 1, max = 64))]
    pub failures: u32,
    /// To how many applications these executors must belong, so that one broken application does not make a node suspect.
    #[schemars(range(min = 1, max = 64))]
    pub applications: u32,
    /// To how many namespaces these executors must belong. Use 2 or more if the tenants of one namespace do not trust those of
    /// another.
    #[schemars(range(min = 1, max = 64))]
    pub namespaces: u32,
    /// How long a node stays suspect after the last failure that made it suspect.
    pub expires: DurationText,
    /// Whether new executors avoid suspect nodes: the webhook adds a required nodeAffinity.
    pub avoid: bool,
    /// The maximum share of the cluster's nodes to avoid; at least one node, unless it is 0%.
    pub max_share: Percent,
}

impl Default for Nodes {
    fn default() -> Self {
        let NodeSettings { enabled, window, executors, applications, namespaces, expires, avoid, max_share } =
            NodeSettings::default();
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Nodes {
            enabled,
            window: DurationText(window),
            failures: number(executors),
            applications: number(applications),
            namespaces: number(namespaces),
            expires: DurationText(expires),
            avoid,
            max_share: Percent(max_share),
        }
    }
}

pub(super) fn settings(file: &Nodes) -> NodeSettings {
    let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX).clamp(1, MAX_FAULTS);
    NodeSettings {
        enabled: file.enabled,
        window: file.window.0.min(LONGEST),
        executors: count(file.failures),
        applications: count(file.applications),
        namespaces: count(file.namespaces),
        expires: file.expires.0.min(LONGEST),
        avoid: file.avoid,
        max_share: file.max_share.0,
    }
}

/// Settings that cannot take effect.
pub(super) fn warnings(file: &Nodes) -> Vec<String> {
    let mut warnings = Vec::new();
    if file.avoid && !file.enabled {
        warnings.push("nodes.avoid is true, but nodes.enabled is false: no node is avoided".to_owned());
    }
    if file.avoid && file.max_share.0 == 0 {
        warnings.push("nodes.avoid is true with a maxShare of 0%: no node is avoided".to_owned());
    }
    let max = u32::try_from(MAX_FAULTS).unwrap_or(u32::MAX);
    for (key, count) in
        [("failures", file.failures), ("applications", file.applications), ("namespaces", file.namespaces)]
    {
        if !(1..=max).contains(&count) {
            warnings.push(format!("nodes.{key} is {count}: {} applies", count.clamp(1, max)));
        }
    }
    for (key, duration) in [("window", file.window), ("expires", file.expires)] {
        if duration.0.is_zero() {
            warnings.push(format!("nodes.{key} is 0: no node is ever suspect"));
        }
    }
    if file.applications == 1 {
        warnings.push("nodes.applications is 1: one broken application can make nodes suspect".to_owned());
    }
    warnings
}

/// A share such as `5%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Percent(pub u8);

impl TryFrom<String> for Percent {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let number = text.strip_suffix('%').and_then(|number| number.parse().ok()).filter(|number| *number <= 100);
        number.map(Percent).ok_or_else(|| format!("{text:?} is not a share: expected 0% to 100%"))
    }
}

impl JsonSchema for Percent {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Percent".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "pattern": "^[0-9]{1,3}%$", "default": "5%"})
    }
}
