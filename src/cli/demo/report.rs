//! Reports a scenario, as text or JSON, and runs the checks that determine the exit code.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::run::{AfterDriver, Observed, group_name, owner};
use super::scenario::{Scenario, without_token};
use crate::cli::diff;
use usher_core::ownership::resolve::DriverSource;
use usher_sandbox::Sandbox;
use usher_server::app::App;
use usher_spark::json::{at, remove, text};
use usher_spark::pod::Pod;
use usher_spark::resources;

/// Without or with spark-usher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Without,
    With,
}

/// A condition that must hold.
#[derive(Debug)]
struct Check {
    what: String,
    held: bool,
}

/// A scenario that was run.
#[derive(Debug)]
pub(super) struct CheckOutcome {
    name: &'static str,
    title: &'static str,
    about: &'static str,
    without: (Observed, AfterDriver),
    with: (Observed, AfterDriver),
    how: Option<DriverSource>,
    checks: Vec<Check>,
}

impl CheckOutcome {
    pub(super) fn new(
        scenario: &Scenario,
        without: (Observed, AfterDriver),
        with: (Observed, AfterDriver),
        how: Option<DriverSource>,
    ) -> CheckOutcome {
        let mut outcome = CheckOutcome {
            name: scenario.name,
            title: scenario.title,
            about: scenario.about,
            without,
            with,
            how,
            checks: Vec::new(),
        };
        outcome.checks = outcome.check(scenario);
        outcome
    }

    pub(super) fn held(&self) -> bool {
        self.checks.iter().all(|check| check.held)
    }

    fn check(&self, scenario: &Scenario) -> Vec<Check> {
        let (with, gone) = &self.with;
        let (without, left) = &self.without;
        let count = scenario.executors.len();
        let all = |holds: &dyn Fn(&Value) -> bool| with.executors.len() == count && with.executors.iter().all(holds);
        let driver_uid = text(&with.driver, &["metadata", "uid"]);
        let group = with.executors.first().and_then(group_name);
        let driver = (text(&with.driver, &["spec", "schedulerName"]), group_name(&with.driver));
        let mut checks = vec![
            check(
                "every executor has schedulerName volcano",
                all(&|pod| text(pod, &["spec", "schedulerName"]) == "volcano"),
            ),
            check(
                "every executor has the queue and the priority class of the policy",
                all(&|pod| {
                    text(pod, &["metadata", "annotations", "scheduling.volcano.sh/queue-name"]) == "analytics"
                        && text(pod, &["spec", "priorityClassName"]) == "spark-batch"
                        && at(pod, &["spec", "priority"]) == Some(&json!(100))
                }),
            ),
            check("all executors are members of one gang", group.is_some() && all(&|pod| group_name(pod) == group)),
            check("the driver is not a member of the gang", driver.1.is_none()),
            check(
                &format!("the PodGroup requires {count} members and the sum of their resources"),
                with.group.as_ref().zip(with.executors.first()).is_some_and(|(group, pod)| {
                    at(group, &["spec", "minMember"]) == Some(&json!(count))
                        && at(group, &["spec", "minResources"]) == requests_of(pod, count).as_ref()
                }),
            ),
            check("the gang started", with.started_in.is_some()),
            check("with spark-usher no executor outlives the driver", gone.left.is_empty()),
            check(
                "pods in the namespace without the webhook are unchanged",
                without.executors.len() == count
                    && without.executors.iter().all(|pod| text(pod, &["spec", "schedulerName"]) == "default-scheduler"),
            ),
        ];
        if scenario.stateful_set.is_some() {
            checks.push(check(
                "the StatefulSet remains the owner",
                all(&|pod| owner(pod).is_some_and(|(kind, ..)| kind == "StatefulSet")),
            ));
        } else {
            checks.push(check(
                "every executor is owned by its driver's pod",
                all(&|pod| owner(pod).is_some_and(|(kind, _, uid)| kind == "Pod" && uid == driver_uid)),
            ));
            checks.push(check("the creator's token identifies the driver", self.how == Some(DriverSource::Creator)));
        }
        if !scenario.owned_by_spark {
            checks.push(check("without spark-usher the executors outlive the driver", left.left.len() == count));
        }
        if text(&with.driver, &["metadata", "labels", "spark-role"]) == "driver" {
            checks.push(check("the driver has the same schedulerName", driver.0 == "volcano"));
        }
        checks
    }

