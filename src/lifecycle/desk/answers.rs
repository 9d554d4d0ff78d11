//! What polls, looks and reads have answered.

use std::sync::Arc;
use std::time::Instant;

use super::super::Now;
use super::super::checks::{Found, Polled};
use super::super::lookups::Outcome;
use super::super::reads::{Read, asked, is_unknown};
use super::super::turn::{Answer, Turn};
use super::{Desk, FIRST_POLL, PART};
use crate::policy::Policies;
use crate::snapshot::{Change, Conf, Followed, Life};
use crate::spark::habits::Habits;
use crate::spark::ids::{AppKey, PodKey, is_newer};

impl Desk {
    /// Takes a poll in; `None` when it failed. One that began before the lease was lost for a moment counts.
    pub fn polled(&mut self, polled: Option<Polled>, now: Now, policies: &Policies) {
        self.polling = false;
        let next = match polled {
            Some(_) => policies.lifecycle.poll,
            None => policies.lifecycle.poll.min(FIRST_POLL),
        };
        if self.leading {
            self.poll = Some(now.at + self.jitter(next));
        }
        if let Some(polled) = polled.filter(|_| self.is_complete()) {
            let delta = Habits::default().missing_after.min(policies.lifecycle.poll);
            self.exits.list_as_of(polled.version());
            self.checks.judge(polled, delta, now);
            self.judge();
            self.store.refreshed(now.wall);
        }
    }

    /// Compares a part of a poll with the picture.
    pub(super) fn judge(&mut self) {
        self.checks.go_on(self.store.snapshot(), &self.gone, PART, self.position.as_deref());
    }

    /// Takes the answer to a look at a labelled pod in.
    fn checked(&mut self, pod: &PodKey, answer: Answer, now: Now) {
        let seen = match answer {
            Answer::Sighting(seen) => Some(seen),
            Answer::Absent => None,
            _ => return self.checks.failed(pod, now.at),
        };
        let found = self.checks.answered(pod, seen.as_ref().map(|seen| &**seen.uid()));
        self.found(found, now);
        if let Some(seen) = seen {
            self.written(Change::Pod(seen), now);
        }
    }

    pub(super) fn found(&mut self, found: Found, now: Now) {
        match found {
            Found::Gone(mut departed) => {
                let pod = PodKey::new(departed.app.namespace(), &departed.executor.name);
                let uid = departed.executor.uid.clone();
                if self.is_gone(&uid) {
                    return; // The watch has shown it meanwhile.
                }
                let known = self.snapshot().executor(pod.namespace(), pod.name());
                if let Some((_, known)) = known.filter(|(_, known)| known.uid == uid) {
                    // The watch may have shown more of it since the poll.
                    if is_newer(&known.version, &departed.executor.version) {
                        departed.executor = known.clone();
                    }
                    self.store.forget(&pod, &uid);
                }
                self.gone.bury_unshown(&uid, now.at);
                self.found = self.found.into_iter().chain(departed.executor.version.parse().ok()).min();
                self.store.gone(departed);
            }
            Found::DriverGone(pod, uid) => {
                self.gone.bury_unshown(&uid, now.at);
                self.take(Change::PodGone(pod, uid), now);
            }
            Found::Nothing => {}
        }
    }

    /// Notes what an application wants to know.
    pub(super) fn ask(&mut self, app: &AppKey, policies: &Policies, now: Now) {
        let snapshot = self.store.snapshot();
        let crews = self.memory.get(app).into_iter().flat_map(|memory| memory.crews.values());
        let learned: Vec<&str> = crews.filter_map(|crew| crew.driver.as_ref()).map(|driver| &*driver.name).collect();
        let (wanted, outdated) = asked(snapshot, app, policies, &learned, self.leading);
        let unfollowed = self.lookups.want(app, wanted, |read| is_unknown(snapshot, read));
        for (pod, uid) in outdated {
            self.lookups.outdated(pod, uid);
        }
        for pod in unfollowed {
            self.take(Change::Unfollowed(pod), now);
        }
    }

    pub(super) fn due_reads(&mut self, now: Instant, turn: &mut Turn) {
        turn.reads = self.lookups.due(now);
        let looks = self.checks.due(self.store.snapshot(), now);
        turn.reads.extend(looks.into_iter().map(Read::Labelled));
        turn.reads.extend(self.checks.due_names(now).into_iter().map(Read::All));
    }

    /// Takes the answer to a read in.
    pub fn answered(&mut self, read: &Read, answer: Answer, now: Now) {
        if let Read::Labelled(pod) = read {
            return self.checked(pod, answer, now);
        }
        if let Read::All(namespace) = read {
            let all = if let Answer::All(all) = &answer { Some(all) } else { None };
            self.checks.all_of(namespace, all, now.at);
            return self.conclude(now);
        }
        if !self.lookups.is_wanted(read) {
            self.lookups.ended(read, Outcome::Absent, now.at);
            return;
        }
        // A driver's ConfigMap is made after its pod, and may come after the driver runs. One that has ended gets none.
        let awaited = matches!(read, Read::Conf(pod, ..) if self.snapshot().driver_pod(pod.namespace(), pod.name())
            .is_some_and(|driver| driver.life != Life::Ended));
        let outcome = match &answer {
            Answer::Failed => Outcome::Failed,
            Answer::Absent if awaited => Outcome::Awaited,
            Answer::Absent => Outcome::Absent,
            _ => Outcome::Answered,
        };
        let askers = self.lookups.askers(read);
        let planned_again = self.lookups.ended(read, outcome, now.at);
        if matches!(outcome, Outcome::Answered | Outcome::Absent) {
            let change = match (read, answer) {
                (Read::Pod(pod), Answer::Absent) => Some(Change::Followed(pod.clone(), Followed::Absent, askers)),
                (Read::Pod(pod), Answer::Pod(driver)) => {
                    Some(Change::Followed(pod.clone(), Followed::Present(Arc::new(driver)), askers))
                }
                (Read::Address(namespace, _), Answer::Pod(driver)) => {
                    let pod = PodKey::new(namespace, &driver.name);
                    // From now on it is read by its name.
                    self.lookups.know(Read::Pod(pod.clone()), driver.uid.clone(), &askers, now.at);
                    Some(Change::Followed(pod, Followed::Present(Arc::new(driver)), askers))
                }
                (Read::Conf(pod, uid, _), answer) => {
                    self.lookups.forget(read);
                    let conf = if let Answer::Conf(conf) = answer { conf } else { Conf::Unreadable };
                    Some(Change::Conf(pod.clone(), uid.clone(), conf, askers))
                }
                _ => None,
            };
            if let Some(change) = change {
                self.take(change, now);
            }
        }
        planned_again.into_iter().for_each(|app| self.work.add(app));
    }
}
