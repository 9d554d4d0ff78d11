//! What `status`, `kill` and `watch` share: which drivers.

use anyhow::anyhow;
use jiff::Timestamp;

use super::api_server::{ApiServer, Connection};
use usher_kube::request::Error;
use usher_spark::time::ago;
use usher_submit::api::drivers::{Found, Missing, Selection};
use usher_submit::submission::{DriverStatus, SubmissionId};

/// Which drivers.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Which {
    /// `[NAMESPACE:]NAME`: the submission id that `submit` and spark-submit print, a driver's pod, an application id or name, or an executor's
    /// pod; the name of a driver or an id may be a pattern with *, ? and [...].
    #[arg(value_name = "ID")]
    pub(super) ids: Vec<String>,
    /// Drivers by their labels, instead of ids.
    #[arg(long, short = 'l', value_name = "LABELS", conflicts_with = "ids", value_parser = labels)]
    pub(super) selector: Option<String>,
    /// Namespace of ids without one; the default is that of the context.
    #[arg(long, short, value_name = "NAMESPACE", value_parser = super::query::namespace)]
    pub(super) namespace: Option<String>,
    /// All namespaces.
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    pub(super) all_namespaces: bool,
    #[command(flatten)]
    pub(super) server: ApiServer,
}

fn labels(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("expected labels such as team=etl".to_owned()) } else { Ok(text.to_owned()) }
}

impl Which {
    /// Parses the ids; an error is said to the user.
    pub(super) fn parse(&self) -> Result<Vec<SubmissionId>, String> {
        let ids: Vec<SubmissionId> = self.ids.iter().map(|id| SubmissionId::parse(id)).collect::<Result<_, _>>()?;
        let given = |id: &SubmissionId| Some((id.namespace.clone()?, self.namespace.clone()?));
        match ids.iter().filter_map(given).find(|(of_id, other)| of_id != other) {
            Some((of_id, other)) => {
                Err(format!("expected one namespace: the id says {of_id}, --namespace says {other}"))
            }
            None => Ok(ids),
        }
    }

    /// The selection, on this API server.
    pub(super) fn selection(&self, ids: Vec<SubmissionId>, connection: &Connection) -> Selection {
        let namespace = self.namespace.clone().unwrap_or_else(|| connection.namespace.clone());
        Selection { ids, namespace: (!self.all_namespaces).then_some(namespace), labels: self.selector.clone() }
    }
}

/// Finds the drivers of a selection, or says what went wrong.
pub(super) async fn find(selection: &Selection, connection: &Connection) -> anyhow::Result<Found> {
    selection.find(&connection.client).await.map_err(|error| failure("read the drivers", &error, connection))
}

/// An error of the API server, with what was to be done.
pub(super) fn failure(what: &str, error: &Error, connection: &Connection) -> anyhow::Error {
    if error.is_of_connection() {
        let server = connection.master.strip_prefix("k8s://").unwrap_or(&connection.master);
        return anyhow!("cannot {what}: {server}: {error}");
    }
    anyhow!("cannot {what}: {error}")
}

/// Why an id names nothing.
pub(super) fn missing(selection: &Selection, id: &SubmissionId, missing: Missing) -> String {
    let place = selection
        .namespace_of(id)
        .map_or_else(|| "in any namespace".to_owned(), |namespace| format!("in namespace {namespace}"));
    match missing {
        Missing::NotFound if id.is_pattern() => format!("{}: no driver {place} matches", id.text),
        Missing::NotFound => {
            let more =
                if id.namespace.is_none() && selection.namespace.is_some() { "; -A looks everywhere" } else { "" };
            format!(
                "{}: no driver {place} has that name or application id, and no application that name{more}",
                id.text
            )
        }
        Missing::NoDriver => {
            format!("{}: a pod {place} has that name, but it is no driver: it has no label spark-role=driver", id.text)
        }
        Missing::ExecutorWithoutDriver => {
            format!("{}: an executor {place} has that name, but no driver's pod has its application id", id.text)
        }
    }
}

/// A driver among others that a name may mean: its submission id, its state and when it was created.
pub(super) fn candidate(driver: &DriverStatus, now: Timestamp) -> String {
    let created = driver.created.as_deref().map_or_else(String::new, |time| format!(", created {}", ago(time, now)));
    format!("{} ({}{created})", driver.submission_id, driver.state)
}
