//! The I/O layer: creates, polls and removes the pods.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Config};
use serde_json::{Value, json};

use super::capacity::{self, NodeRequest};
use super::objects::{self, App};
use super::observation::{self, Observation};
use super::plan::{MEMBERS, Setup};
use super::table::Seen;
use usher_core::annotations;
use usher_kube::client::{Brief, by_token};
use usher_kube::view::resource;
use usher_runtime::clock;
use usher_spark::json::{at, text};
use usher_spark::labels;

const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Timeout of a single request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// At most this many polls in a row may fail.
const MAX_FAILURES: u32 = 20;
/// Timeout for the removal of the created objects.
const REMOVAL: Duration = Duration::from_secs(30);
/// How long garbage collection and spark-usher may take to remove a PodGroup before the doctor deletes it.
const COLLECTED: Duration = Duration::from_secs(5);
/// How long bound pods may take to run, where a kubelet runs pods.
const START: Duration = Duration::from_secs(10);

/// Why a scenario did not succeed.
#[derive(Debug)]
pub(super) enum Stop {
    /// The gang did not behave as expected.
    Failed { why: String, fix: String },
    /// The driver was not scheduled: no other scenario can run.
    NoDriver { why: String, fix: String },
    /// The scenario cannot run on this cluster.
    Skipped(String),
}

impl Stop {
    pub(super) fn failed(why: impl Into<String>, fix: impl Into<String>) -> Stop {
        Stop::Failed { why: why.into(), fix: fix.into() }
    }
}

/// Result of a wait.
pub(super) enum Reached {
    /// The condition was met, after this time.
    Yes(Observation, Duration),
    /// The condition was not met in time.
    No(Observation),
}

/// A run of the doctor.
pub(super) struct Stage {
    pub(super) client: Client,
    pub(super) config: Config,
    pub(super) setup: Setup,
    pub(super) namespace: String,
    pub(super) run: String,
    pub(super) image: String,
    pub(super) account: String,
    /// Timeout of a step.
    pub(super) timeout: Duration,
    /// How long pods must stay pending.
    pub(super) wait: Duration,
    /// PodGroups that the pods named.
    pub(super) groups: RefCell<BTreeSet<String>>,
}

/// An application whose driver is bound.
pub(super) struct Driver {
    pub(super) app: App,
    /// Uses the driver's own token, as Spark does when it creates executors.
    client: Client,
    pub(super) driver: String,
    group: RefCell<Option<String>>,
}

impl Driver {
    pub(super) fn group(&self) -> String {
        self.group.borrow().clone().unwrap_or_default()
    }
}

/// Sends one request. An error contains the operation and the API server's message.
async fn call<T>(what: &str, request: impl Future<Output = kube::Result<T>>) -> Result<T, Stop> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Stop::failed(format!("cannot {what}: {}", Brief(&error)), fix_of(&error))),
        Err(_) => Err(Stop::failed(format!("cannot {what}: no answer within {} s", REQUEST_TIMEOUT.as_secs()), "")),
    }
}

fn fix_of(error: &kube::Error) -> &'static str {
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            "check your permissions, and quotas and admission policies of the namespace"
        }
        _ => "",
    }
}

fn value(object: DynamicObject) -> Value {
    serde_json::to_value(object).unwrap_or(Value::Null)
}

impl Stage {
    fn api(&self, client: &Client, kind: &str, plural: &str) -> Api<DynamicObject> {
        Api::namespaced_with(client.clone(), &self.namespace, &resource("", "v1", kind, plural))
    }

    fn pods(&self) -> Api<DynamicObject> {
        self.api(&self.client, "Pod", "pods")
    }

    fn podgroups(&self) -> Option<Api<DynamicObject>> {
        let api = self.setup.api.filter(|_| self.setup.has_group())?;
        let resource = resource(api.group, api.version, api.kind, api.plural);
        Some(Api::namespaced_with(self.client.clone(), &self.namespace, &resource))
    }

    /// An application that was not started yet.
    pub(super) fn app(&self, number: usize, capacity: Option<&NodeRequest>) -> App {
        App {
            run: self.run.clone(),
            namespace: self.namespace.clone(),
            name: format!("doctor-{}-{number}", self.run),
            image: self.image.clone(),
            account: self.account.clone(),
            cpu: capacity.map_or(objects::TINY_CPU, |capacity| capacity.cpu),
            node: capacity.map(|capacity| capacity.node.clone()),
        }
    }

