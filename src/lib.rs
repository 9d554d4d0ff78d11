//! spark-usher: checks Apache Spark's executors in as they are created on Kubernetes, seats them in their gang, and
//! gives them to their driver, and knows what became of each.
//!
//! # The two roads
//!
//! ```text
//! Road A  admission   bytes ─ http::webhook ─▶ admission::request ─┐
//!                                                                 ├▶ admission::decide ─▶ Decision ─▶ admission::patch ─▶ response bytes
//!                                      Arc<Snapshot> (lock-free) ──┘            └▶ on the result, or again on the final state: admission::judge
//! Road B  lifecycle   watch, looks ─ cluster ─▶ snapshot::Change ─▶ Snapshot::apply ─▶ publish Arc<Snapshot>
//!                       ├▶ snapshot::Store ─ batches ─▶ lifecycle::Exits ─▶ told once: log, metric, Event, `why`
//!                       └▶ lifecycle::plan(&Snapshot, app, …) ─▶ Vec<Action> ─▶ cluster::apply ─▶ API call ─▶ (seen again by the watch)
//!                     poll (leader) ─▶ what differs ─▶ left to the watch ─▶ looks by name, or the watch is started again
//!                     Lease ◀─ mark: up to where every end is told
//! ```
//!
//! The roads meet only in [`snapshot`], and a pod enters both through one door: [`spark::pod`].
//!
//! # The order of the modules
//!
//! Each may use those above it, never those below (`tests/architecture.rs` reads the sources and fails otherwise).
//!
//! | module | what it knows |
//! |---|---|
//! | [`plant`] | bugs on purpose, for the simulation; none in a release build |
//! | [`json`] | JSON documents by path, and lists item by item |
//! | [`spark`] | Spark's words: labels, pods, states, configuration, sizes |
//! | [`signature`] | what proves that our webhook decided about a pod |
//! | [`snapshot`] | one immutable picture of every application, and the store that hands its changes to subscribers |
//! | [`reason`] | why: one closed enumeration |
//! | [`gang`] | what each scheduler wants on the wire; how large a gang is and what it is called |
//! | [`policy`] | validated settings, and which annotations count |
//! | [`driver`] | whose executor is this? |
//! | [`admission`] | road A: what is changed, what is objected to, and the policies that stand in while we are away |
//! | [`lifecycle`] | road B: the plan |
//!
//! Everything down to here is the core: sync, total, deterministic. No clock, no environment, no network, no log:
//! what it wants to say it returns, as a [`reason::Reason`]. Below it is the edge, which may wait and fail:
//!
//! | module | what it knows |
//! |---|---|
//! | [`runtime`] | clocks, randomness, readiness, shutdown, supervised tasks, files that change |
//! | [`telemetry`] | logs and metrics |
//! | [`tls`] | certificates: made, read, served, and their rotation |
//! | [`config`] | the policy file |
//! | [`http`] | the webhook's endpoint, the port for probes and metrics, the port for people |
//! | [`cluster`] | the API server: watches, reads, guarded writes, the lease, our certificates (it and `http` never meet) |
//! | [`sandbox`] | an in-memory Kubernetes API |
//! | [`app`] | the only place that knows everybody |
//! | [`cli`] | the commands |

pub mod admission;
pub mod app;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod driver;
pub mod gang;
pub mod http;
pub mod json;
pub mod lifecycle;
pub mod plant;
pub mod policy;
pub mod reason;
pub mod runtime;
pub mod sandbox;
pub mod signature;
pub mod snapshot;
pub mod spark;
pub mod telemetry;
pub mod tls;
