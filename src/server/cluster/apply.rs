//! Executes the actions of a plan. Every write requires a [`Leadership`] that still holds, and identifies the object by uid and
//! resourceVersion: the API server rejects a stale plan (409), and the next plan uses what the watch shows.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, DynamicObject, Status};
use serde_json::{Value, json};

use super::driver_api::DriverApi;
use super::evidence::{BatchReads, EvidenceReader};
use super::forbidden::Forbidden;
use super::group_refused::group_refused;
use super::lease::Leadership;
use super::metrics::Metrics;
use super::recorder::EventRecorder;
use super::recovery_checks;
use super::watch::group_resource;
use usher_core::annotations;
use usher_core::controller::NodeReport;
use usher_core::event_aggregator::AggregatedEvent;
use usher_core::gang::GangScheduler;
use usher_core::lifecycle::cause::Cause;
use usher_core::planning::{Action, Check, Cleanup, ObjectVersion, PodEvent, Recover};
use usher_core::reason::Reason;
use usher_core::reconcile::owner_reference;
use usher_core::recovery::budget::Attempt;
use usher_core::recovery::report::DeletedPod;
use usher_core::snapshot::{
    Change, DriverPhase, Group, GroupApi, GroupKey, ObservedPod, PodChange, ReferencedPod, RelatedChange, Snapshot,
    Watched,
};
use usher_kube::limit::{Limiter, Priority};
use usher_kube::recent::Recent;
use usher_kube::request::{Error, Result, call};
use usher_kube::view::{Viewed, pods};
use usher_runtime::clock;
use usher_spark::hash::hash_of;
use usher_spark::ids::{AppKey, PodIdentity, PodKey};
use usher_spark::labels;

/// Timeout of a write.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// After this many failures of one kind in a batch, the others of that kind wait for the next plan,
const MAX_FAILURES_PER_KIND: u32 = 3;
/// and after this many of any kind, all others do.
const MAX_FAILURES: u32 = 6;
/// At least this many actions are remembered as logged in a dry run.
const MAX_REPORTED: usize = 131_072;

/// The status, if the API server rejects this one action; `None` if the API server itself fails.
fn client_error(error: &Error) -> Option<&Status> {
    error.status().filter(|status| (400..500).contains(&status.code) && !matches!(status.code, 408 | 429))
}

/// Why a pod is not deleted, for people: clauses after "because".
const REFUSED: &str = "the API server refused the deletion";
const EARLIER: &str = "earlier deletions failed or were refused";

/// Why a pod is not deleted if what is verified before does not hold.
fn not_confirmed(action: &Action) -> &'static str {
    match action {
        Action::Recover(deletion) => deletion.check.failure(),
        _ => Check::Version.failure(),
    }
}

/// The result of the actions for one creator's executors.
#[derive(Debug, Default)]
pub struct Applied {
    /// The changes in the answers, so that the next plan does not wait for the watch.
    pub changes: Vec<Change>,
    /// Whether an action failed that should be retried after a delay.
    pub failed: bool,
    /// Whether something was written, or rejected.
    pub wrote: bool,
    /// The pods that recovery rules deleted.
    pub recovered: Vec<DeletedPod>,
    /// How deletions by recovery rules ended.
    pub attempts: Vec<Attempt>,
}

impl Applied {
    /// An action ended; without a reason why not, it was executed, or may have been.
    fn ended(&mut self, action: &Action, not_executed: impl Into<Option<&'static str>>) {
        if let Action::Recover(deletion) = action {
            self.attempts.push(Attempt {
                rule: deletion.rule,
                uid: deletion.seen.uid.clone(),
                not_deleted: not_executed.into(),
            });
        }
    }
}

/// Executes the actions of plans.
#[derive(Clone)]
pub struct Writer {
    client: kube::Client,
    events: EventRecorder,
    metrics: Arc<Metrics>,
    limiter: Limiter,
    forbidden: Arc<Mutex<Forbidden>>,
    /// Polls drivers again before a recovery rule deletes an executor.
    drivers: DriverApi,
    /// Reads again what contradicts an action.
    evidence: EvidenceReader,
    /// The actions that were logged in a dry run.
    reported: Arc<Mutex<Recent<u64, ()>>>,
}

