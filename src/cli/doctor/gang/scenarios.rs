//! The scenarios.

use std::cell::Cell;
use std::time::Instant;

use super::observation::{self, Observation};
use super::plan::{MEMBERS, Scenario};
use super::stage::{Driver, Reached, Stage, Stop};
use super::table::{CheckVerdict, Row, Seen};
use usher_runtime::clock;

const ALL: usize = MEMBERS as usize;

impl Stage {
    /// Runs a scenario and removes its objects. Returns whether the other scenarios can run, too.
    pub(super) async fn run_scenario(&self, scenario: Scenario, number: usize) -> (Row, bool) {
        let mut row = Row {
            scenario: scenario.name(),
            verdict: CheckVerdict::Ok,
            seen: Vec::new(),
            why: String::new(),
            fix: String::new(),
        };
        if let Err(why) = self.setup.applies(scenario) {
            return (Row { verdict: CheckVerdict::NotApplicable, why, ..row }, true);
        }
        let started = match scenario {
            Scenario::Together => self.together(number, &mut row.seen).await,
            Scenario::Late => self.late(number, &mut row.seen).await,
            Scenario::Lowered => self.lowered(number, &mut row.seen).await,
            Scenario::Capacity => self.insufficient_capacity(number, &mut row.seen).await,
            Scenario::Replaced => self.replaced(number, &mut row.seen).await,
            Scenario::Driver => self.driver_deleted(number, &mut row.seen).await,
        };
        let mut others = true;
        match started {
            Ok(()) => {}
            Err(Stop::Failed { why, fix }) => (row.verdict, row.why, row.fix) = (CheckVerdict::Failed, why, fix),
            Err(Stop::Skipped(why)) => (row.verdict, row.why) = (CheckVerdict::Skipped, why),
            Err(Stop::NoDriver { why, fix }) => {
                (row.verdict, row.why, row.fix) = (CheckVerdict::Failed, why, fix);
                others = false;
            }
        }
        // The end of the run removes or reports the objects that remain.
        let _ = self.clear(Some(&self.app(number, None).name)).await;
        (row, others)
    }

    async fn together(&self, number: usize, seen: &mut Vec<Seen>) -> Result<(), Stop> {
        let started = self.start(self.app(number, None), seen).await?;
        let from = clock::instant();
        self.executors(&started, 1..=MEMBERS - 1).await?;
        self.group_is_made(&started, from, seen).await?;
        self.all_wait(&started, ALL - 1, seen).await?;
        let from = clock::instant();
        self.executor(&started, MEMBERS).await?;
        self.all_start(&started, ALL, from, "after the third was created", seen).await.map(|_| ())
    }

    async fn late(&self, number: usize, seen: &mut Vec<Seen>) -> Result<(), Stop> {
        let started = self.start(self.app(number, None), seen).await?;
        let from = clock::instant();
        self.executors(&started, 1..=MEMBERS).await?;
        // If the group exists at the first poll, the order is unknown.
        let was_absent = Cell::new(false);
        let done = |observation: &Observation| {
            was_absent.set(was_absent.get() || observation.group.is_none());
            observation.group.is_some()
        };
        match self.until(&started, from, done).await? {
            Reached::Yes(_, took) if was_absent.get() => {
                seen.push(Seen {
                    what: "the PodGroup exists; it was created after all its pods".into(),
                    took: Some(took),
                });
            }
            Reached::Yes(_, took) => {
                seen.push(Seen {
                    what: "the PodGroup existed at the first poll; whether its pods are older is unknown".into(),
                    took: Some(took),
                });
            }
            Reached::No(_) => return Err(self.no_group(&started)),
        }
        self.all_start(&started, ALL, from, "after the first was created", seen).await.map(|_| ())
    }

    async fn lowered(&self, number: usize, seen: &mut Vec<Seen>) -> Result<(), Stop> {
        let started = self.start(self.app(number, None), seen).await?;
        let from = clock::instant();
        self.executors(&started, 1..=MEMBERS - 1).await?;
        self.group_is_made(&started, from, seen).await?;
        self.all_wait(&started, ALL - 1, seen).await?;
        let from = clock::instant();
        self.lower(&started, MEMBERS - 1).await?;
        let wanted = u64::from(MEMBERS - 1);
        match self.until(&started, from, |observation| observation.count() == Some(wanted)).await? {
            Reached::Yes(_, took) => {
                seen.push(Seen { what: format!("the PodGroup's count is {wanted}"), took: Some(took) });
            }
            Reached::No(observation) => {
                let why = format!(
                    "the PodGroup's count is still {}: spark-usher did not lower it",
                    shown(observation.count())
                );
                return Err(Stop::failed(why, "check the leader's log"));
            }
        }
        self.all_start(&started, ALL - 1, from, "after the driver's min-member was lowered", seen).await.map(|_| ())
    }

