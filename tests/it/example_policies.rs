//! The example policies of `docs/policies`, one for each scheduler, and those of the scripts with real Spark, which CI does not run:
//! each valid and without a warning.

use std::collections::BTreeSet;
use std::path::Path;

use usher_core::gang::TABLE;

#[test]
fn every_scheduler_has_valid_example_policy_without_warnings() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/policies");
    let mut kinds = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let file = usher_config::from_text(&std::fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
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

/// The text of a constant of a Python script.
fn constant<'s>(script: &'s str, name: &str) -> &'s str {
    let begin = format!("\n{name} = \"\"\"\n");
    let (_, rest) = script.split_once(&begin).unwrap_or_else(|| panic!("no constant {name}"));
    rest.split_once("\"\"\"").unwrap().0
}

#[test]
fn policies_of_scripts_are_valid() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let read = |name: &str| std::fs::read_to_string(tests.join(name)).unwrap();
    let policy = constant(&read("real_spark.py"), "POLICY").to_owned();
    let with_rules = policy.clone() + constant(&read("recovery_spark.py"), "RULES");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    for text in [policy, with_rules] {
        std::fs::write(&path, &text).unwrap();
        let file = usher_config::from_text(&std::fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|error| panic!("{error}:\n{text}"));
        assert!(file.warnings.is_empty(), "{:?}", file.warnings);
    }
}
