//! The five scenarios.

use std::cell::Cell;
use std::time::Instant;

use super::plan::{MEMBERS, Scenario};
use super::sight::{self, Sight};
use super::stage::{Driver, Reached, Stage, Stop};
use super::table::{Row, Seen, Verdict};
use crate::runtime::clock;

const ALL: usize = MEMBERS as usize;

impl Stage {
    /// Runs a scenario and removes its objects. Returns whether the other scenarios can run, too.
    pub(super) async fn play(&self, scenario: Scenario, number: usize) -> (Row, bool) {
        let mut row = Row {
            scenario: scenario.name(),
            verdict: Verdict::Ok,
            seen: Vec::new(),
            why: String::new(),
            fix: String::new(),
        };
        if let Err(why) = self.setup.applies(scenario) {
            return (Row { verdict: Verdict::NotApplicable, why, ..row }, true);
        }
        let played = match scenario {
            Scenario::Together => self.together(number, &mut row.seen).await,
            Scenario::Late => self.late(number, &mut row.seen).await,
            Scenario::Lowered => self.lowered(number, &mut row.seen).await,
            Scenario::Room => self.too_little_room(number, &mut row.seen).await,
            Scenario::Driver => self.driver_deleted(number, &mut row.seen).await,
        };
        let mut others = true;
        match played {
            Ok(()) => {}
            Err(Stop::Failed { why, fix }) => (row.verdict, row.why, row.fix) = (Verdict::Failed, why, fix),
            Err(Stop::Skipped(why)) => (row.verdict, row.why) = (Verdict::Skipped, why),
            Err(Stop::NoDriver { why, fix }) => {
                (row.verdict, row.why, row.fix) = (Verdict::Failed, why, fix);
                others = false;
            }
        }
        // The end of the run removes or reports the objects that are left.
        let _ = self.clear(Some(&self.app(number, None).name)).await;
        (row, others)
    }

    async fn together(&self, number: usize, seen: &mut Vec<Seen>) -> Result<(), Stop> {
        let played = self.start(self.app(number, None), seen).await?;
        let from = clock::instant();
        self.executors(&played, 1..=MEMBERS - 1).await?;
        self.group_is_made(&played, from, seen).await?;
        self.all_wait(&played, ALL - 1, seen).await?;
        let from = clock::instant();
        self.executor(&played, MEMBERS).await?;
        self.all_start(&played, ALL, from, "after the third was created", seen).await.map(|_| ())
    }

    async fn late(&self, number: usize, seen: &mut Vec<Seen>) -> Result<(), Stop> {
        let played = self.start(self.app(number, None), seen).await?;
        let from = clock::instant();
        self.executors(&played, 1..=MEMBERS).await?;
        // If the group exists at the first poll, the order is unknown.
        let was_absent = Cell::new(false);
        let done = |sight: &Sight| {
            was_absent.set(was_absent.get() || sight.group.is_none());
            sight.group.is_some()
        };
        match self.until(&played, from, done).await? {
            Reached::Yes(_, took) if was_absent.get() => {
                seen.push(Seen {
                    what: "the PodGroup is there; it was not when all its pods were".into(),
                    took: Some(took),
                });
            }
            Reached::Yes(_, took) => {
                seen.push(Seen { what: "the PodGroup is there, no later than its last pod".into(), took: Some(took) });
            }
            Reached::No(_) => return Err(self.no_group(&played)),
        }
        self.all_start(&played, ALL, from, "after the first was created", seen).await.map(|_| ())
    }

    async fn lowered(&self, number: usize, seen: &mut Vec<Seen>) -> Result<(), Stop> {
        let played = self.start(self.app(number, None), seen).await?;
        let from = clock::instant();
        self.executors(&played, 1..=MEMBERS - 1).await?;
        self.group_is_made(&played, from, seen).await?;
        self.all_wait(&played, ALL - 1, seen).await?;
        let from = clock::instant();
        self.lower(&played, MEMBERS - 1).await?;
        let wanted = u64::from(MEMBERS - 1);
        match self.until(&played, from, |sight| sight.count() == Some(wanted)).await? {
            Reached::Yes(_, took) => {
                seen.push(Seen { what: format!("the PodGroup asks for {wanted}"), took: Some(took) });
            }
            Reached::No(sight) => {
                let why = format!("the PodGroup still asks for {}: spark-usher did not lower it", shown(sight.count()));
                return Err(Stop::failed(why, "the log of the replica that leads"));
            }
        }
        self.all_start(&played, ALL - 1, from, "after the driver asked for less", seen).await.map(|_| ())
    }

    async fn too_little_room(&self, number: usize, seen: &mut Vec<Seen>) -> Result<(), Stop> {
        let room = self.room(&self.app(number, None)).await?;
        let app = self.app(number, Some(&room));
        seen.push(Seen { what: format!("node {}, {}m processor for each executor", room.node, room.cpu), took: None });
        let played = self.start(app, seen).await?;
        let from = clock::instant();
        self.executors(&played, 1..=MEMBERS).await?;
        self.group_is_made(&played, from, seen).await?;
        self.all_wait(&played, ALL, seen).await
    }

