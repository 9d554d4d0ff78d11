//! The settings of the recovery in the policy file.

use std::borrow::Cow;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::duration::{DurationText, LONGEST};
use usher_core::policy::{self, DriverAccess, RecoveryRule, RuleSettings};

/// Recovery of executors that never start, hang or are left behind, and of their drivers.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Recovery {
    /// Whether rules in mode act delete pods. If false (the default), these rules only report what they would delete. The
    /// modes of orphans and refused are act unless you set another.
    pub act: bool,
    /// How many pods all rules together may delete in the whole cluster, such as 5000/h.
    pub budget: Budget,
    /// How the leader polls running drivers for their view of their executors.
    pub driver_view: DriverViewFile,
    /// Executors that are bound to a node and do not start.
    pub stuck: Stuck,
    /// Executors that run and do not register with their driver.
    pub unregistered: Rule,
    /// Executors that run although their driver has removed them.
    pub given_up: GivenUp,
    /// Executors that their driver still counts although their pods no longer exist: off or warn.
    pub vanished: ReportRule,
    /// Applications that request executors and have none. In mode act, the rule deletes the driver if the application runs in
    /// cluster mode.
    pub hopeless: Rule,
    /// Drivers whose pod still runs although the Spark container exited or stopped its SparkContext. In mode act, the rule
    /// deletes only drivers whose container exited.
    pub zombie_driver: Rule,
    /// Executors whose driver is gone.
    pub orphans: Rule,
    /// Executors that a kubelet rejected or evicted, and whose pods remain.
    pub refused: Rule,
    /// Executors that still exist after the grace period of their deletion. In mode act, the rule force-deletes them if their
    /// node no longer exists.
    pub terminating: Rule,
    /// PodGroups that had started and wait again: off or warn.
    pub groups: ReportRule,
}

impl Default for Recovery {
    fn default() -> Self {
        let policy::Recovery { acts, budget, .. } = policy::Recovery::default();
        Recovery {
            act: acts,
            budget: Budget(budget),
            driver_view: DriverViewFile::default(),
            stuck: Stuck::default(),
            unregistered: Rule::default(),
            given_up: GivenUp::default(),
            vanished: ReportRule::default(),
            hopeless: Rule::default(),
            zombie_driver: Rule::default(),
            orphans: Rule::default(),
            refused: Rule::default(),
            terminating: Rule::default(),
            groups: ReportRule::default(),
        }
    }
}

/// How the leader polls running drivers for their view of their executors, by Spark's REST API.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct DriverViewFile {
    /// How drivers are reached: pod (at the IP address of their pods), proxy (through the API server, for which the chart then
    /// grants get on pods/proxy), or none (they are not polled).
    pub access: DriverAccess,
    /// How often each driver is polled.
    pub interval: DurationText,
}

impl Default for DriverViewFile {
    fn default() -> Self {
        let policy::DriverViews { access, interval } = policy::DriverViews::default();
        DriverViewFile { access, interval: DurationText(interval) }
    }
}

/// One recovery rule. Keys that are not set have the rule's own defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Rule {
    /// What the rule does: off, warn or act.
    pub mode: Option<Mode>,
    /// How long the rule's condition must hold.
    pub after: Option<DurationText>,
    /// How many pods of one application it may delete, such as 5/h.
    pub budget: Option<Budget>,
}

/// The rule for executors that are bound to a node and do not start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Stuck {
    /// What the rule does: off, warn or act.
    pub mode: Option<Mode>,
    /// How long an executor may take to start.
    pub after: Option<DurationText>,
    /// How long each init container of an executor may run, if that is longer than after; 1h if not set.
    pub init_after: Option<DurationText>,
    /// How many pods of one application it may delete, such as 5/h.
    pub budget: Option<Budget>,
}

/// A recovery rule that only reports. Keys that are not set have the rule's own defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct ReportRule {
    /// What the rule does: off or warn.
    pub mode: Option<ReportMode>,
}

/// The rule for executors that run although their driver has removed them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct GivenUp {
    /// What the rule does: off, warn or act.
    pub mode: Option<Mode>,
    /// How many views of the driver must show that it has removed the executor; 10 if not set.
    #[schemars(range(min = 1))]
    pub views: Option<u32>,
    /// How many pods of one application it may delete, such as 5/h.
    pub budget: Option<Budget>,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode(pub policy::Mode);

/// What a rule does that only reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReportMode(pub policy::Mode);

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Mode, D::Error> {
        mode(deserializer, true).map(Mode)
    }
}

impl<'de> Deserialize<'de> for ReportMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ReportMode, D::Error> {
        mode(deserializer, false).map(ReportMode)
    }
}

fn mode<'de, D: Deserializer<'de>>(deserializer: D, can_act: bool) -> Result<policy::Mode, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Word(String),
        // Helm reads the word off as this boolean, because its YAML is of version 1.1.
        Boolean(bool),
    }
    let word = match Written::deserialize(deserializer)? {
        Written::Boolean(false) => "off".to_owned(),
        Written::Boolean(true) => "on".to_owned(),
        Written::Word(word) => word,
    };
    match word.as_str() {
        "off" => Ok(policy::Mode::Off),
        "warn" => Ok(policy::Mode::Warn),
        "act" if can_act => Ok(policy::Mode::Act),
        _ => {
            let expected = if can_act { "off, warn or act" } else { "off or warn, because this rule only reports" };
            Err(Error::custom(format!("{word:?} is not a mode of this rule: expected {expected}")))
        }
    }
}

impl JsonSchema for Mode {
    fn schema_name() -> Cow<'static, str> {
        "Mode".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"enum": ["off", "warn", "act", false]})
    }
}

