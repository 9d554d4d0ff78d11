//! The schema of the policy file. Unknown keys are rejected; every key has a default and a description, which `config schema`
//! prints.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::duration::DurationText;
use super::label_text::LabelText;
use super::located::Located;
use super::nodes::Nodes;
use super::recovery::Recovery;
use usher_core::annotations::Override;
use usher_core::gang::{Membership, Shape};
use usher_core::policy::{self, Finished, Keep, Replace, Validate};

/// The `apiVersion` of the file.
pub(crate) const API_VERSION: &str = "spark-usher.io/v1alpha1";
/// The `kind` of the file.
pub(crate) const KIND: &str = "PolicyFile";

/// The JSON Schema of the file, for editors and CI.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(PolicyFile).to_value()
}

/// The whole file.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(title = "spark-usher policy file", extend("required" = ["apiVersion", "kind"]))]
pub(crate) struct PolicyFile {
    /// The version of the file's schema.
    #[schemars(extend("enum" = [API_VERSION], "type" = "string"))]
    pub api_version: Option<String>,
    /// The kind of the file.
    #[schemars(extend("enum" = [KIND], "type" = "string"))]
    pub kind: Option<String>,
    /// Policies in order; the first match applies. An implicit catch-all comes last: it sets ownerReferences only.
    pub policies: Vec<PolicyEntry>,
    /// Which pods may become the owner of an executor.
    pub creators: Creators,
    /// Accounts and groups that may change gang keys and owners of existing pods, and create executors for others; names
    /// with * and ?. If omitted: the accounts of the schedulers that the policies use, as their manifests name them.
    pub trusted_writers: Option<Vec<String>>,
    /// What the controller does with finished executors.
    pub lifecycle: Lifecycle,
    /// Recovery of executors that never start, hang or are left behind.
    pub recovery: Recovery,
    /// Nodes that refuse or break executors.
    pub nodes: Nodes,
}

/// One policy.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PolicyEntry {
    /// The policy's name: 1 to 40 characters of a-z, 0-9 and -, unique in the file.
    #[schemars(regex(pattern = "^[a-z0-9-]{1,40}$"))]
    pub name: Located<String>,
    /// The pods that it matches: all conditions must hold; without conditions it matches every pod.
    #[serde(default, rename = "match")]
    pub matches: MatchFile,
    /// The scheduler of drivers and executors.
    #[serde(default)]
    pub scheduler: SchedulerFile,
    /// The queue of drivers and executors, if the scheduler has queues.
    #[serde(default)]
    pub queue: Option<Located<String>>,
    /// Priority classes.
    #[serde(default)]
    pub priority_class: PriorityClassFile,
    /// How executors wait for each other.
    #[serde(default)]
    pub gang: GangFile,
    /// The spark-usher annotations of pods, drivers and namespaces that take effect. All others cause a warning. If omitted:
    /// min-member and executor-resources.
    #[serde(default)]
    pub overrides: Option<Vec<Override>>,
    /// What spark-usher does about violations that validation finds.
    #[serde(default)]
    pub validate: Validate,
    /// Queues that the pods may name in addition to `queue`. Names may contain * and ?. If omitted, any queue.
    #[serde(default)]
    pub queues: Option<Vec<String>>,
    /// Labels of the nodes on which only this policy's scheduler places pods. A Spark pod that selects these nodes and names
    /// another scheduler is a violation: two schedulers on one node allocate the same resources twice (OutOfcpu).
    #[serde(default)]
    pub node_pool: BTreeMap<LabelText, LabelText>,
    /// Whether to deny pods about which the mutating webhook cannot decide, such as executors whose driver is not proven.
    /// Otherwise they are allowed with a warning.
    #[serde(default)]
    pub strict: bool,
}

/// The pods that a policy matches.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct MatchFile {
    /// Names of namespaces, with * and ?, any of which matches.
    pub namespaces: Vec<String>,
    /// Labels of the namespace.
    pub namespace_selector: Option<Located<SelectorFile>>,
    /// Labels of the pod.
    pub pod_selector: Option<Located<SelectorFile>>,
}

/// A Kubernetes label selector.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct SelectorFile {
    /// Labels and their values, all of which must match.
    pub match_labels: BTreeMap<LabelText, LabelText>,
    /// Requirements, all of which must hold.
    pub match_expressions: Vec<RequirementFile>,
}

/// One requirement of a label selector.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RequirementFile {
    /// The label's key.
    pub key: LabelText,
    /// The operator: In, NotIn, Exists or DoesNotExist.
    pub operator: Operator,
    /// The values for In and NotIn.
    #[serde(default)]
    pub values: Vec<LabelText>,
}

/// Operators of label selectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
pub(crate) enum Operator {
    /// The label has one of the values.
    In,
    /// The label has none of the values, or does not exist.
    NotIn,
    /// The label exists.
    Exists,
    /// The label does not exist.
    DoesNotExist,
}

