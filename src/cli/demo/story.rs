//! What happens while `demo --keep` runs, so that the web page and the commands have something to show: applications come and go,
//! one loses executors, a gang waits until its last executors are requested, a node rejects executors, and one does not start an executor.

use std::time::Duration;

use futures::future::join_all;
use serde_json::Value;

use super::run::Stage;
use super::scenario::Scenario;
use usher_spark::hash::hash_of;
use usher_spark::json::{list_mut, set, text};
use usher_spark::labels;

/// The namespaces in which it happens.
pub(super) const NAMESPACES: [&str; 3] = ["etl", "ml", "reports"];

/// An application that runs again and again.
struct Job {
    namespace: &'static str,
    name: &'static str,
    /// Seconds until it runs first.
    begins_after: u64,
    /// `spark.executor.instances`.
    executors: usize,
    /// The exit codes of its first executors, and after how many seconds they exit; the others run until the driver is deleted.
    executor_exits: &'static [(u8, u64)],
    /// The same of its driver.
    driver_exit: Option<(u8, u64)>,
    /// What the node does to its last two executors ([`usher_sandbox::NODE_ANNOTATION`]); empty if it starts them.
    node: &'static str,
    /// How many executors are requested, and for how many seconds nothing else happens then. At the end it is deleted.
    steps: &'static [(usize, u64)],
}

const SHORT: Job = Job {
    namespace: "etl",
    name: "hourly-sales",
    begins_after: 0,
    executors: 3,
    executor_exits: &[(0, 9), (0, 10), (0, 11)],
    driver_exit: Some((0, 14)),
    node: "",
    steps: &[(3, 25)],
};

const JOBS: [Job; 7] = [
    SHORT,
    // It begins while the other one ends.
    Job { name: "clickstream", begins_after: 7, ..SHORT },
    // Its node rejects two executors, which its driver does not replace.
    Job {
        name: "sessions",
        executors: 4,
        executor_exits: &[],
        driver_exit: None,
        node: "refuses",
        steps: &[(4, 180)],
        ..SHORT
    },
    // Its driver fails.
    Job {
        name: "invoices",
        begins_after: 3,
        executor_exits: &[],
        driver_exit: Some((1, 20)),
        steps: &[(3, 90)],
        ..SHORT
    },
    // It loses three executors: out of memory, a JVM without memory, an error.
    Job {
        namespace: "ml",
        name: "train-model",
        executors: 6,
        executor_exits: &[(137, 6), (52, 15), (1, 40)],
        driver_exit: None,
        steps: &[(6, 120)],
        ..SHORT
    },
    // Its node does not start two executors.
    Job {
        namespace: "ml",
        name: "features",
        executors: 4,
        executor_exits: &[],
        driver_exit: None,
        node: "starts-nothing",
        steps: &[(4, 150)],
        ..SHORT
    },
    // Its gang waits for three executors.
    Job {
        namespace: "reports",
        name: "quarterly-report",
        executors: 8,
        executor_exits: &[],
        driver_exit: None,
        steps: &[(5, 60), (3, 30)],
        ..SHORT
    },
];

/// After an error, a job runs again after this time.
const PAUSE: Duration = Duration::from_secs(5);

/// Plays the story until it is dropped. `stage` returns the stage in a namespace.
pub(super) async fn play<'s>(stage: impl Fn(&str) -> Stage<'s>, recorded: &Scenario) {
    join_all(JOBS.iter().map(|job| job.play(stage(job.namespace), recorded))).await;
}

impl Job {
    async fn play(&self, stage: Stage<'_>, recorded: &Scenario) {
        tokio::time::sleep(Duration::from_secs(self.begins_after)).await;
        for number in 1.. {
            let scenario = self.scenario(number, recorded);
            // A user may delete its pods at any time: then it begins anew.
            if let Err(error) = self.run(&stage, &scenario).await {
                tracing::debug!(job = self.name, number, error = %format!("{error:#}"), "an application of the demo was stopped");
                tokio::time::sleep(PAUSE).await;
            }
            if let Err(error) = stage.clean_up(&scenario).await {
                tracing::debug!(job = self.name, number, error = %format!("{error:#}"), "cannot delete an application of the demo");
            }
        }
    }

    async fn run(&self, stage: &Stage<'_>, scenario: &Scenario) -> anyhow::Result<()> {
        let driver = stage.start_driver(scenario).await?;
        let mut requested = 0;
        for (count, seconds) in self.steps {
            stage.create_executors(scenario, &driver, requested..requested + count).await?;
            requested += count;
            tokio::time::sleep(Duration::from_secs(*seconds)).await;
        }
        Ok(())
    }

    /// The job as a scenario, with the pods of a recorded one.
    fn scenario(&self, number: usize, recorded: &Scenario) -> Scenario {
        // As Spark names them: 16 hexadecimal digits in the names of pods, 32 in the id.
        let unique = hash_of(&(self.namespace, self.name, number));
        let name = format!("{}-{unique:016x}", self.name);
        let selector = format!("spark-{:016x}{unique:016x}", hash_of(&(unique, self.name)));
        let properties = format!("spark.executor.instances={}\n", self.executors);
        let mut driver = recorded.driver.clone();
        self.label(&mut driver, &format!("{name}-driver"), &selector, self.driver_exit);
        let config_map = recorded.driver_config_map();
        for volume in list_mut(&mut driver, &["spec", "volumes"]) {
            if config_map == Some(text(volume, &["configMap", "name"])) {
                set(volume, &["configMap", "name"], format!("{name}-driver-conf"));
            }
        }
        let executors = recorded.executors.iter().cycle().take(self.executors).zip(1..).map(|(executor, id)| {
            let mut executor = executor.clone();
            let exit = self.executor_exits.get(id - 1).copied();
            self.label(&mut executor, &format!("{name}-exec-{id}"), &selector, exit);
            set(&mut executor, &["metadata", "labels", labels::EXEC_ID], id.to_string());
            if !self.node.is_empty() && id + 2 > self.executors {
                set(&mut executor, &["metadata", "annotations", usher_sandbox::NODE_ANNOTATION], self.node);
            }
            executor
        });
        Scenario {
            driver,
            executors: executors.collect(),
            properties: Some(properties.into()),
            stateful_set: None,
            ..*recorded
        }
    }

    fn label(&self, pod: &mut Value, name: &str, selector: &str, exit: Option<(u8, u64)>) {
        set(pod, &["metadata", "name"], name);
        set(pod, &["metadata", "labels", labels::APP_SELECTOR], selector);
        set(pod, &["metadata", "labels", "spark-app-name"], self.name);
        if let Some((code, after)) = exit {
            set(pod, &["metadata", "annotations", usher_sandbox::EXIT_ANNOTATION], format!("{code}@{after}s"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_job_requests_all_its_executors_in_a_namespace_of_the_story() {
        let recorded = super::super::scenario::all().unwrap().remove(1);
        for job in &JOBS {
            assert!(NAMESPACES.contains(&job.namespace), "{}", job.name);
            assert_eq!(job.steps.iter().map(|(count, _)| count).sum::<usize>(), job.executors, "{}", job.name);
            let (one, two) = (job.scenario(1, &recorded), job.scenario(2, &recorded));
            assert_ne!((one.driver_name(), one.driver_config_map()), (two.driver_name(), two.driver_config_map()));
            assert_eq!(one.executors.len(), job.executors);
        }
    }
}
