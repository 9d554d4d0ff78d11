//! Why a pod does not start, and for which PodGroup it waits. Several objects may state why: one pod of a gang, its PodGroup, an object of
//! its scheduler. A message that names a missing resource is preferred; otherwise the first is shown.

use super::shortage_cause::ShortageCause;
use crate::gang::messages::{self, lacking, names_resource};
use crate::gang::{MessagesOn, group_of, is_named};
use crate::snapshot::{DriverPod, Executor, Group, SchedulingFields, Share, Snapshot, room};
use usher_spark::diagnostics::{ContainerDiagnostics, PodDiagnostics, ReasonAndMessage};
use usher_spark::ids::AppKey;
use usher_spark::resources::ResourceList;

/// The reason of `PodScheduled` while a pod has scheduling gates.
const GATED: &str = "SchedulingGated";

/// What Volcano, Koordinator, coscheduling and the sandbox say about a gang whose pods do not all exist.
const INCOMPLETE: [&str; 4] = ["is not ready", "not collect enough", "enough sibling pods", "members exist"];

/// At most this many nodes are named.
const MAX_NODES: usize = 3;

/// A pod that has not started.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'p> {
    name: &'p str,
    uid: &'p str,
    node: Option<&'p str>,
    scheduling: &'p SchedulingFields,
    requests: &'p ResourceList,
    diagnostics: Option<&'p PodDiagnostics>,
}

impl<'p> From<&'p Executor> for Waiting<'p> {
    fn from(executor: &'p Executor) -> Self {
        Waiting {
            name: &executor.name,
            uid: &executor.uid,
            node: executor.node.as_deref(),
            scheduling: &executor.template.scheduling,
            requests: &executor.template.requests,
            diagnostics: executor.diagnostics.as_deref(),
        }
    }
}

impl<'p> From<&'p DriverPod> for Waiting<'p> {
    fn from(driver: &'p DriverPod) -> Self {
        Waiting {
            name: &driver.name,
            uid: &driver.uid,
            node: driver.node.as_deref(),
            scheduling: &driver.scheduling,
            requests: &driver.requests,
            diagnostics: driver.diagnostics.as_deref(),
        }
    }
}

/// Why a pending pod does not run. A caller adds what its gang waits for (`of_gang`), once for all executors.
pub fn cause(snapshot: &Snapshot, key: &AppKey, pod: Waiting<'_>) -> (ShortageCause, String) {
    if let Some(node) = pod.node {
        let Some(waits) = pod.diagnostics.and_then(|diagnostics| diagnostics.stuck()) else {
            let waits = pod.diagnostics.and_then(|diagnostics| diagnostics.starting_message());
            let why = waits.map_or_else(String::new, |why| format!(": {why}"));
            return (ShortageCause::Starting, format!("{} starts on {node}{why}", pod.name));
        };
        let (kind, why) = of_stuck(waits);
        return (kind, format!("{}: {why}", pod.name));
    }
    let gang = Gang::of(snapshot, key, pod.scheduling);
    let said = said(snapshot, key, pod, &gang);
    match (&gang.group, gang.refused) {
        (Some((_, group)), refused) if !group.started => {
            let refused = refused.map(|(_, why)| format!("the API server refused its change: {why}"));
            let why: Vec<String> = refused.into_iter().chain(said).collect();
            return (ShortageCause::Gang, why.join("; "));
        }
        (_, Some((name, why))) => {
            return (ShortageCause::Gang, format!("the API server refused PodGroup {name}: {why}"));
        }
        _ => {}
    }
    match said {
        Some(why) if is_gated(pod) => (ShortageCause::Gated, why),
        // Its PodGroup is not known here, but its scheduler speaks of it.
        Some(why) if is_of_gang(&why) && group_of(key, pod.scheduling).is_some() => (ShortageCause::Gang, why),
        Some(why) => (ShortageCause::Unschedulable, with_resources(why)),
        None => (
            ShortageCause::Unscheduled,
            format!("{} has not reported on {}", pod.scheduling.shown_scheduler(), pod.name),
        ),
    }
}

/// Whether a scheduler's message is about a gang, and not about room for one pod.
fn is_of_gang(message: &str) -> bool {
    let words = message.to_lowercase();
    !names_resource(message)
        && (["podgroup", "pod group"].iter().any(|word| words.contains(word))
            || INCOMPLETE.iter().any(|part| message.contains(part)))
}

/// Why no node was found for a pod, in a clause; `None` if it has one, or nothing is known.
pub fn not_scheduled(snapshot: &Snapshot, key: &AppKey, pod: Waiting<'_>) -> Option<String> {
    if pod.node.is_some() {
        return None;
    }
    let gang = Gang::of(snapshot, key, pod.scheduling);
    let why = said(snapshot, key, pod, &gang);
    let refused = gang.refused.map(|(name, why)| format!("the API server refused its PodGroup {name}: {why}"));
    let verb = if is_gated(pod) { "is held by a scheduling gate" } else { "is not scheduled" };
    refused.into_iter().chain(why.map(|why| format!("{verb}: {why}"))).reduce(|all, one| format!("{all}; {one}"))
}

fn is_gated(pod: Waiting<'_>) -> bool {
    unscheduled(pod).is_some_and(|words| &*words.reason == GATED)
}

fn unscheduled(pod: Waiting<'_>) -> Option<&ReasonAndMessage> {
    pod.diagnostics?.unscheduled.as_ref()
}

