//! Processes the results of polls, confirmations and lookups.

use std::sync::Arc;
use std::time::Instant;

use super::confirm::{Confirmed, PollResult};
use super::driver_polls::{FinishedPoll, PollOutcome};
use super::effects::{DriverAnswer, Effects, LookupResult, PollError};
use super::lookup::{Lookup, is_unknown, required_by};
use super::lookups::Outcome;
use super::{Controller, FIRST_POLL, MAX_OBJECTS_PER_STEP};
use crate::policy::Policies;
use crate::reconcile::Silence;
use crate::snapshot::{Application, Change, DriverPhase, DriverView, DriverViewKey, PodChange, RelatedChange};
use crate::spark::ids::{AppKey, PodKey, is_newer};
use crate::spark::lifecycle_conf::LifecycleConf;
use crate::spark::rest::ExecutorSummary;
use crate::time::Now;

impl Controller {
    /// Processes a poll's result; `None` if the poll failed. A poll that began before the Lease was lost for a moment counts.
    pub fn poll_finished(&mut self, polled: Option<PollResult>, now: Now, policies: &Policies) {
        self.polls.ended();
        let next = match polled {
            Some(_) => policies.lifecycle.poll,
            None => policies.lifecycle.poll.min(FIRST_POLL),
        };
        if self.is_leader {
            self.polls.schedule(next, now.at);
        }
        if let Some(polled) = polled.filter(|_| self.has_synced()) {
            let delta = LifecycleConf::default().missing_pod_delta.min(policies.lifecycle.poll);
            self.exits.list_at(polled.version());
            self.confirmations.begin_comparison(polled, delta, now);
            self.continue_comparison();
            self.store.refreshed(now.wall);
        }
    }

    /// Processes a driver's answer to a poll for its view. Returns the outcome: there may be no memory for a view.
    pub fn driver_answered(
        &mut self,
        key: &DriverViewKey,
        answer: DriverAnswer,
        now: Now,
        policies: &Policies,
    ) -> Result<(), PollError> {
        let answer = match answer {
            DriverAnswer::View { ref executors, .. } => {
                let bytes = executors.iter().map(ExecutorSummary::memory).sum();
                if self.driver_polls.keep_view(key, bytes) {
                    answer
                } else {
                    self.forget_views(vec![key.clone()], now);
                    DriverAnswer::Failed(PollError::TooLarge)
                }
            }
            answer => answer,
        };
        let result = if let DriverAnswer::Failed(error) = answer { Err(error) } else { Ok(()) };
        let outcome = match &answer {
            DriverAnswer::View { port, .. } => PollOutcome::Answered(*port),
            DriverAnswer::Starting => PollOutcome::Starting,
            DriverAnswer::Failed(_) => PollOutcome::Failed,
        };
        let silence = match &answer {
            DriverAnswer::Starting | DriverAnswer::Failed(PollError::Timeout) => Silence::Starting,
            DriverAnswer::Failed(PollError::Refused | PollError::Unreachable) => Silence::Refused,
            DriverAnswer::View { .. } | DriverAnswer::Failed(_) => Silence::None,
        };
        if let Some(set) = self.states.get_mut(&key.app).and_then(|state| state.sets.get_mut(&Some(key.driver))) {
            set.silence = silence;
        }
        let finished = self.driver_polls.finished(key, outcome, policies.recovery.driver_view.interval, now.at);
        let Some(FinishedPoll { began, view_counts, retained_dead, pod, uid }) = finished else { return result };
        if let DriverAnswer::View { executors, metrics, conf, .. } = answer {
            if let Some(conf) = conf {
                let change = RelatedChange::StatedConf(pod, uid, key.app.clone(), conf);
                self.apply_change(Change::Related(change), now);
            }
            let at = Now { at: began, wall: now.wall - now.at.saturating_duration_since(began) };
            let view = Arc::new(DriverView::new(at, executors, metrics, retained_dead));
            self.apply_change(Change::Related(RelatedChange::DriverView(key.clone(), view)), now);
        } else if !view_counts {
            let closed = self.snapshot().closed_drivers.get(key).copied();
            let had_view = closed.is_some() || self.snapshot().driver_views.contains_key(key);
            match answer {
                DriverAnswer::Failed(PollError::Refused) if had_view => {
                    self.driver_polls.release_view(key);
                    let change = RelatedChange::DriverClosed(key.clone(), closed.unwrap_or(now.at));
                    self.apply_change(Change::Related(change), now);
                }
                // Once it has refused connections, a lost response says nothing more.
                DriverAnswer::Failed(PollError::Timeout) if closed.is_some() => {}
                _ => self.forget_views(vec![key.clone()], now),
            }
        }
        result
    }

    /// Forgets the views of drivers that are no longer polled.
    pub(super) fn forget_views(&mut self, drivers: Vec<DriverViewKey>, now: Now) {
        for key in drivers {
            self.driver_polls.release_view(&key);
            self.apply_change(Change::Related(RelatedChange::DriverViewGone(key)), now);
        }
    }

    /// Compares a part of a poll with the snapshot.
    pub(super) fn continue_comparison(&mut self) {
        self.confirmations.continue_comparison(
            self.store.snapshot(),
            &self.tombstones,
            MAX_OBJECTS_PER_STEP,
            self.progress.position(),
        );
    }