    async fn insufficient_capacity(&self, number: usize, seen: &mut Vec<Seen>) -> Result<(), Stop> {
        let capacity = self.pick_node(&self.app(number, None)).await?;
        let app = self.app(number, Some(&capacity));
        seen.push(Seen {
            what: format!("node {}, {}m CPU for each executor", capacity.node, capacity.cpu),
            took: None,
        });
        let started = self.start(app, seen).await?;
        let from = clock::instant();
        self.executors(&started, 1..=MEMBERS).await?;
        self.group_is_made(&started, from, seen).await?;
        self.all_wait(&started, ALL, seen).await
    }

    async fn replaced(&self, number: usize, seen: &mut Vec<Seen>) -> Result<(), Stop> {
        let started = self.start(self.app(number, None), seen).await?;
        let from = clock::instant();
        self.executors(&started, 1..=MEMBERS).await?;
        self.all_start(&started, ALL, from, "after the first was created", seen).await?;
        let done = |observation: &Observation| observation.running() == ALL && observation.has_started() != Some(false);
        let observation = match self.until_started(&started, from, done).await? {
            Reached::Yes(observation, _) => observation,
            Reached::No(observation) if observation.running() == ALL => {
                let why = format!("PodGroup {} does not say that its gang has started", started.group());
                return Err(Stop::failed(why, "check the leader's log"));
            }
            Reached::No(_) => {
                return Err(Stop::Skipped("the executors do not run, so the gang has not started".to_owned()));
            }
        };
        for lost in observation.executors().skip(1) {
            self.end_executor(lost).await?;
        }
        if self.setup.api.is_some_and(|api| !api.count_mutable) {
            // Until each replica of the webhook knows that the gang has started.
            let _ = self.hold(&started, |_| false).await?;
        }
        let from = clock::instant();
        self.executor(&started, MEMBERS + 1).await?;
        self.all_start(&started, ALL - 1, from, "after one of two lost executors was replaced", seen).await.map(|_| ())
    }

    async fn driver_deleted(&self, number: usize, seen: &mut Vec<Seen>) -> Result<(), Stop> {
        let started = self.start(self.app(number, None), seen).await?;
        let from = clock::instant();
        self.executors(&started, 1..=MEMBERS).await?;
        let observation = self.all_start(&started, ALL, from, "after the first was created", seen).await?;
        if let Some(pod) = observation.executors().find(|pod| !observation::is_owned_by(pod, &started.driver)) {
            let why = format!("executor {} has no ownerReference to its driver", observation::name(pod));
            return Err(Stop::failed(why, "check kubectl describe pod, and creators.never in the policy file"));
        }
        let from = clock::instant();
        self.end_driver(&started).await?;
        match self.until(&started, from, |observation| observation.executors().all(observation::is_deleting)).await? {
            Reached::Yes(_, took) => seen.push(Seen { what: "all executors are deleted".into(), took: Some(took) }),
            Reached::No(observation) => {
                let left = observation.executors().filter(|pod| !observation::is_deleting(pod)).count();
                let why = format!(
                    "{left} executors still exist {} s after the deletion of their driver",
                    self.timeout.as_secs()
                );
                return Err(Stop::failed(why, "check the garbage collector of kube-controller-manager"));
            }
        }
        if !self.setup.has_group() {
            return Ok(());
        }
        match self
            .until(&started, from, |observation| observation.group.as_ref().is_none_or(observation::is_deleting))
            .await?
        {
            Reached::Yes(_, took) => seen.push(Seen { what: "the PodGroup is deleted".into(), took: Some(took) }),
            Reached::No(_) => {
                let why = format!(
                    "PodGroup {} still exists {} s after the deletion of its driver",
                    started.group(),
                    self.timeout.as_secs()
                );
                return Err(Stop::failed(
                    why,
                    "check the garbage collector of kube-controller-manager, and the PodGroup's finalizers",
                ));
            }
        }
        Ok(())
    }