/// The result of one action.
enum WriteOutcome {
    /// Done, with the change in the answer.
    Done(Option<Change>),
    /// The plan was stale: the watch shows more, or a GET did.
    Stale(Option<Change>),
    /// A check immediately before the action failed, and this is why, with what it found.
    NotConfirmed(&'static str, Option<Change>),
    /// The action must not be executed, and this is why.
    Refused(Option<PodEvent>),
}

impl Writer {
    /// A writer with this client; Events are reported by this instance.
    pub(super) fn new(
        client: kube::Client,
        instance: &str,
        metrics: Arc<Metrics>,
        limiter: Limiter,
        drivers: DriverApi,
        snapshot: Arc<ArcSwap<Snapshot>>,
    ) -> Writer {
        let evidence = EvidenceReader { client: client.clone(), limiter: limiter.clone(), snapshot };
        let events = EventRecorder::new(client.clone(), instance, metrics.clone());
        let reported = Arc::new(Mutex::new(Recent::new(MAX_REPORTED)));
        Writer { client, events, metrics, limiter, forbidden: Arc::default(), drivers, evidence, reported }
    }

    /// Executes the actions for one creator's executors of an application, in order. A failed action is retried with the next
    /// plan, and so is the rest of its kind after three failures; other kinds are executed all the same.
    pub async fn apply(&self, leadership: &Leadership, app: &AppKey, actions: Vec<Action>, dry_run: bool) -> Applied {
        let reads = BatchReads::new(leadership);
        let mut batch =
            Batch { writer: self, leadership, app, reads, failures: HashMap::new(), applied: Applied::default() };
        let mut actions = actions.into_iter();
        while let Some(action) = actions.next() {
            if dry_run {
                self.report_dry_run(app, &action);
                batch.applied.ended(&action, "lifecycle.dryRun is true");
            } else if batch.execute(&action).await.is_break() {
                actions.by_ref().for_each(|action| batch.applied.ended(&action, EARLIER));
            }
        }
        batch.applied
    }

    /// Logs an action that a dry run does not execute, each action once.
    fn report_dry_run(&self, app: &AppKey, action: &Action) {
        let (name, why) = (action.name(), action.reason().map_or("", Reason::as_str));
        let what = action.describe();
        if !self.reported.lock().unwrap_or_else(PoisonError::into_inner).insert_new(hash_of(&(app, name, why, &what))) {
            return;
        }
        self.count(name, "dry-run");
        tracing::info!(%app, action = name, reason = why, what, "dry run: action not executed");
    }

    fn forbidden(&self) -> MutexGuard<'_, Forbidden> {
        self.forbidden.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes an Event about exits, or its new count. Returns whether that succeeded.
    pub async fn write_event(&self, leadership: &Leadership, notice: &AggregatedEvent, dry_run: bool) -> bool {
        if dry_run || !leadership.holds() {
            return dry_run;
        }
        self.limiter.acquire(Priority::Cleanup).await;
        leadership.holds() && self.events.record_aggregated(leadership, notice).await
    }

    /// Records a suspect node as an Event on its Node.
    pub async fn write_node_event(&self, leadership: &Leadership, report: &NodeReport, dry_run: bool) {
        if dry_run {
            return tracing::info!(
                node = &*report.node,
                message = report.message,
                "dry run: would record a suspect node"
            );
        }
        self.limiter.acquire(Priority::Cleanup).await;
        if leadership.holds() {
            self.events.record_node(leadership, report).await;
        }
    }

    fn count(&self, action: &str, result: &str) {
        self.metrics.actions.with_label_values(&[action, result]).inc();
    }