    /// Creates the configuration and the driver, and waits until the driver is bound.
    pub(super) async fn start(&self, app: App, seen: &mut Vec<Seen>) -> Result<Driver, Stop> {
        let maps = self.api(&self.client, "ConfigMap", "configmaps");
        create(&maps, "create a ConfigMap", &app.config_map(), false).await?;
        let from = clock::instant();
        let driver = create(&self.pods(), "create the driver's pod", &app.driver(), false).await?;
        if observation::set_by(&driver) != Some((&self.setup.policy, self.setup.scheduler.kind)) {
            let why = format!(
                "expected that the webhook applies policy {} ({}) to the driver, found annotations {}",
                self.setup.policy,
                self.setup.scheduler.kind,
                observation::notes(&driver)
            );
            return Err(Stop::failed(
                why,
                "the webhook did not answer, or replicas have different policies: run spark-usher doctor",
            ));
        }
        let driver = observation::uid(&driver).to_owned();
        let client = self.token(&app.driver_name(), &driver).await?;
        let started = Driver { app, client, driver, group: RefCell::default() };
        match self.until(&started, from, |observation| observation.driver().is_some_and(observation::is_bound)).await? {
            Reached::Yes(_, took) => seen.push(Seen { what: "the driver is bound".into(), took: Some(took) }),
            Reached::No(observation) => {
                let why = format!(
                    "the driver was not scheduled within {} s: {}",
                    self.timeout.as_secs(),
                    observation.waits()
                );
                let fix =
                    "check that the scheduler runs and has capacity: kubectl describe pod, and the scheduler's log";
                return Err(Stop::NoDriver { why, fix: fix.to_owned() });
            }
        }
        if self.setup.numbers_on_pods() {
            self.size_is_known(&started, from, seen).await?;
        }
        Ok(started)
    }

    /// Waits until the webhook knows the gang's size: spark-usher reads a driver's configuration a moment after the
    /// driver was created, and real drivers take longer than that to create executors.
    async fn size_is_known(&self, started: &Driver, from: Instant, seen: &mut Vec<Seen>) -> Result<(), Stop> {
        let pods = self.api(&started.client, "Pod", "pods");
        loop {
            let pod = create(&pods, "create an executor (dry run)", &started.app.executor(1), true).await?;
            let took = clock::instant().duration_since(from);
            if observation::is_sized(&self.setup, &pod) {
                seen.push(Seen { what: "the webhook knows the gang's size".into(), took: Some(took) });
                return Ok(());
            }
            if took >= self.timeout {
                let why = format!(
                    "the webhook does not set the gang's size on executors {} s after the creation of their driver",
                    self.timeout.as_secs()
                );
                return Err(Stop::failed(
                    why,
                    "check gang.readSparkConf, the override min-member, and spark-usher's permission to get configmaps",
                ));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// A client with a token that is bound to this pod, as the one that kubelet mounts into it.
    async fn token(&self, name: &str, uid: &str) -> Result<Client, Stop> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: Some(name.to_owned()),
                    uid: Some(uid.to_owned()),
                }),
                expiration_seconds: Some(3600),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let what = format!("get a token of ServiceAccount {}", self.account);
        let params = PostParams::default();
        let issued = call(&what, accounts.create_token_request(&self.account, &params, &request)).await?;
        let token = issued.status.and_then(|status| status.token);
        let token = token.ok_or_else(|| Stop::failed(format!("cannot {what}: the response has none"), ""))?;
        by_token(&self.config, token).map_err(|error| Stop::failed(format!("{error:#}"), ""))
    }

    /// Creates an executor as the driver does.
    pub(super) async fn executor(&self, started: &Driver, id: u32) -> Result<(), Stop> {
        let pods = self.api(&started.client, "Pod", "pods");
        let what = format!("create an executor as the driver (ServiceAccount {})", self.account);
        let made = create(&pods, &what, &started.app.executor(id), false).await;
        let made = made.map_err(|stop| match stop {
            Stop::Failed { why, fix } if !fix.is_empty() => {
                Stop::failed(why, format!("{fix}; --service-account must name the service account of Spark's drivers"))
            }
            other => other,
        })?;
        if let Some(group) = observation::group_of(&self.setup, &made).filter(|_| self.setup.has_group()) {
            *started.group.borrow_mut() = Some(group.to_owned());
            self.groups.borrow_mut().insert(group.to_owned());
        }
        let fix = "the webhook did not answer, or replicas have different policies: run spark-usher doctor";
        // What replaces others does not join a gang whose count cannot change.
        let joins = id <= MEMBERS || self.setup.api.is_none_or(|api| api.count_mutable);
        observation::check_admitted(&self.setup, &made, joins).map_err(|why| Stop::failed(why, fix))
    }