    async fn executors(&self, started: &Driver, ids: std::ops::RangeInclusive<u32>) -> Result<(), Stop> {
        for id in ids {
            self.executor(started, id).await?;
        }
        Ok(())
    }

    /// Waits for the PodGroup and its count, where spark-usher creates one.
    async fn group_is_made(&self, started: &Driver, from: Instant, seen: &mut Vec<Seen>) -> Result<(), Stop> {
        if !self.setup.has_group() {
            return Ok(());
        }
        let wanted = u64::from(MEMBERS);
        let done = |observation: &Observation| observation.count() == Some(wanted) || observation.bound() > 0;
        match self.until(started, from, done).await? {
            Reached::Yes(observation, took) if observation.count() == Some(wanted) => {
                seen.push(Seen { what: format!("the PodGroup's count is {wanted}"), took: Some(took) });
                Ok(())
            }
            Reached::Yes(observation, _) | Reached::No(observation) if observation.group.is_some() => {
                let why = format!("the PodGroup's count is {}: expected {wanted}", shown(observation.count()));
                Err(Stop::failed(why, "check the driver's Events, and overrides and gang.readSparkConf of the policy"))
            }
            Reached::Yes(observation, _) => Err(self.started_alone(&observation, "without a PodGroup")),
            Reached::No(_) => Err(self.no_group(started)),
        }
    }

    fn no_group(&self, started: &Driver) -> Stop {
        let why = format!("PodGroup {} does not exist after {} s", started.group(), self.timeout.as_secs());
        Stop::failed(
            why,
            "check with spark-usher doctor that a replica leads and may create PodGroups; check the leader's log",
        )
    }

    fn started_alone(&self, observation: &Observation, but: &str) -> Stop {
        let why = format!("{} of {} executors were bound {but}", observation.bound(), observation.executors().count());
        Stop::failed(
            why,
            format!("{} does not enforce the gang: check {}", self.setup.scheduler.kind, self.setup.gang_plugin()),
        )
    }

    /// Verifies that this many executors stay pending.
    async fn all_wait(&self, started: &Driver, count: usize, seen: &mut Vec<Seen>) -> Result<(), Stop> {
        match self.hold(started, |observation| observation.bound() > 0).await? {
            Ok(took) => {
                seen.push(Seen { what: format!("{count} executors wait"), took: Some(took) });
                Ok(())
            }
            Err(observation) if count == ALL => Err(self.started_alone(&observation, "although not all three fit")),
            Err(observation) => Err(self.started_alone(&observation, "before the third was created")),
        }
    }

    /// Waits until this many executors are bound, and until they run where a kubelet runs pods.
    async fn all_start(
        &self,
        started: &Driver,
        count: usize,
        from: Instant,
        since: &str,
        seen: &mut Vec<Seen>,
    ) -> Result<Observation, Stop> {
        let observation = match self.until(started, from, |observation| observation.bound() == count).await? {
            Reached::Yes(observation, took) => {
                seen.push(Seen { what: format!("all {count} executors are bound {since}"), took: Some(took) });
                observation
            }
            Reached::No(observation) => {
                let why = format!(
                    "{} of {count} executors are bound {} s {since}: {}",
                    observation.bound(),
                    self.timeout.as_secs(),
                    observation.waits()
                );
                return Err(Stop::failed(
                    why,
                    "check kubectl describe of the pods and the PodGroup, the scheduler's log, and the quota of the queue",
                ));
            }
        };
        if !observation.has_kubelet() {
            seen.push(Seen {
                what: "the driver does not run yet: doctor did not wait for executors to run".into(),
                took: None,
            });
            return Ok(observation);
        }
        match self.until_started(started, from, |observation| observation.running() == count).await? {
            Reached::Yes(_, took) => {
                seen.push(Seen { what: format!("all {count} executors run"), took: Some(took) });
            }
            // Image pulls and kubelets are not part of gang scheduling.
            Reached::No(observation) => {
                let what = format!(
                    "{} of {count} executors run so far: image pulls and kubelets are not part of the test",
                    observation.running()
                );
                seen.push(Seen { what, took: None });
            }
        }
        Ok(observation)
    }
}

fn shown(count: Option<u64>) -> String {
    count.map_or_else(|| "not set".to_owned(), |count| count.to_string())
}
