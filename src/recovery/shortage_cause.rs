//! The words for why an executor does not run.

use crate::text::word_enum;

word_enum! {
    /// Why an executor does not run.
    ShortageCause {
        /// It waits for the other members of its gang, or for room for all of them.
        Gang = "gang";
        /// No node has room for it; the message names the resource.
        Unschedulable = "unschedulable";
        /// A scheduling gate holds it: a controller, such as Kueue, has not admitted it.
        Gated = "gated";
        /// No scheduler has reported on it yet.
        Unscheduled = "unscheduled";
        /// Its image cannot be pulled.
        ImagePull = "image-pull";
        /// Its node cannot create a container.
        ContainerError = "container-error";
        /// It is starting on its node, or its driver is starting.
        Starting = "starting";
        /// It is being deleted; its driver replaces it when it is gone.
        Terminating = "terminating";
        /// Executors exit, by the application's own fault, as soon as they are replaced.
        CrashLoop = "crash-loop";
        /// A ResourceQuota of its namespace leaves no room for it; the message names the resource.
        Quota = "quota";
        /// Nodes rejected, evicted or lost executors, or pods of higher priority preempted them.
        NodeFault = "node-fault";
        /// Executors exited, fewer than make a crash loop, and their driver has not replaced them.
        Exited = "exited";
        /// Its driver does not request it, or the API server refuses it: a missing permission, a webhook, or a limit of the driver.
        NotRequested = "not-requested";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_unique() {
        let words: std::collections::BTreeSet<&str> = ShortageCause::ALL.iter().map(|cause| cause.as_str()).collect();
        assert_eq!(words.len(), ShortageCause::ALL.len());
    }
}