    /// Labels or deletes an executor that exited.
    async fn clean_up(
        &self,
        executor: &PodKey,
        seen: &ObjectVersion,
        how: Cleanup,
        cause: Cause,
    ) -> Result<WriteOutcome> {
        let pods: Api<Viewed<ObservedPod>> = self.objects(executor.namespace(), &pods());
        let outcome = match how {
            Cleanup::Label => {
                let patch = json!({"metadata": {
                    "labels": {labels::INACTIVE: "true"}, "annotations": {annotations::ENDED: cause.as_str()},
                }});
                let patch = Patch::Merge(guarded(&patch, seen));
                pods.patch(executor.name(), &patch_params(), &patch)
                    .await
                    .map(|patched| patched.view.map(|pod| Change::Pods(PodChange::Observed(pod))))
            }
            Cleanup::Delete => {
                let params = guarded_deletion(seen);
                // The watch shows the deletion.
                pods.delete(executor.name(), &params).await.map(|_| None)
            }
        };
        match outcome.map_err(Error::from) {
            Ok(change) => Ok(WriteOutcome::Done(change)),
            // The pod is deleted, whether or not the watch has shown that.
            Err(Error::NotFound(_)) => {
                Ok(WriteOutcome::Stale(Some(Change::Pods(PodChange::Gone(executor.clone(), seen.uid.clone())))))
            }
            Err(error) => stale(error, None),
        }
    }

    /// A PodGroup of that name exists already: one of ours, which the watch has yet to show, or one that spark-usher does not
    /// manage.
    async fn already_there(
        &self,
        key: &GroupKey,
        groups: &Api<DynamicObject>,
        owner: Option<&PodIdentity>,
    ) -> Result<WriteOutcome> {
        let Some(found) = groups.get_opt(&key.name).await? else { return Ok(WriteOutcome::Stale(None)) };
        let manager = found.metadata.labels.as_ref().and_then(|map| map.get(annotations::MANAGED_BY));
        if manager.map(String::as_str) == Some(annotations::USHER) {
            return Ok(
                group_change(key, &found).map_or(WriteOutcome::Stale(None), |change| WriteOutcome::Done(Some(change)))
            );
        }
        let message = format!(
            "gang {}: a PodGroup of {} with that name exists and is not managed by spark-usher; it is left unchanged",
            key.name, key.scheduler
        );
        tracing::warn!(group = %format_args!("{}/{}", key.namespace, key.name), "a PodGroup of that name exists and is not managed by spark-usher");
        Ok(WriteOutcome::Refused(owner.map(|owner| PodEvent {
            pod: owner.key.clone(),
            uid: owner.uid.clone(),
            reason: Reason::GroupNotOurs,
            message,
        })))
    }

    async fn patch_group(
        &self,
        key: &GroupKey,
        api: &GroupApi,
        seen: &ObjectVersion,
        patch: &Value,
    ) -> Result<WriteOutcome> {
        let groups: Api<DynamicObject> = self.objects(&key.namespace, &group_resource(api));
        let starts = usher_spark::json::text(patch, &["metadata", "annotations", annotations::STARTED]) == "true";
        let patch = Patch::Merge(guarded(patch, seen));
        match groups.patch(&key.name, &patch_params(), &patch).await {
            Ok(changed) => {
                if starts {
                    self.time_start(&changed);
                }
                Ok(WriteOutcome::Done(group_change(key, &changed)))
            }
            Err(error) => stale(error, Some(key)),
        }
    }

    /// Observes how long a gang took until all of it ran.
    fn time_start(&self, group: &DynamicObject) {
        let Some(created) = &group.metadata.creation_timestamp else { return };
        self.metrics.gang_start.observe(clock::now().duration_since(created.0).as_secs_f64().max(0.0));
    }

    async fn delete_group(&self, key: &GroupKey, api: &GroupApi, seen: &ObjectVersion) -> Result<WriteOutcome> {
        let groups: Api<DynamicObject> = self.objects(&key.namespace, &group_resource(api));
        match groups.delete(&key.name, &guarded_deletion(seen)).await {
            // The answer is the object while finalizers hold it, else a Status.
            Ok(either) => Ok(WriteOutcome::Done(match either.left() {
                Some(held) => group_change(key, &held),
                None => Some(Change::Related(RelatedChange::Groups(key.scheduler, Watched::Removed(key.clone())))),
            })),
            Err(error) => stale(error, Some(key)),
        }
    }

