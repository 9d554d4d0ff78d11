//! The histories of `why`: what happened to a pod or an application, in order. The report has what spark-usher knows; pods and Events are read
//! from the API server.

use std::collections::BTreeSet;
use std::time::Duration;

use super::query::Source;
use usher_kube::client::Brief;
use usher_report::views::{AppReport, HistoryBuilder, HistoryReport, Of, WhyReport};
use usher_server::cluster::list::pod_and_events;

/// At most this many histories are done, because each costs two requests or more.
const MAX_HISTORIES: usize = 5;
/// How long the API server may take to answer if a running spark-usher has answered.
const MAX_WAIT: Duration = Duration::from_secs(3);
/// At most this many PodGroups of an application are asked for Events.
const MAX_GROUPS: usize = 3;

/// Adds the histories. `is_needed`: whether no replica has answered. Returns why pods and Events could not be read, if so: the histories
/// have the rest then.
pub(super) async fn add(source: &Source, report: &mut WhyReport, is_needed: bool) -> Option<String> {
    // A running spark-usher has answered already: the API server may be out of reach.
    let limit = if is_needed { Duration::MAX } else { MAX_WAIT };
    let (cluster, mut problem) = match tokio::time::timeout(limit, source.reach()).await {
        Ok(Ok(cluster)) => (Some(cluster.client), None),
        Ok(Err(error)) if is_needed => (None, Some(format!("{error:#}"))),
        Ok(Err(_)) | Err(_) => (None, None),
    };
    let mut reader = Reader { client: cluster, problem: &mut problem };
    let mut histories = Vec::new();
    let mut done = BTreeSet::new();
    for Of { app, what: executor, .. } in report.executors.iter().take(MAX_HISTORIES) {
        let mut history = reader.pod(namespace(app), &executor.pod, Some(&executor.uid)).await;
        executor.driver_row.iter().for_each(|row| history.driver_row(row));
        let exits = report.exits.iter().filter(|exit| exit.what.uid == executor.uid);
        exits.for_each(|exit| history.exit(&exit.what, false));
        done.insert(executor.uid.as_str());
        histories.push(history.finish(&format!("{}/{}", namespace(app), executor.pod)));
    }
    let left = report.exits.iter().filter(|exit| !done.contains(exit.what.uid.as_str()));
    for Of { app, what: exit, .. } in left.take(MAX_HISTORIES.saturating_sub(histories.len())) {
        let mut history = reader.pod(namespace(app), &exit.pod, Some(&exit.uid)).await;
        exit.driver_row.iter().for_each(|row| history.driver_row(row));
        history.exit(exit, false);
        histories.push(history.finish(&format!("{}/{}", namespace(app), exit.pod)));
    }
    for app in report.apps.iter().take(MAX_HISTORIES) {
        histories.push(reader.app(app).await);
    }
    report.histories = histories.into_iter().filter(|history| !history.entries.is_empty()).collect();
    problem
}

struct Reader<'t> {
    client: Option<kube::Client>,
    problem: &'t mut Option<String>,
}

impl Reader<'_> {
    /// Begins a history with the pod and its Events.
    async fn pod(&mut self, namespace: &str, name: &str, uid: Option<&str>) -> HistoryBuilder {
        let mut history = HistoryBuilder::default();
        self.read(&mut history, namespace, name, uid).await;
        history
    }

    async fn read(&mut self, history: &mut HistoryBuilder, namespace: &str, name: &str, uid: Option<&str>) {
        let Some(client) = &self.client else { return };
        let (pod, events) = pod_and_events(client, namespace, name, uid).await;
        match pod {
            Ok(pod) => pod.iter().for_each(|pod| history.pod(pod)),
            Err(error) => *self.problem = Some(format!("pods: {}", Brief(&error))),
        }
        match events {
            Ok(events) => history.events(&events),
            Err(error) => *self.problem = Some(format!("Events: {}", Brief(&error))),
        }
    }

    async fn app(&mut self, app: &AppReport) -> HistoryReport {
        let mut history = HistoryBuilder::default();
        if let Some(driver) = &app.driver.pod {
            self.read(&mut history, &app.namespace, driver, None).await;
        }
        for group in app.groups.iter().take(MAX_GROUPS) {
            self.read(&mut history, &app.namespace, &group.name, None).await;
        }
        app.exits.iter().for_each(|exit| history.exit(exit, true));
        app.deletions.iter().for_each(|deletion| history.deletion(deletion));
        history.finish(&app.title())
    }
}

/// The namespace of `namespace/selector`.
fn namespace(app: &str) -> &str {
    app.split('/').next().unwrap_or_default()
}