impl JsonSchema for ReportMode {
    fn schema_name() -> Cow<'static, str> {
        "ReportMode".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"enum": ["off", "warn", false]})
    }
}

/// A number of deletions within a time, such as `5/h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Budget(pub policy::Budget);

impl TryFrom<String> for Budget {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let parsed = text.split_once('/').and_then(|(count, per)| {
            let seconds = match per {
                "s" => 1,
                "m" => 60,
                "h" => 3600,
                "d" => 86_400,
                _ => return None,
            };
            Some(Budget(policy::Budget { count: count.parse().ok()?, per: Duration::from_secs(seconds) }))
        });
        parsed.ok_or_else(|| format!("{text:?} is not a budget: expected a number per s, m, h or d, such as 5/h"))
    }
}

impl JsonSchema for Budget {
    fn schema_name() -> Cow<'static, str> {
        "Budget".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": "^[0-9]+/[smhd]$"})
    }
}

/// The shortest interval between two polls of a driver.
const SHORTEST_DRIVER_POLL: Duration = Duration::from_secs(5);

/// The shortest time for which a rule's condition must hold before it applies.
const SHORTEST_AFTER: Duration = Duration::from_secs(10);

/// The settings, for the core. `dry_run` is `lifecycle.dryRun`.
pub(super) fn settings(file: &Recovery, dry_run: bool) -> policy::Recovery {
    let DriverViewFile { access, interval } = file.driver_view;
    let interval = interval.0.clamp(SHORTEST_DRIVER_POLL, LONGEST);
    let defaults = policy::Recovery::default();
    let settings = policy::Recovery {
        driver_view: policy::DriverViews { access, interval },
        acts: file.act,
        dry_run,
        budget: file.budget.0,
        init_within: file.stuck.init_after.map_or(defaults.init_within, |after| after.0.clamp(SHORTEST_AFTER, LONGEST)),
        given_up_views: file.given_up.views.unwrap_or(defaults.given_up_views).max(1),
        ..defaults
    };
    rules(file).into_iter().fold(settings, |settings, (rule, keys)| {
        let defaults = rule.defaults();
        let after = keys.after.map_or(defaults.after, |after| after.0.clamp(SHORTEST_AFTER, LONGEST));
        let mode = keys.mode.map_or(defaults.mode, |mode| mode.0);
        let budget = keys.budget.map_or(defaults.budget, |budget| budget.0);
        settings.with_rule(rule, RuleSettings { mode, after, budget })
    })
}

/// The recovery rules as the file has them.
fn rules(file: &Recovery) -> [(RecoveryRule, Rule); RecoveryRule::ALL.len()] {
    RecoveryRule::ALL.map(|rule| {
        let reports = |keys: ReportRule| Rule { mode: keys.mode.map(|mode| Mode(mode.0)), ..Rule::default() };
        let keys = match rule {
            RecoveryRule::Stuck => {
                let Stuck { mode, after, budget, .. } = file.stuck;
                Rule { mode, after, budget }
            }
            RecoveryRule::Unregistered => file.unregistered,
            RecoveryRule::GivenUp => Rule { mode: file.given_up.mode, budget: file.given_up.budget, ..Rule::default() },
            RecoveryRule::Vanished => reports(file.vanished),
            RecoveryRule::Hopeless => file.hopeless,
            RecoveryRule::ZombieDriver => file.zombie_driver,
            RecoveryRule::Orphans => file.orphans,
            RecoveryRule::Refused => file.refused,
            RecoveryRule::Terminating => file.terminating,
            RecoveryRule::Groups => reports(file.groups),
        };
        (rule, keys)
    })
}

/// Settings of the recovery that cannot take effect.
pub(super) fn warnings(file: &Recovery) -> Vec<String> {
    let without_views = file.driver_view.access == DriverAccess::None;
    let mut warnings = Vec::new();
    for (rule, keys) in rules(file) {
        let acts = file.act && keys.mode.map_or(rule.defaults().mode, |mode| mode.0) == policy::Mode::Act;
        let key = rule.as_str();
        if !file.act && keys.mode == Some(Mode(policy::Mode::Act)) {
            warnings.push(format!("recovery.{key}.mode is act, but recovery.act is false: the rule only reports"));
        }
        if acts && without_views && rule.needs_polls() {
            warnings.push(format!(
                "recovery.{key}.mode is act, but recovery.driverView.access is none: without its driver's view no executor is deleted"
            ));
        }
        let init_after = file.stuck.init_after.filter(|_| rule == RecoveryRule::Stuck);
        for (key, after) in [("after", keys.after), ("initAfter", init_after)] {
            if after.is_some_and(|after| after.0 < SHORTEST_AFTER) {
                let rule = rule.as_str();
                warnings.push(format!("recovery.{rule}.{key} is less than {SHORTEST_AFTER:?}, which applies"));
            }
        }
        let count = keys.budget.map_or(rule.defaults().budget.count, |budget| budget.0.count);
        if acts && (count == 0 || file.budget.0.count == 0) {
            warnings.push(format!("recovery.{key}.mode is act with a budget of 0: nothing is deleted"));
        }
    }
    if file.given_up.views == Some(0) {
        warnings.push("recovery.givenUp.views is 0: 1 applies".to_owned());
    }
    if file.driver_view.interval.0 < SHORTEST_DRIVER_POLL {
        warnings.push(format!(
            "recovery.driverView.interval is {:?}: drivers are polled every {SHORTEST_DRIVER_POLL:?} at most",
            file.driver_view.interval.0
        ));
    }
    warnings
}
