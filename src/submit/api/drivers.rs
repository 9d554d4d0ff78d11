//! Drivers, for the command line: found by submission id, deleted and watched.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use futures::stream::{Stream, StreamExt, select_all};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Preconditions, PropagationPolicy};

use crate::submission::{DriverStatus, Names, SubmissionId};
use usher_kube::request::{Error, Permission, Result, retried, retried_noting};
use usher_kube::stream::{self, Event};
use usher_kube::view::{View, Viewed, pods};
use usher_spark::labels;
use usher_spark::role::Role;

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Pods per page of a list.
const PAGE: u32 = 500;
/// So often is a list begun that takes longer than the API server keeps its version.
const MAX_LISTS: u32 = 5;
/// Requests at the same time.
const PARALLEL: usize = 16;

impl View for DriverStatus {
    fn read(json: &str) -> Option<DriverStatus> {
        DriverStatus::read(json)
    }
}

fn api(client: &kube::Client, namespace: Option<&str>) -> Api<Viewed<DriverStatus>> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &pods()),
        None => Api::all_with(client.clone(), &pods()),
    }
}

/// Which drivers are meant.
#[derive(Clone, Debug)]
pub struct Selection {
    /// By their ids; none stands for all drivers.
    pub ids: Vec<SubmissionId>,
    /// The namespace of ids without one; `None` stands for all namespaces.
    pub namespace: Option<String>,
    /// A label selector.
    pub labels: Option<String>,
}

/// Why an id names no driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// No driver has that name or application id, and no application that name.
    NotFound,
    /// A pod has that name, but not the label of a driver or an executor.
    NoDriver,
    /// It is an executor, and no driver has its application id.
    ExecutorWithoutDriver,
}

/// What a selection names.
#[derive(Debug, Default)]
pub struct Found {
    /// The drivers of ids, patterns and labels, by namespace and name.
    pub drivers: Vec<DriverStatus>,
    /// Those of applications of a name that is no id, such as all runs of one job; the latest first.
    pub runs: Vec<(SubmissionId, Vec<DriverStatus>)>,
    /// The driver of each executor that was named.
    pub of_executors: Vec<(SubmissionId, DriverStatus)>,
    /// The ids that name none, and why.
    pub missing: Vec<(SubmissionId, Missing)>,
}

impl Found {
    /// A name that is no driver's pod and no application id: that of an executor, else of an application, unless another pod has it. `pods`
    /// have that name, and `all` are the drivers.
    fn add_other(&mut self, id: &SubmissionId, name: &str, pods: &[DriverStatus], all: &[DriverStatus]) {
        let executors: Vec<&DriverStatus> = pods.iter().filter(|pod| pod.role == Role::Executor).collect();
        let driver_of = |pod: &&DriverStatus| {
            let is_its = |driver: &&DriverStatus| driver.namespace == pod.namespace && driver.app_id == pod.app_id;
            all.iter().find(is_its).filter(|_| pod.app_id.is_some())
        };
        let drivers: Vec<&DriverStatus> = executors.iter().filter_map(driver_of).collect();
        let mut runs: Vec<DriverStatus> = all.iter().filter(|driver| driver.shown_name() == name).cloned().collect();
        if !drivers.is_empty() {
            self.of_executors.extend(drivers.into_iter().map(|driver| (id.clone(), driver.clone())));
        } else if pods.is_empty() && !id.is_pod && !runs.is_empty() {
            // Times of the API server are ordered as text.
            runs.sort_by(|a, b| b.created.cmp(&a.created));
            self.runs.push((id.clone(), runs));
        } else {
            let missing = match (pods.is_empty(), executors.is_empty()) {
                (true, _) => Missing::NotFound,
                (false, true) => Missing::NoDriver,
                (false, false) => Missing::ExecutorWithoutDriver,
            };
            self.missing.push((id.clone(), missing));
        }
    }

    /// All drivers, by namespace and name, and the ids that name none.
    pub fn into_all(self) -> (Vec<DriverStatus>, Vec<(SubmissionId, Missing)>) {
        let runs = self.runs.into_iter().flat_map(|(_, runs)| runs);
        let of_executors = self.of_executors.into_iter().map(|(_, driver)| driver);
        let mut all: Vec<DriverStatus> = self.drivers.into_iter().chain(runs).chain(of_executors).collect();
        sort(&mut all);
        (all, self.missing)
    }
}

impl Selection {
    /// The namespace in which an id is looked for; `None` stands for all.
    pub fn namespace_of<'s>(&'s self, id: &'s SubmissionId) -> Option<&'s str> {
        id.namespace.as_deref().or(self.namespace.as_deref())
    }

    fn label_selector(&self) -> String {
        let role = format!("{}={}", labels::ROLE, labels::ROLE_DRIVER);
        self.labels.as_ref().map_or_else(|| role.clone(), |selector| format!("{role},{selector}"))
    }