    /// Processes the answer to a GET of a labelled pod.
    fn confirmation_answered(&mut self, pod: &PodKey, answer: LookupResult, now: Now) {
        let seen = match answer {
            LookupResult::Labelled(seen) => Some(seen),
            LookupResult::Absent => None,
            _ => return self.confirmations.lookup_failed(pod, now.at),
        };
        let found = self.confirmations.lookup_answered(pod, seen.as_ref().map(|seen| &**seen.uid()));
        self.apply_confirmed(found, now);
        if let Some(seen) = seen {
            self.apply_written(Change::Pods(PodChange::Observed(seen)), now);
        }
    }

    pub(super) fn apply_confirmed(&mut self, found: Confirmed, now: Now) {
        match found {
            Confirmed::Gone(mut removed) => {
                let pod = PodKey::new(removed.app.namespace(), &removed.executor.name);
                let uid = removed.executor.uid.clone();
                if self.is_tombstoned(&uid) {
                    return; // The watch has shown the deletion meanwhile.
                }
                let known = self.snapshot().executor(pod.namespace(), pod.name());
                if let Some((_, known)) = known.filter(|(_, known)| known.uid == uid) {
                    // The watch may have shown a newer version since the poll.
                    if is_newer(&known.version, &removed.executor.version) {
                        removed.executor = known.clone();
                    }
                    self.store.forget(&pod, &uid);
                }
                self.tombstones.add_undelivered(&uid, now.at);
                self.progress.confirmed(&removed.executor.version);
                self.store.executor_removed(removed);
            }
            Confirmed::DriverGone(pod, uid) => {
                self.tombstones.add_undelivered(&uid, now.at);
                self.apply_change(Change::Pods(PodChange::Gone(pod, uid)), now);
            }
            Confirmed::Nothing => {}
        }
    }

    /// Registers the lookups that an application's plan requires.
    /// `learned` are its drivers' pods as they were last known.
    pub(super) fn require_lookups(
        &mut self,
        (app, known): (&AppKey, Option<&Application>),
        learned: Vec<PodKey>,
        policies: &Policies,
        now: Now,
    ) {
        let snapshot = self.store.snapshot();
        let (wanted, outdated) = required_by(snapshot, (app, known), policies, &learned, self.is_leader);
        let unfollowed = self.lookups.require(app, wanted, now.at, |read| is_unknown(snapshot, read));
        for (pod, uid) in outdated {
            self.lookups.mark_outdated(pod, uid);
        }
        for read in unfollowed {
            let change = match read {
                Lookup::Pod(pod) => RelatedChange::Unreferenced(pod),
                Lookup::Workload(key) => RelatedChange::WorkloadUnreferenced(key),
                Lookup::Quotas(namespace) => RelatedChange::QuotasUnreferenced(namespace),
                Lookup::Messages(namespace, kind) => RelatedChange::MessagesUnreferenced(namespace, kind),
                _ => continue,
            };
            self.apply_change(Change::Related(change), now);
        }
    }

    pub(super) fn due_lookups(&mut self, now: Instant, effects: &mut Effects) {
        effects.lookups = self.lookups.due(now);
        let lookups = self.confirmations.due_pods(self.store.snapshot(), now);
        effects.lookups.extend(lookups.into_iter().map(Lookup::Labelled));
        effects.lookups.extend(self.confirmations.due_namespaces(now).into_iter().map(Lookup::All));
        effects.lookups.extend(self.nodes.due_reads(now).into_iter().map(Lookup::NodePods));
    }

    /// Processes the answer to a lookup.
    pub fn lookup_answered(&mut self, read: &Lookup, answer: LookupResult, now: Now) {
        if let Lookup::Labelled(pod) = read {
            return self.confirmation_answered(pod, answer, now);
        }
        if let Lookup::All(namespace) = read {
            let all = if let LookupResult::All(all) = &answer { Some(all) } else { None };
            self.confirmations.namespace_listed(namespace, all, now.at);
            return self.apply_proven(now);
        }
        if let Lookup::NodePods(node) = read {
            return self.nodes.schedulers_read(node, answer);
        }
        if !self.lookups.is_required(read) {
            self.lookups.finished(read, Outcome::Absent, now.at);
            return;
        }
        // A driver's ConfigMap is created after its pod, possibly after the driver runs. A driver that has exited gets none.
        let awaited = matches!(read, Lookup::Conf(pod, ..) if self.snapshot().driver_pod(pod.namespace(), pod.name())
            .is_some_and(|driver| driver.phase != DriverPhase::Ended));
        let outcome = match &answer {
            LookupResult::Failed => Outcome::Failed,
            LookupResult::Absent if awaited => Outcome::Awaited,
            LookupResult::Absent => Outcome::Absent,
            _ => Outcome::Answered,
        };
        let waiters = self.lookups.waiters(read);
        let planned_again = self.lookups.finished(read, outcome, now.at);
        if matches!(outcome, Outcome::Answered | Outcome::Absent) {
            match (read, &answer) {
                // From now on the pod is read by name.
                (Lookup::Address(namespace, _), LookupResult::Pod(driver)) => {
                    let pod = Lookup::Pod(PodKey::new(namespace, &driver.name));
                    self.lookups.mark_known(pod, driver.uid.clone(), &waiters, now.at);
                }
                (Lookup::Conf(..), _) => self.lookups.forget(read),
                _ => {}
            }
            if let Some(change) = answer.learned(read, waiters) {
                self.apply_change(Change::Related(change), now);
            }
        }
        planned_again.into_iter().for_each(|app| self.queue.add(app));
    }
}
