//! Settings of the recovery of executors and drivers.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::snapshot::Stage;
use usher_spark::text::vocabulary;

/// Settings of the recovery, for the whole cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// How drivers are polled.
    pub driver_view: DriverViews,
    /// Whether rules may delete pods, which a team has to turn on. If not, rules in mode `act` report what they would delete.
    pub acts: bool,
    /// Whether nothing is written at all (`lifecycle.dryRun`): rules in mode `act` report what they would delete.
    pub dry_run: bool,
    /// How many pods all rules together may delete in the whole cluster.
    pub budget: Budget,
    /// How many views must show that the driver has removed a running executor, before the rule `givenUp` applies.
    pub given_up_views: u32,
    /// How long the init containers of an executor may work before the rule `stuck` applies.
    pub init_within: Duration,
    /// The settings of the rules that have other than their defaults.
    pub rules: BTreeMap<RecoveryRule, RuleSettings>,
}

impl Default for Recovery {
    fn default() -> Self {
        Recovery {
            driver_view: DriverViews::default(),
            acts: false,
            dry_run: false,
            budget: Budget { count: 5000, per: HOUR },
            given_up_views: 10,
            init_within: HOUR,
            rules: BTreeMap::new(),
        }
    }
}

impl Recovery {
    pub fn rule(&self, rule: RecoveryRule) -> RuleSettings {
        self.rules.get(&rule).copied().unwrap_or_else(|| rule.defaults())
    }

    /// How long an executor may be in a stage before the rule `stuck` applies: init containers have as long as the others at least.
    pub fn starts_within(&self, stage: Stage) -> Duration {
        let after = self.rule(RecoveryRule::Stuck).after;
        if stage == Stage::Initializing { after.max(self.init_within) } else { after }
    }

    /// Whether all rules are off.
    pub fn is_off(&self) -> bool {
        RecoveryRule::ALL.into_iter().all(|rule| self.rule(rule).mode == Mode::Off)
    }

    /// The shortest time for which the condition of a rule must hold, of the rules that do not only follow the drivers' views.
    pub(crate) fn shortest_wait(&self) -> Duration {
        let of_pods = RecoveryRule::ALL.into_iter().filter(|rule| !rule.follows_views());
        let on = of_pods.map(|rule| self.rule(rule)).filter(|rule| rule.mode != Mode::Off);
        on.map(|rule| rule.after).min().unwrap_or(Duration::MAX)
    }

    /// The same with these settings of a rule.
    #[must_use]
    pub fn with_rule(mut self, rule: RecoveryRule, settings: RuleSettings) -> Recovery {
        self.rules.insert(rule, settings);
        self
    }

