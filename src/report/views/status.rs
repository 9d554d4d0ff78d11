//! How an application is, in one word: what a list of applications shows first.

use std::cmp::Reverse;

use super::recovery_reports::ShortageCauseReport;
use super::reports::{AppReport, ExecutorReport, Lacking, Of};
use usher_core::lifecycle::cause::Cause;
use usher_core::recovery::shortage_cause::ShortageCause;
use usher_spark::text::vocabulary;

vocabulary! {
    /// How an application is. The order is that of lists: what needs attention first.
    AppStatus
    /// It lacks executors.
    Lacks = "lacks";
    /// Its driver failed, ended or is gone, and executors are left.
    LeftOver = "leftover";
    /// Its driver failed.
    Failed = "failed";
    /// A recovery rule found something, an executor is in trouble, or nothing would delete its executors.
    Trouble = "trouble";
    /// It has executors, and their driver is not known.
    Unknown = "unknown";
    /// Its driver has not started.
    Starting = "starting";
    /// Its driver runs; how many executors it wants is not known.
    Running = "running";
    /// It has all executors that it wants.
    Ok = "ok";
    /// Its driver is being deleted, or its executors exited as expected and its driver still runs.
    Ending = "ending";
    /// It has ended, and nothing is left that needs attention.
    Ended = "ended";
}

impl AppReport {
    /// How it is.
    pub fn status(&self) -> AppStatus {
        let state = self.driver_state();
        // An application that is being deleted needs no more executors.
        if state == "terminating" {
            return AppStatus::Ending;
        }
        if self.shortage.is_some() {
            return AppStatus::Lacks;
        }
        if self.left_over() > 0 {
            return AppStatus::LeftOver;
        }
        if state == "failed" {
            return AppStatus::Failed;
        }
        if !self.findings.is_empty() || !self.troubled.is_empty() || self.unowned > 0 {
            return AppStatus::Trouble;
        }
        match state {
            "pending" => AppStatus::Starting,
            "succeeded" | "gone" | "no pods" => AppStatus::Ended,
            // Executors that exited as expected are not lacking.
            "running" | "alive" if self.lacking() == Lacking::None && self.running() < self.wanted() => {
                AppStatus::Ending
            }
            "running" | "alive" if self.lacking() == Lacking::None => AppStatus::Ok,
            "running" | "alive" => AppStatus::Running,
            _ => AppStatus::Unknown,
        }
    }

    /// How it is, with the number of executors that it lacks: `lacks 3`, `failed`, `ok`.
    pub fn status_text(&self) -> String {
        match self.status() {
            AppStatus::Lacks => format!("lacks {}", self.lacking().text()),
            status => status.as_str().to_owned(),
        }
    }

    /// What other commands accept for it: `namespace:selector`.
    pub fn id(&self) -> String {
        format!("{}:{}", self.namespace, self.app)
    }

    /// Its namespace and name, and its id: `team-a/nightly (spark-…)`.
    pub fn title(&self) -> String {
        title(&self.namespace, self.shown_name(), &self.app)
    }

    /// What orders a list: what needs attention first, those that lack the most executors first, and the latest of those that are
    /// alike.
    pub fn urgency(&self) -> impl Ord + use<> {
        (self.status(), Reverse(self.lacking().count()), Reverse(self.started.clone()))
    }

    /// Since when it is so, RFC 3339; `None` if that is not known.
    pub fn since(&self) -> Option<&str> {
        match self.status() {
            AppStatus::Lacks => self.shortage.as_ref()?.since.as_deref(),
            // Executors without an owner have had none since they exist.
            AppStatus::Trouble => {
                let found = self.findings.iter().map(|finding| finding.since.as_str()).min();
                found.or(self.started.as_deref().filter(|_| self.unowned > 0))
            }
            AppStatus::LeftOver | AppStatus::Failed => self.driver.ended.as_deref(),
            AppStatus::Ended => {
                self.driver.ended.as_deref().or_else(|| self.exits.first().map(|exit| exit.at.as_str()))
            }
            AppStatus::Unknown | AppStatus::Starting | AppStatus::Running | AppStatus::Ok | AppStatus::Ending => None,
        }
    }

    /// How many executors run.
    pub fn running(&self) -> usize {
        self.executors.get("running").copied().unwrap_or_default()
    }

    fn wanted(&self) -> usize {
        self.target.as_ref().map_or(0, |target| usize::try_from(target.count).unwrap_or(usize::MAX))
    }

    /// How many executors run, and how many it wants: `3 of 6`, `3 of ≥2`; `3 of –` while that is not known. Without a driver that wants
    /// any, how many run.
    pub fn running_text(&self) -> String {
        let running = self.running();
        match &self.target {
            Some(target) => format!("{running} of {}{}", if target.at_least { "≥" } else { "" }, target.count),
            None if self.lacking() == Lacking::Unknown => format!("{running} of –"),
            None => running.to_string(),
        }
    }