    /// Differences between the first executor without and with spark-usher.
    fn changes(&self) -> Vec<String> {
        let first = |seen: &Observed| seen.executors.first().map(comparable).unwrap_or_default();
        let (mut before, mut after) = (first(&self.without.0), first(&self.with.0));
        if owner(&before).is_some() {
            // Spark's own owner: the same, except for the uid in the other namespace.
            remove(&mut before, &["metadata", "ownerReferences"]);
            remove(&mut after, &["metadata", "ownerReferences"]);
        }
        // The driver's address in the other namespace does not count as a difference.
        for pod in [&mut before, &mut after] {
            let containers = pod.pointer_mut("/spec/containers").and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                remove(container, &["env"]);
            }
        }
        let patch = json_patch::diff(&before, &after);
        diff::changes(&before, &serde_json::to_value(patch).unwrap_or_default())
    }

    pub(super) fn print(&self, out: &mut dyn Write, number: usize) -> io::Result<()> {
        let (with, gone) = &self.with;
        let (without, left) = &self.without;
        writeln!(out, "\n{number}. {}", self.title)?;
        wrapped(out, self.about, "   ")?;
        writeln!(out, "\n   without spark-usher")?;
        for pod in &without.executors {
            writeln!(out, "     {}", executor_line(pod))?;
        }
        writeln!(out, "   with spark-usher")?;
        for pod in &with.executors {
            writeln!(out, "     {}", executor_line(pod))?;
        }
        writeln!(out, "\n   changes by the webhook to the first executor")?;
        for change in self.changes() {
            writeln!(out, "     {change}")?;
        }
        writeln!(out, "\n   driver     {}", self.driver_line())?;
        if let Some(group) = &with.group {
            writeln!(
                out,
                "   PodGroup   {}: minMember {}, minResources cpu {} and memory {}, queue {}",
                text(group, &["metadata", "name"]),
                at(group, &["spec", "minMember"]).unwrap_or(&Value::Null),
                text(group, &["spec", "minResources", "cpu"]),
                text(group, &["spec", "minResources", "memory"]),
                text(group, &["spec", "queue"])
            )?;
        }
        if let Some(started) = with.started_in {
            writeln!(
                out,
                "   started    all {} together, {} after the last was created",
                with.executors.len(),
                short(started)
            )?;
        }
        writeln!(out, "\n   after the deletion of the driver")?;
        writeln!(out, "     without    {}", after_line(left))?;
        writeln!(out, "     with       {}", after_line(gone))?;
        writeln!(out)?;
        for check in &self.checks {
            writeln!(out, "   {} {}", if check.held { "\u{2713}" } else { "\u{2717} FAILED:" }, check.what)?;
        }
        Ok(())
    }

    fn driver_line(&self) -> String {
        let name = text(&self.with.0.driver, &["metadata", "name"]);
        match self.how {
            Some(DriverSource::Creator) => {
                format!("pod {name}, identified by creator: the token that created the executors is bound to that pod")
            }
            Some(how) => format!("pod {name}, identified by {how}"),
            None => format!("pod {name}, owner of the StatefulSet"),
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let side = |(seen, after): &(Observed, AfterDriver)| {
            json!({
                "driver": seen.driver, "executors": seen.executors, "group": seen.group,
                "startedInSeconds": seen.started_in.map(|took| took.as_secs_f64()),
                "afterDriverDeleted": {"left": after.left, "goneInSeconds": after.gone_in.map(|took| took.as_secs_f64())},
            })
        };
        let checks: Vec<Value> =
            self.checks.iter().map(|check| json!({"what": check.what, "held": check.held})).collect();
        json!({
            "name": self.name, "title": self.title, "how": self.how.map(DriverSource::as_str), "changes": self.changes(),
            "without": side(&self.without), "with": side(&self.with), "checks": checks, "held": self.held(),
        })
    }
}

