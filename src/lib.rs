//! spark-usher: an admission webhook, a controller and a command line for the executor pods of Apache Spark on Kubernetes.
//!
//! # The two paths
//!
//! ```text
//! Path A  admission   bytes ─ http::webhook ─▶ admission::request ─┐
//!                                                                 ├▶ admission::mutate ─▶ Decision ─▶ admission::patch ─▶ response bytes
//!                                      Arc<Snapshot> (lock-free) ──┘            └▶ on the result, or again on the final state: admission::validate
//! Path B  controller  watch events, lookups ─ cluster ─▶ snapshot::Change ─▶ Snapshot::apply ─▶ publish Arc<Snapshot>
//!                       ├▶ snapshot::Store ─ batches ─▶ lifecycle::Exits ─▶ each exit reported once: log, metric, Event, `why`
//!                       └▶ reconcile::plan(PlanInput, …) ─▶ Plan of Actions ─▶ cluster::apply ─▶ API call ─▶ (seen again by the watch)
//!                     poll (leader) ─▶ differences ─▶ the watch has time to show them ─▶ a GET for each, or the watch is restarted
//!                     Lease ◀─ lifecycle::checkpoint: up to which resourceVersion every exit is reported
//! ```
//!
//! The paths meet only in [`snapshot`], and a pod enters both through [`spark::pod`].
//!
//! # The order of the modules
//!
//! A module uses only those above it (`tests/it/architecture.rs` reads the sources and fails otherwise), and the files of a
//! module use each other in one direction.
//!
//! | module | what it knows |
//! |---|---|
//! | [`text`] | text of tenants in messages: bounded, without control characters |
//! | [`time`] | the time as an argument: by the monotonic and by the wall clock |
//! | [`json`] | JSON documents by path, and lists item by item |
//! | [`hash`] | hashes of what tenants write, by a key that only this process knows |
//! | [`spark`] | Spark's labels, pods, states, configuration and sizes |
//! | [`annotations`] | the annotations and labels of spark-usher |
//! | [`signature`] | the proof that our webhook mutated a pod |
//! | [`snapshot`] | one immutable state of every application, and the store that passes its changes to subscribers |
//! | [`reason`] | one closed enumeration of reasons: log field, metric label, Event reason and audit annotation |
//! | [`gang`] | what each scheduler requires on pods and in PodGroups; the size and the name of a gang |
//! | [`policy`] | validated settings, and which annotations override them |
//! | [`ownership`] | which driver owns an executor, and whether that driver is alive |
//! | [`admission`] | path A: what a review changes, and which violations it finds |
//! | [`manifests`] | objects that spark-usher prints or installs: webhook configurations, CEL policies, RBAC rules |
//! | [`submit`] | spark-submit in cluster mode: from options to the objects that are created |
//! | [`leader`] | leader election: who holds the Lease |
//! | [`lifecycle`] | Spark's lifecycle manager: which executors exited, when and why |
//! | [`drivers`] | what drivers say about their executors: which registered, how many a driver wants, and whether it keeps them |
//! | [`planning`] | what the rules of a plan share: their input, and the actions that they plan |
//! | [`nodes`] | which nodes refuse or break executors, and which are suspect |
//! | [`recovery`] | which executors an application lacks and why, the rules about those in trouble, in rounds, and what they cost |
//! | [`recorder`] | aggregation of Events |
//! | [`views`] | what the debug port and the command line show |
//! | [`submission`] | submission ids, the state of a driver's pod and how it changes, what the policies will do with a submission, and what spark-submit prints about it |
//! | [`ui`] | the web page: reports as HTML |
//! | [`reconcile`] | the plan for one application: PodGroups, adoption, cleanup, recovery |
//! | [`controller`] | path B: work queue, lookups, confirmations, poll schedule, rate limit |
//!
//! Everything down to here is the core: synchronous, total, deterministic. It has no clock, environment, network or log:
//! it returns its results as values, with a [`reason::Reason`]. Below it is the edge, which may wait and fail:
//!
//! | module | what it knows |
//! |---|---|
//! | [`runtime`] | clocks, randomness, readiness, shutdown, supervised tasks, files that change |
//! | [`telemetry`] | logs, and the registry of metrics; each module of the edge registers its own |
//! | [`tls`] | certificates: created, read, served and rotated |
//! | [`config`] | the policy file |
//! | [`http`] | the webhook's listener, the metrics and probe listener, the debug listener |
//! | [`cluster`] | the API server: watches, lookups, guarded writes, the Lease, our certificates (it and `http` never meet) |
//! | [`sandbox`] | an in-memory Kubernetes API |
//! | [`app`] | builds and supervises everything |
//! | [`cli`] | the commands |

pub mod admission;
pub mod annotations;
pub mod app;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod controller;
pub mod drivers;
pub mod gang;
pub mod hash;
pub mod http;
pub mod json;
pub mod leader;
pub mod lifecycle;
pub mod manifests;
pub mod nodes;
pub mod ownership;
pub mod planning;
pub mod policy;
pub mod reason;
pub mod reconcile;
pub mod recorder;
pub mod recovery;
pub mod runtime;
#[cfg(feature = "sandbox")]
pub mod sandbox;
pub mod signature;
pub mod snapshot;
pub mod spark;
pub mod submission;
pub mod submit;
pub mod telemetry;
#[cfg(test)]
mod test_time;
pub mod text;
pub mod time;
pub mod tls;
pub mod ui;
pub mod views;
