//! The name by which this program was called: kubectl finds it as a plugin by the name `kubectl-usher`, and its completions by the name
//! `kubectl_complete-usher`. krew installs it as `kubectl-spark_usher`.

use std::path::Path;

use clap::builder::StyledStr;
use clap::{Arg, Command};

const NAME: &str = "spark-usher";
const COMPLETION_PREFIX: &str = "kubectl_complete-";

/// The names as a plugin of kubectl, and their files. In files, `_` stands for `-`, which separates the words of a command.
const PLUGINS: [(&str, &str); 2] = [("kubectl usher", "kubectl-usher"), ("kubectl spark-usher", "kubectl-spark_usher")];

/// The name for messages and help.
pub(super) fn program() -> &'static str {
    std::env::args_os().next().map_or(NAME, |called| name(Path::new(&called)))
}

fn name(called: &Path) -> &'static str {
    let plugin = |file: &str| {
        file.strip_prefix(COMPLETION_PREFIX).map_or_else(|| file.to_owned(), |name| format!("kubectl-{name}"))
    };
    let called = called.file_stem().and_then(|stem| stem.to_str()).map(plugin).unwrap_or_default();
    PLUGINS.iter().find(|(_, file)| called == *file).map_or(NAME, |(name, _)| name)
}

/// Whether kubectl called this program for completions.
pub(super) fn completes_for_kubectl() -> bool {
    std::env::args_os().next().is_some_and(|called| is_completion(Path::new(&called)))
}

fn is_completion(called: &Path) -> bool {
    name(called) != NAME && called.file_stem().is_some_and(|stem| stem.to_string_lossy().starts_with(COMPLETION_PREFIX))
}

/// The file that a shell runs for a name.
pub(super) fn file_name(name: &str) -> &'static str {
    PLUGINS.iter().find(|(plugin, _)| *plugin == name).map_or(NAME, |(_, file)| file)
}

/// The command line with this name in its usage, help and examples.
pub(super) fn named(command: Command, name: &'static str) -> Command {
    if name == NAME {
        return command;
    }
    renamed(command.name(name).bin_name(name), name)
}

fn renamed(command: Command, name: &str) -> Command {
    let text = |text: Option<&StyledStr>| text.map(|text| with_name(&text.to_string(), name));
    let (about, long_about) = (text(command.get_about()), text(command.get_long_about()));
    let (after, long_after) = (text(command.get_after_help()), text(command.get_after_long_help()));
    let usage = command.clone().render_usage().to_string();
    let mut command = command
        .mut_args(|arg: Arg| {
            let (help, long) = (text(arg.get_help()), text(arg.get_long_help()));
            let arg = help.into_iter().fold(arg, Arg::help);
            long.into_iter().fold(arg, Arg::long_help)
        })
        .mut_subcommands(|sub| renamed(sub, name));
    command = about.into_iter().fold(command, Command::about);
    command = long_about.into_iter().fold(command, Command::long_about);
    command = after.into_iter().fold(command, Command::after_help);
    command = long_after.into_iter().fold(command, Command::after_long_help);
    // Only a usage that was written by hand names the program.
    match usage.strip_prefix("Usage: ").filter(|usage| usage.starts_with(NAME)) {
        Some(usage) => command.override_usage(with_name(usage, name)),
        None => command,
    }
}

/// The program's name in examples; the product's stays.
fn with_name(text: &str, name: &str) -> String {
    const COMMANDS: [&str; 8] = ["submit", "status", "kill", "watch", "apps", "why", "doctor", "serve"];
    COMMANDS
        .iter()
        .fold(text.to_owned(), |text, command| text.replace(&format!("{NAME} {command}"), &format!("{name} {command}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_is_recognized_by_the_name_of_its_file() {
        for (called, expected, completes) in [
            ("/usr/local/bin/kubectl-usher", "kubectl usher", false),
            ("kubectl-usher.exe", "kubectl usher", false),
            ("/usr/local/bin/kubectl_complete-usher", "kubectl usher", true),
            ("/root/.krew/bin/kubectl-spark_usher", "kubectl spark-usher", false),
            ("kubectl_complete-spark_usher", "kubectl spark-usher", true),
            ("./spark-usher", NAME, false),
            ("kubectl_complete-other", NAME, false),
            ("", NAME, false),
        ] {
            assert_eq!((name(Path::new(called)), is_completion(Path::new(called))), (expected, completes), "{called}");
        }
    }

    #[test]
    fn examples_name_the_plugin_and_the_product_keeps_its_name() {
        let text = "spark-usher kill x, of a running spark-usher";
        assert_eq!(with_name(text, "kubectl usher"), "kubectl usher kill x, of a running spark-usher");
    }
}
