//! The time from review bytes to response bytes, compared with serde_json skipping the same bytes (limit: 1.3 times).
//!
//! `cargo bench --bench admission`

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

mod support;

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use serde::de::IgnoredAny;
use usher_core::admission;
use usher_core::gang::GangScheduler;
use usher_core::policy::{Policies, Policy, SchedulerChoice};
use usher_core::signature::{Key, SECRET_LEN};
use usher_core::snapshot::{RelatedChange, Snapshot};

fn volcano() -> Policies {
    let row = GangScheduler::of_kind("volcano").unwrap();
    let mut policy = Policy { name: "batch".into(), scheduler: SchedulerChoice::of(row), ..Policy::fallback() };
    policy.gang.shape = row.default_shape();
    policy.queue = Some("analytics".into());
    policy.executor_class = Some("batch".into());
    Policies::new(vec![policy], Vec::new())
}

fn admission(c: &mut Criterion) {
    let body = support::recorded();
    let (policies, snapshot) = (volcano(), Snapshot::default());
    let mut group = c.benchmark_group("review");
    group.throughput(criterion::Throughput::Bytes(body.len() as u64));
    group.bench_function("skip", |b| b.iter(|| serde_json::from_slice::<IgnoredAny>(black_box(&body)).unwrap()));
    group.bench_function("parse", |b| {
        b.iter(|| black_box(admission::parse(&admission::prune(black_box(&body))).unwrap().uid.len()))
    });
    group.bench_function("answer", |b| {
        b.iter(|| black_box(admission::answer(&admission::prune(black_box(&body)), &snapshot, &policies).unwrap().1));
    });
    let mut signing = Snapshot::default();
    signing.apply(RelatedChange::SigningKey(Some(Key::new(&[7; SECRET_LEN]))));
    group.bench_function("answer, signed", |b| {
        b.iter(|| black_box(admission::answer(&admission::prune(black_box(&body)), &signing, &policies).unwrap().1));
    });
    group.finish();
}

criterion_group!(benches, admission);
criterion_main!(benches);