    /// Returns an object as it would be stored; nothing is created.
    pub(super) async fn dry_run(&self, pod: &Value) -> Result<Value, Stop> {
        create(&self.pods(), "create a pod (dry run)", pod, true).await
    }

    /// Finds a node where two executors fit and three do not.
    pub(super) async fn pick_node(&self, app: &App) -> Result<NodeRequest, Stop> {
        // A strict policy denies an executor that no pod creates.
        let creator = create(&self.pods(), "create a pod", &app.creator(), false).await?;
        let uid = observation::uid(&creator);
        let client = self.token(&app.creator_name(), uid).await?;
        let pods = self.api(&client, "Pod", "pods");
        let pod = create(&pods, "create an executor (dry run)", &app.executor(1), true).await;
        call("delete a pod", self.pods().delete(&app.creator_name(), &at_once(uid))).await?;
        let pod = pod?;
        let never = text(&pod, &["spec", "preemptionPolicy"]) == "Never";
        let priority = at(&pod, &["spec", "priority"]).and_then(Value::as_i64).unwrap_or(0);
        let all = async |kind: &str, plural: &str| {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource("", "v1", kind, plural));
            let found = call(&format!("list all {plural}"), api.list(&ListParams::default())).await;
            let found = found.map_err(|stop| match stop {
                Stop::Failed { why, .. } => Stop::Skipped(format!("{why}: the free capacity of the nodes is unknown")),
                other => other,
            })?;
            Ok::<Vec<Value>, Stop>(found.items.into_iter().map(value).collect())
        };
        let (nodes, pods) = (all("Node", "nodes").await?, all("Pod", "pods").await?);
        capacity::pick(&nodes, &pods, &self.setup.node_pool, (!never).then_some(priority)).map_err(Stop::Skipped)
    }

    /// Sets how many executors the driver requests.
    pub(super) async fn lower(&self, started: &Driver, count: u32) -> Result<(), Stop> {
        let patch = json!({"metadata": {"annotations": {annotations::MIN_MEMBER: count.to_string()}}});
        let (pods, name, params) = (self.pods(), started.app.driver_name(), PatchParams::default());
        call("annotate the driver", pods.patch(&name, &params, &Patch::Merge(&patch))).await.map(|_| ())
    }

    /// Deletes the driver without a grace period.
    pub(super) async fn end_driver(&self, started: &Driver) -> Result<(), Stop> {
        let pods = self.pods();
        call("delete the driver", pods.delete(&started.app.driver_name(), &at_once(&started.driver))).await.map(|_| ())
    }

    /// Deletes an executor without a grace period.
    pub(super) async fn end_executor(&self, pod: &Value) -> Result<(), Stop> {
        let uid = text(pod, &["metadata", "uid"]);
        call("delete an executor", self.pods().delete(observation::name(pod), &at_once(uid))).await.map(|_| ())
    }

    async fn observe(&self, started: &Driver) -> Result<Observation, Stop> {
        let selector = format!("{},{}={}", objects::selector(Some(&self.run)), labels::APP_SELECTOR, started.app.name);
        let pods = self.pods();
        let pods = call("list pods", pods.list(&ListParams::default().labels(&selector))).await?;
        let group = started.group.borrow().clone();
        let group = match (self.podgroups(), group) {
            (Some(api), Some(group)) => call("get the PodGroup", api.get_opt(&group)).await?,
            _ => None,
        };
        Ok(Observation { pods: pods.items.into_iter().map(value).collect(), group: group.map(value) })
    }

    /// Polls until the condition is met; returns the time since `from`.
    pub(super) async fn until(
        &self,
        started: &Driver,
        from: Instant,
        done: impl Fn(&Observation) -> bool,
    ) -> Result<Reached, Stop> {
        self.until_within(started, from, self.timeout, done).await
    }

    /// The same for bound pods that only have to start.
    pub(super) async fn until_started(
        &self,
        started: &Driver,
        from: Instant,
        done: impl Fn(&Observation) -> bool,
    ) -> Result<Reached, Stop> {
        self.until_within(started, from, self.timeout.min(START), done).await
    }

    async fn until_within(
        &self,
        started: &Driver,
        from: Instant,
        within: Duration,
        done: impl Fn(&Observation) -> bool,
    ) -> Result<Reached, Stop> {
        let (begin, mut failures) = (clock::instant(), 0);
        loop {
            match self.observe(started).await {
                Ok(observation) if done(&observation) => {
                    return Ok(Reached::Yes(observation, clock::instant().duration_since(from)));
                }
                Ok(observation) if clock::instant().duration_since(begin) >= within => {
                    return Ok(Reached::No(observation));
                }
                Ok(_) => failures = 0,
                Err(stop) if failures >= MAX_FAILURES => return Err(stop),
                Err(_) => failures += 1,
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Verifies that a condition does not become true for a while.
    pub(super) async fn hold(
        &self,
        started: &Driver,
        broken: impl Fn(&Observation) -> bool,
    ) -> Result<Result<Duration, Observation>, Stop> {
        let from = clock::instant();
        Ok(match self.until_within(started, from, self.wait, broken).await? {
            Reached::Yes(observation, _) => Err(observation),
            Reached::No(_) => Ok(clock::instant().duration_since(from)),
        })
    }

    /// Removes all objects of this run, or of one application of it. Returns the objects that are left after the timeout.
    pub(super) async fn clear(&self, app: Option<&str>) -> Vec<String> {
        let mut selector = objects::selector(Some(&self.run));
        if let Some(app) = app {
            selector.push_str(&format!(",{}={app}", labels::APP_SELECTOR));
        }
        let begin = clock::instant();
        let late = || clock::instant().duration_since(begin) >= REMOVAL;
        let mut quiet = 0;
        loop {
            let left = self.remove(&selector).await;
            // A creation that was in progress when the run was interrupted may arrive a moment later.
            quiet = if left.is_empty() { quiet + 1 } else { 0 };
            if quiet == 2 {
                break;
            }
            if late() {
                return left;
            }
            tokio::time::sleep(POLL_INTERVAL * 3).await;
        }
        let gone = clock::instant();
        loop {
            let overdue = clock::instant().duration_since(gone) >= COLLECTED;
            let left = self.remove_groups(overdue).await;
            if left.is_empty() || late() {
                return left;
            }
            tokio::time::sleep(POLL_INTERVAL * 3).await;
        }
    }

    /// Deletes the existing objects, each by its uid. Returns them.
    async fn remove(&self, selector: &str) -> Vec<String> {
        let mut found = Vec::new();
        for (kind, plural) in [("Pod", "pods"), ("ConfigMap", "configmaps")] {
            let api = self.api(&self.client, kind, plural);
            match call("list", api.list(&ListParams::default().labels(selector))).await {
                Ok(all) => {
                    for object in all.items.into_iter().map(value) {
                        let name = observation::name(&object);
                        // An object that was already deleted needs no deletion; the next list shows the others.
                        let _ = call("delete", api.delete(name, &at_once(observation::uid(&object)))).await;
                        found.push(format!("{}/{name}", kind.to_lowercase()));
                    }
                }
                Err(_) => found.push(format!("{plural} (they cannot be listed)")),
            }
        }
        found
    }

    /// Returns the PodGroups, named by the pods, that still exist. If `overdue`, deletes those that belong to spark-usher.
    async fn remove_groups(&self, overdue: bool) -> Vec<String> {
        let Some(api) = self.podgroups() else { return Vec::new() };
        let names: Vec<String> = self.groups.borrow().iter().cloned().collect();
        let mut left = Vec::new();
        for name in names {
            match call("get", api.get_opt(&name)).await {
                Ok(None) => {
                    self.groups.borrow_mut().remove(&name);
                }
                Ok(Some(group)) => {
                    let group = value(group);
                    let ours = text(&group, &["metadata", "labels", annotations::MANAGED_BY]) == annotations::USHER;
                    if overdue && ours && !observation::is_deleting(&group) {
                        let _ = call("delete", api.delete(&name, &at_once(observation::uid(&group)))).await;
                    }
                    left.push(format!("podgroup/{name}"));
                }
                Err(_) => left.push(format!("podgroup/{name} (it cannot be read)")),
            }
        }
        left
    }
}

/// Creates an object, or only by dry run.
async fn create(api: &Api<DynamicObject>, what: &str, object: &Value, dry_run: bool) -> Result<Value, Stop> {
    let object: DynamicObject =
        serde_json::from_value(object.clone()).map_err(|error| Stop::failed(format!("cannot {what}: {error}"), ""))?;
    let params = PostParams { dry_run, ..PostParams::default() };
    call(what, api.create(&params, &object)).await.map(value)
}

/// Deletes exactly this object, without a grace period: pause pods need no shutdown.
fn at_once(uid: &str) -> DeleteParams {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background().grace_period(0) }
}