    /// How many executors its driver, which is gone, has left behind; those that are being deleted do not count.
    pub(crate) fn left_over(&self) -> usize {
        let is_left = |state: &str| !matches!(state, "succeeded" | "failed" | "deleted" | "terminating");
        let left = self.executors.iter().filter(|(state, _)| is_left(state)).map(|(_, count)| *count);
        if self.driver.liveness == "gone" { left.sum() } else { 0 }
    }

    /// Whether its driver failed, or is gone while executors are left.
    pub fn is_driver_in_trouble(&self) -> bool {
        self.driver_state() == "failed" || self.left_over() > 0
    }

    /// How many executors are in which state: `3 running, 2 pending`.
    pub fn states_text(&self) -> String {
        let states = self.executors.iter().map(|(state, count)| format!("{count} {state}"));
        states.collect::<Vec<_>>().join(", ")
    }

    /// What is wrong with it, in one line; empty if nothing is: why it lacks executors, else what is wrong with its driver, else what a
    /// recovery rule found, else what is wrong with one of its executors.
    pub fn trouble(&self) -> String {
        if let Some(shortage) = &self.shortage {
            let is_slow =
                |cause: &ShortageCauseReport| ShortageCause::of(&cause.cause) == Some(ShortageCause::Starting);
            // A rule knows for how long, and why.
            let finding = self.findings.first().filter(|_| shortage.causes.iter().all(is_slow));
            return match finding {
                Some(finding) => format!("{}: {}", finding.pod, finding.message),
                None => shortage.why(),
            };
        }
        if self.is_driver_in_trouble() {
            let driver = if self.driver_state() == "failed" { "the driver failed" } else { "the driver is gone" };
            let left =
                Some(self.left_over()).filter(|left| *left > 0).map(|left| format!(", and {left} executors are left"));
            let why = self.driver.why.as_ref().map(|why| format!(": {why}"));
            return [driver.to_owned(), left.unwrap_or_default(), why.unwrap_or_default()].concat();
        }
        if let Some(finding) = self.findings.first() {
            return format!("{}: {}", finding.pod, finding.message);
        }
        match self.troubled.first() {
            Some(ExecutorReport { pod, state, why, done, .. }) => {
                format!("{pod}: {}", why.as_ref().or(done.as_ref()).unwrap_or(state))
            }
            None if self.driver.state.as_deref() == Some("pending") && self.driver.why.is_some() => {
                format!("driver: {}", self.driver.why.as_deref().unwrap_or_default())
            }
            None if self.unowned > 0 => {
                format!("{} without an ownerReference to a driver, and the driver is not known", self.unowned)
            }
            None => String::new(),
        }
    }

    /// What is wrong with it; else, of how many of its executors the exits were abnormal.
    pub fn remark(&self) -> String {
        let trouble = self.trouble();
        if !trouble.is_empty() {
            return trouble;
        }
        let abnormal = self.ended.iter().filter_map(|(word, count)| {
            let cause = Cause::of(word).filter(|cause| cause.is_abnormal())?;
            Some(format!("{count} {}", cause.phrase()))
        });
        let abnormal = abnormal.collect::<Vec<_>>().join(", ");
        if abnormal.is_empty() { abnormal } else { format!("Executors exited: {abnormal}") }
    }
}

/// The namespace and the name of an application, and its id if that is not its name.
fn title(namespace: &str, name: &str, id: &str) -> String {
    if name == id { format!("{namespace}/{id}") } else { format!("{namespace}/{name} ({id})") }
}

