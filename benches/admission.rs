//! Review bytes to response bytes, beside what serde_json takes to skip the same bytes (limit: 1.4 times).
//!
//! `cargo bench --bench admission`

#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark fails by panicking")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use serde::de::IgnoredAny;
use spark_usher::admission;
use spark_usher::gang::GangScheduler;
use spark_usher::policy::{Policies, Policy, SchedulerChoice};
use spark_usher::snapshot::Snapshot;

/// The recorded review of an executor in client mode, compact as the API server sends it.
fn recorded() -> Vec<u8> {
    let text = include_str!("../tests/fixtures/reviews/spark-4.3.0/client-mode/exec-1.mutate.create.json");
    let value: Box<serde_json::value::RawValue> = serde_json::from_str(text).unwrap();
    compact(value.get())
}

/// Takes the indentation out and leaves the order of the fields alone.
fn compact(text: &str) -> Vec<u8> {
    let (mut out, mut quoted, mut escaped) = (Vec::new(), false, false);
    for byte in text.bytes() {
        if quoted || !byte.is_ascii_whitespace() {
            out.push(byte);
        }
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            _ => {}
        }
    }
    out
}

fn volcano() -> Policies {
    let row = GangScheduler::of_kind("volcano").unwrap();
    let mut policy = Policy { name: "batch".into(), scheduler: SchedulerChoice::of(row), ..Policy::fallback() };
    policy.gang.shape = row.default_shape();
    policy.queue = Some("analytics".into());
    policy.executor_class = Some("batch".into());
    Policies::new(vec![policy], Vec::new())
}

fn admission_road(c: &mut Criterion) {
    let body = recorded();
    let (policies, snapshot) = (volcano(), Snapshot::default());
    let mut group = c.benchmark_group("review");
    group.throughput(criterion::Throughput::Bytes(body.len() as u64));
    group.bench_function("skip", |b| b.iter(|| serde_json::from_slice::<IgnoredAny>(black_box(&body)).unwrap()));
    group.bench_function("parse", |b| b.iter(|| black_box(admission::request::parse(black_box(&body)).unwrap())));
    group.bench_function("answer", |b| {
        b.iter(|| black_box(admission::answer(black_box(&body), &snapshot, &policies).unwrap().1));
    });
    group.finish();
}

criterion_group!(benches, admission_road);
criterion_main!(benches);
