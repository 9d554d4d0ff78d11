//! The name by which this program was called: kubectl finds it as a plugin by the name `kubectl-usher`, and its completions by the name
//! `kubectl_complete-usher`.

use std::path::Path;

use clap::builder::StyledStr;
use clap::{Arg, Command};

const NAME: &str = "spark-usher";
const PLUGIN: &str = "kubectl usher";
const PLUGIN_FILE: &str = "kubectl-usher";
const COMPLETION_FILE: &str = "kubectl_complete-usher";

/// The name for messages and help.
pub(super) fn program() -> &'static str {
    std::env::args_os().next().map_or(NAME, |called| name(Path::new(&called)))
}

fn name(called: &Path) -> &'static str {
    if is_file(called, PLUGIN_FILE) || is_file(called, COMPLETION_FILE) { PLUGIN } else { NAME }
}

/// Whether kubectl called this program for completions.
pub(super) fn completes_for_kubectl() -> bool {
    std::env::args_os().next().is_some_and(|called| is_file(Path::new(&called), COMPLETION_FILE))
}

fn is_file(called: &Path, file: &str) -> bool {
    called.file_stem().is_some_and(|stem| stem == file)
}

/// The file that a shell runs for a name.
pub(super) fn file_name(name: &str) -> &'static str {
    if name == PLUGIN { PLUGIN_FILE } else { NAME }
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
        assert_eq!(name(Path::new("/usr/local/bin/kubectl-usher")), PLUGIN);
        assert_eq!(name(Path::new("kubectl-usher.exe")), PLUGIN);
        assert_eq!(name(Path::new("/usr/local/bin/kubectl_complete-usher")), PLUGIN);
        assert_eq!((name(Path::new("./spark-usher")), name(Path::new(""))), (NAME, NAME));
    }

    #[test]
    fn examples_name_the_plugin_and_the_product_keeps_its_name() {
        let text = "spark-usher kill x, of a running spark-usher";
        assert_eq!(with_name(text, PLUGIN), "kubectl usher kill x, of a running spark-usher");
    }
}
