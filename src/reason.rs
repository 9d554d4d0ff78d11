//! Why something was decided: one closed enumeration for the log field, the metric label, the Event reason, the audit
//! annotation and `explain`.
//!
//! The README's table of reasons is generated from [`Reason::ALL`], and a test fails when a variant is never produced
//! (`tests/reasons.rs`).

use std::fmt;

/// Where a reason comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A decision about a review.
    Admission,
    /// The HTTPS endpoint, before or instead of a decision.
    Http,
    /// The loop: gangs, owners, and what became of executors.
    Controller,
}

/// How much a reason matters: the worst of a decision's reasons is the one that is shown first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// All as wanted.
    Expected,
    /// Worth a note.
    Note,
    /// Something was left undone; a person may want to look.
    Warning,
    /// It could not be decided: refused where the policy is strict, otherwise allowed with a warning.
    Undecided,
}

macro_rules! reasons {
    ($($origin:ident { $($(#[doc = $doc:literal])+ $name:ident = $severity:ident;)+ })+) => {
        /// Why. See the module's text.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $($($(#[doc = $doc])+ $name,)+)+
        }

        impl Reason {
            /// Every reason, in the order of the README's table.
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
        /// The review is not of a pod.
        NotAPod = Expected;
        /// Not the creation of a pod: an update, a deletion, a subresource.
        NotCreate = Expected;
        /// The pod is neither a Spark driver nor an executor.
        NotSpark = Expected;
        /// The annotation spark-usher.io/skip asks to leave the pod alone and the policy allows it.
        Skipped = Expected;
        /// A driver: scheduler, queue and priority class are as the policy says.
        DriverSchedulingSet = Expected;
        /// An executor with its owner, and no scheduler or gang to set.
        Owned = Expected;
        /// An executor with its owner, its scheduler and its place in the gang.
        SchedulingSet = Expected;
        /// The executor runs another resource profile: scheduler and queue are set, the gang does not count it.
        OtherProfile = Note;
        /// The pod already names a gang, which stays; that group is not ours.
        GangKept = Note;
        /// The pod already names another scheduler, which stays (`replace: default`).
        SchedulerKept = Note;
        /// The requested minimum is above what the application wants and was lowered to that.
        MinMemberClamped = Note;
        /// An annotation of ours is on the pod, its driver or its namespace, but the policy does not allow it.
        OverrideNotAllowed = Warning;
        /// An annotation of ours has a value that cannot be used.
        OverrideInvalid = Warning;
        /// A value would make the pod invalid and was left out.
        ValueLeftOut = Warning;
        /// The policy's priority class does not exist in the cluster and was left out.
        PriorityClassMissing = Warning;
        /// A gang of a fixed size was asked for, but the application's size changes while it runs.
        GangNotFixed = Warning;
        /// The installed Volcano refuses pods whose PodGroup does not exist yet, so the application's executors cannot come.
        EarlyPodsRefused = Warning;
        /// How many executors the application wants is not known, so nothing waits for that many.
        GangSizeUnknown = Warning;
        /// No ownerReference: on Volcano it would put the executor into its driver's own group.
        OwnerWithheld = Warning;
        /// The creator is not the pod that drives this application, so it does not become the owner.
        CreatorNotDriver = Warning;
        /// The creator is in `creators.never`: it makes pods for others.
        CreatorNever = Undecided;
        /// No authenticated pod created this executor, so nothing proves who its driver is.
        NoCreator = Undecided;
        /// The creator is no service account of the executor's namespace.
        CreatorElsewhere = Undecided;
        /// The creator's token names no single pod.
        CreatorAmbiguous = Undecided;
        /// The creator is itself an executor.
        CreatorIsExecutor = Undecided;
        /// The creator belongs to another application.
        CreatorOfOtherApplication = Undecided;
        /// The executor names as its owner a driver that runs under another account than its creator's.
        ForeignCreator = Undecided;
        /// An executor without the label spark-app-selector belongs to no application.
        NoAppSelector = Undecided;
        /// A policy selects by namespace labels, and the namespace has not been seen yet.
        NamespaceUnknown = Undecided;
        /// Validated: nothing to object to.
        Valid = Expected;
        /// Validated: owner, gang or application of an existing pod were changed by somebody who may.
        TrustedWriter = Expected;
        /// Validated: the executor claims another driver than the pod that created it.
        OwnerNotCreator = Warning;
        /// Validated: the owners of an existing pod were changed by an account that is not trusted.
        OwnerChanged = Warning;
        /// Validated: gang, queue or our marks of an existing pod were changed by an account that is not trusted.
        SchedulingChanged = Warning;
        /// Validated: role or application of an existing pod were changed by an account that is not trusted.
        ApplicationChanged = Warning;
        /// Validated: the pod lacks its owner, scheduler or gang; the mutating webhook was unavailable, or another webhook reverted it.
        NotMutated = Warning;
        /// Validated: the pod asks for nodes that another scheduler places alone.
        OtherScheduler = Warning;
        /// Validated: the pod names a queue that its namespace may not use.
        QueueNotAllowed = Warning;
    }
    Http {
        /// The body is no AdmissionReview of admission.k8s.io/v1.
        BadReview = Warning;
        /// The review is larger than 20 MiB, or a map in it than any pod's: the strictest policy that could match decides.
        TooLarge = Undecided;
        /// The content type is not application/json.
        WrongContentType = Warning;
        /// Too many reviews at once; the API server is asked to try again.
        Overloaded = Warning;
        /// The API server's deadline passed before the review was answered.
        DeadlineExceeded = Warning;
        /// A bug: this one review failed, the server goes on.
        Panicked = Warning;
    }
    Controller {
        /// A PodGroup was made for executors that name it.
        GroupCreated = Expected;
        /// A PodGroup's size was raised.
        GangRaised = Expected;
        /// A PodGroup's size was lowered so that what is left can start.
        GangLowered = Note;
        /// A PodGroup that nobody needs any more was deleted.
        GroupDeleted = Expected;
        /// A PodGroup of an earlier driver was replaced.
        GroupRemade = Note;
        /// A group of that name exists that is not ours; it stays as it is.
        GroupNotOurs = Warning;
        /// The cluster does not serve the scheduler's PodGroup API, so no group can be made.
        GroupApiNotServed = Warning;
        /// Fewer executors are left than the group's count, which this API cannot change: they cannot start.
        GangCannotStart = Warning;
        /// An executor without an owner was given its driver.
        Adopted = Expected;
        /// An executor has no owner and its driver could not be confirmed.
        AdoptionRefused = Warning;
        /// Executors ended otherwise than they should; the message says why, and how many.
        ExecutorEnded = Warning;
        /// An executor that ended was labelled inactive: its driver has not dealt with it.
        ExecutorLabelled = Expected;
        /// An executor that ended was deleted: its driver has not dealt with it.
        ExecutorDeleted = Expected;
        /// More executors failed than Spark allows before it gives the application up.
        ExecutorFailuresExceeded = Warning;
        /// An executor was to be gone long ago; the message names the finalizers that hold it, and its node.
        TerminationHangs = Warning;
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
            assert!(seen.insert(name), "{name} twice");
            assert!(name.chars().all(|c| c.is_ascii_alphanumeric()) && name.len() <= 64, "{name}");
            assert!(name.starts_with(|c: char| c.is_ascii_uppercase()), "{name}");
            assert!(reason.text().ends_with('.') && reason.text().len() <= 160, "{name}: {}", reason.text());
        }
    }

    #[test]
    fn the_worst_is_the_heaviest() {
        assert!(Reason::NoCreator.severity() > Reason::GangSizeUnknown.severity());
        assert!(Reason::GangSizeUnknown.severity() > Reason::GangKept.severity());
        assert!(Reason::GangKept.severity() > Reason::SchedulingSet.severity());
    }
}
