//! The input of every rule.

use std::time::{Duration, Instant};

use crate::drivers::{self, DriverPoll, view_of};
use crate::lifecycle::cause::never_ran;
use crate::lifecycle::exits::Exits;
use crate::ownership::contradiction::Witnesses;
use crate::ownership::liveness::{DriverLiveness, ExecutorSet};
use crate::planning::{Check, PlanContext};
use crate::policy::{DriverAccess, Keep, Lifecycle, Mode, Recovery, RecoveryRule};
use crate::recovery::finding::{Finding, FindingVerdict, NoRemedy, Remedy};
use crate::recovery::state::RecoveryState;
use crate::signature::Creator;
use crate::snapshot::{DriverPod, DriverView, Executor, Snapshot};
use usher_spark::ids::{AppKey, PodKey};
use usher_spark::time::Now;

/// After an outage of the watch, the driver has this long to act on what it missed too, or as long as the rule waits if that is
/// shorter.
pub(super) const AFTER_OUTAGE: Duration = Duration::from_secs(60);

/// The input of every rule.
#[derive(Clone, Copy)]
pub struct RuleContext<'v> {
    pub input: &'v PlanContext<'v>,
    pub snapshot: &'v Snapshot,
    /// The application's key.
    pub key: &'v AppKey,
    /// Settings.
    pub recovery: &'v Recovery,
    /// What is done with finished executors, and which are kept.
    pub lifecycle: Lifecycle,
    /// The pods that may be drivers of the application's executors.
    pub witnesses: &'v Witnesses,
    /// The exits that are tracked.
    pub exits: &'v Exits,
    /// The time.
    pub now: Now,
}

/// What the rules need to know about the executors of one creator, computed once for all of them.
#[derive(Clone, Debug)]
pub struct SetContext<'v> {
    /// The executors, and their driver.
    pub set: &'v ExecutorSet<'v>,
    /// The driver's view, and how the driver is polled again.
    pub view: Option<(&'v DriverView, DriverPoll)>,
    /// Since when the driver has been gone.
    pub gone_since: Option<Instant>,
    /// Whether the driver keeps its finished executors.
    pub keeps: bool,
}

impl<'v> SetContext<'v> {
    /// All executors with the same driver, by creator.
    pub(super) fn all<'c>(
        &self,
        input: &'c PlanContext<'v>,
    ) -> impl Iterator<Item = &'v ExecutorSet<'v>> + Clone + use<'c, 'v> {
        std::iter::once(self.set).chain(input.with_driver_of(self.set))
    }
}

/// Whether the driver of an executor is known by uid: a signature names the pod that created it, or an ownerReference its owner.
/// Whether that driver is alive is known only while it has executors that are live or not cleaned up ([`DriverLiveness`]). An
/// account that is bound to no pod proves nothing: it may create executors for a driver outside the cluster.
pub(super) fn is_driver_known(executor: &Executor) -> bool {
    executor.counted_creator().is_some_and(Creator::is_object) || executor.template.owner.is_some()
}

/// A pod that a StatefulSet or Deployment creates is never deleted: its controller would create it again.
pub(super) fn not_of_workload(has_workload: bool) -> Result<(), NoRemedy> {
    if has_workload { Err(NoRemedy::Workload) } else { Ok(()) }
}

/// Whether a driver that keeps its executors keeps this one. If not: whether that rests on the driver's end.
pub(super) fn kept(
    context: &RuleContext<'_>,
    set_context: &SetContext<'_>,
    executor: &Executor,
) -> Result<bool, NoRemedy> {
    let is_over = || {
        let contradiction = || context.witnesses.of_end(context.snapshot, context.key.namespace(), executor);
        set_context.set.driver == DriverLiveness::Gone && set_context.set.is_certain && contradiction().is_none()
    };
    match context.lifecycle.keep {
        _ if !set_context.keeps => Ok(false),
        Keep::UntilDriverEnds if is_over() => Ok(true),
        Keep::NeverRan if never_ran(executor) => Ok(false),
        Keep::Respect | Keep::UntilDriverEnds | Keep::NeverRan => Err(NoRemedy::Kept),
    }
}

/// An executor that any driver of its application counts on is never deleted.
pub(super) fn not_registered(context: &RuleContext<'_>, executor: &Executor) -> Result<(), NoRemedy> {
    context.witnesses.registered(executor).map_or(Ok(()), |_| Err(NoRemedy::Contradicted))
}

