//! What Spark's driver reports of an executor that exited, byte for byte: `ExecutorPodsLifecycleManager.findExitReason`,
//! `describeExitCode` and `KubernetesUtils.containersDescription`. The texts are those of Spark 3.2 to 4.3; older versions
//! word a failure a little differently (`docs/spark.md#exit-codes-and-reasons`).

use std::fmt::Write;

use super::diagnostics::{ContainerDiagnostics, ContainerKind, ContainerStateKind, PodDiagnostics};
use super::exit_code::explain;

/// Spark's `ExecutorExited`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SparkExit {
    /// Its exit code; -1 if there is none (`ExecutorPodsLifecycleManager.UNKNOWN_EXIT_CODE`).
    pub exit_code: i32,
    /// `exitCausedByApp`: whether the failure counts against the application's tasks.
    pub caused_by_app: bool,
    pub message: String,
}

/// The exit code that Spark reports if no container has one.
pub(crate) const UNKNOWN_EXIT_CODE: i32 = -1;

/// A pod that was deleted (`PodDeleted`).
pub fn deleted(exec_id: u64, diagnostics: &PodDiagnostics) -> SparkExit {
    SparkExit {
        exit_code: diagnostics.exit_code.unwrap_or(UNKNOWN_EXIT_CODE),
        caused_by_app: false,
        message: format!("The executor with id {exec_id} was deleted by a user or the framework."),
    }
}

/// A pod that failed or succeeded: Spark blames the application for both, evictions included.
pub fn ended(exec_id: u64, diagnostics: &PodDiagnostics) -> SparkExit {
    let exit_code = diagnostics.exit_code.unwrap_or(UNKNOWN_EXIT_CODE);
    let line = |what: &str, text: &Option<Box<str>>| {
        text.as_deref().map_or_else(String::new, |text| format!("The API gave the following {what}: {text}"))
    };
    let message = format!(
        "\nThe executor with id {exec_id} exited with exit code {exit_code}{}.\n{}\n{}\n\n\
         The API gave the following container statuses:\n\n{}\n      ",
        explain(exit_code),
        line("brief reason", &diagnostics.reason),
        line("message", &diagnostics.message),
        containers(diagnostics, 1)
    );
    SparkExit { exit_code, caused_by_app: true, message: strip_margin(&message) }
}

/// Scala's `stripMargin`, which Spark applies after it has inserted the API's text: a line that begins with blanks
/// and a bar loses them.
fn strip_margin(text: &str) -> String {
    let lines = text
        .split_inclusive('\n')
        .map(|line| line.trim_start_matches(|c| c <= ' ' && c != '\n').strip_prefix('|').unwrap_or(line));
    lines.collect()
}

/// Whether the first line of an executor's `removeReason` is that of a pod that failed or succeeded, for which Spark blames the application
/// ([`ended`]).
pub fn is_caused_by_app(remove_reason: &str) -> bool {
    remove_reason.starts_with("The executor with id ") && remove_reason.contains(" exited with exit code ")
}

/// A pod that a poll did not find. Times in milliseconds since 1970.
pub fn missing(exec_id: u64, registered_ms: i64, polled_ms: i64, delta_ms: i64) -> SparkExit {
    SparkExit {
        exit_code: UNKNOWN_EXIT_CODE,
        caused_by_app: false,
        message: format!(
            "The executor with ID {exec_id} (registered at {registered_ms} ms) was not found in the cluster at the \
             polling time ({polled_ms} ms) which is after the accepted detect delta time ({delta_ms} ms) configured by \
             `spark.kubernetes.executor.missingPodDetectDelta`. The executor may have been deleted but the driver \
             missed the deletion event. Marking this executor as failed."
        ),
    }
}

/// `KubernetesUtils.containersDescription`: one block per container.
pub fn containers(diagnostics: &PodDiagnostics, indent: usize) -> String {
    let blocks: Vec<String> = diagnostics
        .containers
        .iter()
        .filter(|container| container.kind == ContainerKind::Main)
        .map(|one| block(one, indent))
        .collect();
    blocks.join("\n\n")
}