/// What is said about a pod without a node: by its scheduler on other objects, by its PodGroup, and by its own status; that which names a
/// resource, else the first.
fn said(snapshot: &Snapshot, key: &AppKey, pod: Waiting<'_>, gang: &Gang<'_>) -> Option<String> {
    let group = gang.group.map(|(_, group)| group);
    let has_started = group.is_some_and(|group| group.started);
    // What was read up to a minute ago may have been true of a pod that waited for something else then.
    let speakers = messages::speakers(pod.scheduling).filter(|scheduler| match scheduler.messages_on {
        MessagesOn::Workloads => is_gated(pod),
        MessagesOn::GroupEvents | MessagesOn::Placeholders => !is_gated(pod) && !has_started,
        MessagesOn::Pods => false,
    });
    let others = speakers.filter_map(|scheduler| {
        let said = snapshot.messages.get(&(key.namespace().into(), scheduler.kind))?;
        said.get(messages::subject(scheduler, pod.uid, pod.scheduling)?).map(|message| &**message)
    });
    let group = group.filter(|_| !has_started).and_then(|group| group.waits.as_deref());
    let of_pod = unscheduled(pod).map(|words| &*words.message);
    let all: Vec<&str> = others.chain(group).chain(of_pod).filter(|message| !message.is_empty()).collect();
    let decides = all.iter().find(|message| names_resource(message)).or(all.first());
    let decides = (*decides?).to_owned();
    if snapshot.avoided_nodes.is_empty() || !decides.contains("node affinity") {
        return Some(decides);
    }
    let nodes: Vec<&str> = snapshot.avoided_nodes.iter().take(MAX_NODES).map(|name| &**name).collect();
    Some(format!("{decides} (executors may avoid {}, on which executors fail)", nodes.join(", ")))
}

fn with_resources(why: String) -> String {
    let resources = lacking(&why).join(", ");
    if resources.is_empty() { why } else { format!("lacks {resources}: {why}") }
}

/// Whether a message about one pod says more than that about another: it names a resource.
pub fn says_more(message: &str, than: &str) -> bool {
    names_resource(message) && !names_resource(than)
}

/// For what the gang of a pod waits: how many of its executors exist, unless all do; what `said` says beyond that; and that the nodes
/// have no room for it even if they were empty. Reads every executor and every node.
pub(super) fn of_gang(snapshot: &Snapshot, key: &AppKey, pod: Waiting<'_>, said: String) -> String {
    let Gang { group, refused } = Gang::of(snapshot, key, pod.scheduling);
    let (Some(named), Some((_, group))) = (group_of(key, pod.scheduling), group) else { return said };
    let executors = snapshot.apps.get(key).into_iter().flat_map(|app| app.executors().values());
    let of_it = executors.filter(|executor| executor.is_live() && is_named(&named, &executor.template.scheduling));
    let exist = u64::try_from(of_it.count()).unwrap_or(u64::MAX);
    let size = group.size();
    let lacks = size.filter(|size| exist < *size).map(|size| format!("{exist} of {size} executors exist"));
    // That a gang is not complete is often all that its scheduler says.
    let says_more = |said: &String| refused.is_some() || !INCOMPLETE.iter().any(|words| said.contains(words));
    let said = Some(said).filter(|said| lacks.is_none() || says_more(said) && !said.is_empty());
    let said = said.map(|said| match size {
        _ if !said.is_empty() => said,
        Some(size) => format!("all {size} executors exist, and {} has not reported", pod.scheduling.shown_scheduler()),
        None => format!("{} has not reported", pod.scheduling.shown_scheduler()),
    });
    let never_fits = size.and_then(|size| never_fits(snapshot, pod, size));
    lacks.into_iter().chain(said).chain(never_fits).collect::<Vec<_>>().join("; ")
}

/// That the nodes have no room for a gang of this size, even if they were empty.
fn never_fits(snapshot: &Snapshot, pod: Waiting<'_>, size: u64) -> Option<String> {
    if snapshot.nodes.is_empty() {
        return None; // They are not watched.
    }
    let nodes = snapshot.nodes.values().filter(|node| node.ready && !node.cordoned);
    let fit = room(nodes.map(|node| &**node), pod.requests, size, Share::Whole).filter(|fit| *fit < size)?;
    Some(format!("the nodes would have room for {fit} of its executors only, even if they were empty"))
}

/// Why a container that waits does not start.
pub(super) fn of_stuck((container, waits): (&ContainerDiagnostics, &ReasonAndMessage)) -> (ShortageCause, String) {
    let is_image = waits.reason.contains("Image") || *waits.reason == *"RegistryUnavailable";
    let kind = if is_image { ShortageCause::ImagePull } else { ShortageCause::ContainerError };
    (kind, format!("{} {} ({})", waits.reason, waits.message, container.image))
}

/// The PodGroup for which an executor waits.
pub fn waiting_group<'s>(snapshot: &'s Snapshot, key: &AppKey, scheduling: &SchedulingFields) -> Option<&'s Group> {
    snapshot.groups.get(&group_of(key, scheduling)?).map(|group| &**group).filter(|group| !group.started)
}

/// What is known about the PodGroup that a pod names.
struct Gang<'s> {
    /// Its name, and the PodGroup.
    group: Option<(&'s str, &'s Group)>,
    /// Its name, and what the API server said, if it could not be created or changed.
    refused: Option<(&'s str, &'s str)>,
}

impl<'s> Gang<'s> {
    fn of(snapshot: &'s Snapshot, key: &AppKey, scheduling: &SchedulingFields) -> Gang<'s> {
        let Some(named) = group_of(key, scheduling) else { return Gang { group: None, refused: None } };
        let group = snapshot.groups.get_key_value(&named).map(|(key, group)| (&*key.name, &**group));
        let refused = snapshot.refused_groups.get_key_value(&named).map(|(key, (_, why))| (&*key.name, &**why));
        Gang { group, refused }
    }
}
