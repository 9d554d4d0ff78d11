//! The example policies of `docs/policies`: one for each scheduler, each valid and without a warning.

use std::collections::BTreeSet;
use std::path::Path;

use spark_usher::config;
use spark_usher::gang::TABLE;

#[test]
fn every_scheduler_has_valid_example_policy_without_warnings() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/policies");
    let mut kinds = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let file = config::from_path(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(file.warnings.is_empty(), "{}: {:?}", path.display(), file.warnings);
        let [policy] = file.policies.listed() else { panic!("{}: expected one policy", path.display()) };
        assert_eq!(
            path.file_stem().unwrap().to_str(),
            Some(policy.scheduler.gang_scheduler.kind),
            "named after its scheduler"
        );
        kinds.insert(policy.scheduler.gang_scheduler.kind);
    }
    assert_eq!(kinds, TABLE.iter().map(|scheduler| scheduler.kind).collect());
}
