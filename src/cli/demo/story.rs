//! What happens while `demo --keep` runs, so that the web page and the commands have something to show: applications come and go,
//! one loses executors, and a gang waits until its last executors are requested.

use std::time::Duration;

use serde_json::Value;

use super::run::Stage;
use super::scenario::Scenario;
use crate::json::{list_mut, set, text};
use crate::sandbox;
use crate::spark::labels;

/// The namespaces in which it happens.
pub(super) const NAMESPACES: [&str; 3] = ["etl", "ml", "reports"];

/// One application of the story.
struct Job {
    name: &'static str,
    /// How often it has run before.
    number: usize,
    /// `spark.executor.instances`.
    executors: usize,
}

impl Job {
    fn name(&self) -> String {
        format!("{}-{:03}", self.name, self.number)
    }

    /// The job as a scenario, with the pods of a recorded one.
    fn scenario(&self, recorded: &Scenario) -> Scenario {
        let name = self.name();
        let selector = format!("spark-{name}");
        let properties = format!("spark.executor.instances={}\n", self.executors);
        let mut driver = recorded.driver.clone();
        self.label(&mut driver, &format!("{name}-driver"), &selector);
        let own = recorded.driver_config_map();
        for volume in list_mut(&mut driver, &["spec", "volumes"]) {
            if own == Some(text(volume, &["configMap", "name"])) {
                set(volume, &["configMap", "name"], format!("{name}-driver-conf"));
            }
        }
        let executors = recorded.executors.iter().cycle().take(self.executors).enumerate().map(|(at, executor)| {
            let (mut executor, id) = (executor.clone(), at + 1);
            self.label(&mut executor, &format!("{name}-exec-{id}"), &selector);
            set(&mut executor, &["metadata", "labels", labels::EXEC_ID], id.to_string());
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

    fn label(&self, pod: &mut Value, name: &str, selector: &str) {
        set(pod, &["metadata", "name"], name);
        set(pod, &["metadata", "labels", labels::APP_SELECTOR], selector);
        set(pod, &["metadata", "labels", "spark-app-name"], self.name);
    }
}

/// The pod's containers exit with this code after this time.
fn exits(pod: &mut Value, code: u8, after: u64) {
    set(pod, &["metadata", "annotations", sandbox::EXIT_ANNOTATION], format!("{code}@{after}s"));
}

/// Plays the story until it is dropped. `stage` returns the stage in a namespace.
pub(super) async fn play<'s>(stage: impl Fn(&str) -> Stage<'s>, recorded: &Scenario) -> anyhow::Result<()> {
    let [etl, ml, reports] = NAMESPACES.map(&stage);
    tokio::try_join!(
        // Two at a time, so that one comes while another one ends.
        come_and_go(&etl, recorded, "hourly-sales", Duration::ZERO),
        come_and_go(&etl, recorded, "clickstream", Duration::from_secs(7)),
        loses_executors(&ml, recorded),
        waits(&reports, recorded),
    )?;
    Ok(())
}

async fn come_and_go(
    stage: &Stage<'_>,
    recorded: &Scenario,
    name: &'static str,
    after: Duration,
) -> anyhow::Result<()> {
    tokio::time::sleep(after).await;
    for number in 1.. {
        let mut job = Job { name, number, executors: 3 }.scenario(recorded);
        for (executor, after) in job.executors.iter_mut().zip(9..) {
            exits(executor, 0, after);
        }
        exits(&mut job.driver, 0, 14);
        let driver = stage.start_driver(&job).await?;
        stage.create_executors(&job, &driver, 0..3).await?;
        tokio::time::sleep(Duration::from_secs(25)).await;
        stage.delete(job.driver_name()).await?;
    }
    Ok(())
}

async fn loses_executors(stage: &Stage<'_>, recorded: &Scenario) -> anyhow::Result<()> {
    for number in 1.. {
        let mut job = Job { name: "train-model", number, executors: 6 }.scenario(recorded);
        for (executor, (code, after)) in job.executors.iter_mut().zip([(137, 6), (52, 15), (1, 40)]) {
            exits(executor, code, after);
        }
        let driver = stage.start_driver(&job).await?;
        stage.create_executors(&job, &driver, 0..6).await?;
        tokio::time::sleep(Duration::from_secs(120)).await;
        stage.delete(job.driver_name()).await?;
    }
    Ok(())
}

async fn waits(stage: &Stage<'_>, recorded: &Scenario) -> anyhow::Result<()> {
    for number in 1.. {
        let job = Job { name: "quarterly-report", number, executors: 8 }.scenario(recorded);
        let driver = stage.start_driver(&job).await?;
        stage.create_executors(&job, &driver, 0..5).await?;
        tokio::time::sleep(Duration::from_secs(60)).await;
        stage.create_executors(&job, &driver, 5..8).await?;
        tokio::time::sleep(Duration::from_secs(30)).await;
        stage.delete(job.driver_name()).await?;
    }
    Ok(())
}
