//! What is decided, from facts to values: synchronous, total, deterministic. Nothing here has a clock, an environment, a network or a log;
//! each result has a [`reason::Reason`], and the edge logs it.
//!
//! # The two paths
//!
//! ```text
//! Path A  admission   bytes ─ usher_server ─▶ admission::request ─┐
//!                                                                 ├▶ admission::mutate ─▶ Decision ─▶ admission::response ─▶ bytes
//!                                      Arc<Snapshot> (lock-free) ──┘            └▶ on the result, or again on the final state: admission::validate
//! Path B  controller  watch events, lookups ─ usher_server ─▶ snapshot::Change ─▶ Snapshot::apply ─▶ publish Arc<Snapshot>
//!                       ├▶ snapshot::Store ─ batches ─▶ lifecycle::Exits ─▶ each exit reported once: log, metric, Event, `why`
//!                       └▶ reconcile::plan(PlanInput, …) ─▶ Plan of Actions ─▶ usher_server ─▶ API call ─▶ (seen again by the watch)
//!                     poll (leader) ─▶ differences ─▶ the watch has time to show them ─▶ a GET for each, or the watch is restarted
//!                     Lease ◀─ lifecycle::checkpoint: up to which resourceVersion every exit is reported
//! ```
//!
//! The paths meet only in [`snapshot`], and a pod enters both through [`usher_spark::pod`].
//!
//! # The modules
//!
//! A module uses only those above it, and the files of a module use each other in one direction.
//!
//! | module | what it knows |
//! |---|---|
//! | [`annotations`] | the annotations and labels of spark-usher |
//! | [`signature`] | the proof that our webhook mutated a pod |
//! | [`reason`] | one closed enumeration of reasons: log field, metric label, Event reason and audit annotation |
//! | [`snapshot`] | one immutable state of every application, and the store that passes its changes to subscribers |
//! | [`gang`] | what each scheduler requires on pods and in PodGroups; the size and the name of a gang |
//! | [`policy`] | validated settings, and which annotations override them |
//! | [`ownership`] | which driver owns an executor, and whether that driver is alive |
//! | [`admission`] | path A: what a review changes, and which violations it finds |
//! | [`manifests`] | objects that spark-usher prints or installs: webhook configurations, CEL policies, RBAC rules |
//! | [`leader`] | leader election: who holds the Lease |
//! | [`lifecycle`] | Spark's lifecycle manager: which executors exited, when and why |
//! | [`drivers`] | what drivers say about their executors: which registered, how many a driver wants, and whether it keeps them |
//! | [`planning`] | what the rules of a plan share: their input, and the actions that they plan |
//! | [`nodes`] | which nodes refuse or break executors, and which are suspect |
//! | [`recovery`] | which executors an application lacks and why, the rules about those in trouble, in rounds, and what they cost |
//! | [`reconcile`] | the plan for one application: PodGroups, adoption, cleanup, recovery |
//! | [`event_aggregator`] | aggregation of Events |
//! | [`controller`] | path B: work queue, lookups, confirmations, poll schedule, rate limit |

pub mod admission;
pub mod annotations;
pub mod controller;
pub mod drivers;
pub mod event_aggregator;
pub mod gang;
pub mod leader;
pub mod lifecycle;
pub mod manifests;
pub mod nodes;
pub mod ownership;
pub mod planning;
pub mod policy;
pub mod reason;
pub mod reconcile;
pub mod recovery;
pub mod signature;
pub mod snapshot;
#[cfg(test)]
mod test_time;
