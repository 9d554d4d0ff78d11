//! Injected bugs, with which `tests/sim/controller` and, for those of the edge, `tests/sim/replicas` show that they would
//! find them.
//!
//! In a release build there are none: [`injected`] is `false` and the code behind it is not compiled in. In a debug build a test
//! injects one for its own thread.

macro_rules! bugs {
    (
        core { $($(#[doc = $doc:literal])+ $name:ident;)+ }
        rules { $($(#[doc = $rule_doc:literal])+ $rule_name:ident;)+ }
        nodes { $($(#[doc = $node_doc:literal])+ $node_name:ident;)+ }
        edge { $($(#[doc = $edge_doc:literal])+ $edge_name:ident;)+ }
    ) => {
        /// A bug that can be injected.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $($(#[doc = $doc])+ $name,)+
            $($(#[doc = $rule_doc])+ $rule_name,)+
            $($(#[doc = $node_doc])+ $node_name,)+
            $($(#[doc = $edge_doc])+ $edge_name,)+
        }

        impl Bug {
            /// The bugs that simulated histories of the core find.
            pub const CORE: &'static [Bug] = &[$(Bug::$name,)+];
            /// The bugs that `tests/it/recovery.rs` finds.
            pub const RULES: &'static [Bug] = &[$(Bug::$rule_name,)+];
            /// The bugs of the ledger of nodes that `tests/sim/nodes.rs` finds.
            pub const NODES: &'static [Bug] = &[$(Bug::$node_name,)+];
            /// The bugs that simulated histories of whole replicas find.
            pub const EDGE: &'static [Bug] = &[$(Bug::$edge_name,)+];
        }
    };
}

bugs! {
    core {
        /// An older version of a pod replaces a newer one.
        StaleVersionAccepted;
        /// A pod that a list does not contain counts as deleted, without a GET.
        NotListedIsDeleted;
        /// A pod that a poll contains in another version is not read again.
        PollComparesPresenceOnly;
        /// The leader never polls.
        NeverPolls;
        /// The exit of an executor that exited and was deleted between two batches is lost.
        ExitLostInBatch;
        /// An executor whose label is removed counts as deleted.
        UnlabelledIsDeleted;
        /// An executor that exits with its driver counts as failed by the application.
        DriverLostIsError;
        /// A new leader ignores the checkpoint in the Lease.
        CheckpointIgnored;
        /// The deletion of an executor without a final state is lost.
        DeletionIgnored;
        /// Reported exits are forgotten immediately.
        CacheForgotten;
        /// A failed confirmation of a missing executor is not retried.
        ConfirmationNotRetried;
        /// A failed action is not retried, not even by the resync of every minute.
        ActionNotRetried;
        /// There is no grace while the driver runs.
        NoGrace;
        /// The application's own intervals do not lengthen the grace.
        GraceIgnoresConf;
        /// The grace is counted from the pod's own times by the wall clock.
        GraceByWallClock;
        /// A grace includes time in which neither spark-usher nor the driver could observe anything.
        GraceCountsOutages;
        /// Every replica looks up all addresses of drivers, every minute.
        AddressesAlwaysLookedUp;
        /// A watch that is late is restarted repeatedly.
        LateWatchRestarted;
        /// A driver of which nothing is known counts as deleted.
        UnknownDriverIsDeleted;
        /// Running executors that are being deleted count as finished.
        RunningIsFinished;
        /// The driver's configuration to keep finished executors is ignored.
        DeleteOnTerminationIgnored;
        /// Failures that the application caused are not kept for inspection.
        FailedNotKept;
        /// Executors that are already labelled are labelled again.
        InactiveIgnored;
        /// The skip annotation is ignored.
        SkipIgnored;
        /// The budgets of the recovery rules are ignored.
        BudgetIgnored;
        /// A recovery rule that deleted an executor does not wait longer before it deletes the next one.
        NoBackOff;
        /// Executors are deleted because a pod is gone, although another one may be their driver.
        ContradictionIgnored;
        /// Orphans of a driver that keeps its executors are deleted.
        OrphansNotKept;
        /// A recovery rule in mode warn deletes.
        WarnActs;
        /// An executor that no scheduler has bound counts as stuck.
        UnscheduledIsStuck;
        /// The time before an executor was bound counts for the rule `stuck`.
        StuckSinceCreation;
        /// The time before an executor ran counts for the rule `unregistered`.
        UnregisteredSinceCreation;
        /// A view after dropped events proves that an executor has not registered.
        IncompleteViewCounts;
        /// An executor counts as given up with the first view that shows it as removed.
        GivenUpAtOnce;
        /// Executors whose failure the application caused are deleted by the rule `givenUp`.
        FailuresNotKept;
        /// The driver has no time to notice that an executor vanished.
        VanishedAtOnce;
        /// Vanished executors are never reported.
        VanishedNever;
        /// A driver whose executors are all pending counts as one without executors.
        PendingIsNothing;
        /// A hopeless driver is deleted in client mode, too.
        HopelessInClientMode;
        /// The rule `zombieDriver` does not wait.
        ZombieAtOnce;
        /// The rule `orphans` does not wait.
        OrphansAtOnce;
        /// The rule `refused` does not wait.
        RefusedAtOnce;
        /// The rule `refused` deletes pods of which no driver is known.
        RefusedOfUnknownDriver;
        /// The rule `terminating` does not wait until the grace period of the deletion is over.
        DeletionGraceIgnored;
        /// The rule `terminating` deletes by force what finalizers block.
        FinalizersIgnored;
        /// A follower drops the exits that it tracks.
        FollowerDropsExits;
        /// A Lease counts as expired a quarter of its duration too early.
        LeaseTakenEarly;
        /// A leader acts for one and a half times the Lease's duration.
        LeaderActsTooLong;
    }
    rules {
        /// A PodGroup that has not started yet counts as one that waits again.
        StartIgnored;
        /// A PodGroup with pending executors counts as one that waits for nobody.
        PendingIgnored;
        /// A deletion by a recovery rule that its last check forbids is charged all the same.
        AttemptsCount;
        /// Live executors of a driver that keeps its executors are deleted.
        LiveNotKept;
        /// A driver that closed its REST API is deleted.
        StoppedIsDeleted;
        /// The cost of executors that do no work is counted again in each round.
        CountedTwice;
        /// Whether a driver keeps its executors is decided without the pod that owns them.
        OwnerNotAsked;
        /// The time since a driver's Spark container exited goes on after it has started again.
        LingersForever;
        /// Drivers that a Deployment or StatefulSet creates are deleted.
        WorkloadsDriverDeleted;
    }
    nodes {
        /// The failures of one application make a node suspect.
        OneAppCondemns;
        /// What a pod can cause itself counts against its node.
        FaultsOfPodsCount;
        /// Failures before the window count.
        OldFaultsCount;
        /// A suspicion never ends.
        SuspicionNeverEnds;
        /// Every suspect node is avoided.
        CapIgnored;
        /// Executors that exited are not seen.
        FaultsNotSeen;
    }
    edge {
        /// An executor is labelled or deleted before its exit is reported.
        ActsBeforeReporting;
        /// The Lease is released without the final checkpoint.
        FinalCheckpointNotWritten;
        /// A GET without a response counts as a response that the pod does not exist.
        ErrorIsAbsent;
        /// A Lease that cannot be read or written counts as held by this replica.
        LeaseErrorsIgnored;
        /// Followers report the exits that they track, too.
        FollowersReport;
        /// Writes of the Lease carry no resourceVersion.
        LeaseUnguarded;
        /// A dry run writes.
        DryRunIgnored;
        /// A failed watch is retried immediately.
        WatchNotBackedOff;
        /// An Event whose creation got no response counts as one that existed before.
        LostAnswerCounts;
        /// An exit that may have been reported before is not reported as possibly reported before.
        PossiblyReportedOmitted;
        /// The pod's status.reason is ignored.
        ReasonIgnored;
        /// A gang waits for one executor more than it has.
        GangOfOneMore;
        /// An executor gets an owner that does not exist.
        AdoptedByMissingOwner;
        /// Executors without an owner get none.
        NeverAdopted;
        /// Every exit is reported as possibly reported before.
        PossiblyReportedAlways;
        /// Every exit is reported twice, the second time as possibly reported before.
        ReportedTwice;
        /// An executor whose deletion was observed counts as vanished.
        DeletedCountsAsVanished;
        /// Executors are deleted where only a report is configured.
        ReportIgnored;
        /// Executors are deleted where labels are configured.
        LabelDeletes;
        /// A gang waits for one executor fewer than it should.
        GangOfOneLess;
        /// PodGroups of finished applications are not deleted.
        GroupsNeverDeleted;
        /// A replica that waits for an expired Lease does not pause after a failed read.
        LeaseReadWithoutPause;
    }
}

#[cfg(debug_assertions)]
thread_local! {
    static INJECTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Injects a bug for this thread, or removes it. Without effect in a release build.
pub fn inject(bug: Option<Bug>) {
    #[cfg(debug_assertions)]
    INJECTED.set(bug);
    #[cfg(not(debug_assertions))]
    let _ = bug;
}

/// Whether this bug is injected.
pub fn injected(bug: Bug) -> bool {
    #[cfg(debug_assertions)]
    return INJECTED.get() == Some(bug);
    #[cfg(not(debug_assertions))]
    {
        let _ = bug;
        false
    }
}
