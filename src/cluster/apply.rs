//! Doing what a plan asks for. Every write needs a [`Leadership`] that still holds, and names the object by uid and
//! resourceVersion: a stale plan is refused by the API server (409) and made anew from what the watch shows.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, DynamicObject, Status};
use serde_json::{Map, Value, json};

use super::events::Events;
use super::forbidden::Forbidden;
use super::lease::Leadership;
use super::limit::{Limiter, Priority};
use super::reads::pod_named;
use super::recent::Recent;
use super::view::{Seen, resource};
use super::watch::group_resource;
use crate::lifecycle::cause::Cause;
use crate::lifecycle::tally::Notice;
use crate::lifecycle::{Action, DriverRef, Finish, Told, owner_reference};
use crate::plant::{self, Bug};
use crate::reason::Reason;
use crate::runtime::clock;
use crate::snapshot::{Change, DriverPod, Followed, Group, GroupApi, GroupKey, Life, Sighting};
use crate::spark::ids::{AppKey, PodKey};
use crate::spark::labels;
use crate::telemetry::metrics::Metrics;

/// How long a write may take.
const LIMIT: Duration = Duration::from_secs(10);

/// After so many failures of one kind in a batch the others of that kind wait for the next plan,
const PATIENCE: u32 = 3;
/// and after so many of any kind everything does.
const PATIENCE_IN_ALL: u32 = 6;
/// So many things are remembered as said in a dry run.
const SAID: usize = 131_072;

/// The API server refuses this one action; otherwise it is in trouble.
fn refusal(error: &kube::Error) -> Option<&Status> {
    match error {
        kube::Error::Api(status) if (400..500).contains(&status.code) && !matches!(status.code, 408 | 429) => {
            Some(status)
        }
        _ => None,
    }
}

/// The longest description of an action in the log.
const MAX_DESCRIPTION: usize = 1024;

/// What came of the actions for one creator's executors.
#[derive(Debug, Default)]
pub struct Applied {
    /// What the answers told, so that the next plan needs not wait for the watch.
    pub changes: Vec<Change>,
    /// Whether something failed that should be tried again after a pause.
    pub failed: bool,
    /// Whether something was written, or refused.
    pub wrote: bool,
}

/// Does what plans ask for.
#[derive(Clone)]
pub struct Writer {
    client: kube::Client,
    events: Events,
    metrics: Arc<Metrics>,
    limiter: Limiter,
    forbidden: Arc<Mutex<Forbidden>>,
    /// What was said in a dry run.
    said: Arc<Mutex<Recent<u64, ()>>>,
}

/// Drivers' pods as read for a batch: each is read once for all executors of that driver.
type Looks = HashMap<PodKey, Option<DriverPod>>;

/// How one action ended.
enum Ended {
    /// Done, and what the answer told.
    Done(Option<Change>),
    /// The plan was stale: the watch tells more, or a live look did.
    Stale(Option<Change>),
    /// It must not be done, and this is why.
    Refused(Option<Told>),
}

impl Writer {
    /// For a client; Events are reported by this instance.
    pub(super) fn new(client: kube::Client, instance: &str, metrics: Arc<Metrics>, limiter: Limiter) -> Writer {
        let events = Events::new(client.clone(), instance, metrics.clone());
        let said = Arc::new(Mutex::new(Recent::new(SAID)));
        Writer { client, events, metrics, limiter, forbidden: Arc::default(), said }
    }