    /// Finds the drivers. A pod that is named exactly is read; everything else needs one list for each namespace.
    pub async fn find(&self, client: &kube::Client) -> Result<Found> {
        if self.ids.is_empty() {
            let mut drivers = self.list(client, self.namespace.as_deref()).await?;
            sort(&mut drivers);
            return Ok(Found { drivers, ..Found::default() });
        }
        let mut found = Found::default();
        // Patterns, application ids and names, executors, and names whose namespace is not known.
        let mut left: Vec<(&SubmissionId, Option<DriverStatus>)> = Vec::new();
        let reads = self.ids.iter().map(|id| async move {
            let (Some(namespace), Names::Exact(name)) = (self.namespace_of(id), &id.names) else {
                return Ok::<_, Error>((id, None));
            };
            Ok((id, Some(get(client, namespace, name).await?)))
        });
        let mut reads = futures::stream::iter(reads).buffered(PARALLEL);
        while let Some(read) = reads.next().await {
            match read? {
                (_, Some(Some(driver))) if driver.role == Role::Driver => found.drivers.push(driver),
                (id, Some(pod)) => left.push((id, pod)),
                (id, None) => left.push((id, None)),
            }
        }
        let mut lists: BTreeMap<Option<&str>, Vec<DriverStatus>> = BTreeMap::new();
        for (id, pod) in left {
            let all = match lists.entry(self.namespace_of(id)) {
                Entry::Occupied(listed) => listed.into_mut(),
                Entry::Vacant(entry) => {
                    let listed = self.list(client, entry.key().as_deref()).await?;
                    entry.insert(listed)
                }
            };
            let named: Vec<DriverStatus> = all.iter().filter(|driver| self.names(id, driver)).cloned().collect();
            match &id.names {
                Names::Exact(name) if named.is_empty() => {
                    let pods = match pod {
                        Some(pod) => vec![pod],
                        None if self.namespace_of(id).is_none() => executors(client, name).await?,
                        None => Vec::new(),
                    };
                    found.add_other(id, name, &pods, all);
                }
                _ if named.is_empty() => found.missing.push((id.clone(), Missing::NotFound)),
                _ => found.drivers.extend(named),
            }
        }
        sort(&mut found.drivers);
        Ok(found)
    }

    async fn list(&self, client: &kube::Client, namespace: Option<&str>) -> Result<Vec<DriverStatus>> {
        let api = api(client, namespace);
        let first = ListParams::default().labels(&self.label_selector()).limit(PAGE);
        let (mut page, mut begun) = (first.clone(), 1);
        let mut all = Vec::new();
        loop {
            let list = match retried(TIMEOUT, async || api.list(&page).await).await {
                // The API server no longer has the version of the first page.
                Err(Error::Api(status)) if status.code == 410 && begun < MAX_LISTS => {
                    (page, begun) = (first.clone(), begun + 1);
                    all.clear();
                    continue;
                }
                list => list?,
            };
            // Whatever the API server selects: only drivers are ever deleted.
            all.extend(
                list.items.into_iter().filter_map(|seen| seen.view).filter(|driver| driver.role == Role::Driver),
            );
            match list.metadata.continue_.filter(|more| !more.is_empty()) {
                Some(more) => page = page.continue_token(&more),
                None => return Ok(all),
            }
        }
    }

    /// Watches the selected drivers, without end.
    pub fn watch(&self, client: &kube::Client) -> impl Stream<Item = Seen> + use<> {
        let mut scopes: BTreeMap<Option<&str>, Vec<&SubmissionId>> = BTreeMap::new();
        for id in &self.ids {
            scopes.entry(self.namespace_of(id)).or_default().push(id);
        }
        if self.ids.is_empty() {
            scopes.insert(self.namespace.as_deref(), Vec::new());
        }
        // One watch of all namespaces has what the others would have.
        if scopes.contains_key(&None) {
            scopes.retain(|namespace, _| namespace.is_none());
        }
        let streams = scopes.into_iter().map(|(namespace, ids)| {
            let config = match (namespace, &*ids) {
                (Some(_), [SubmissionId { names: Names::Exact(name), .. }]) => {
                    stream::Config { fields: Some(format!("metadata.name={name}")), ..stream::Config::default() }
                }
                _ => stream::Config { labels: Some(self.label_selector()), ..stream::Config::default() },
            };
            let (selection, scope) = (self.clone(), namespace.map(str::to_owned));
            let mut permission = Permission::default();
            stream::events(api(client, namespace), config)
                .filter_map(move |event| std::future::ready(selection.seen(event, scope.clone(), &mut permission)))
                .boxed()
        });
        select_all(streams)
    }