impl<'v> RuleContext<'v> {
    pub fn of(input: &'v PlanContext<'v>) -> RuleContext<'v> {
        RuleContext {
            input,
            snapshot: input.snapshot,
            key: input.key,
            recovery: &input.policies.recovery,
            lifecycle: input.policies.lifecycle,
            witnesses: input.witnesses(),
            exits: input.exits,
            now: input.now,
        }
    }

    /// What the rules need to know about one creator's executors.
    pub fn of_set(&self, set: &'v ExecutorSet<'v>, state: &RecoveryState, keeps: bool) -> SetContext<'v> {
        SetContext { set, view: self.view(set), gone_since: state.gone_since(set.creator), keeps }
    }

    /// Why a driver has no view that counts.
    pub(super) fn no_view(&self) -> NoRemedy {
        match self.recovery.driver_view.access {
            DriverAccess::None => NoRemedy::NotPolled,
            DriverAccess::Pod | DriverAccess::Proxy => NoRemedy::NoView,
        }
    }

    /// Whether a rule is off.
    pub(super) fn is_off(&self, rule: RecoveryRule) -> bool {
        self.recovery.rule(rule).mode == Mode::Off
    }

    /// How long a rule's condition must hold, and since when a given time is long enough: a finding's verdict if it is now.
    pub(super) fn after(&self, rule: RecoveryRule, since: Instant, found: impl FnOnce() -> Finding) -> FindingVerdict {
        let wait = self.recovery.rule(rule).after;
        self.waited(since, wait, found)
    }

    pub(super) fn waited(&self, since: Instant, wait: Duration, found: impl FnOnce() -> Finding) -> FindingVerdict {
        match self.exits.outages.due(since, wait, wait.min(AFTER_OUTAGE)) {
            Some(at) if at <= self.now.at => found().into(),
            Some(at) => FindingVerdict::At(at),
            None => FindingVerdict::Nothing,
        }
    }

    /// When the next view is expected.
    pub(super) fn next_view(&self, view: &DriverView) -> Instant {
        view.at.max(self.now.at) + self.recovery.driver_view.interval
    }

    /// A finding about an executor.
    pub(super) fn about(
        &self,
        rule: RecoveryRule,
        executor: &Executor,
        since: Instant,
        message: String,
        remedy: Result<Remedy, NoRemedy>,
    ) -> Finding {
        let pod = PodKey::new(self.key.namespace(), &executor.name);
        Finding { rule, pod, uid: executor.uid.clone(), version: executor.version.clone(), since, message, remedy }
    }

    /// A finding about a driver's pod.
    pub(super) fn about_driver(
        &self,
        rule: RecoveryRule,
        driver: &DriverPod,
        since: Instant,
        message: String,
        remedy: Result<Remedy, NoRemedy>,
    ) -> Finding {
        let pod = PodKey::new(self.key.namespace(), &driver.name);
        Finding { rule, pod, uid: driver.uid.clone(), version: driver.version.clone(), since, message, remedy }
    }

    /// How long ago that was, in words.
    pub(super) fn ago(&self, since: Instant) -> String {
        words(self.now.at.saturating_duration_since(since))
    }

    /// The driver's view of a creator's executors, if the driver answered one of its last two polls.
    fn view(&self, set: &ExecutorSet<'_>) -> Option<(&'v DriverView, DriverPoll)> {
        let driver = set.own_driver()?;
        let view = view_of(self.snapshot, self.key, driver.creator)?;
        Some((view, drivers::poll(self.snapshot, self.key, driver, self.recovery.driver_view.access)?))
    }
}

/// What a deletion needs if the driver is alive and may register the executor any moment.
pub(super) fn by_view(
    context: &RuleContext<'_>,
    set_context: &SetContext<'_>,
    executor: &Executor,
    effect: &'static str,
) -> Result<Remedy, NoRemedy> {
    not_of_workload(executor.template.has_workload())?;
    let Some(id) = executor.exec_id.map(u64::from) else { return Err(NoRemedy::NoExecId) };
    if !set_context.set.is_certain || !matches!(set_context.set.driver, DriverLiveness::Alive(_)) {
        return Err(NoRemedy::UnknownDriver);
    }
    kept(context, set_context, executor)?;
    let Some((_, poll)) = &set_context.view else { return Err(context.no_view()) };
    not_registered(context, executor)?;
    Ok(Remedy { check: Check::NotRegistered(Box::new(poll.clone()), id), effect })
}

/// A duration in words, in its two largest units.
pub(super) fn words(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let parts = [(seconds / 86_400, "d"), (seconds / 3600 % 24, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let first = parts.iter().position(|(count, _)| *count > 0).unwrap_or(parts.len() - 1);
    let shown = parts.iter().skip(first).take(2).enumerate().filter(|(at, (count, _))| *at == 0 || *count > 0);
    shown.map(|(_, (count, unit))| format!("{count}{unit}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_written_in_its_two_largest_units() {
        let shown = |seconds| words(Duration::from_secs(seconds));
        assert_eq!([shown(0), shown(59), shown(60), shown(61)], ["0s", "59s", "1m", "1m 1s"]);
        assert_eq!([shown(3600), shown(3661), shown(90_000), shown(86_400 * 3 + 60)], ["1h", "1h 1m", "1d 1h", "3d"]);
    }
}
