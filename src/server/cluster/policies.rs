//! The admission policies that follow the policy file: the leader applies them, and every replica reports where those of the cluster
//! differ.
//!
//! [`converge`](usher_core::manifests::converge) decides what to write and when; this reads, writes and watches.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use futures::{StreamExt, TryFutureExt};
use kube::ResourceExt;
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions, WatchEvent, WatchParams,
};
use kube::core::ApiResource;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::lease::{Leadership, LeadershipReceiver};
use super::metrics::Metrics;
use super::recorder::EventRecorder;
use super::vouching::Account;
use usher_core::manifests::converge::{Memory, Wanted, Write, compare};
use usher_core::manifests::installation::Installation;
use usher_core::manifests::object::{GROUP, KINDS, SUFFIX, is_validating};
use usher_core::manifests::validating_policy::Slot;
use usher_core::manifests::{called, creator_policy, is_same};
use usher_core::policy::Policies;
use usher_kube::client::Brief;
use usher_kube::request::{Error, Result, call};
use usher_kube::view::resource;
use usher_net::telemetry::registry::to_gauge;
use usher_runtime::clock;
use usher_spark::json::text;

/// The field manager of the policies. No other write of spark-usher has it.
const FIELD_MANAGER: &str = "spark-usher-policies";
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a write: an API server compiles all expressions of a policy first.
const WRITE_TIMEOUT: Duration = Duration::from_secs(40);
/// How often the objects are read although nothing changed.
const POLL_INTERVAL: Duration = Duration::from_secs(60);
/// How often the task checks for another policy file or another leadership, without a request.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The pause after a failure. It doubles.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The pause after a watch that ended: it may end immediately, again and again.
const REWATCH_PAUSE: Duration = Duration::from_secs(5);
/// How long the leader waits for further changes before it reads the objects.
const COALESCE: Duration = Duration::from_millis(250);
/// How often in a row an object may have changed as it was written before that is a failure.
const MAX_STALE: u32 = 3;
/// The most rounds without a pause. A set takes two, and the deletion of the other set one.
const MAX_ROUNDS: u32 = 5;

/// The admission policies of this installation, and who applies them.
#[derive(Clone, Debug)]
pub struct AdmissionPolicies {
    /// The validating policies alone, or the fallback alone ([`Installation::parts`]), so that neither waits for the other.
    pub installation: Installation,
    /// The leader applies them with this owner in their `ownerReferences`; while it does not exist, the leader writes nothing.
    /// `None`: an administrator applies them, and replicas only compare.
    pub owner: Option<Owner>,
    /// After this time API servers enforce a policy.
    pub settle: Duration,
}

/// A cluster-scoped object that the installation creates and deletes.
#[derive(Clone, PartialEq, Eq)]
pub struct Owner {
    kind: OwnerKind,
    name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnerKind {
    ClusterRole,
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
}

impl std::str::FromStr for Owner {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Owner, String> {
        let expected =
            "expected ClusterRole/NAME, MutatingWebhookConfiguration/NAME or ValidatingWebhookConfiguration/NAME";
        let (kind, name) = text.split_once('/').filter(|(_, name)| !name.is_empty()).ok_or(expected)?;
        let kind = match kind {
            "ClusterRole" => OwnerKind::ClusterRole,
            "MutatingWebhookConfiguration" => OwnerKind::MutatingWebhookConfiguration,
            "ValidatingWebhookConfiguration" => OwnerKind::ValidatingWebhookConfiguration,
            _ => return Err(expected.to_owned()),
        };
        Ok(Owner { kind, name: name.to_owned() })
    }
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}/{}", self.kind, self.name)
    }
}

impl Owner {
    fn resource(&self) -> ApiResource {
        match self.kind {
            OwnerKind::ClusterRole => resource("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles"),
            OwnerKind::MutatingWebhookConfiguration => {
                resource(GROUP, "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations")
            }
            OwnerKind::ValidatingWebhookConfiguration => {
                resource(GROUP, "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations")
            }
        }
    }

    /// The owner reference, if the object exists.
    async fn reference(&self, client: &kube::Client) -> Result<Option<Value>> {
        let resource = self.resource();
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let found = api.get_opt(&self.name).await?;
        Ok(found.and_then(|found| found.uid()).map(
            |uid| json!({"apiVersion": resource.api_version, "kind": resource.kind, "name": self.name, "uid": uid}),
        ))
    }
}