fn check(what: &str, held: bool) -> Check {
    Check { what: what.to_owned(), held }
}

/// A pod without the fields that always differ: identity, timestamps and status.
fn comparable(pod: &Value) -> Value {
    let mut pod = pod.clone();
    for key in ["uid", "resourceVersion", "creationTimestamp", "namespace", "managedFields", "generation"] {
        remove(&mut pod, &["metadata", key]);
    }
    remove(&mut pod, &["spec", "nodeName"]);
    remove(&mut pod, &["status"]);
    without_token(&mut pod);
    pod
}

/// Resources that `count` such pods request together, counted as for a PodGroup.
fn requests_of(pod: &Value, count: usize) -> Option<Value> {
    let text = pod.to_string();
    let workload = Pod::read_whole(text.as_bytes()).ok()?.body.read()?;
    Some(resources::of_pod(&workload).times(u32::try_from(count).ok()?).to_json())
}

fn executor_line(pod: &Value) -> String {
    let owner = owner(pod).map_or("no owner".to_owned(), |(kind, name, _)| format!("owner {kind} {name}"));
    let scheduler = text(pod, &["spec", "schedulerName"]);
    format!("{:<52} {scheduler:<18} {owner}", text(pod, &["metadata", "name"]))
}

fn after_line(after: &AfterDriver) -> String {
    match (after.left.len(), after.gone_in) {
        (0, Some(took)) => format!("all executors are deleted after {}", short(took)),
        (left, _) => format!("{left} executors still run and hold their resources; nothing deletes them"),
    }
}

fn short(took: Duration) -> String {
    format!("{:.1} s", took.as_secs_f64())
}

/// Wraps text to lines of at most 110 characters.
fn wrapped(out: &mut dyn Write, words: &str, indent: &str) -> io::Result<()> {
    let mut line = String::new();
    for word in words.split_whitespace() {
        if line.len() + word.len() > 108 {
            writeln!(out, "{indent}{line}")?;
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    writeln!(out, "{indent}{line}")
}

pub(super) fn print_header(out: &mut dyn Write, sandbox: &Sandbox, app: &App, policy: &str) -> io::Result<()> {
    writeln!(out, "spark-usher demo\n")?;
    writeln!(out, "   Kubernetes   {}, in memory, on loopback; not a cluster", sandbox.https_url())?;
    writeln!(out, "   webhook      https://{}/mutate, called by the API server over TLS", app.webhook())?;
    writeln!(out, "   metrics      http://{}/metrics", app.metrics())?;
    writeln!(out, "   pods         recorded from Spark 4.3.0 on a real API server; no container runs")?;
    writeln!(out, "   policy")?;
    for line in policy.lines().filter(|line| !line.starts_with('#')) {
        writeln!(out, "      {line}")?;
    }
    Ok(())
}

pub(super) fn print_summary(out: &mut dyn Write, all: &[CheckOutcome], took: Duration) -> io::Result<()> {
    let checks = all.iter().flat_map(|outcome| &outcome.checks);
    let (total, held) = checks.fold((0, 0), |(total, held), check| (total + 1, held + usize::from(check.held)));
    writeln!(out, "\n{held} of {total} checks passed in {}", short(took))
}

pub(super) fn print_kept(
    out: &mut dyn Write,
    kubeconfig: &Path,
    namespace: &str,
    driver: &str,
    page: Option<SocketAddr>,
) -> io::Result<()> {
    let path = kubeconfig.display();
    if let Some(page) = page {
        writeln!(out, "\nWeb page: http://{page}/")?;
        writeln!(out, "   spark-usher apps --kubeconfig {path} -A")?;
    }
    writeln!(out, "\nStill running; Ctrl-C stops it. An application runs in the namespace {namespace}:")?;
    writeln!(out, "   kubectl --kubeconfig {path} get pods -n {namespace} -o wide")?;
    writeln!(out, "   kubectl --kubeconfig {path} get podgroups.scheduling.volcano.sh -n {namespace}")?;
    writeln!(out, "   kubectl --kubeconfig {path} delete pod {driver} -n {namespace}")
}
