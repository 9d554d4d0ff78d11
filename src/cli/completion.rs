//! `spark-usher completion SHELL` and `spark-usher man FOLDER`: generated from the commands themselves.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::env::{Elvish, Fish, Powershell, Shells, Zsh};
use clap_complete::{CompleteEnv, Shell};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::bash::WholeWords;
use super::candidates::with_candidates;
use super::output::OK;
use super::program::file_name;
use super::submit_help::with_options;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example, for bash: source <(spark-usher completion bash)")]
pub(super) struct Args {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(super) struct ManArgs {
    /// Folder in which a page for each command is written; it is created.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// The variable by which the script of a shell asks this program for candidates.
const VARIABLE: &str = "SPARK_USHER_COMPLETE";

/// Prints the script of a shell, which asks this program: it knows the cluster.
pub(super) fn run(args: &Args, command: &Command, out: &mut dyn Write) -> io::Result<u8> {
    let (name, shell) = (file_name(command.get_name()), args.shell.to_string());
    if let Some(shell) = Shells::builtins().completer(&shell) {
        shell.write_registration(VARIABLE, name, name, name, out)?;
    }
    Ok(OK)
}

/// Prints the candidates that the script of a shell asks for, and ends the process; does nothing if no shell asks.
pub(super) fn for_shell(command: impl Fn() -> Command) {
    // The script passes the words of the command line after `--`.
    let words = || std::env::args_os().skip_while(|word| word != "--").skip(1).collect();
    let shells = Shells(&[&WholeWords, &Elvish, &Fish, &Powershell, &Zsh]);
    CompleteEnv::with_factory(|| completed(command(), words())).var(VARIABLE).shells(shells).complete();
}

/// The command as it is completed, for these words, of which the first is the program.
fn completed(command: Command, words: Vec<OsString>) -> Command {
    with_candidates(file_named(with_options(command)), &words)
}

pub(super) fn man(args: &ManArgs, command: Command, err: &mut dyn Write) -> io::Result<u8> {
    let folder = &args.folder;
    let mut command = file_named(with_options(command)).disable_help_subcommand(true);
    command.build();
    let written = std::fs::create_dir_all(folder).and_then(|()| pages(command, folder));
    if let Err(error) = written {
        return super::output::failed(err, &anyhow::anyhow!("{}: {error}", folder.display()));
    }
    Ok(OK)
}

/// What kubectl shows for the words after `kubectl usher`, of which the last is to be completed: a line for each candidate, with what it is
/// after a tab, and then what the shell does with them
/// (`k8s.io/kubectl/pkg/cmd/plugin_completion.go`, and `ShellCompDirective` of cobra).
fn candidates(command: Command, words: Vec<OsString>, folder: &Path) -> String {
    const NO_SPACE: u8 = 2;
    const NO_FILES: u8 = 4;
    let words: Vec<OsString> = std::iter::once(command.get_name().into()).chain(words).collect();
    let mut command = completed(command, words.clone());
    let last = words.len() - 1;
    let found = clap_complete::engine::complete(&mut command, words, last, Some(folder)).unwrap_or_default();
    let shown: Vec<_> = found.iter().filter(|candidate| !candidate.is_hide_set()).collect();
    let mut text = String::new();
    for candidate in &shown {
        let help = candidate.get_help().map(ToString::to_string).unwrap_or_default();
        let help = help.lines().next().map_or_else(String::new, |line| format!("\t{line}"));
        text += &format!("{}{help}\n", candidate.get_value().to_string_lossy());
    }
    let is_incomplete = |word: &OsStr| word.to_string_lossy().ends_with(['=', '/']);
    let all_incomplete = !shown.is_empty() && shown.iter().all(|candidate| is_incomplete(candidate.get_value()));
    let directive = if all_incomplete { NO_SPACE | NO_FILES } else { NO_FILES };
    text + &format!(":{directive}\n")
}

/// Prints the completions that kubectl asks for, and ends the process.
pub(super) fn for_kubectl(command: Command) -> ! {
    let text = candidates(command, std::env::args_os().skip(1).collect(), Path::new("."));
    let printed = io::stdout().write_all(text.as_bytes());
    #[expect(clippy::disallowed_methods, reason = "as clap does after it has printed help")]
    std::process::exit(i32::from(printed.is_err()))
}

/// Writes the page of a command, and those of its subcommands.
fn pages(command: Command, folder: &Path) -> io::Result<()> {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        pages(sub.clone(), folder)?;
    }
    let notes = command.get_after_help().map(ToString::to_string);
    let page = Man::new(command.after_help(None::<&str>));
    let mut text = Vec::new();
    page.render(&mut text)?;
    if let Some(notes) = notes {
        let mut roff = Roff::new();
        roff.control("SH", ["NOTES"]);
        // As they are: they have lists and examples, which clap_mangen would fill.
        roff.control("nf", []);
        for line in notes.lines() {
            roff.text([roman(line)]);
        }
        roff.control("fi", []);
        roff.to_writer(&mut text)?;
    }
    std::fs::write(folder.join(page.get_filename()), text)
}

/// With the name of its file, where that is a plugin of kubectl: shells and man know no names of two words.
fn file_named(command: Command) -> Command {
    let name = file_name(command.get_name());
    command.name(name).bin_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, ValueEnum};