    fn seen(
        &self,
        event: std::result::Result<Event<Viewed<DriverStatus>>, stream::Interruption>,
        namespace: Option<String>,
        permission: &mut Permission,
    ) -> Option<Seen> {
        // A list says nothing about the permission to watch.
        if matches!(&event, Ok(Event::Opened | Event::Apply(_) | Event::Delete(_) | Event::Bookmark(_))) {
            permission.worked();
        }
        Some(match event {
            Ok(Event::Init) => Seen::Listing(namespace),
            Ok(Event::InitDone(_)) => Seen::Listed(namespace),
            Ok(Event::Listed(seen) | Event::Apply(seen)) => {
                Seen::Driver(Box::new(seen.view.filter(|driver| self.selects(driver))?))
            }
            Ok(Event::Delete(seen)) => Seen::Deleted(seen.uid().to_owned()),
            Ok(Event::Bookmark(_) | Event::Opened) => Seen::UpToDate,
            Err(interruption) => Seen::Interrupted {
                is_denied: permission.count_failure(interruption.code()),
                message: interruption.to_string(),
            },
        })
    }

    fn selects(&self, driver: &DriverStatus) -> bool {
        let is_it = |id: &SubmissionId| {
            // A driver that is named counts also after its label was removed.
            (driver.role == Role::Driver || !id.is_pattern()) && self.names(id, driver)
        };
        (driver.role == Role::Driver && self.ids.is_empty()) || self.ids.iter().any(is_it)
    }

    /// Whether an id of this selection names a driver.
    pub fn names(&self, id: &SubmissionId, driver: &DriverStatus) -> bool {
        self.namespace_of(id).is_none_or(|namespace| namespace == driver.namespace)
            && id.matches(&driver.name, driver.app_id.as_deref())
    }
}

fn sort(drivers: &mut Vec<DriverStatus>) {
    drivers.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    drivers.dedup_by(|a, b| a.uid == b.uid);
}

/// What a watch reports.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// A list of this namespace, or of all, begins.
    Listing(Option<String>),
    /// It is complete.
    Listed(Option<String>),
    /// A driver is listed, was added or has changed.
    Driver(Box<DriverStatus>),
    /// The pod with this uid was deleted.
    Deleted(String),
    /// The watch is open, and nothing has changed.
    UpToDate,
    /// The watch was interrupted; it continues automatically.
    Interrupted {
        /// What happened.
        message: String,
        /// Whether the right to list or watch pods is missing, or the credentials are not valid any more.
        is_denied: bool,
    },
}

/// Reads a pod by its name; `None` if it does not exist.
pub async fn get(client: &kube::Client, namespace: &str, name: &str) -> Result<Option<DriverStatus>> {
    let api = api(client, Some(namespace));
    match retried(TIMEOUT, async || api.get(name).await).await {
        Ok(seen) => seen.view.map(Some).ok_or_else(|| Error::Malformed(format!("pod {namespace}/{name}"))),
        Err(Error::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The executors of that name, in all namespaces.
async fn executors(client: &kube::Client, name: &str) -> Result<Vec<DriverStatus>> {
    let role = format!("{}={}", labels::ROLE, labels::ROLE_EXECUTOR);
    let params = ListParams::default().labels(&role).fields(&format!("metadata.name={name}")).limit(PAGE);
    let api = api(client, None);
    let list = retried(TIMEOUT, async || api.list(&params).await).await?;
    Ok(list.items.into_iter().filter_map(|seen| seen.view).collect())
}

/// Deletes a driver's pod, with the grace period in seconds if one is given. Returns whether it still existed.
pub async fn delete(client: &kube::Client, driver: &DriverStatus, grace: Option<u32>) -> Result<bool> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &driver.namespace, &pods());
    let params = DeleteParams {
        grace_period_seconds: grace,
        propagation_policy: Some(PropagationPolicy::Background),
        // Not another pod that has the name by now.
        preconditions: Some(Preconditions { uid: Some(driver.uid.clone()), resource_version: None }),
        ..DeleteParams::default()
    };
    let (deleted, may_be_done) = retried_noting(TIMEOUT, async || api.delete(&driver.name, &params).await).await;
    match deleted {
        Ok(_) => Ok(true),
        // The answer to the first attempt may be lost.
        Err(Error::NotFound(_)) => Ok(may_be_done),
        // Another pod has the name; or the API server, or a webhook, refuses the deletion.
        Err(error @ Error::Conflict(_)) => match get(client, &driver.namespace, &driver.name).await? {
            Some(pod) if pod.uid == driver.uid => Err(error),
            _ => Ok(may_be_done),
        },
        Err(error) => Err(error),
    }
}

/// Deletes drivers, several at a time. Each result comes as soon as it is known.
pub fn delete_all<'d>(
    client: &'d kube::Client,
    drivers: &'d [DriverStatus],
    grace: Option<u32>,
) -> impl Stream<Item = (&'d DriverStatus, Result<bool>)> {
    let deletions = drivers.iter().map(move |driver| async move { (driver, delete(client, driver, grace).await) });
    futures::stream::iter(deletions).buffer_unordered(PARALLEL)
}