    /// Does the actions for one creator's executors of an application in their order. What fails is tried again with the next
    /// plan, and so is the rest of its kind after three failures; other kinds are done all the same.
    pub async fn apply(&self, leadership: &Leadership, app: &AppKey, actions: Vec<Action>, dry_run: bool) -> Applied {
        let mut applied = Applied::default();
        let mut failures: HashMap<&'static str, u32> = HashMap::new();
        let mut looks = Looks::new();
        for action in actions {
            let (name, why) = (action.name(), action.reason().map_or("", Reason::as_str));
            if dry_run && !plant::is(Bug::DryRunIgnored) {
                self.would(app, &action);
                continue;
            }
            let namespace = app.namespace();
            let failed = failures.get(name).copied().unwrap_or_default();
            if failed >= PATIENCE || self.is_forbidden(&action, namespace) {
                continue;
            }
            self.limiter.acquire(priority(&action)).await;
            if self.is_forbidden(&action, namespace) {
                continue; // Another batch was refused meanwhile.
            }
            if !leadership.holds() {
                applied.failed = true;
                return applied;
            }
            let outcome = match tokio::time::timeout(LIMIT, self.act(leadership, &action, &mut looks)).await {
                Ok(outcome) => outcome,
                Err(_) => Err(kube::Error::Service("no answer in time".into())),
            };
            match outcome {
                Ok(ended) => {
                    self.forbidden().allowed(name, namespace);
                    self.forbidden().allowed(name, &object(&action));
                    match ended {
                        Ended::Done(change) => {
                            if !matches!(action, Action::Tell(_)) {
                                applied.wrote = true;
                                self.count(name, "ok");
                                tracing::info!(%app, action = name, reason = why, what = describe(&action), "done");
                            }
                            applied.changes.extend(change);
                        }
                        Ended::Stale(change) => {
                            self.count(name, "stale");
                            applied.changes.extend(change);
                        }
                        Ended::Refused(told) => {
                            // It was asked for, and will be again: that has its pace too.
                            applied.wrote = true;
                            self.count(name, "refused");
                            if let Some(told) = told {
                                self.events.tell(leadership, &told).await;
                            }
                        }
                    }
                }
                Err(error) => match refusal(&error) {
                    Some(status) => {
                        applied.wrote = true;
                        self.count(name, "refused");
                        self.refused(leadership, app, &action, status).await;
                    }
                    None => {
                        self.count(name, "failed");
                        tracing::warn!(%app, action = name, what = describe(&action), %error, "failed; tried again");
                        applied.failed = true;
                        *failures.entry(name).or_default() += 1;
                        if failures.values().sum::<u32>() >= PATIENCE_IN_ALL {
                            return applied;
                        }
                    }
                },
            }
        }
        applied
    }

    /// The API server refuses an action: it is tried again ever more rarely, and that is said once.
    async fn refused(&self, leadership: &Leadership, app: &AppKey, action: &Action, status: &Status) {
        let (name, message, code) = (action.name(), &*status.message, status.code);
        // A right that is missing is missing for all alike; a policy may refuse one object.
        let of = if code == 403 && is_right(message) { app.namespace().to_owned() } else { object(action) };
        if self.forbidden().refused(name, &of, clock::instant()) {
            tracing::warn!(%app, action = name, what = describe(action), code, message, "refused by the API server; tried ever more rarely");
        }
        if code != 403 {
            return;
        }
        if let Action::Adopt { executor, uid, driver, .. } = action {
            let message = format!("not adopted by {}: {message}", driver.name);
            let told = Told { pod: executor.clone(), uid: uid.clone(), reason: Reason::AdoptionRefused, message };
            self.events.tell(leadership, &told).await;
        }
    }

    /// Says what would be done, each thing once.
    fn would(&self, app: &AppKey, action: &Action) {
        let (name, why) = (action.name(), action.reason().map_or("", Reason::as_str));
        let what = describe(action);
        let mut hasher = DefaultHasher::new();
        (app, name, why, &what).hash(&mut hasher);
        if !self.said.lock().unwrap_or_else(PoisonError::into_inner).is_news(hasher.finish()) {
            return;
        }
        self.count(name, "dry-run");
        tracing::info!(%app, action = name, reason = why, what, "would be done");
    }

    /// Whether the API server has forbidden this lately.
    fn is_forbidden(&self, action: &Action, namespace: &str) -> bool {
        let (mut forbidden, now) = (self.forbidden(), clock::instant());
        forbidden.is_paused(action.name(), namespace, now) || forbidden.is_paused(action.name(), &object(action), now)
    }

    fn forbidden(&self) -> MutexGuard<'_, Forbidden> {
        self.forbidden.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A driver's pod, read from the API server itself, once a batch. An error where the leadership has ended meanwhile: what
    /// was asked for is not written then.
    async fn look(
        &self,
        (leadership, looks): (&Leadership, &mut Looks),
        namespace: &str,
        name: &str,
    ) -> kube::Result<Option<DriverPod>> {
        let pod = PodKey::new(namespace, name);
        if let Some(found) = looks.get(&pod) {
            return Ok(found.clone());
        }
        let found = pod_named(&self.client, namespace, name).await?;
        if !leadership.holds() {
            return Err(kube::Error::Service("another replica may lead by now".into()));
        }
        looks.insert(pod, found.clone());
        Ok(found)
    }

    /// Writes an Event about ends, or its new count. Whether that went well.
    pub async fn notice(&self, leadership: &Leadership, notice: &Notice, dry_run: bool) -> bool {
        if dry_run || !leadership.holds() {
            return dry_run;
        }
        self.limiter.acquire(Priority::Cleanup).await;
        leadership.holds() && self.events.notice(leadership, notice).await
    }

