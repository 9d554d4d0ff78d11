//! The web page on the debug listener: applications and what they lack, one application's executors over time, nodes, costs, and
//! this replica.
//!
//! Pure: a page is a function of reports and the time. Every text that a tenant writes goes through `layout::text`: escaped,
//! without characters that steer, and isolated from the direction of the text around it.

mod app;
mod apps;
mod cost;
mod layout;
mod links;
mod nodes;
mod replica;
mod timeline;
mod words;

use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;
use serde::Serialize;

use crate::views::{AppReport, CostReport, NodesReport, WhyReport};
pub use app::AppQuery;
pub use apps::{AppsQuery, Filter, Order, Sort};
pub use links::{LinkTemplate, Links};
pub use replica::ReplicaReport;

/// The style sheet.
pub const STYLE: &str = include_str!("assets/style.css");
/// The script of live updates. Every page works without it.
pub const SCRIPT: &str = include_str!("assets/live.js");
pub const ICON: &str = include_str!("assets/icon.svg");

/// A page, with the reports that it shows.
#[derive(Debug)]
pub enum Page<'a> {
    /// All applications, or those that match.
    Apps(&'a [AppReport], &'a AppsQuery),
    /// One application.
    App(&'a WhyReport, &'a AppQuery),
    /// The nodes on which executors failed.
    Nodes(&'a NodesReport),
    /// What executors cost that did no work.
    Cost(&'a CostReport),
    /// This replica, its certificate and the leader.
    Replica,
}

impl Page<'_> {
    /// The whole document, around its live part as [`Page::live`] returns it: HTML, inserted as it is.
    pub fn document(&self, live: &str) -> String {
        layout::document(self.title(), self.place(), self.form(), maud::PreEscaped(live)).into_string()
    }

    /// The part that changes with time.
    pub fn live(&self, replica: &ReplicaReport, now: Timestamp) -> String {
        let page = match self {
            Page::Apps(apps, query) => apps::page(apps, query, replica.state == "leader", now),
            Page::App(report, query) => app::page(report, query, &replica.links, now),
            Page::Nodes(report) => nodes::page(report, now),
            Page::Cost(report) => cost::page(report, now),
            Page::Replica => replica::page(replica, now),
        };
        let live = maud::html! {
            (replica::caution(replica))
            (page)
        };
        live.into_string()
    }

    /// Whether what it shows exists.
    pub fn is_found(&self) -> bool {
        !matches!(self, Page::App(report, ..) if report.apps.is_empty())
    }

    /// A number that differs if the page shows something else, apart from the time.
    pub fn fingerprint(&self, replica: &ReplicaReport) -> u64 {
        fn json(value: &impl Serialize) -> Vec<u8> {
            serde_json::to_vec(value).unwrap_or_default()
        }
        let mut hasher = DefaultHasher::new();
        match self {
            Page::Apps(apps, query) => {
                let selection = apps::Selection::of(apps, query);
                selection.numbers().hash(&mut hasher);
                selection.shown.iter().for_each(|app| json(app).hash(&mut hasher));
            }
            Page::App(report, ..) => json(report).hash(&mut hasher),
            Page::Nodes(report) => json(report).hash(&mut hasher),
            Page::Cost(report) => json(report).hash(&mut hasher),
            Page::Replica => {}
        }
        json(replica).hash(&mut hasher);
        hasher.finish()
    }

    fn form(&self) -> Option<maud::Markup> {
        match self {
            Page::Apps(apps, query) => Some(apps::form(apps, query)),
            _ => None,
        }
    }

    fn title(&self) -> String {
        match self {
            Page::Apps(..) => "Applications".to_owned(),
            Page::App(report, query) => {
                usher_spark::text::shown(report.apps.first().map_or(&query.name, |app| app.shown_name()))
            }
            Page::Nodes(_) => "Nodes".to_owned(),
            Page::Cost(_) => "Cost".to_owned(),
            Page::Replica => "Replica".to_owned(),
        }
    }

    /// The entry of the navigation to which it belongs.
    fn place(&self) -> &'static str {
        match self {
            Page::Apps(..) | Page::App(..) => layout::APPS,
            Page::Nodes(_) => layout::NODES,
            Page::Cost(_) => layout::COST,
            Page::Replica => layout::REPLICA,
        }
    }
}

#[cfg(test)]
mod tests;