    #[test]
    fn every_shell_has_a_script_that_asks_the_program() {
        for shell in Shell::value_variants() {
            for (name, file) in [
                ("spark-usher", "spark-usher"),
                ("kubectl usher", "kubectl-usher"),
                ("kubectl spark-usher", "kubectl-spark_usher"),
            ] {
                let mut out = Vec::new();
                let command = super::super::program::named(super::super::Cli::command(), name);
                run(&Args { shell: *shell }, &command, &mut out).unwrap();
                let script = String::from_utf8(out).unwrap();
                assert!(script.contains(VARIABLE) && script.contains(file), "{shell}: {script}");
                assert!(!script.contains("kubectl usher"), "{shell}: {script}");
            }
        }
    }

    #[test]
    fn plugin_of_kubectl_has_man_pages_by_the_name_of_its_file() {
        let plugin = || super::super::program::named(super::super::Cli::command(), "kubectl usher");
        let folder = tempfile::tempdir().unwrap();
        man(&ManArgs { folder: folder.path().to_owned() }, plugin(), &mut Vec::new()).unwrap();
        assert!(folder.path().join("kubectl-usher-submit.1").exists());
    }

    #[test]
    fn kubectl_gets_commands_options_and_values_with_what_they_are() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("conf")).unwrap();
        std::fs::write(folder.path().join("spark.properties"), "").unwrap();
        let completed = |words: &[&str]| {
            let plugin = super::super::program::named(super::super::Cli::command(), "kubectl usher");
            candidates(plugin, words.iter().map(OsString::from).collect(), folder.path())
        };
        assert_eq!(
            completed(&["sta"]),
            "status\tShow applications by their drivers: a row for each, by name, submission id, executor or label. `apps` shows executors\n:4\n"
        );
        assert!(completed(&[""]).contains("\nkill\t") && completed(&[""]).ends_with(":4\n"), "{}", completed(&[""]));
        assert_eq!(
            completed(&["submit", "--num-"]),
            "--num-executors\tExecutors, or at first with dynamic allocation [default: 2]\n:4\n"
        );
        assert_eq!(completed(&["submit", "--dry-run=s"]), "--dry-run=server\n:4\n");
        assert_eq!(completed(&["status", "-o", "y"]), "yaml\tYAML\n:4\n");
        assert_eq!(completed(&["submit", "--properties-file", "spark"]), "spark.properties\n:4\n");
        assert_eq!(completed(&["submit", "--policy", "co"]), "conf/\n:6\n");
        assert_eq!(completed(&["submit", "--name", "x", "spark"]), "spark.properties\n:4\n");
        for words in
            [&["kill", "c"][..], &["status", "-n", "c"], &["submit", "--name", "c"], &["submit", "--deploy-mode", "c"]]
        {
            assert_eq!(completed(words), ":4\n", "{words:?}");
        }
    }

    #[test]
    fn completion_into_a_closed_pipe_is_an_error_and_no_panic() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let closed = run(&Args { shell: Shell::Zsh }, &super::super::Cli::command(), &mut Closed);
        assert_eq!(closed.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn every_command_has_a_man_page() {
        let folder = tempfile::tempdir().unwrap();
        let args = ManArgs { folder: folder.path().join("man1") };
        let mut err = Vec::new();
        assert_eq!(man(&args, super::super::Cli::command(), &mut err).unwrap(), OK);
        for command in super::super::Cli::command().get_subcommands() {
            let page = args.folder.join(format!("spark-usher-{}.1", command.get_name()));
            assert!(page.exists(), "{}", page.display());
        }
        let page = std::fs::read_to_string(args.folder.join("spark-usher-submit.1")).unwrap();
        assert!(page.contains("driver\\-memory") && page.contains("dry\\-run"), "{page}");
        assert!(page.contains("Main class of a Java or Scala application"), "{page}");
        // Lists and examples keep their lines.
        let notes = page.split_once(".nf\n").unwrap().1;
        assert!(notes.contains("\n  1    it was not submitted\n  2    the arguments"), "{notes}");
    }
}