    fn objects<K>(&self, namespace: &str, resource: &ApiResource) -> Api<K>
    where
        K: kube::Resource<DynamicType = ApiResource, Scope = kube::core::DynamicResourceScope>,
    {
        Api::namespaced_with(self.client.clone(), namespace, resource)
    }
}

/// The actions for one creator's executors while they are executed.
struct Batch<'b> {
    writer: &'b Writer,
    leadership: &'b Leadership,
    app: &'b AppKey,
    reads: BatchReads<'b>,
    /// How many actions failed, by their names.
    failures: HashMap<&'static str, u32>,
    applied: Applied,
}

impl Batch<'_> {
    /// Executes an action if nothing contradicts it. Breaks if all later ones wait for the next plan.
    async fn execute(&mut self, action: &Action) -> ControlFlow<()> {
        let failed = self.failures.get(action.name()).copied().unwrap_or_default();
        if failed >= MAX_FAILURES_PER_KIND || self.is_forbidden(action) {
            self.applied.ended(action, EARLIER);
            return ControlFlow::Continue(());
        }
        match Box::pin(self.contradiction(action)).await {
            Ok(None) => {}
            Ok(Some(change)) => {
                self.not_executed(action, "stale", change, not_confirmed(action));
                return ControlFlow::Continue(());
            }
            Err(error) => {
                self.failed(action, not_confirmed(action));
                let (app, what) = (self.app, action.describe());
                tracing::warn!(%app, action = action.name(), what, %error, "what may contradict the action cannot be read; retrying");
                return ControlFlow::Continue(());
            }
        }
        self.writer.limiter.acquire(priority(action)).await;
        if self.is_forbidden(action) {
            // Another batch was refused meanwhile.
            self.applied.ended(action, EARLIER);
            return ControlFlow::Continue(());
        }
        if !self.leadership.holds() {
            self.applied.failed = true;
            self.applied.ended(action, EARLIER);
            return ControlFlow::Break(());
        }
        match call(REQUEST_TIMEOUT, self.act(action)).await {
            Ok(outcome) => {
                self.answered(action, outcome).await;
                ControlFlow::Continue(())
            }
            Err(error) => self.refused(action, &error).await,
        }
    }

    async fn answered(&mut self, action: &Action, outcome: WriteOutcome) {
        {
            let mut forbidden = self.writer.forbidden();
            forbidden.allowed(action.name(), self.app.namespace());
            forbidden.allowed(action.name(), &action.object());
        }
        match outcome {
            WriteOutcome::Done(change) => {
                if !matches!(action, Action::RecordEvent(_)) {
                    self.applied.wrote = true;
                    self.writer.count(action.name(), "ok");
                    let reason = action.reason().map_or("", Reason::as_str);
                    tracing::info!(app = %self.app, action = action.name(), reason, what = action.describe(), "action executed");
                }
                self.applied.changes.extend(change);
                self.applied.ended(action, None);
                if let Action::Recover(deletion) = action {
                    self.applied.recovered.push(recovery_checks::deleted(self.app, deletion));
                    self.record(&deletion.event).await;
                }
            }
            WriteOutcome::Stale(change) => self.not_executed(action, "stale", change, Check::Version.failure()),
            WriteOutcome::NotConfirmed(why, change) => self.not_executed(action, "stale", change, why),
            WriteOutcome::Refused(event) => {
                // The next plan requests it again, but must not do so immediately.
                self.applied.wrote = true;
                self.not_executed(action, "refused", None, REFUSED);
                if let Some(event) = event {
                    self.record(&event).await;
                }
            }
        }
    }

    /// The API server rejected an action, or it could not be tried: no answer, no leadership, or a failed read before it.
    async fn refused(&mut self, action: &Action, error: &Error) -> ControlFlow<()> {
        let (change, event) = error.status().map_or((None, None), |status| group_refused(self.app, action, status));
        self.applied.changes.extend(change);
        if let Some(event) = event {
            self.record(&event).await;
        }
        let Some(status) = client_error(error) else {
            self.failed(action, None);
            let (app, what) = (self.app, action.describe());
            tracing::warn!(%app, action = action.name(), what, %error, "action failed; retrying");
            let is_broken = self.failures.values().sum::<u32>() >= MAX_FAILURES;
            return if is_broken { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        };
        self.applied.wrote = true;
        self.not_executed(action, "refused", None, REFUSED);
        self.note_refusal(action, status).await;
        ControlFlow::Continue(())
    }

    /// Notes that the API server rejected an action: it is retried with backoff, and that is logged once.
    async fn note_refusal(&self, action: &Action, status: &Status) {
        let (name, message, code) = (action.name(), &*status.message, status.code);
        // A missing permission affects all objects; a policy may deny one object.
        let is_all = code == 403 && is_missing_permission(message);
        let object = if is_all { self.app.namespace().to_owned() } else { action.object() };
        if self.writer.forbidden().refused(name, &object, clock::instant()) {
            let (app, what) = (self.app, action.describe());
            tracing::warn!(%app, action = name, what, code, message, "the API server rejected the action; retrying with backoff");
        }
        if code != 403 {
            return;
        }
        if let Action::Adopt { executor, seen, driver, .. } = action {
            let message = format!("not adopted by {}: {message}", driver.key.name());
            let (pod, uid) = (executor.clone(), seen.uid.clone());
            self.record(&PodEvent { pod, uid, reason: Reason::AdoptionRefused, message }).await;
        }
    }

    fn not_executed(&mut self, action: &Action, result: &str, change: Option<Change>, why: &'static str) {
        self.writer.count(action.name(), result);
        self.applied.changes.extend(change);
        self.applied.ended(action, why);
    }

    fn failed(&mut self, action: &Action, why: impl Into<Option<&'static str>>) {
        self.writer.count(action.name(), "failed");
        self.applied.ended(action, why);
        self.applied.failed = true;
        *self.failures.entry(action.name()).or_default() += 1;
    }

    async fn record(&self, event: &PodEvent) {
        self.writer.events.record(self.leadership, event).await;
    }

    /// Whether the API server rejected this recently.
    fn is_forbidden(&self, action: &Action) -> bool {
        let (mut forbidden, now) = (self.writer.forbidden(), clock::instant());
        forbidden.is_paused(action.name(), self.app.namespace(), now)
            || forbidden.is_paused(action.name(), &action.object(), now)
    }

    async fn act(&mut self, action: &Action) -> Result<WriteOutcome> {
        match action {
            Action::CreateGroup { key, api, app, spec, owner, started } => {
                self.create_group(key, api, app, spec, owner.as_ref(), *started).await
            }
            Action::PatchGroup { key, api, seen, patch, .. } => self.writer.patch_group(key, api, seen, patch).await,
            Action::DeleteGroup { key, api, seen, .. } => self.writer.delete_group(key, api, seen).await,
            Action::Adopt { executor, seen, driver, .. } => self.adopt(executor, seen, driver).await,
            Action::CleanUp { executor, seen, how, cause, .. } => {
                self.writer.clean_up(executor, seen, *how, *cause).await
            }
            Action::Recover(deletion) => self.recover(deletion).await,
            Action::RecordEvent(event) => {
                self.record(event).await;
                Ok(WriteOutcome::Done(None))
            }
        }
    }

    /// Deletes a pod by a recovery rule, if what the rule found still holds.
    async fn recover(&self, deletion: &Recover) -> Result<WriteOutcome> {
        let pod = &deletion.event.pod;
        let mut params = guarded_deletion(&deletion.seen);
        let not_confirmed = |found| Ok(WriteOutcome::NotConfirmed(deletion.check.failure(), found));
        match &deletion.check {
            Check::Version | Check::DriverGone(..) => {}
            Check::NoExecutors(poll) => {
                if recovery_checks::has_executors(&self.writer.client, self.app).await?
                    || !recovery_checks::has_none_registered(&self.writer.drivers, poll).await
                {
                    return not_confirmed(None);
                }
            }
            Check::NotRegistered(poll, id) => {
                if !recovery_checks::is_not_registered(&self.writer.drivers, poll, *id).await {
                    return not_confirmed(None);
                }
            }
            Check::NodeGone(node) => {
                if !recovery_checks::is_node_gone(&self.writer.client, node).await? {
                    return not_confirmed(None);
                }
                params.grace_period_seconds = Some(0);
            }
        }
        self.leadership.require()?;
        let pods: Api<Viewed<ObservedPod>> = self.writer.objects(pod.namespace(), &pods());
        match pods.delete(pod.name(), &params).await {
            // The watch shows the deletion.
            Ok(_) => Ok(WriteOutcome::Done(None)),
            Err(error) => stale(error, None),
        }
    }

    /// What contradicts an action that rests on the end of an executor's driver: logged, because only the edge has read it. The
    /// executors of a driver that still runs are left to it.
    async fn contradiction(&mut self, action: &Action) -> Result<Option<Option<Change>>> {
        let (executor, uid, driver) = match action {
            Action::CleanUp { executor, seen, gone_driver: Some(driver), .. } => (executor, &seen.uid, driver),
            Action::Recover(deletion) => match &deletion.check {
                Check::DriverGone(driver) => (&deletion.event.pod, &deletion.seen.uid, driver),
                _ => return Ok(None),
            },
            _ => return Ok(None),
        };
        let found =
            self.writer.evidence.contradiction(&mut self.reads, self.app, (executor.name(), uid), driver).await?;
        Ok(found.map(|(contradiction, change)| {
            tracing::info!(app = %self.app, pod = %executor, %contradiction, "executor left alone");
            change
        }))
    }

    async fn create_group(
        &mut self,
        key: &GroupKey,
        api: &GroupApi,
        app: &AppKey,
        spec: &Value,
        owner: Option<&PodIdentity>,
        started: bool,
    ) -> Result<WriteOutcome> {
        // If the driver was deleted just now, the garbage collector would delete the PodGroup immediately.
        if let Some(owner) = owner {
            let found = self.writer.evidence.pod(&mut self.reads, &owner.key).await?;
            if found.as_ref().is_none_or(|pod| pod.uid != owner.uid) {
                let pod = owner.key.clone();
                let current = found.map_or(ReferencedPod::Absent, ReferencedPod::Present);
                return Ok(WriteOutcome::Stale(Some(Change::Related(RelatedChange::Referenced(
                    pod,
                    current,
                    vec![app.clone()],
                )))));
            }
        }
        let groups: Api<DynamicObject> = self.writer.objects(&key.namespace, &group_resource(api));
        let mut metadata = json!({
            "name": &*key.name, "namespace": &*key.namespace,
            "labels": {annotations::MANAGED_BY: annotations::USHER, labels::APP_SELECTOR: app.selector()},
        });
        if let Some(map) = metadata.as_object_mut() {
            if let Some(owner) = owner {
                map.insert("ownerReferences".into(), json!([owner_reference(owner)]));
            }
            let fixed = GangScheduler::of_kind(key.scheduler).map_or(&[][..], |scheduler| scheduler.group_annotations);
            let all = fixed.iter().copied().chain(started.then_some((annotations::STARTED, "true")));
            let all: serde_json::Map<String, Value> = all.map(|(key, value)| (key.to_owned(), value.into())).collect();
            if !all.is_empty() {
                map.insert("annotations".into(), all.into());
            }
        }
        let object = json!({"apiVersion": api.api_version(), "kind": api.kind, "metadata": metadata, "spec": spec});
        let object: DynamicObject = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
        match groups.create(&params(), &object).await.map_err(Error::from) {
            Ok(made) => Ok(WriteOutcome::Done(group_change(key, &made))),
            Err(Error::Conflict(_)) => self.writer.already_there(key, &groups, owner).await,
            Err(error) => Err(error),
        }
    }

    /// Adds the driver as an executor's owner, after a GET of the driver's pod: with a wrong uid the garbage collector deletes
    /// the executor.
    async fn adopt(&mut self, executor: &PodKey, seen: &ObjectVersion, driver: &PodIdentity) -> Result<WriteOutcome> {
        let found = self.writer.evidence.pod(&mut self.reads, &driver.key).await?;
        let is_running = found.as_ref().is_some_and(|pod| {
            pod.uid == driver.uid && pod.phase == DriverPhase::Running && !pod.deleting && !pod.is_executor
        });
        if !is_running {
            return Ok(WriteOutcome::Refused(Some(PodEvent {
                pod: executor.clone(),
                uid: seen.uid.clone(),
                reason: Reason::AdoptionRefused,
                message: format!("not adopted by {}: a GET found no such running pod", driver.key.name()),
            })));
        }
        let pods: Api<Viewed<ObservedPod>> = self.writer.objects(executor.namespace(), &pods());
        // Strategic: owners are merged by uid, so that an existing owner stays.
        let patch = json!({"metadata": {"ownerReferences": [owner_reference(driver)]}});
        let patch = Patch::Strategic(guarded(&patch, seen));
        match pods.patch(executor.name(), &patch_params(), &patch).await {
            Ok(patched) => Ok(WriteOutcome::Done(patched.view.map(|pod| Change::Pods(PodChange::Observed(pod))))),
            Err(error) => stale(error, None),
        }
    }
}

