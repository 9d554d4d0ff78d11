//! spark-usher: an admission webhook, a controller and a command line for the executor pods of Apache Spark on Kubernetes.
//!
//! This is the command line, which has every command in [`cli`]. `docs/architecture.md` is the map of the crates that it consists of.

mod cli;

use std::hash::RandomState;
use std::process::ExitCode;

use mimalloc::MiMalloc;
use usher_net::tls;
use usher_spark::hash;

// musl's allocator has one lock for all threads, and glibc's stops for 10 ms and more when it consolidates what a controller of
// 100,000 pods has freed (`malloc_consolidate`).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    hash::set_key(RandomState::new());
    tls::install_provider();
    cli::Cli::of_process().run()
}