/// The scheduler.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct SchedulerFile {
    /// The scheduler whose keys are written: none (ownerReferences and priority class only), kube-batch, volcano, yunikorn,
    /// coscheduling, koordinator, kueue, kai or native.
    #[serde(rename = "type")]
    pub kind: Option<SchedulerType>,
    /// `schedulerName` of the pods. If omitted, the type's own name.
    pub name: Option<Located<String>>,
    /// Which scheduler names on a pod are replaced.
    pub replace: Replace,
    /// The key by which pods name their queue, if the scheduler can be configured to read another: for kai, kai.scheduler/queue or
    /// runai/queue. If omitted, the type's own key.
    pub queue_key: Option<Located<String>>,
}

/// A type in the schedulers' table.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct SchedulerType(pub &'static usher_core::gang::GangScheduler);

impl Default for SchedulerType {
    fn default() -> Self {
        SchedulerType(&usher_core::gang::NONE)
    }
}

fn kinds() -> Vec<&'static str> {
    usher_core::gang::TABLE.iter().map(|scheduler| scheduler.kind).collect()
}

impl TryFrom<String> for SchedulerType {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        usher_core::gang::GangScheduler::of_kind(&text)
            .map(SchedulerType)
            .ok_or_else(|| format!("unknown scheduler type {text:?}: expected one of {}", kinds().join(", ")))
    }
}

impl JsonSchema for SchedulerType {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "SchedulerType".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "enum": kinds()})
    }
}

/// Priority classes by role.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct PriorityClassFile {
    /// For drivers.
    pub driver: Option<Located<String>>,
    /// For executors.
    pub executor: Option<Located<String>>,
}

/// How executors wait for each other.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct GangFile {
    /// Whether they wait for each other; `false` is the same as `shape: pods`.
    pub enabled: bool,
    /// What a gang consists of: executors, app (Volcano: one PodGroup with the driver, a gate at the queue) or pods (no gang,
    /// each pod is scheduled alone). If omitted, the scheduler's first shape.
    pub shape: Option<Located<Shape>>,
    /// How members name their gang: podGroup, or annotations (Koordinator only).
    pub membership: Option<Located<Membership>>,
    /// How many executors wait for each other: auto follows the application; a number is lowered to what the application
    /// requests.
    pub min_member: MinMemberFile,
    /// The gang's name: a-z, 0-9, -, {driver} at most once, and {app8} (eight hex digits of the application) exactly once.
    pub name: TemplateFile,
    /// Read the driver's ConfigMap for the application's size.
    pub read_spark_conf: bool,
}

impl Default for GangFile {
    fn default() -> Self {
        GangFile {
            enabled: true,
            shape: None,
            membership: None,
            min_member: MinMemberFile::Auto,
            name: TemplateFile::default(),
            read_spark_conf: true,
        }
    }
}

/// `auto` or a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MinMemberFile {
    /// What the application requests.
    Auto,
    /// This many, at most what the application requests.
    Count(u32),
}

impl<'de> Deserialize<'de> for MinMemberFile {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.parse() {
            Ok(count) if count > 0 => Ok(MinMemberFile::Count(count)),
            _ if text == "auto" => Ok(MinMemberFile::Auto),
            _ => Err(serde::de::Error::custom(format!("{text:?}: expected auto or a whole number, 1 or more"))),
        }
    }
}

impl JsonSchema for MinMemberFile {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "MinMember".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"oneOf": [{"const": "auto"}, {"type": "integer", "minimum": 1, "maximum": u32::MAX}]})
    }
}

/// `gang.name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct TemplateFile(pub usher_core::gang::NameTemplate);

impl TryFrom<String> for TemplateFile {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map(TemplateFile).map_err(|error| format!("{text:?} is not a valid gang name: {error}"))
    }
}

impl JsonSchema for TemplateFile {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "NameTemplate".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "pattern": "\\{app8\\}", "default": "{driver}-{app8}"})
    }
}

/// Which pods may become the owner of an executor.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Creators {
    /// Accounts whose pods create pods for others (vcluster, Liqo, operators) and therefore never become owners; names
    /// with * and ?, such as system:serviceaccount:vcluster-*:*.
    pub never: Vec<String>,
}

/// What the controller does with finished executors.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Lifecycle {
    /// How long a running driver may act first after an executor exited; longer if the driver's configuration needs it.
    pub grace: DurationText,
    /// What the controller does with finished executors.
    pub finished: Finished,
    /// Which executors are kept for a driver that keeps its own (spark.kubernetes.executor.deleteOnTermination=false): all of them, all
    /// until the driver has ended, or all but those that never ran.
    pub keep: Keep,
    /// How long `finished: delete` keeps executors whose failure the application caused.
    pub keep_failed: DurationText,
    /// How often the leader lists all Spark pods.
    pub poll: DurationText,
    /// Whether actions are only reported.
    pub dry_run: bool,
}

impl Default for Lifecycle {
    fn default() -> Self {
        let policy::Lifecycle { grace, finished, keep, keep_failed, poll } = policy::Lifecycle::default();
        let (grace, keep_failed, poll) = (DurationText(grace), DurationText(keep_failed), DurationText(poll));
        Lifecycle { grace, finished, keep, keep_failed, poll, dry_run: false }
    }
}