/// The objects of one kind, and the resourceVersion of their list.
struct Listed {
    resource: ApiResource,
    objects: Vec<Value>,
    version: String,
}

/// The admission policies of a cluster that a policy file made, of any installation and version.
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// Policies and bindings.
    pub objects: Vec<Value>,
    /// The kinds that the cluster does not serve: before Kubernetes 1.36 the mutating ones.
    pub unserved: Vec<&'static str>,
}

/// Reads them.
pub async fn live(client: &kube::Client) -> Result<Live> {
    let mut live = Live::default();
    for (kind, plural) in KINDS {
        match list(client, resource(GROUP, "v1", kind, plural)).await? {
            Some(listed) => live.objects.extend(listed.objects),
            None => live.unserved.push(kind),
        }
    }
    let creator = creator_policy::names("");
    live.objects.retain(|object| {
        let name = text(object, &["metadata", "name"]);
        name.ends_with(SUFFIX) && !creator.iter().any(|suffix| name.ends_with(suffix))
    });
    Ok(live)
}

/// All objects, because another client may have removed our label. `None` if the cluster does not serve the kind.
async fn list(client: &kube::Client, resource: ApiResource) -> Result<Option<Listed>> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let found = match api.list(&ListParams::default()).await.map_err(Error::from) {
        Ok(found) => found,
        Err(Error::NotFound(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let version = found.metadata.resource_version.clone().unwrap_or_default();
    let objects = found.items.into_iter().filter_map(|object| {
        let mut object = serde_json::to_value(object).ok()?;
        // Objects of a list have no kind.
        usher_spark::json::set(&mut object, &["kind"], resource.kind.as_str());
        Some(object)
    });
    let objects = objects.collect();
    Ok(Some(Listed { resource, objects, version }))
}

/// The parts of the replica that the task uses.
pub struct Inputs {
    pub client: kube::Client,
    /// The policies of the file in use.
    pub policies: Arc<ArcSwap<Policies>>,
    /// Our own user name, which the policies exempt.
    pub account: Account,
    /// The leadership of this replica.
    pub leadership: LeadershipReceiver,
    /// The identity of this replica, for Events.
    pub identity: String,
    pub metrics: Arc<Metrics>,
}

/// Applies and compares until `stop` is cancelled.
pub async fn run(settings: AdmissionPolicies, inputs: Inputs, stop: CancellationToken) {
    let mut task = Task::new(settings, inputs);
    stop.run_until_cancelled(task.run()).await;
}

struct Task {
    settings: AdmissionPolicies,
    inputs: Inputs,
    recorder: EventRecorder,
    /// The state of the current leadership.
    memory: Option<Memory>,
    /// The generated objects, and their sources.
    generated: Option<Generated>,
    /// The problems of the last round.
    logged: Vec<String>,
    /// Why the last round failed.
    failure: Option<String>,
    /// The number of differences in the metric.
    counted: usize,
}

/// Why a round ended early.
enum Failure {
    /// The leadership has ended.
    NotLeading,
    /// The object changed after it was read.
    Stale(String),
    /// A request failed, a sentence.
    Failed(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::of_request("cannot read the admission policies", error)
    }
}

impl Failure {
    fn of_request(what: &str, error: Error) -> Failure {
        let text = format!("{what}: {}", Brief(&error));
        match error {
            Error::NotLeading => Failure::NotLeading,
            Error::Conflict(_) => Failure::Stale(text),
            _ => Failure::Failed(text),
        }
    }
}

struct Generated {
    policies: Arc<Policies>,
    account: Arc<String>,
    wanted: Wanted,
    refused: Vec<String>,
}

impl Task {
    fn new(settings: AdmissionPolicies, inputs: Inputs) -> Task {
        let recorder = EventRecorder::new(inputs.client.clone(), &inputs.identity, inputs.metrics.clone());
        let (memory, generated, failure) = (None, None, None);
        Task { settings, inputs, recorder, memory, generated, logged: Vec::new(), failure, counted: 0 }
    }

    async fn run(&mut self) {
        let mut failures = 0;
        loop {
            self.receive_leadership();
            let policies = self.inputs.policies.load_full();
            let (next, watched) = match self.rounds(&policies).await {
                Ok(done) => {
                    (failures, self.failure) = (0, None);
                    done
                }
                Err(Failure::NotLeading) => (clock::instant() + LOOK_INTERVAL, Vec::new()),
                Err(failure) => {
                    let pause = RETRY_PAUSE.saturating_mul(1 << failures).min(POLL_INTERVAL);
                    failures = (failures + 1).min(6);
                    self.fail(failure, failures);
                    (clock::instant() + pause, Vec::new())
                }
            };
            self.wait(next, &policies, watched).await;
        }
    }

    /// Returns whether the leadership changed. The state of an earlier leadership is dropped: another replica may have written since.
    fn receive_leadership(&mut self) -> bool {
        let is_other = self.inputs.leadership.receive();
        if is_other {
            self.memory = None;
        }
        is_other
    }

    /// Waits for the next round: a change of the objects, the policy file or the leadership, or this time.
    async fn wait(&mut self, next: Instant, policies: &Arc<Policies>, watched: Vec<Listed>) {
        let prefix = format!("{}.", self.settings.installation.name);
        let changed = changed(self.inputs.client.clone(), watched, &prefix);
        let looked = async {
            loop {
                tokio::time::sleep(LOOK_INTERVAL.min(next.saturating_duration_since(clock::instant()))).await;
                let is_other_file = !Arc::ptr_eq(policies, &self.inputs.policies.load());
                if is_other_file || self.receive_leadership() || clock::instant() >= next {
                    return;
                }
            }
        };
        tokio::select! {
            () = changed => {}
            () = looked => {}
        }
    }

    /// Counts and logs what differs from the policy file.
    fn report(&mut self, problems: Vec<String>, differences: &[String]) {
        self.differ(problems.len() + differences.len());
        for difference in differences {
            tracing::debug!(difference, "the admission policies differ from the policy file");
        }
        self.log(problems);
    }

    /// Counts and logs why a round failed, once. What changes as it is written is no failure, unless it does so again and again.
    fn fail(&mut self, failure: Failure, failures: u32) {
        // An object that cannot be read counts as a difference.
        self.differ(self.counted.max(1));
        let text = match failure {
            Failure::Failed(text) => text,
            Failure::Stale(text) if failures > MAX_STALE => text,
            Failure::Stale(_) | Failure::NotLeading => return,
        };
        if self.failure.as_ref() != Some(&text) {
            tracing::warn!("{text}");
            self.failure = Some(text);
        }
    }

    /// Sets the number of differences.
    fn differ(&mut self, count: usize) {
        self.counted = count;
        let part = if self.settings.installation.validates() { "validating" } else { "fallback" };
        self.inputs.metrics.policies_differ.with_label_values(&[part]).set(to_gauge(count));
    }

    /// Reads, plans and writes until there is nothing more to write now. Returns when to look again, and the lists from which to
    /// watch until then.
    async fn rounds(&mut self, policies: &Arc<Policies>) -> std::result::Result<(Instant, Vec<Listed>), Failure> {
        // The policies exempt our own account; `account` logs why it is not known.
        let Some(account) = self.inputs.account.load_full() else {
            self.differ(1);
            return Ok((clock::instant() + LOOK_INTERVAL, Vec::new()));
        };
        for _ in 0..MAX_ROUNDS {
            let is_dry_run = policies.recovery.dry_run;
            let leads = self.inputs.leadership.received().cloned().filter(|_| !is_dry_run);
            let applying = leads.zip(self.settings.owner.clone());
            let owner = match &applying {
                Some((_, owner)) => call(READ_TIMEOUT, owner.reference(&self.inputs.client)).await?,
                None => None,
            };
            let (wanted, mut problems) = self.generate(policies, &account);
            let (listed, unserved) = self.list().await?;
            if !unserved.is_empty() {
                // That an older cluster has no fallback is no difference: an alert would fire until the cluster is upgraded.
                let is_expected = !self.settings.installation.validates();
                self.differ(problems.len() + if is_expected { 0 } else { unserved.len() });
                self.log([problems, unserved].concat());
                return Ok((clock::instant() + POLL_INTERVAL, Vec::new()));
            }
            let wanted = match &owner {
                Some(owner) => wanted.owned_by(owner),
                None => wanted,
            };
            let live: Vec<Value> = listed.iter().flat_map(|listed| listed.objects.iter().cloned()).collect();
            let now = clock::instant();
            let Some((leadership, owned_by)) = applying else {
                let slot = self.settings.owner.is_none().then_some(Slot::A);
                let (found, _) = compare(&live, &wanted, slot);
                if is_dry_run && !found.is_empty() && self.settings.owner.is_some() {
                    problems.push("lifecycle.dryRun is true: no admission policy is written".to_owned());
                }
                self.report(problems, &found);
                return Ok((now + POLL_INTERVAL, Vec::new()));
            };
            let settle = self.settings.settle;
            let plan = self.memory.get_or_insert_with(|| Memory::new(settle)).plan(&live, &wanted, now);
            problems.extend(plan.problems);
            if owner.is_none() {
                problems.push(format!(
                    "{owned_by:?} does not exist, to which the admission policies are to belong: nothing is written"
                ));
            }
            self.report(problems, &plan.differences);
            let poll = now + POLL_INTERVAL;
            if owner.is_none() || plan.writes.is_empty() {
                return Ok((plan.next.map_or(poll, |next| next.min(poll)), listed));
            }
            self.write_all(&leadership, &plan.writes, now).await?;
            if !Arc::ptr_eq(policies, &self.inputs.policies.load()) {
                break; // Another file, which may be a dry run.
            }
        }
        Ok((clock::instant() + LOOK_INTERVAL, Vec::new()))
    }

    /// The wanted objects, and the problems of the file. Generates them if the file or our account changed.
    fn generate(&mut self, policies: &Arc<Policies>, account: &Arc<String>) -> (Wanted, Vec<String>) {
        let is_current =
            |generated: &Generated| Arc::ptr_eq(&generated.policies, policies) && generated.account == *account;
        let generate = |earlier: Option<Generated>| {
            let (wanted, refused) = self.settings.installation.wanted(policies, account);
            let wanted = wanted.or_earlier(earlier.map(|earlier| earlier.wanted));
            Generated { policies: policies.clone(), account: account.clone(), wanted, refused }
        };
        let generated = match self.generated.take() {
            Some(current) if is_current(&current) => current,
            earlier => generate(earlier),
        };
        let generated = self.generated.insert(generated);
        (generated.wanted.clone(), generated.refused.clone())
    }

    /// The objects of the kinds that are managed, and which kinds the cluster does not serve.
    async fn list(&self) -> Result<(Vec<Listed>, Vec<String>)> {
        let (mut listed, mut unserved) = (Vec::new(), Vec::new());
        for (kind, plural) in KINDS {
            if is_validating(kind) == self.settings.installation.validates() {
                match call(READ_TIMEOUT, list(&self.inputs.client, resource(GROUP, "v1", kind, plural))).await? {
                    Some(found) => listed.push(found),
                    None => unserved.push(format!("this cluster does not serve {kind} in {GROUP}/v1")),
                }
            }
        }
        Ok((listed, unserved))
    }

    /// Carries out the writes of the round of this time.
    async fn write_all(
        &mut self,
        leadership: &Leadership,
        writes: &[Write],
        round: Instant,
    ) -> std::result::Result<(), Failure> {
        for write in writes {
            let (kind, name) = write.subject();
            let (done, what) = match write {
                Write::Apply { object, seen, restored } => {
                    let applied = self.apply(leadership, object, seen.as_deref()).await;
                    if let (Ok(applied), true) = (&applied, restored) {
                        self.recorder.record_policy(leadership, applied).await;
                    }
                    (applied.map(drop), "applied")
                }
                Write::Delete { seen, .. } => (self.delete(leadership, kind, name, seen).await, "deleted"),
            };
            let result = match &done {
                Ok(()) => "ok",
                Err(Error::Conflict(_)) => "stale",
                Err(_) => "failed",
            };
            if !matches!(done, Err(Error::NotLeading)) {
                self.inputs.metrics.actions.with_label_values(&["admission-policy", result]).inc();
            }
            done.map_err(|error| Failure::of_request(&format!("{kind} {name} is not {what}"), error))?;
            tracing::info!(kind, name, "admission policy {what}");
            if let Some(memory) = &mut self.memory {
                memory.wrote(write, round);
            }
        }
        Ok(())
    }

    /// Applies an object. A server-side apply keeps the fields of other managers, such as a condition that excludes requests, with which
    /// the object may even be invalid: then the whole spec is replaced.
    async fn apply(&self, leadership: &Leadership, object: &Value, seen: Option<&str>) -> Result<Value> {
        let applied = match (self.apply_fields(leadership, object, seen).await, seen) {
            (Err(invalid), Some(version)) if is_invalid(&invalid) => {
                let replaced = self.replace_spec(leadership, object, version).await;
                let replaced = replaced.map_err(|error| if is_invalid(&error) { invalid } else { error })?;
                self.apply_fields(leadership, object, Some(version_of(&replaced))).await?
            }
            (applied, _) => applied?,
        };
        if is_same(&applied, object) {
            return Ok(applied);
        }
        let replaced = self.replace_spec(leadership, object, version_of(&applied)).await?;
        if is_same(&replaced, object) {
            return Ok(replaced);
        }
        Err(Error::Malformed(format!("{}: what is stored is not what was applied", called(object))))
    }

    async fn apply_fields(&self, leadership: &Leadership, object: &Value, seen: Option<&str>) -> Result<Value> {
        let (api, name) = (self.api(text(object, &["kind"])), text(object, &["metadata", "name"]));
        let mut stated = object.clone();
        if let Some(version) = seen {
            usher_spark::json::set(&mut stated, &["metadata", "resourceVersion"], version);
        }
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let applied = leading(leadership, api.patch(name, &params, &Patch::Apply(&stated)).err_into()).await?;
        Ok(serde_json::to_value(applied).unwrap_or_default())
    }

    /// Replaces the spec of an object of this resourceVersion.
    async fn replace_spec(&self, leadership: &Leadership, object: &Value, version: &str) -> Result<Value> {
        let (api, name) = (self.api(text(object, &["kind"])), text(object, &["metadata", "name"]));
        let operations = json!([
            {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
            {"op": "replace", "path": "/spec", "value": object.get("spec")},
        ]);
        let patch = Patch::<()>::Json(serde_json::from_value(operations).map_err(kube::Error::SerdeError)?);
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let replaced = leading(leadership, api.patch(name, &params, &patch).err_into()).await?;
        Ok(serde_json::to_value(replaced).unwrap_or_default())
    }

    async fn delete(
        &self,
        leadership: &Leadership,
        kind: &str,
        name: &str,
        [uid, version]: &[String; 2],
    ) -> Result<()> {
        let seen = Preconditions { uid: Some(uid.clone()), resource_version: Some(version.clone()) };
        let params = DeleteParams { preconditions: Some(seen), ..DeleteParams::default() };
        match leading(leadership, self.api(kind).delete(name, &params).err_into()).await {
            Ok(_) | Err(Error::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn api(&self, kind: &str) -> Api<DynamicObject> {
        let plural = KINDS.iter().find(|(known, _)| *known == kind).map_or("", |(_, plural)| plural);
        Api::all_with(self.inputs.client.clone(), &resource(GROUP, "v1", kind, plural))
    }

    /// Logs the problems that the last round did not have.
    fn log(&mut self, problems: Vec<String>) {
        for problem in problems.iter().filter(|problem| !self.logged.contains(problem)) {
            tracing::warn!("{problem}");
        }
        self.logged = problems;
    }
}

fn is_invalid(error: &Error) -> bool {
    error.status().is_some_and(|status| status.code == 422)
}

fn version_of(object: &Value) -> &str {
    text(object, &["metadata", "resourceVersion"])
}

/// A write of the leader.
async fn leading<T>(leadership: &Leadership, write: impl Future<Output = Result<T>>) -> Result<T> {
    leadership.require()?;
    call(WRITE_TIMEOUT, write).await
}

/// Returns shortly after an object of these kinds whose name begins with this changes. Never returns if there is nothing to watch.
async fn changed(client: kube::Client, listed: Vec<Listed>, prefix: &str) {
    let mut watches = Vec::new();
    for Listed { resource, version, .. } in listed {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let params = WatchParams::default();
        match call(READ_TIMEOUT, api.watch(&params, &version).err_into::<Error>()).await {
            Ok(stream) => watches.push(Box::pin(async move {
                let mut stream = stream.boxed();
                loop {
                    match stream.next().await {
                        Some(Ok(
                            WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object),
                        )) if object.name_any().starts_with(prefix) => return tokio::time::sleep(COALESCE).await,
                        Some(Ok(WatchEvent::Error(_)) | Err(_)) | None => {
                            return tokio::time::sleep(REWATCH_PAUSE).await;
                        }
                        Some(Ok(_)) => {}
                    }
                }
            })),
            // The poll remains.
            Err(error) => tracing::debug!(kind = resource.kind, %error, "cannot watch admission policies"),
        }
    }
    if watches.is_empty() {
        return std::future::pending().await;
    }
    futures::future::select_all(watches).await;
}

#[cfg(test)]
mod tests;
