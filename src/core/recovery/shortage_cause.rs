//! The words for why an executor does not run.

use usher_spark::text::vocabulary;

vocabulary! {
    /// Why an executor does not run.
    ShortageCause {
        /// Why, in a few words for people, which begin a sentence or stand alone.
        phrase: &'static str,
        /// What to do about it, in a sentence or two; empty if it is enough to wait.
        remedy: &'static str,
    }
    /// It waits for the other members of its gang, or for room for all of them.
    Gang = "gang" { phrase: "gang waits", remedy: "The executors start when all of them exist and the cluster has room for all of them. Free resources, or request fewer or smaller executors." };
    /// No node has room for it; the message names the resource.
    Unschedulable = "unschedulable" { phrase: "no node has room", remedy: "Free the resource, add nodes, or request less of it (spark.executor.cores, spark.executor.memory)." };
    /// A scheduling gate holds it: a controller, such as Kueue, has not admitted it.
    Gated = "gated" { phrase: "held by a scheduling gate", remedy: "The controller that set the gate admits the executors when its queue has room." };
    /// No scheduler has reported on it yet.
    Unscheduled = "unscheduled" { phrase: "no scheduler has reported", remedy: "If this lasts, check that the scheduler that the pod names runs." };
    /// Its image cannot be pulled.
    ImagePull = "image-pull" { phrase: "image cannot be pulled", remedy: "Check the image's name and the pull secret (spark.kubernetes.container.image, spark.kubernetes.container.image.pullSecrets)." };
    /// Its node cannot create a container.
    ContainerError = "container-error" { phrase: "container cannot be created", remedy: "Check what the pod mounts and references: Secrets, ConfigMaps, volumes and devices." };
    /// It is starting on its node, or its driver is starting.
    Starting = "starting" { phrase: "starting", remedy: "If this lasts, kubectl describe pod names the step that does not end." };
    /// It is being deleted; its driver replaces it when it is gone.
    Terminating = "terminating" { phrase: "being deleted", remedy: "" };
    /// Executors exit, by the application's own fault, as soon as they are replaced.
    CrashLoop = "crash-loop" { phrase: "executors crash again and again", remedy: "See how they exited, and their logs: the application, its image or its memory settings are at fault." };
    /// A ResourceQuota of its namespace leaves no room for it; the message names the resource.
    Quota = "quota" { phrase: "quota is used up", remedy: "Raise the ResourceQuota, or end applications of the namespace." };
    /// Nodes rejected, evicted or lost executors, or pods of higher priority preempted them.
    NodeFault = "node-fault" { phrase: "nodes ended executors", remedy: "See how they exited, and the page Nodes." };
    /// Executors exited, fewer than make a crash loop, and their driver has not replaced them.
    Exited = "exited" { phrase: "executors exited", remedy: "See how they exited. If the driver does not replace them, its log says why." };
    /// Its driver does not request it, or the API server refuses it: a missing permission, a webhook, or a limit of the driver.
    NotRequested = "not-requested" { phrase: "not requested by the driver", remedy: "See the driver's log: the API server may refuse its requests (permissions, webhooks), or it waits for earlier ones." };
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
