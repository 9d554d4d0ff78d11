//! The program with the features of the image: `cargo test --no-default-features --test image`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_spark-usher")).args(arguments).output().unwrap()
}

#[test]
fn commands_of_the_sandbox_exist_with_its_feature_alone() {
    let help = String::from_utf8(run(&["--help"]).stdout).unwrap();
    let has = |command: &str| help.lines().any(|line| line.trim_start().starts_with(&format!("{command} ")));
    assert!(["serve", "submit", "why", "doctor"].into_iter().all(has), "{help}");
    for command in ["demo", "sandbox"] {
        assert_eq!(has(command), cfg!(feature = "sandbox"), "{help}");
        assert_eq!(run(&[command, "--help"]).status.success(), cfg!(feature = "sandbox"), "{command}");
    }
}
