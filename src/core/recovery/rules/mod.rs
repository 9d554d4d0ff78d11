//! The recovery rules, by what they are about. Each decides on one pod, from the snapshot and from how long its condition has held by
//! our own clock; time in which neither spark-usher nor the driver could observe anything does not count.
//!
//! A rule never decides by a label alone, and never by what one tenant writes about another's pods: what is deleted is proven by
//! the driver's own view, or by a uid from the executor's own ownerReference or authenticated creator.

mod context;
mod drivers;
mod elsewhere;
mod given_up;
mod groups;
mod orphans;
mod refused;
mod stuck;
mod terminating;
mod unregistered;
mod vanished;

use super::finding::FindingVerdict;
use super::state::RecoveryState;
use crate::ownership::liveness::DriverLiveness;
use crate::snapshot::{Executor, Stage};

pub use context::{RuleContext, SetContext};
pub use drivers::of_driver;
pub use groups::of_group;
pub(crate) use groups::waits_again;
pub use vanished::of_view;

/// The rules about one executor; at most one of them applies.
pub fn of_executor(
    context: &RuleContext<'_>,
    set_context: &SetContext<'_>,
    executor: &Executor,
    state: &mut RecoveryState,
) -> FindingVerdict {
    let Some(since) = executor.stage_seen() else { return FindingVerdict::Nothing };
    if executor.template.skip {
        return FindingVerdict::Nothing;
    }
    let stage = executor.stage();
    if stage == Stage::Terminating {
        return terminating::decide(context, executor, since);
    }
    if matches!(stage, Stage::Final | Stage::Lingering) {
        return refused::decide(context, set_context, executor, since);
    }
    // The driver, or spark-usher, has labelled it: it no longer counts.
    if executor.inactive {
        return FindingVerdict::Nothing;
    }
    if set_context.set.driver == DriverLiveness::Gone {
        return orphans::decide(context, set_context, executor, state);
    }
    if set_context.set.driver == DriverLiveness::Unknown
        && let verdict @ (FindingVerdict::At(_) | FindingVerdict::Found(_)) =
            elsewhere::decide(context, executor, state)
    {
        return verdict;
    }
    match stage {
        Stage::Starting | Stage::Initializing => stuck::decide(context, set_context, executor, since),
        Stage::Running => match unregistered::decide(context, set_context, executor, since) {
            FindingVerdict::Nothing => given_up::decide(context, set_context, executor, since, state),
            verdict => verdict,
        },
        _ => FindingVerdict::Nothing,
    }
}