    async fn driver_deleted(&self, number: usize, seen: &mut Vec<Seen>) -> Result<(), Stop> {
        let played = self.start(self.app(number, None), seen).await?;
        let from = clock::instant();
        self.executors(&played, 1..=MEMBERS).await?;
        let sight = self.all_start(&played, ALL, from, "after the first was created", seen).await?;
        if let Some(pod) = sight.executors().find(|pod| !sight::is_owned_by(pod, &played.driver)) {
            let why = format!("executor {} has no ownerReference to its driver", sight::name(pod));
            return Err(Stop::failed(why, "the warnings of its creation: kubectl describe pod; creators.never"));
        }
        let from = clock::instant();
        self.end_driver(&played).await?;
        match self.until(&played, from, |sight| sight.executors().all(sight::is_going)).await? {
            Reached::Yes(_, took) => seen.push(Seen { what: "all executors are deleted".into(), took: Some(took) }),
            Reached::No(sight) => {
                let left = sight.executors().filter(|pod| !sight::is_going(pod)).count();
                let why = format!("{left} executors are still there {} s after their driver", self.timeout.as_secs());
                return Err(Stop::failed(why, "the garbage collector of kube-controller-manager"));
            }
        }
        if !self.setup.has_group() {
            return Ok(());
        }
        match self.until(&played, from, |sight| sight.group.as_ref().is_none_or(sight::is_going)).await? {
            Reached::Yes(_, took) => seen.push(Seen { what: "the PodGroup is deleted".into(), took: Some(took) }),
            Reached::No(_) => {
                let why =
                    format!("PodGroup {} is still there {} s after its driver", played.group(), self.timeout.as_secs());
                return Err(Stop::failed(why, "the garbage collector of kube-controller-manager, and finalizers"));
            }
        }
        Ok(())
    }

    async fn executors(&self, played: &Driver, ids: std::ops::RangeInclusive<u32>) -> Result<(), Stop> {
        for id in ids {
            self.executor(played, id).await?;
        }
        Ok(())
    }

    /// Waits for the PodGroup and its count, where spark-usher creates one.
    async fn group_is_made(&self, played: &Driver, from: Instant, seen: &mut Vec<Seen>) -> Result<(), Stop> {
        if !self.setup.has_group() {
            return Ok(());
        }
        let wanted = u64::from(MEMBERS);
        let done = |sight: &Sight| sight.count() == Some(wanted) || sight.bound() > 0;
        match self.until(played, from, done).await? {
            Reached::Yes(sight, took) if sight.count() == Some(wanted) => {
                seen.push(Seen { what: format!("the PodGroup asks for {wanted}"), took: Some(took) });
                Ok(())
            }
            Reached::Yes(sight, _) | Reached::No(sight) if sight.group.is_some() => {
                let why = format!("the PodGroup asks for {} and not for {wanted}", shown(sight.count()));
                Err(Stop::failed(why, "the Events of the driver, and the policy's overrides and gang.readSparkConf"))
            }
            Reached::Yes(sight, _) => Err(self.started_alone(&sight, "without a PodGroup")),
            Reached::No(_) => Err(self.no_group(played)),
        }
    }

    fn no_group(&self, played: &Driver) -> Stop {
        let why = format!("there is no PodGroup {} after {} s", played.group(), self.timeout.as_secs());
        Stop::failed(why, "does a replica lead, and may it create PodGroups? spark-usher doctor, and the leader's log")
    }

    fn started_alone(&self, sight: &Sight, but: &str) -> Stop {
        let why = format!("{} of {} executors were bound {but}", sight.bound(), sight.executors().count());
        Stop::failed(why, format!("{} does not hold the gang back: {}", self.setup.row.kind, self.setup.gang_plugin()))
    }

    /// Verifies that this many executors stay pending.
    async fn all_wait(&self, played: &Driver, count: usize, seen: &mut Vec<Seen>) -> Result<(), Stop> {
        match self.hold(played, |sight| sight.bound() > 0).await? {
            Ok(took) => {
                seen.push(Seen { what: format!("{count} executors wait"), took: Some(took) });
                Ok(())
            }
            Err(sight) if count == ALL => Err(self.started_alone(&sight, "where not all three fit")),
            Err(sight) => Err(self.started_alone(&sight, "without the third")),
        }
    }

    /// Waits until this many executors are bound, and until they run where a kubelet runs pods.
    async fn all_start(
        &self,
        played: &Driver,
        count: usize,
        from: Instant,
        since: &str,
        seen: &mut Vec<Seen>,
    ) -> Result<Sight, Stop> {
        let sight = match self.until(played, from, |sight| sight.bound() == count).await? {
            Reached::Yes(sight, took) => {
                seen.push(Seen { what: format!("all {count} executors are bound {since}"), took: Some(took) });
                sight
            }
            Reached::No(sight) => {
                let why = format!(
                    "{} of {count} executors are bound {} s {since}: {}",
                    sight.bound(),
                    self.timeout.as_secs(),
                    sight.waits()
                );
                return Err(Stop::failed(
                    why,
                    "kubectl describe the pods and the PodGroup, and the scheduler's log; is there room in the queue?",
                ));
            }
        };
        if !sight.has_kubelet() {
            seen.push(Seen {
                what: "the driver does not run (yet), so that running was not waited for".into(),
                took: None,
            });
            return Ok(sight);
        }
        match self.until_started(played, from, |sight| sight.running() == count).await? {
            Reached::Yes(_, took) => {
                seen.push(Seen { what: format!("all {count} executors run"), took: Some(took) });
            }
            // Image pulls and kubelets are not part of gang scheduling.
            Reached::No(sight) => {
                let what = format!("{} of {count} executors run so far (images, kubelet)", sight.running());
                seen.push(Seen { what, took: None });
            }
        }
        Ok(sight)
    }
}

fn shown(count: Option<u64>) -> String {
    count.map_or_else(|| "no count".to_owned(), |count| count.to_string())
}