    fn count(&self, action: &str, result: &str) {
        self.metrics.actions.with_label_values(&[action, result]).inc();
    }

    async fn act(&self, leadership: &Leadership, action: &Action, looks: &mut Looks) -> kube::Result<Ended> {
        match action {
            Action::CreateGroup { key, api, app, spec, owner, started } => {
                self.create_group(key, api, app, spec, owner.as_ref(), *started, (leadership, looks)).await
            }
            Action::PatchGroup { key, api, uid, version, patch, .. } => {
                self.patch_group(key, api, (uid, version), patch).await
            }
            Action::DeleteGroup { key, api, uid, version, .. } => self.delete_group(key, api, (uid, version)).await,
            Action::Adopt { executor, uid, version, driver, .. } => {
                self.adopt(executor, (uid, version), driver, (leadership, looks)).await
            }
            Action::Finish { executor, uid, version, how, cause, gone } => {
                self.finish(executor, (uid, version), *how, *cause, gone.as_ref(), (leadership, looks)).await
            }
            Action::Tell(told) => {
                self.events.tell(leadership, told).await;
                Ok(Ended::Done(None))
            }
        }
    }

    /// Labels or deletes an executor that ended. Where its driver's end is the reason not to wait, that is looked at
    /// again: a driver that is there after all goes first.
    async fn finish(
        &self,
        executor: &PodKey,
        (uid, version): (&str, &str),
        how: Finish,
        cause: Cause,
        gone: Option<&DriverRef>,
        looks: (&Leadership, &mut Looks),
    ) -> kube::Result<Ended> {
        if let Some(driver) = gone {
            let found = self.look(looks, executor.namespace(), &driver.name).await?;
            if let Some(alive) = found.filter(|pod| pod.uid == driver.uid && pod.life != Life::Ended) {
                let pod = PodKey::new(executor.namespace(), &driver.name);
                return Ok(Ended::Stale(Some(Change::Followed(pod, Followed::Present(Arc::new(alive)), Vec::new()))));
            }
        }
        let pods: Api<Seen<Sighting>> = self.objects(executor.namespace(), &resource("", "v1", "Pod", "pods"));
        let outcome = match how {
            Finish::Label => {
                let patch = json!({"metadata": {
                    "labels": {labels::INACTIVE: "true"}, "annotations": {labels::ENDED: cause.as_str()},
                }});
                let patch = Patch::Merge(guarded(&patch, uid, version));
                pods.patch(executor.name(), &patch_params(), &patch).await.map(|seen| seen.view.map(Change::Pod))
            }
            Finish::Delete => {
                let params = guarded_deletion(uid, version);
                // The watch tells when it is gone.
                pods.delete(executor.name(), &params).await.map(|_| None)
            }
        };
        match outcome {
            Ok(change) => Ok(Ended::Done(change)),
            // Then it is gone, whether the watch has told or not.
            Err(error) if has_code(&error, 404) => {
                Ok(Ended::Stale(Some(Change::PodGone(executor.clone(), uid.into()))))
            }
            Err(error) => stale(error, None),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "they are the fields of one action")]
    async fn create_group(
        &self,
        key: &GroupKey,
        api: &GroupApi,
        app: &AppKey,
        spec: &Value,
        owner: Option<&DriverRef>,
        started: bool,
        looks: (&Leadership, &mut Looks),
    ) -> kube::Result<Ended> {
        // A driver that was deleted just now: the garbage collector would take the group at once.
        if let Some(owner) = owner {
            let found = self.look(looks, &key.namespace, &owner.name).await?;
            if found.as_ref().is_none_or(|pod| pod.uid != owner.uid) {
                let pod = PodKey::new(&key.namespace, &owner.name);
                let followed = found.map_or(Followed::Absent, |pod| Followed::Present(Arc::new(pod)));
                return Ok(Ended::Stale(Some(Change::Followed(pod, followed, vec![app.clone()]))));
            }
        }
        let groups: Api<DynamicObject> = self.objects(&key.namespace, &group_resource(api));
        let mut metadata = json!({
            "name": &*key.name, "namespace": &*key.namespace,
            "labels": {labels::MANAGED_BY: labels::USHER, labels::APP_SELECTOR: app.selector()},
        });
        if let Some(map) = metadata.as_object_mut() {
            if let Some(owner) = owner {
                map.insert("ownerReferences".into(), json!([owner_reference(owner)]));
            }
            if started {
                map.insert("annotations".into(), json!({labels::STARTED: "true"}));
            }
        }
        let object = json!({"apiVersion": api.api_version(), "kind": api.kind, "metadata": metadata, "spec": spec});
        let object: DynamicObject = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
        match groups.create(&params(), &object).await {
            Ok(made) => Ok(Ended::Done(group_change(key, &made))),
            Err(error) if has_code(&error, 409) => self.already_there(key, &groups, owner).await,
            Err(error) => Err(error),
        }
    }

