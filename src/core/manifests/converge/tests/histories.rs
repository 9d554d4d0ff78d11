//! Whatever happens in whatever order, every request is judged by a whole set.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;

const FILES: [&File; 4] = [ENFORCE, WARN, WARNED, NONE];

#[derive(Clone, Debug)]
enum Happens {
    /// The policy file changes.
    File(usize),
    /// Time passes, in seconds.
    Wait(u64),
    /// A round, of which only some writes succeed.
    Round(usize),
    /// Another replica leads.
    Handover,
    /// Another client changes the object at this place,
    Change(usize),
    /// or creates what was deleted again.
    Again,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        (0..FILES.len()).prop_map(Happens::File),
        (1..15_u64).prop_map(Happens::Wait),
        (0..3_usize).prop_map(Happens::Round),
        Just(Happens::Round(99)),
        Just(Happens::Round(99)),
        Just(Happens::Handover),
        (0..8_usize).prop_map(Happens::Change),
        Just(Happens::Again),
    ]
}

static WANTED: LazyLock<[Wanted; 4]> = LazyLock::new(|| FILES.map(wanted));

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn every_request_is_judged_by_a_whole_set_whatever_happens(history in proptest::collection::vec(happens(), 1..60)) {
        let wanted = &*WANTED;
        let (mut cluster, mut file) = (Cluster::new(), 0);
        cluster.settle(&wanted[file]);
        cluster.wait(10);
        for event in &history {
            match event {
                Happens::File(next) => file = *next,
                Happens::Wait(seconds) => cluster.wait(*seconds),
                Happens::Round(writes) => {
                    let plan = cluster.plan(&wanted[file]);
                    for write in plan.writes.iter().take(*writes) {
                        cluster.write(write);
                        prop_assert!(cluster.judges_everywhere(wanted), "{:?} after {:?}", write, cluster.names());
                    }
                }
                Happens::Handover => cluster.memory = Memory::new(SETTLE),
                Happens::Again => cluster.create_again(),
                // An annotation: what the object decides stays.
                Happens::Change(place) => {
                    if let Some(object) = cluster.objects.values_mut().nth(*place) {
                        object["metadata"]["annotations"][annotations::VERSION] = json!("0.0.1");
                    }
                }
            }
        }
        for _ in 0..4 {
            cluster.wait(600);
            cluster.settle(&wanted[file]);
        }
        let plan = cluster.plan(&wanted[file]);
        prop_assert!(plan.differences.is_empty() && plan.next.is_none(), "{:?}", plan);
    }
}
