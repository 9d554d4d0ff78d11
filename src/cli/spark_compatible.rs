//! `--spark-compatible`: what `spark-submit --status` and `--kill` print, and their exit code (`K8sSubmitOps`).

use std::io::{self, Write};

use super::api_server::Connection;
use super::drivers::{Which, failure};
use super::output::{OK, block_on, failed, plain, unreadable, wrong};
use usher_spark::role::Role;
use usher_spark::text::{is_dns_label, is_dns_subdomain};
use usher_submit::api::drivers::{self, Selection};
use usher_submit::submission::{DriverStatus, Names, SubmissionId, pod_block};

/// `spark-submit --status ID`
pub(super) fn status(which: &Which, err: &mut dyn Write) -> io::Result<u8> {
    each(which, err, async |err, _, id, found| {
        let is_pattern = id.is_pattern();
        for driver in &found {
            writeln!(err, "Application status (driver): {}", plain(&pod_block(&driver.pod)))?;
        }
        if found.is_empty() {
            writeln!(err, "{}", nothing(is_pattern))?;
        }
        Ok(())
    })
}

/// `spark-submit --kill ID`, with the grace period in seconds.
pub(super) fn kill(which: &Which, grace: Option<u32>, err: &mut dyn Write) -> io::Result<u8> {
    each_said(which, Some(grace), err, async |err, connection, id, found| {
        let is_pattern = id.is_pattern();
        // spark-submit deletes any pod that is named exactly.
        let (drivers, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|driver| driver.role == Role::Driver);
        for driver in &drivers {
            if is_pattern {
                writeln!(err, "Deleting driver pod: {}.", plain(&driver.name))?;
            }
            let what = format!("delete pod {}/{}", driver.namespace, driver.name);
            drivers::delete(&connection.client, driver, grace)
                .await
                .map_err(|error| failure(&what, &error, connection))?;
        }
        for other in &others {
            writeln!(err, "warning: pod {}/{} is no driver: it is not deleted", other.namespace, plain(&other.name))?;
        }
        if drivers.is_empty() {
            writeln!(err, "{}", nothing(is_pattern))?;
        }
        Ok(())
    })
}

fn nothing(is_pattern: bool) -> &'static str {
    if is_pattern { "No applications found." } else { "Application not found." }
}

async fn find(connection: &Connection, id: &SubmissionId, named: Option<String>) -> anyhow::Result<Vec<DriverStatus>> {
    let namespace = id.namespace.clone().or(named);
    if let Some(namespace) = namespace.as_ref().filter(|namespace| !is_dns_label(namespace)) {
        anyhow::bail!("expected [NAMESPACE:]NAME: {namespace:?} is not a valid name of a namespace");
    }
    let read = |error| failure("read the drivers", &error, connection);
    if let Names::Exact(name) = &id.names {
        let namespace = namespace.ok_or_else(|| {
            anyhow::anyhow!(
                "expected NAMESPACE:NAME: {} names no namespace, and neither does the context of the kubeconfig",
                id.text
            )
        })?;
        // A pod cannot have another name; spark-submit sends the request anyway.
        if !is_dns_subdomain(name) {
            return Ok(Vec::new());
        }
        return Ok(drivers::get(&connection.client, &namespace, name).await.map_err(read)?.into_iter().collect());
    }
    let selection = Selection { ids: vec![id.clone()], namespace, labels: None };
    Ok(selection.find(&connection.client).await.map_err(read)?.drivers)
}

fn each(
    which: &Which,
    err: &mut dyn Write,
    act: impl AsyncFnMut(&mut dyn Write, &Connection, &SubmissionId, Vec<DriverStatus>) -> anyhow::Result<()>,
) -> io::Result<u8> {
    each_said(which, None, err, act)
}

/// Says what is requested for each id, and does it. `grace` is given for `--kill`.
fn each_said(
    which: &Which,
    grace: Option<Option<u32>>,
    err: &mut dyn Write,
    mut act: impl AsyncFnMut(&mut dyn Write, &Connection, &SubmissionId, Vec<DriverStatus>) -> anyhow::Result<()>,
) -> io::Result<u8> {
    let ids: Result<Vec<SubmissionId>, String> = which.ids.iter().map(|id| SubmissionId::parse_as_spark(id)).collect();
    let ids = match ids {
        Ok(ids) if ids.is_empty() => {
            return wrong(err, "a submission id with --spark-compatible: [NAMESPACE:]NAME");
        }
        Ok(ids) => ids,
        Err(error) => return unreadable(err, &error),
    };
    let done = block_on(async {
        let connection = which.server.connect().await?;
        for id in &ids {
            let said = match grace {
                None => {
                    format!("Submitting a request for the status of submission {} in {}.", id.text, connection.master)
                }
                Some(grace) => format!(
                    "Submitting a request to kill submission {} in {}. Grace period in secs: {}",
                    id.text,
                    connection.master,
                    grace.map_or_else(|| "not set.".to_owned(), |seconds| seconds.to_string())
                ),
            };
            writeln!(err, "{}", plain(&said))?;
            let named = which.namespace.clone().or_else(|| which.server.named_namespace());
            let found = find(&connection, id, named).await?;
            act(err, &connection, id, found).await?;
        }
        Ok(())
    });
    match done {
        Ok(()) => Ok(OK),
        Err(error) => failed(err, &error),
    }
}