impl<T> Of<T> {
    /// Its application: as [`AppReport::title`].
    pub fn title(&self) -> String {
        match self.app.split_once('/') {
            Some((namespace, id)) if !self.name.is_empty() => title(namespace, &self.name, id),
            _ => self.app.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// An application with a driver of this liveness and state, and these executors; it wants `target`.
    fn app(liveness: &str, state: Option<&str>, executors: &Value, target: Option<u32>) -> AppReport {
        let target =
            target.map(|count| json!({"count": count, "atLeast": false, "source": "spark.executor.instances"}));
        serde_json::from_value(json!({"namespace": "a", "app": "spark-1", "name": "etl", "executors": executors, "target": target,
            "driver": {"liveness": liveness, "pod": "etl-driver", "state": state, "node": null, "why": null, "ended": "2026-11-24T09:00:00Z"},
            "troubled": [], "ended": {}, "exits": []}))
        .unwrap()
    }

    fn lacking(app: AppReport) -> AppReport {
        let shortage = json!({"target": 3, "source": "x", "running": 1, "pending": 0, "since": null,
            "causes": [{"cause": "quota", "count": 2, "message": "full"}]});
        AppReport { shortage: Some(serde_json::from_value(shortage).unwrap()), ..app }
    }

    #[test]
    fn status_is_what_needs_attention_most() {
        let (none, three) = (json!({}), json!({"running": 3}));
        for (liveness, state, executors, target, expected) in [
            ("alive", Some("running"), &three, Some(3), AppStatus::Ok),
            ("alive", Some("running"), &three, None, AppStatus::Running),
            // Its executors exited as expected.
            ("alive", Some("running"), &json!({"running": 1}), Some(3), AppStatus::Ending),
            ("alive", Some("pending"), &none, Some(3), AppStatus::Starting),
            ("alive", Some("terminating"), &three, Some(3), AppStatus::Ending),
            ("gone", Some("succeeded"), &none, None, AppStatus::Ended),
            ("gone", Some("succeeded"), &json!({"succeeded": 2, "failed": 1}), None, AppStatus::Ended),
            ("gone", None, &none, None, AppStatus::Ended),
            ("unknown", None, &none, None, AppStatus::Ended),
            ("gone", Some("failed"), &none, None, AppStatus::Failed),
            ("gone", Some("failed"), &json!({"terminating": 2}), None, AppStatus::Failed),
            // What it holds is more urgent than that it failed.
            ("gone", Some("failed"), &three, None, AppStatus::LeftOver),
            ("gone", None, &json!({"pending": 1}), None, AppStatus::LeftOver),
            ("unknown", None, &three, None, AppStatus::Unknown),
        ] {
            let app = app(liveness, state, executors, target);
            assert_eq!(app.status(), expected, "{liveness} {state:?} {executors} {target:?}");
        }
        let short = lacking(app("alive", Some("running"), &json!({"running": 1}), Some(3)));
        assert_eq!((short.status(), short.status_text()), (AppStatus::Lacks, "lacks 2".to_owned()));
        // One that is being deleted gets no more executors.
        let deleted = lacking(app("alive", Some("terminating"), &json!({"running": 1}), Some(3)));
        assert_eq!(deleted.status(), AppStatus::Ending);
        let unowned = AppReport { unowned: 2, ..app("unknown", None, &three, None) };
        assert_eq!(unowned.status(), AppStatus::Trouble);
    }

    #[test]
    fn driver_that_failed_says_what_it_has_left() {
        let failed = app("gone", Some("failed"), &json!({"running": 2, "pending": 1, "terminating": 4}), None);
        assert_eq!((failed.left_over(), &*failed.trouble()), (3, "the driver failed, and 3 executors are left"));
        assert_eq!(failed.since(), Some("2026-11-24T09:00:00Z"));
        assert_eq!(failed.states_text(), "1 pending, 2 running, 4 terminating");
        assert_eq!(failed.title(), "a/etl (spark-1)");
        let title_of = |name: &str| Of { app: "a/spark-1".to_owned(), name: name.to_owned(), what: () }.title();
        assert_eq!(
            (title_of("etl"), title_of("spark-1"), title_of("")),
            ("a/etl (spark-1)".into(), "a/spark-1".into(), "a/spark-1".into())
        );
    }

    #[test]
    fn finding_explains_executors_that_start_for_long_and_exits_are_remarked() {
        let mut slow = lacking(app("alive", Some("running"), &json!({"running": 1}), Some(3)));
        slow.findings = serde_json::from_value(
            json!([{"rule": "stuck", "pod": "exec-2", "uid": "u", "since": "2026-11-24T09:00:00Z",
            "message": "has not started on node-1", "outcome": "x"}]),
        )
        .unwrap();
        assert_eq!(slow.trouble(), "Quota is used up: full");
        slow.shortage.as_mut().unwrap().causes[0].cause = "starting".to_owned();
        assert_eq!(slow.trouble(), "exec-2: has not started on node-1");
        let mut over = app("gone", None, &json!({}), None);
        assert_eq!(over.remark(), "");
        over.ended = [("deleted".to_owned(), 3), ("oom-killed".to_owned(), 2)].into();
        assert_eq!(over.remark(), "Executors exited: 2 out of memory (container)");
        assert_eq!(over.trouble(), "");
        let unowned = AppReport {
            unowned: 1,
            started: Some("2026-11-24T08:00:00Z".to_owned()),
            ..app("unknown", None, &json!({"running": 1}), None)
        };
        assert_eq!((unowned.status(), unowned.since()), (AppStatus::Trouble, Some("2026-11-24T08:00:00Z")));
    }

    #[test]
    fn what_is_not_known_is_not_zero() {
        let running = |target| app("alive", Some("running"), &json!({"running": 3}), target).running_text();
        assert_eq!((running(Some(3)), running(None)), ("3 of 3".to_owned(), "3 of –".to_owned()));
        assert_eq!(app("gone", None, &json!({"running": 3}), None).running_text(), "3");
    }
}
