//! The report about executors that did no work: `/debug/cost` and `spark-usher cost`.

use serde::{Deserialize, Serialize};

use super::{History, Names};
use usher_core::recovery::cost::Amount;
use usher_core::snapshot::Snapshot;
use usher_spark::time::in_seconds;

/// What executors cost that did no work, since this replica began to lead.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CostReport {
    /// Since when; `None` if nothing was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// By namespace and cause.
    pub namespaces: Vec<CostRow>,
    /// By application and cause; the latest 5000 applications.
    pub applications: Vec<CostRow>,
    /// What recovery rules gave back, by namespace and rule.
    pub given_back: Vec<CostRow>,
}

/// A row of a [`CostReport`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CostRow {
    /// The namespace; `(other)` above 200 of them.
    pub namespace: String,
    /// The application.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// The application's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The cause, or the rule.
    pub cause: String,
    pub core_seconds: f64,
    /// Bytes of memory, in seconds.
    pub byte_seconds: f64,
}

impl CostRow {
    /// What other commands accept for its application: `namespace:selector`.
    pub fn id(&self) -> Option<String> {
        self.app.as_ref().map(|app| format!("{}:{app}", self.namespace))
    }
}

/// An amount of core-seconds for display, in hours.
pub fn core_hours(core_seconds: f64) -> String {
    // The sum of nothing is -0.0.
    format!("{:.2}", core_seconds / 3600.0 + 0.0)
}

/// An amount of byte-seconds for display, in GiB hours.
pub fn gib_hours(byte_seconds: f64) -> String {
    core_hours(byte_seconds / (1_u64 << 30) as f64)
}

fn row(namespace: &str, cause: &str, Amount { core_seconds, byte_seconds }: Amount) -> CostRow {
    let (namespace, cause) = (namespace.to_owned(), cause.to_owned());
    CostRow { namespace, app: None, name: None, cause, core_seconds, byte_seconds }
}

/// Sums by namespace and cause, of every namespace unless one is named.
pub fn costs(snapshot: &Snapshot, history: &History, namespace: Option<&str>) -> CostReport {
    let costs = &history.costs;
    let names = Names::of(snapshot, history);
    let wanted = |row: &CostRow| namespace.is_none_or(|namespace| row.namespace == namespace);
    let apps = costs.apps().map(|(app, cause, amount)| CostRow {
        app: Some(app.selector().to_owned()),
        name: Some(names.name(app).to_owned()),
        ..row(app.namespace(), cause.as_str(), amount)
    });
    let namespaces = costs.namespaces().map(|(namespace, cause, amount)| row(namespace, cause.as_str(), amount));
    let mut applications: Vec<CostRow> = apps.filter(wanted).collect();
    applications.sort_by(|a, b| (&a.namespace, &a.app).cmp(&(&b.namespace, &b.app)));
    let given = costs.given_back().map(|(namespace, rule, amount)| row(namespace, rule.as_str(), amount));
    CostReport {
        since: costs.since.map(in_seconds),
        namespaces: namespaces.filter(wanted).collect(),
        applications,
        given_back: given.filter(wanted).collect(),
    }
}