    /// A group of that name is there already: ours, which the watch has still to show, or somebody else's.
    async fn already_there(
        &self,
        key: &GroupKey,
        groups: &Api<DynamicObject>,
        owner: Option<&DriverRef>,
    ) -> kube::Result<Ended> {
        let Some(found) = groups.get_opt(&key.name).await? else { return Ok(Ended::Stale(None)) };
        let mark = found.metadata.labels.as_ref().and_then(|map| map.get(labels::MANAGED_BY));
        if mark.map(String::as_str) == Some(labels::USHER) {
            return Ok(group_change(key, &found).map_or(Ended::Stale(None), |change| Ended::Done(Some(change))));
        }
        let message = format!(
            "gang {}: a {} of that name is there which spark-usher did not make; it stays as it is",
            key.name, key.scheduler
        );
        tracing::warn!(group = %format_args!("{}/{}", key.namespace, key.name), "a PodGroup of that name is not ours");
        Ok(Ended::Refused(owner.map(|owner| Told {
            pod: PodKey::new(&key.namespace, &owner.name),
            uid: owner.uid.clone(),
            reason: Reason::GroupNotOurs,
            message,
        })))
    }

    async fn patch_group(
        &self,
        key: &GroupKey,
        api: &GroupApi,
        (uid, version): (&str, &str),
        patch: &Value,
    ) -> kube::Result<Ended> {
        let groups: Api<DynamicObject> = self.objects(&key.namespace, &group_resource(api));
        let starts = crate::json::text(patch, &["metadata", "annotations", labels::STARTED]) == "true";
        let patch = Patch::Merge(guarded(patch, uid, version));
        match groups.patch(&key.name, &patch_params(), &patch).await {
            Ok(changed) => {
                if starts {
                    self.time_start(&changed);
                }
                Ok(Ended::Done(group_change(key, &changed)))
            }
            Err(error) => stale(error, Some(key)),
        }
    }

    /// How long a gang has taken until all of it ran.
    fn time_start(&self, group: &DynamicObject) {
        let Some(created) = &group.metadata.creation_timestamp else { return };
        self.metrics.gang_start.observe(clock::now().duration_since(created.0).as_secs_f64().max(0.0));
    }

    async fn delete_group(&self, key: &GroupKey, api: &GroupApi, (uid, version): (&str, &str)) -> kube::Result<Ended> {
        let groups: Api<DynamicObject> = self.objects(&key.namespace, &group_resource(api));
        match groups.delete(&key.name, &guarded_deletion(uid, version)).await {
            // The answer is the object while finalizers hold it, else a Status.
            Ok(either) => Ok(Ended::Done(match either.left() {
                Some(held) => group_change(key, &held),
                None => Some(Change::GroupGone(key.clone())),
            })),
            Err(error) => stale(error, Some(key)),
        }
    }

    /// Gives an executor its driver, after a live look at the driver's pod: a wrong uid is lethal.
    async fn adopt(
        &self,
        executor: &PodKey,
        (uid, version): (&str, &str),
        driver: &DriverRef,
        looks: (&Leadership, &mut Looks),
    ) -> kube::Result<Ended> {
        let found = self.look(looks, executor.namespace(), &driver.name).await?;
        let lives = found
            .as_ref()
            .is_some_and(|pod| pod.uid == driver.uid && pod.life == Life::Running && !pod.deleting && !pod.is_executor);
        if !lives {
            return Ok(Ended::Refused(Some(Told {
                pod: executor.clone(),
                uid: uid.into(),
                reason: Reason::AdoptionRefused,
                message: format!("not adopted by {}: a live look found no such running pod", driver.name),
            })));
        }
        let pods: Api<Seen<Sighting>> = self.objects(executor.namespace(), &resource("", "v1", "Pod", "pods"));
        // Strategic: owners are merged by uid, so that one that is there stays.
        let nobody = DriverRef { name: driver.name.clone(), uid: uid.into() };
        let owner = if plant::is(Bug::AdoptedByNobody) { &nobody } else { driver };
        let patch = json!({"metadata": {"ownerReferences": [owner_reference(owner)]}});
        let patch = Patch::Strategic(guarded(&patch, uid, version));
        match pods.patch(executor.name(), &patch_params(), &patch).await {
            Ok(seen) => Ok(Ended::Done(seen.view.map(Change::Pod))),
            Err(error) => stale(error, None),
        }
    }

