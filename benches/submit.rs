//! A hundred submissions in parallel from one process, against the sandbox; and how long one takes to build.
//!
//!     cargo bench --bench submit
//!
//! `tests/submit_bench.py` compares single submissions with spark-submit's.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a benchmark"
)]

use std::time::Instant;

use futures::future::try_join_all;
use usher_runtime::random;
use usher_runtime::shutdown::Interrupt;
use usher_sandbox::{Options, Sandbox};
use usher_spark::version::SparkVersion;
use usher_submit::api::create;
use usher_submit::{Environment, Files, Submission, Unique, build, parse, prepare};

const SUBMISSIONS: usize = 100;
const LIMIT: f64 = 3.0;
const ROUNDS: usize = 5;

/// No local files.
struct Nothing;

impl Files for Nothing {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        Err(format!("{path}: not found"))
    }

    fn list(&self, _: &str) -> Vec<String> {
        Vec::new()
    }

    fn absolute(&self, path: &str) -> String {
        path.to_owned()
    }

    fn matching(&self, _: &str) -> Result<Option<Vec<String>>, String> {
        Ok(None)
    }

    fn main_class(&self, path: &str) -> Result<Option<String>, String> {
        Err(format!("{path}: not found"))
    }
}

fn submission(number: usize) -> Submission {
    let arguments = [
        "--master=k8s://http://127.0.0.1",
        "--deploy-mode=cluster",
        "--class=org.apache.spark.examples.SparkPi",
        "--num-executors=10",
        "--conf=spark.kubernetes.container.image=reg.example/spark:4.3.0",
        "local:///opt/spark/examples/jars/spark-examples.jar",
        "1000",
    ];
    let mut arguments = arguments.map(str::to_owned).to_vec();
    arguments.insert(0, format!("--name=job-{number}"));
    let unique = Unique {
        millis: i64::try_from(number).unwrap(),
        app: random::hex(16),
        digits: [random::hex(3), random::hex(3), random::hex(3)],
        uuids: vec![random::uuid()],
    };
    let env = Environment { user: "bench".to_owned(), ..Environment::default() };
    let app = prepare(&parse(&arguments).unwrap(), &env, &Nothing, unique.millis).unwrap();
    build(&app, &env, &Nothing, SparkVersion::NEWEST, &unique).unwrap()
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    usher_net::tls::install_provider();
    let began = Instant::now();
    let built: Vec<Submission> = (0..1000).map(submission).collect();
    println!("building one submission: {:.0} µs", began.elapsed().as_secs_f64() * 1e6 / built.len() as f64);
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let sandbox = Sandbox::start(&Options::default()).unwrap();
        let client = sandbox.client(sandbox.admin_token()).unwrap();
        let began = Instant::now();
        let all: Vec<Submission> = (0..SUBMISSIONS).map(|number| submission(round * SUBMISSIONS + number)).collect();
        let created =
            try_join_all(all.iter().map(async |submission| create(&client, submission, &mut Interrupt::never()).await))
                .await
                .unwrap();
        assert_eq!(created.len(), SUBMISSIONS);
        times.push(began.elapsed().as_secs_f64());
    }
    let worst = times.iter().copied().fold(0.0, f64::max);
    let above = if worst > LIMIT { "  ABOVE THE LIMIT" } else { "" };
    println!(
        "{SUBMISSIONS} submissions in parallel, four objects each, sandbox in the same process: longest of {ROUNDS} rounds {worst:.2} s \
         (limit {LIMIT} s){above}"
    );
}