    /// Whether a rule may delete pods.
    pub fn may_act(&self, rule: RecoveryRule) -> bool {
        self.acts && self.rule(rule).mode == Mode::Act
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleSettings {
    /// What the rule does.
    pub mode: Mode,
    /// How long its condition must hold.
    pub after: Duration,
    /// How many pods of one application it may delete.
    pub budget: Budget,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Nothing.
    Off,
    /// It reports.
    Warn,
    /// It deletes pods, and reports that.
    Act,
}

/// A number of deletions within a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// How many.
    pub count: u32,
    /// Within how much time.
    pub per: Duration,
}

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

vocabulary! {
    /// A recovery rule. Its word is its key in the policy file, and the value of the metric label `rule`.
    RecoveryRule {
        /// Whether there is a pod that it could delete.
        can_act: bool,
        /// Its settings if the policy file has none.
        defaults: RuleSettings,
    }
    /// An executor is bound to a node and has not started.
    Stuck = "stuck" { can_act: true, defaults: settings(Mode::Warn, MINUTE.saturating_mul(10), 5) };
    /// An executor runs and has not registered with its driver.
    Unregistered = "unregistered" { can_act: true, defaults: settings(Mode::Warn, MINUTE.saturating_mul(5), 5) };
    /// An executor runs although its driver has removed it.
    GivenUp = "givenUp" { can_act: true, defaults: settings(Mode::Warn, Duration::ZERO, 5) };
    /// A driver still counts on an executor whose pod no longer exists.
    Vanished = "vanished" { can_act: false, defaults: settings(Mode::Warn, Duration::ZERO, 0) };
    /// An application wants executors and has none.
    Hopeless = "hopeless" { can_act: true, defaults: settings(Mode::Warn, MINUTE.saturating_mul(30), 1) };
    /// A driver's Spark container exited or stopped its SparkContext, and its pod runs on.
    ZombieDriver = "zombieDriver" { can_act: true, defaults: settings(Mode::Warn, MINUTE.saturating_mul(10), 1) };
    /// An executor exists although its driver is gone.
    Orphans = "orphans" { can_act: true, defaults: settings(Mode::Act, MINUTE.saturating_mul(5), 1000) };
    /// A kubelet rejected or evicted an executor, and its pod remains.
    Refused = "refused" { can_act: true, defaults: settings(Mode::Act, HOUR, 1000) };
    /// An executor still exists although the grace period of its deletion is over.
    Terminating = "terminating" { can_act: true, defaults: settings(Mode::Warn, MINUTE, 5) };
    /// A PodGroup that had started waits again.
    Groups = "groups" { can_act: false, defaults: settings(Mode::Warn, MINUTE.saturating_mul(5), 0) };
}

/// Settings with a number of deletions in an hour.
fn settings(mode: Mode, after: Duration, count: u32) -> RuleSettings {
    RuleSettings { mode, after, budget: Budget { count, per: HOUR } }
}

impl RecoveryRule {
    /// Whether it deletes a pod only if the pod's driver has answered one of its last two polls.
    pub fn needs_view(self) -> bool {
        matches!(self, RecoveryRule::Stuck | RecoveryRule::Unregistered | RecoveryRule::GivenUp)
    }

    /// Whether only a new view of the driver can make its condition hold.
    fn follows_views(self) -> bool {
        matches!(self, RecoveryRule::GivenUp | RecoveryRule::Vanished)
    }

    /// Whether it deletes a pod only if drivers are polled: it asks the driver before.
    pub fn needs_polls(self) -> bool {
        self.needs_view() || self == RecoveryRule::Hopeless
    }
}

/// How the leader polls running drivers for their view of their executors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverViews {
    /// How drivers are reached.
    pub access: DriverAccess,
    /// How often each driver is polled.
    pub interval: Duration,
}

impl Default for DriverViews {
    fn default() -> Self {
        DriverViews { access: DriverAccess::Pod, interval: Duration::from_secs(30) }
    }
}

/// How a driver's REST API is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DriverAccess {
    /// At the IP address of the driver's pod.
    Pod,
    /// Through the API server's proxy for pods, which needs the permission `get` on `pods/proxy`.
    Proxy,
    /// Drivers are not polled.
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_stored_by_rule() {
        let recovery = Recovery::default();
        for rule in RecoveryRule::ALL {
            assert_eq!(recovery.rule(rule), rule.defaults());
            assert!(rule.can_act() || rule.defaults().mode != Mode::Act);
            let off = RuleSettings { mode: Mode::Off, ..rule.defaults() };
            let changed = recovery.clone().with_rule(rule, off);
            assert!(RecoveryRule::ALL.iter().all(|other| (changed.rule(*other).mode == Mode::Off) == (*other == rule)));
        }
    }

    #[test]
    fn no_rule_acts_by_default_and_with_act_those_for_pods_that_no_driver_manages() {
        assert!(!RecoveryRule::ALL.iter().any(|rule| Recovery::default().may_act(*rule)));
        let acts = Recovery { acts: true, ..Recovery::default() };
        let acting = RecoveryRule::ALL.into_iter().filter(|rule| acts.may_act(*rule));
        assert_eq!(acting.collect::<Vec<_>>(), [RecoveryRule::Orphans, RecoveryRule::Refused]);
    }
}