    fn objects<K>(&self, namespace: &str, resource: &ApiResource) -> Api<K>
    where
        K: kube::Resource<DynamicType = ApiResource, Scope = kube::core::DynamicResourceScope>,
    {
        Api::namespaced_with(self.client.clone(), namespace, resource)
    }
}

/// Whether a 403 speaks of a right: of RBAC's (`RESOURCE "NAME" is forbidden: User "USER" cannot patch …`), or of that to change
/// owners (`… is forbidden: cannot set an ownerRef on a resource you can't delete`). Webhooks and policies have words of
/// their own, and may use these too.
fn is_right(message: &str) -> bool {
    let Some((what, why)) = message.split_once(" is forbidden: ") else { return false };
    let names_object = what.split(' ').count() <= 2 && !what.contains(':');
    names_object && (why.starts_with("User ") || why.starts_with("cannot set "))
}

/// The object that an action is about.
fn object(action: &Action) -> String {
    match action {
        Action::CreateGroup { key, .. } | Action::PatchGroup { key, .. } | Action::DeleteGroup { key, .. } => {
            format!("{}/{}", key.namespace, key.name)
        }
        Action::Adopt { executor, .. } | Action::Finish { executor, .. } => executor.to_string(),
        Action::Tell(told) => told.pod.to_string(),
    }
}

/// How soon an action's turn comes.
fn priority(action: &Action) -> Priority {
    match action {
        Action::CreateGroup { .. } | Action::PatchGroup { .. } => Priority::Group,
        Action::DeleteGroup { .. } | Action::Adopt { .. } | Action::Finish { .. } | Action::Tell(_) => {
            Priority::Cleanup
        }
    }
}

fn params() -> PostParams {
    PostParams { field_manager: Some(labels::USHER.to_owned()), ..PostParams::default() }
}

fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(labels::USHER.to_owned()), ..PatchParams::default() }
}

/// The patch with its preconditions: the API server answers 409 when either differs.
fn guarded(patch: &Value, uid: &str, version: &str) -> Value {
    let mut patch = patch.clone();
    let metadata = crate::json::map_mut(&mut patch, &["metadata"]);
    metadata.insert("uid".into(), uid.into());
    metadata.insert("resourceVersion".into(), version.into());
    patch
}

/// A deletion with the same preconditions.
fn guarded_deletion(uid: &str, version: &str) -> DeleteParams {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: Some(version.to_owned()) };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() }
}

fn has_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// Refusals that mean that the plan was made of an old picture: it changed (409), or is gone (404).
fn stale(error: kube::Error, group: Option<&GroupKey>) -> kube::Result<Ended> {
    if has_code(&error, 409) {
        return Ok(Ended::Stale(None));
    }
    if has_code(&error, 404) {
        return Ok(Ended::Stale(group.map(|key| Change::GroupGone(key.clone()))));
    }
    Err(error)
}

fn group_change(key: &GroupKey, object: &DynamicObject) -> Option<Change> {
    use super::view::View;
    let text = serde_json::to_string(object).ok()?;
    Some(Change::Group(key.clone(), Group::read(&text)?))
}

/// An action in a line, for the log.
fn describe(action: &Action) -> String {
    let mut out = Map::new();
    match action {
        Action::CreateGroup { key, spec, .. } => {
            out.insert("group".into(), (*key.name).into());
            out.insert("spec".into(), spec.clone());
        }
        Action::PatchGroup { key, patch, .. } => {
            out.insert("group".into(), (*key.name).into());
            out.insert("patch".into(), patch.clone());
        }
        Action::DeleteGroup { key, .. } => {
            out.insert("group".into(), (*key.name).into());
        }
        Action::Adopt { executor, driver, how, .. } => {
            out.insert("executor".into(), executor.name().into());
            out.insert("driver".into(), (*driver.name).into());
            out.insert("how".into(), how.as_str().into());
        }
        Action::Finish { executor, cause, gone, .. } => {
            out.insert("executor".into(), executor.name().into());
            out.insert("cause".into(), cause.as_str().into());
            if let Some(driver) = gone {
                out.insert("driverGone".into(), (*driver.name).into());
            }
        }
        Action::Tell(told) => {
            out.insert("pod".into(), told.pod.name().into());
            out.insert("message".into(), told.message.clone().into());
        }
    }
    let text = Value::Object(out).to_string();
    text.chars().take(MAX_DESCRIPTION).collect()
}

#[cfg(test)]
mod tests;
