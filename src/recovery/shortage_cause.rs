//! The words for why an executor does not run.

use crate::text::word_enum;

macro_rules! causes {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal, $phrase:literal, $remedy:literal;)+) => {
        word_enum! {
            /// Why an executor does not run.
            ShortageCause { $($(#[doc = $doc])+ $name = $word;)+ }
        }

        impl ShortageCause {
            /// Why, in a few words for people, which begin a sentence or stand alone.
            pub fn phrase(self) -> &'static str {
                match self { $(ShortageCause::$name => $phrase,)+ }
            }

            /// What to do about it, in a sentence or two; empty if it is enough to wait.
            pub fn remedy(self) -> &'static str {
                match self { $(ShortageCause::$name => $remedy,)+ }
            }
        }
    };
}

causes! {
    /// It waits for the other members of its gang, or for room for all of them.
    Gang = "gang", "gang waits",
        "The executors start when all of them exist and the cluster has room for all of them. Free resources, or request fewer or smaller executors.";
    /// No node has room for it; the message names the resource.
    Unschedulable = "unschedulable", "no node has room",
        "Free the resource, add nodes, or request less of it (spark.executor.cores, spark.executor.memory).";
    /// A scheduling gate holds it: a controller, such as Kueue, has not admitted it.
    Gated = "gated", "held by a scheduling gate",
        "The controller that set the gate admits the executors when its queue has room.";
    /// No scheduler has reported on it yet.
    Unscheduled = "unscheduled", "no scheduler has reported",
        "If this lasts, check that the scheduler that the pod names runs.";
    /// Its image cannot be pulled.
    ImagePull = "image-pull", "image cannot be pulled",
        "Check the image's name and the pull secret (spark.kubernetes.container.image, spark.kubernetes.container.image.pullSecrets).";
    /// Its node cannot create a container.
    ContainerError = "container-error", "container cannot be created",
        "Check what the pod mounts and references: Secrets, ConfigMaps, volumes and devices.";
    /// It is starting on its node, or its driver is starting.
    Starting = "starting", "starting",
        "If this lasts, kubectl describe pod names the step that does not end.";
    /// It is being deleted; its driver replaces it when it is gone.
    Terminating = "terminating", "being deleted", "";
    /// Executors exit, by the application's own fault, as soon as they are replaced.
    CrashLoop = "crash-loop", "executors crash again and again",
        "See how they exited, and their logs: the application, its image or its memory settings are at fault.";
    /// A ResourceQuota of its namespace leaves no room for it; the message names the resource.
    Quota = "quota", "quota is used up",
        "Raise the ResourceQuota, or end applications of the namespace.";
    /// Nodes rejected, evicted or lost executors, or pods of higher priority preempted them.
    NodeFault = "node-fault", "nodes ended executors",
        "See how they exited, and the page Nodes.";
    /// Executors exited, fewer than make a crash loop, and their driver has not replaced them.
    Exited = "exited", "executors exited",
        "See how they exited. If the driver does not replace them, its log says why.";
    /// Its driver does not request it, or the API server refuses it: a missing permission, a webhook, or a limit of the driver.
    NotRequested = "not-requested", "not requested by the driver",
        "See the driver's log: the API server may refuse its requests (permissions, webhooks), or it waits for earlier ones.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_unique() {
        let words: std::collections::BTreeSet<&str> = ShortageCause::ALL.iter().map(|cause| cause.as_str()).collect();
        assert_eq!(words.len(), ShortageCause::ALL.len());
        assert!(ShortageCause::ALL.iter().all(|cause| ShortageCause::of(cause.as_str()) == Some(*cause)));
        assert_eq!(ShortageCause::of("unheard-of"), None);
    }
}