/// Whether a 403 is about a permission: of RBAC (`RESOURCE "NAME" is forbidden: User "USER" cannot patch …`), or to change
/// owners (`… is forbidden: cannot set an ownerRef on a resource you can't delete`). Webhooks and policies write their own
/// messages, which may contain these words too.
fn is_missing_permission(message: &str) -> bool {
    let Some((what, why)) = message.split_once(" is forbidden: ") else { return false };
    let names_object = what.split(' ').count() <= 2 && !what.contains(':');
    names_object && (why.starts_with("User ") || why.starts_with("cannot set "))
}

/// The priority of an action in the rate limit.
fn priority(action: &Action) -> Priority {
    match action {
        Action::CreateGroup { .. } | Action::PatchGroup { .. } => Priority::Group,
        Action::DeleteGroup { .. }
        | Action::Adopt { .. }
        | Action::CleanUp { .. }
        | Action::Recover(_)
        | Action::RecordEvent(_) => Priority::Cleanup,
    }
}

fn params() -> PostParams {
    PostParams { field_manager: Some(annotations::USHER.to_owned()), ..PostParams::default() }
}

fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(annotations::USHER.to_owned()), ..PatchParams::default() }
}

/// The patch with its preconditions: the API server answers 409 if either differs.
fn guarded(patch: &Value, seen: &ObjectVersion) -> Value {
    let mut patch = patch.clone();
    let metadata = usher_spark::json::map_mut(&mut patch, &["metadata"]);
    metadata.insert("uid".into(), (*seen.uid).into());
    metadata.insert("resourceVersion".into(), (*seen.resource_version).into());
    patch
}

/// A deletion with the same preconditions.
fn guarded_deletion(seen: &ObjectVersion) -> DeleteParams {
    let preconditions =
        Preconditions { uid: Some(seen.uid.to_string()), resource_version: Some(seen.resource_version.to_string()) };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() }
}

/// Rejections of a plan from a stale snapshot: the object changed (409), or was deleted (404).
fn stale(error: impl Into<Error>, group: Option<&GroupKey>) -> Result<WriteOutcome> {
    match error.into() {
        Error::Conflict(_) => Ok(WriteOutcome::Stale(None)),
        Error::NotFound(_) => Ok(WriteOutcome::Stale(
            group.map(|key| Change::Related(RelatedChange::Groups(key.scheduler, Watched::Removed(key.clone())))),
        )),
        error => Err(error),
    }
}

fn group_change(key: &GroupKey, object: &DynamicObject) -> Option<Change> {
    use usher_kube::view::View;
    let text = serde_json::to_string(object).ok()?;
    Some(Change::Related(RelatedChange::Groups(key.scheduler, Watched::Upserted(key.clone(), Group::read(&text)?))))
}

#[cfg(test)]
mod tests;