fn block(container: &ContainerDiagnostics, indent: usize) -> String {
    let mut out = String::new();
    let mut line = |key: &str, value: &str| {
        let value = if value.is_empty() { "N/A" } else { value };
        // Writing to a string does not fail.
        let _ = write!(out, "\n{:\t<indent$} {key}: {value}", "");
    };
    line("container name", &container.name);
    line("container image", &container.image);
    match &container.state {
        ContainerStateKind::Unknown => line("container state", ""),
        ContainerStateKind::Running { since, .. } => {
            line("container state", "running");
            line("container started at", since);
        }
        ContainerStateKind::Waiting(words) => {
            line("container state", "waiting");
            line("pending reason", &words.reason);
        }
        ContainerStateKind::Ended(ended) => {
            line("container state", "terminated");
            line("container started at", ended.started.as_deref().unwrap_or_default());
            line("container finished at", ended.finished.as_deref().unwrap_or_default());
            line("exit code", &ended.code.to_string());
            line("termination reason", ended.reason.as_deref().unwrap_or_default());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::Pod;

    #[test]
    fn failure_text_equals_that_of_spark() {
        let json = r#"{"metadata":{"labels":{"spark-version":"4.3.0"}},
            "status":{"phase":"Failed","reason":"Evicted","message":"The node was low on resource: memory.",
            "containerStatuses":[{"name":"spark-kubernetes-executor","image":"spark:4.3.0","state":{"terminated":{
                "exitCode":137,"reason":"Error","startedAt":"2026-11-21T00:00:00Z","finishedAt":"2026-11-21T00:01:00Z"}}},
            {"name":"sidecar","state":{"waiting":{"reason":"ImagePullBackOff"}}}]}}"#;
        let diagnostics = PodDiagnostics::of(&Pod::read_whole(json.as_bytes()).unwrap(), true).unwrap();
        let view = ended(7, &diagnostics);
        assert!(view.caused_by_app && view.exit_code == 137);
        assert_eq!(
            view.message,
            "\nThe executor with id 7 exited with exit code 137(SIGKILL, possible container OOM).\n\
             The API gave the following brief reason: Evicted\n\
             The API gave the following message: The node was low on resource: memory.\n\n\
             The API gave the following container statuses:\n\n\
             \n\t container name: spark-kubernetes-executor\n\t container image: spark:4.3.0\n\t container state: terminated\
             \n\t container started at: 2026-11-21T00:00:00Z\n\t container finished at: 2026-11-21T00:01:00Z\
             \n\t exit code: 137\n\t termination reason: Error\n\n\
             \n\t container name: sidecar\n\t container image: N/A\n\t container state: waiting\
             \n\t pending reason: ImagePullBackOff\n      "
        );
    }

    #[test]
    fn texts_of_deleted_missing_and_unexplained_executors_equal_those_of_spark() {
        assert_eq!(
            deleted(3, &PodDiagnostics::default()).message,
            "The executor with id 3 was deleted by a user or the framework."
        );
        assert!(missing(3, 1000, 90_000, 30_000).message.starts_with(
            "The executor with ID 3 (registered at 1000 ms) was not found in the cluster at the polling time (90000 ms) \
             which is after the accepted detect delta time (30000 ms) configured by \
             `spark.kubernetes.executor.missingPodDetectDelta`. The executor may"
        ));
        assert_eq!(deleted(3, &PodDiagnostics { exit_code: Some(137), ..PodDiagnostics::default() }).exit_code, 137);
        assert_eq!(strip_margin("a\n  |b\n c|\n\t|\n|d"), "a\nb\n c|\n\nd");
        let nothing = ended(1, &PodDiagnostics::default());
        assert!(nothing.message.contains("exit code -1(unexpected).\n\n\n\nThe API gave"), "{:?}", nothing.message);
    }
}
