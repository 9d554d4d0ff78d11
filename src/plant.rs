//! Bugs on purpose, so that `tests/simulation.rs`, and `tests/edge_simulation.rs` for those of the edge, can show that they
//! would find them.
//!
//! In a release build there are none: [`is`] is `false` and the code behind it is not compiled in. In a debug build a test
//! plants one for its own thread.

macro_rules! bugs {
    (
        core { $($(#[doc = $doc:literal])+ $name:ident;)+ }
        edge { $($(#[doc = $edge_doc:literal])+ $edge_name:ident;)+ }
    ) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $($(#[doc = $doc])+ $name,)+
            $($(#[doc = $edge_doc])+ $edge_name,)+
        }

        impl Bug {
            /// Those that histories of the core find.
            pub const CORE: &'static [Bug] = &[$(Bug::$name,)+];
            /// Those that histories of whole replicas find.
            pub const EDGE: &'static [Bug] = &[$(Bug::$edge_name,)+];
        }
    };
}

bugs! {
    core {
        /// An older sighting replaces a newer one.
        OldNewsBelieved;
        /// What a list does not have is gone, and nobody looks.
        AbsentIsGone;
        /// What a poll has in another version is not read again.
        PollJudgesPresenceOnly;
        /// Nobody polls.
        NeverPolls;
        /// An executor that ended and went between two batches is not news.
        EndLostInBatch;
        /// An executor whose label is taken off counts as deleted.
        UnlabelledIsDeleted;
        /// An executor that ends with its driver counts as failed by the application.
        DriverLostIsError;
        /// A new leader does not look at what was reported before.
        MarkIgnored;
        /// An executor that went without a final state is not news.
        DepartureIgnored;
        /// It is forgotten at once which executors were told.
        CacheForgotten;
        /// A failed check of a missing executor is not tried again.
        CheckNotRetried;
        /// A failed action is not tried again, not even by the minute.
        ActionNotRetried;
        /// There is no grace while the driver lives.
        NoGrace;
        /// The application's own intervals do not lengthen the grace.
        GraceIgnoresConf;
        /// The grace is counted from the pod's own times by the wall clock.
        GraceByWallClock;
        /// A grace counts time in which neither we nor the driver could see anything.
        GraceCountsOutages;
        /// Addresses of drivers are looked for by every replica, all of them, and every minute.
        AddressesNeverRest;
        /// A watch that is late is started again, and again.
        LateIsLost;
        /// Where nothing is known of a driver it counts as gone.
        UnknownIsGone;
        /// Executors that run and are being deleted count as finished.
        RunningIsFinished;
        /// The driver's habit of keeping finished executors is ignored.
        KeepsIgnored;
        /// Failures that the application caused are not kept for people to look at.
        FailedNotKept;
        /// Executors that are labelled already are labelled again.
        InactiveIgnored;
        /// The annotation that asks to be left alone is ignored.
        SkipIgnored;
        /// What a follower noted is dropped.
        FollowerForgets;
        /// A lease counts as over a quarter too early.
        LeaseTakenEarly;
        /// A leader acts as long as the lease lasts, and half as long again.
        LeaderActsTooLong;
    }
    edge {
        /// An executor is labelled or deleted before its end is reported.
        ActsBeforeTelling;
        /// The Lease is released without the last word about what was told.
        LastWordNotWritten;
        /// An answer that did not come counts as one that there is no such pod.
        ErrorIsAbsent;
        /// A Lease that cannot be read or written counts as ours.
        LeaseErrorsIgnored;
        /// What was noted of an end is told by followers too.
        FollowersTell;
        /// Writes of the Lease carry no resourceVersion.
        LeaseUnguarded;
        /// In a dry run everything is done.
        DryRunIgnored;
        /// A watch that fails is tried again at once.
        NoPause;
        /// An Event whose creation was not answered counts as one that was there before.
        LostAnswerCounts;
        /// An end that may have been reported before is reported without the mark.
        DoubtNotSaid;
        /// The pod's status.reason is ignored.
        ReasonIgnored;
        /// A gang waits for one more than it has.
        GangOfOneMore;
        /// An executor is given an owner that is not there.
        AdoptedByNobody;
        /// Executors without an owner get none.
        NeverAdopted;
        /// Every exit is reported as possibly reported before.
        DoubtAlwaysSaid;
        /// Every exit is reported twice, the second time as possibly reported before.
        ToldTwice;
        /// An executor that was shown to be deleted counts as vanished.
        DeletedIsVanished;
        /// Where only a report is wanted, executors are deleted.
        ReportIgnored;
        /// Where labels are wanted, executors are deleted.
        LabelDeletes;
        /// A gang waits for one less than it should.
        GangOfOneLess;
        /// PodGroups of applications that are over stay.
        GroupsNeverDeleted;
        /// Who waits for a Lease that is over does not pause after a look that fails.
        LeaseHammered;
    }
}

#[cfg(debug_assertions)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug for this thread, or takes it out. Without effect in a release build.
pub fn plant(bug: Option<Bug>) {
    #[cfg(debug_assertions)]
    PLANTED.set(bug);
    #[cfg(not(debug_assertions))]
    let _ = bug;
}

/// Whether this bug is planted.
pub fn is(bug: Bug) -> bool {
    #[cfg(debug_assertions)]
    return PLANTED.get() == Some(bug);
    #[cfg(not(debug_assertions))]
    {
        let _ = bug;
        false
    }
}
