//! The reasons of decisions: one closed enumeration for the log field, the metric label, the Event reason, the audit
//! annotation and `explain`.
//!
//! The table of docs/reasons.md is generated from [`Reason::ALL`], and a test fails when a variant is never produced
//! (`tests/it/reasons.rs`).

use std::fmt;

/// Where a reason comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A decision about a review.
    Admission,
    /// The HTTPS endpoint, before or instead of a decision.
    Http,
    /// The controller: gangs, owners, and executors that exited.
    Controller,
}

/// How much a reason matters: the most severe reason of a decision is shown first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As the policy requires.
    Expected,
    /// Worth a note.
    Note,
    /// Something was not done, which may need attention.
    Warning,
    /// spark-usher cannot decide: a strict policy denies the pod, any other allows it with a warning.
    Undecided,
}

macro_rules! reasons {
    ($($origin:ident { $($(#[doc = $doc:literal])+ $name:ident = $severity:ident;)+ })+) => {
        /// Why. See the module's documentation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $($($(#[doc = $doc])+ $name,)+)+
        }

        impl Reason {
            /// Every reason, in the order of the table in docs/reasons.md.
            pub const ALL: &'static [Reason] = &[$($(Reason::$name,)+)+];

            /// The name on the wire, PascalCase.
            pub fn as_str(self) -> &'static str {
                match self { $($(Reason::$name => stringify!($name),)+)+ }
            }

            /// One sentence for people.
            pub fn text(self) -> &'static str {
                match self { $($(Reason::$name => concat!($($doc),+).trim_ascii(),)+)+ }
            }

            /// How much it matters.
            pub fn severity(self) -> Severity {
                match self { $($(Reason::$name => Severity::$severity,)+)+ }
            }

            /// Where it comes from.
            pub fn origin(self) -> Origin {
                match self { $($(Reason::$name => Origin::$origin,)+)+ }
            }
        }
    };
}

impl Reason {
    /// The more severe of two reasons; of two that are equally severe, the first.
    pub fn or_more_severe(self, other: Reason) -> Reason {
        if other.severity() > self.severity() { other } else { self }
    }
}

reasons! {
    Admission {
        /// The reviewed object is not a pod: another kind, or a subresource.
        NotAPod = Expected;
        /// The request does not create a pod: it updates or deletes one.
        NotCreate = Expected;
        /// The pod is neither a Spark driver nor an executor.
        NotSpark = Expected;
        /// The annotation spark-usher.io/skip exempts the pod, and the policy allows that.
        Skipped = Expected;
        /// The driver's scheduler, queue and priority class follow the policy.
        DriverSchedulingSet = Expected;
        /// The executor has its ownerReference; the policy sets no scheduler and no gang.
        Owned = Expected;
        /// The executor has its ownerReference and its scheduling fields: scheduler, queue, gang.
        SchedulingSet = Expected;
        /// The executor does not have the default resource profile: scheduler and queue are set, but the gang does not count it.
        OtherProfile = Note;
        /// The gang has started, and the scheduler's API cannot change its count: the executor is scheduled alone.
        GangStarted = Note;
        /// The pod already has gang keys: spark-usher keeps them and does not manage that gang.
        GangKept = Note;
        /// The executor avoids nodes on which executors fail.
        NodesAvoided = Note;
        /// The executor does not avoid nodes on which executors fail: its affinity is too long, or its gang needs these nodes.
        NodesNotAvoided = Note;
        /// The pod already names another scheduler, which the policy keeps (`replace: default`).
        SchedulerKept = Note;
        /// The requested minimum exceeds the number of executors that the application requests, and was lowered to it.
        MinMemberClamped = Note;
        /// The pod, its driver or its namespace has a spark-usher annotation that the policy does not allow.
        OverrideNotAllowed = Warning;
        /// A spark-usher annotation has an invalid value and is ignored.
        OverrideInvalid = Warning;
        /// A value would make the pod invalid and was not set.
        ValueLeftOut = Warning;
        /// The policy's priority class does not exist in the cluster and was not set.
        PriorityClassMissing = Warning;
        /// The pod named a queue that its policy does not allow, or in which its application does not run. spark-usher replaced the queue.
        QueueReplaced = Warning;
        /// The scheduler's gangs have a fixed size, but the application allocates executors dynamically.
        GangNotFixed = Warning;
        /// The installed Volcano denies pods whose PodGroup does not exist yet, so the driver cannot create executors.
        EarlyPodsRefused = Warning;
        /// The number or the requests of the executors are unknown: they do not wait for each other, or no resources are reserved for them.
        GangSizeUnknown = Warning;
        /// The executor gets no ownerReference: its scheduler (Volcano, KAI) would then add it to its driver's group.
        OwnerWithheld = Warning;
        /// The pod that created the executor is not the driver of its application, so it does not become the owner.
        CreatorNotDriver = Warning;
        /// The account that created the executor is listed in `creators.never`: it creates pods for others.
        CreatorNever = Undecided;
        /// No authenticated pod created the executor, so nothing proves which pod is its driver.
        NoCreator = Undecided;
        /// The creator is not a service account of the executor's namespace.
        CreatorElsewhere = Undecided;
        /// The creator's token does not name exactly one pod.
        CreatorAmbiguous = Undecided;
        /// The pod that created the executor is itself an executor.
        CreatorIsExecutor = Undecided;
        /// The pod that created the executor belongs to another application.
        CreatorOfOtherApplication = Undecided;
        /// The executor's owner is a driver that runs under a service account other than the creator's.
        ForeignCreator = Undecided;
        /// The executor has no label spark-app-selector, so it belongs to no application.
        NoAppSelector = Undecided;
        /// A policy selects by namespace labels, but the watch did not show the namespace and a request did not find it.
        NamespaceUnknown = Undecided;
        /// Validation: no violation.
        Valid = Expected;
        /// Validation: a trusted account changed the owner, gang or application of an existing pod.
        TrustedWriter = Expected;
        /// Validation: the executor's owner is not the pod that created it, or drives another application.
        OwnerNotCreator = Warning;
        /// Validation: an account that is not trusted changed the owners of an existing pod.
        OwnerChanged = Warning;
        /// Validation: an account that is not trusted changed gang, queue or spark-usher annotations of an existing pod.
        SchedulingChanged = Warning;
        /// Validation: an account that is not trusted changed the role or application of an existing pod.
        ApplicationChanged = Warning;
        /// Validation: owner, scheduler, gang or application is missing (webhook unavailable or change reverted), or annotations
        /// are forged.
        NotMutated = Warning;
        /// Validation: the pod requests nodes that are reserved for another scheduler (`nodePool`).
        OtherScheduler = Warning;
        /// Validation: the pod names a queue that its policy does not allow.
        QueueNotAllowed = Warning;
        /// Validation: the pod names a PodGroup of spark-usher, but another creator creates the members of that PodGroup.
        ForeignGroup = Warning;
        /// Validation: the pod gives its scheduler the application of another driver, and would run in the queue of that application.
        ForeignApplication = Warning;
    }
    Http {
        /// The body is not an AdmissionReview of admission.k8s.io/v1.
        BadReview = Warning;
        /// The review, or its pod's node affinity, exceeds a length limit: the strictest policy that may match decides.
        TooLarge = Undecided;
        /// The content type is not application/json.
        WrongContentType = Warning;
        /// Too many concurrent reviews: the API server is asked to retry (429).
        Overloaded = Warning;
        /// The API server's timeout passed before the review was answered.
        DeadlineExceeded = Warning;
        /// A bug in spark-usher: this review failed, and the server continues.
        Panicked = Warning;
    }
    Controller {
        /// Executors of several applications failed on the Node, and the applications did not cause these failures.
        NodeSuspect = Warning;
        /// Another client deleted or changed an admission policy that follows the policy file, and the leader restored it.
        AdmissionPolicyRestored = Warning;
        /// A PodGroup was created for the executors that name it.
        GroupCreated = Expected;
        /// The minimum size of a PodGroup was raised.
        GangRaised = Expected;
        /// The minimum size of a PodGroup was lowered: to what can still start, or, once the gang has started, to what runs.
        GangLowered = Note;
        /// A PodGroup that no pod needs any more was deleted.
        GroupDeleted = Expected;
        /// A PodGroup owned by an earlier driver was deleted, to be created again for the current one.
        GroupRemade = Note;
        /// A PodGroup with this name exists, but spark-usher does not manage it and leaves it unchanged.
        GroupNotOurs = Warning;
        /// The API server, or a webhook of the scheduler, refused the PodGroup: the executors wait for it.
        GroupRefused = Warning;
        /// The cluster does not serve the scheduler's PodGroup API, so no PodGroup can be created.
        GroupApiNotServed = Warning;
        /// Fewer executors remain than the PodGroup requires, and its API cannot change the count: they cannot start.
        GangCannotStart = Warning;
        /// An executor without an owner got an ownerReference to its driver.
        Adopted = Expected;
        /// An executor has no owner, and its driver could not be confirmed.
        AdoptionRefused = Warning;
        /// Executors exited abnormally; the message states the cause, and the Event's series counts them.
        ExecutorEnded = Warning;
        /// An executor that exited was labelled inactive, because its driver did not clean it up.
        ExecutorLabelled = Expected;
        /// An executor that exited was deleted, because its driver did not clean it up.
        ExecutorDeleted = Expected;
        /// More executors failed than Spark allows before it stops the application.
        ExecutorFailuresExceeded = Warning;
        /// An executor still exists long after its deletionTimestamp; the message names its finalizers and its node.
        TerminationHangs = Warning;
        /// An executor is bound to a node and does not start.
        ExecutorStuck = Warning;
        /// An executor runs and has not registered with its driver.
        ExecutorNotRegistered = Warning;
        /// An executor runs although its driver has removed it.
        ExecutorGivenUp = Warning;
        /// A driver still counts executors whose pods no longer exist.
        ExecutorVanished = Warning;
        /// An application requests executors but has had none for a long time.
        NoExecutors = Warning;
        /// A driver's pod still runs, although its Spark container exited or stopped its SparkContext.
        DriverLingers = Warning;
        /// An executor exists although its driver is gone.
        ExecutorOrphaned = Warning;
        /// A kubelet rejected or evicted an executor, and its pod still exists.
        ExecutorLeftBehind = Note;
        /// A PodGroup that had started waits again, although none of its executors is pending.
        GroupWaitsAgain = Warning;
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_pascal_case_and_fit_an_event() {
        let mut seen = std::collections::BTreeSet::new();
        for reason in Reason::ALL {
            let name = reason.as_str();
            assert!(seen.insert(name), "{name} is not unique");
            assert!(name.chars().all(|c| c.is_ascii_alphanumeric()) && name.len() <= 64, "{name}");
            assert!(name.starts_with(|c: char| c.is_ascii_uppercase()), "{name}");
            assert!(reason.text().ends_with('.') && reason.text().len() <= 160, "{name}: {}", reason.text());
        }
    }

    #[test]
    fn severity_orders_reasons() {
        assert!(Reason::NoCreator.severity() > Reason::GangSizeUnknown.severity());
        assert!(Reason::GangSizeUnknown.severity() > Reason::GangKept.severity());
        assert!(Reason::GangKept.severity() > Reason::SchedulingSet.severity());
    }
}
