//! Bodies that real drivers returned (Spark 4.3.0, 3.5.9 and 3.3.4, client mode, dynamic allocation from 1 to 4 executors and 2
//! initially, while a job ran). Their properties are reduced to the relevant ones, and the application's id is replaced.

use std::fs;

use usher_spark::conf::{Allocation, Ui};
use usher_spark::json::Items;
use usher_spark::rest::{self, DriverMetrics, ExecutorSummary};

const VERSIONS: [(&str, u64); 3] = [("4.3.0", 2), ("3.5.9", 4), ("3.3.4", 4)];

fn body(version: &str, name: &str) -> Vec<u8> {
    fs::read(crate::support::fixture_path(&format!("driver-api/{version}/{name}.json"))).unwrap()
}

#[test]
fn registered_executors_of_each_version_are_read_for_any_chunk_size() {
    for (version, registered) in VERSIONS {
        let body = body(version, "allexecutors");
        for piece in [1, 7, 1000, body.len()] {
            let (mut items, mut rows) = (Items::bare(), Vec::new());
            for bytes in body.chunks(piece) {
                items.feed(bytes, |row: ExecutorSummary| rows.push(row)).unwrap();
            }
            items.finish_bare().unwrap();
            let mut ids: Vec<u64> = rows.iter().filter_map(|row| row.id).collect();
            ids.sort_unstable();
            assert_eq!(ids, (1..=registered).collect::<Vec<_>>(), "{version}");
            assert!(
                rows.iter().all(|row| row.is_active && row.registered.is_some() && row.removed.is_none()),
                "{version}"
            );
        }
    }
}

#[test]
fn metrics_of_each_version_have_target_and_dropped_events() {
    for (version, _) in VERSIONS {
        let metrics = rest::metrics(&body(version, "metrics")).unwrap();
        assert_eq!(
            metrics,
            DriverMetrics { dropped_events: Some(0), queued_events: Some(0), target: Some(4) },
            "{version}"
        );
    }
}

#[test]
fn environment_of_each_version_has_allocation_and_port() {
    for (version, _) in VERSIONS {
        let conf = rest::environment(&body(version, "environment")).unwrap();
        assert_eq!(conf.allocation, Ok(Allocation::Dynamic { min: 1, initial: 2 }), "{version}");
        assert!(conf.ui.port != Ui::default().port && conf.ui.enabled, "{version}");
    }
}
