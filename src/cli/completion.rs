//! `spark-usher completion SHELL` and `spark-usher man FOLDER`: generated from the commands themselves.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

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

pub(super) fn run(args: &Args, command: Command, out: &mut dyn Write) -> io::Result<u8> {
    let mut command = file_named(with_options(command));
    let name = command.get_name().to_owned();
    // The generators panic where they cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, &name, &mut script);
    out.write_all(reachable(args.shell, &String::from_utf8_lossy(&script), &name).as_bytes())?;
    Ok(OK)
}

/// The script for bash with one spelling of the program's name: clap_complete 4.6.11 replaces its `-` in two ways, so that no subcommand
/// has completions.
fn reachable(shell: Shell, script: &str, name: &str) -> String {
    match shell {
        Shell::Bash => script.replace(&name.replace('-', "__subcmd__"), &name.replace('-', "__")),
        _ => script.to_owned(),
    }
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
    let mut command = file_named(with_options(command));
    let words: Vec<OsString> = std::iter::once(command.get_name().into()).chain(words).collect();
    let last = words.len() - 1;
    let found = clap_complete::engine::complete(&mut command, words, last, Some(folder)).unwrap_or_default();
    let shown: Vec<_> = found.iter().filter(|candidate| !candidate.is_hide_set()).collect();
    let mut text = String::new();
    for candidate in &shown {
        let help = candidate.get_help().map(ToString::to_string).unwrap_or_default();
        let help = help.lines().next().map_or_else(String::new, |line| format!("\t{line}"));
        text += &format!("{}{help}\n", candidate.get_value().to_string_lossy());
    }
    let goes_on = |word: &OsStr| word.to_string_lossy().ends_with(['=', '/']);
    let go_on = !shown.is_empty() && shown.iter().all(|candidate| goes_on(candidate.get_value()));
    let directive = if go_on { NO_SPACE | NO_FILES } else { NO_FILES };
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
    use clap::CommandFactory;

    #[test]
    fn completions_have_the_options_of_submit() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::PowerShell, Shell::Elvish] {
            let mut out = Vec::new();
            run(&Args { shell }, super::super::Cli::command(), &mut out).unwrap();
            let script = String::from_utf8(out).unwrap();
            for words in ["properties-file", "spark-exit-codes", "all-namespaces", "include-ended"] {
                assert!(script.contains(words), "{shell}: {words}");
            }
        }
    }

    #[test]
    fn bash_completes_commands_options_and_values() {
        let folder = tempfile::tempdir().unwrap();
        for (name, file) in [("spark-usher", "spark-usher"), ("kubectl usher", "kubectl-usher")] {
            let mut out = Vec::new();
            let command = super::super::program::named(super::super::Cli::command(), name);
            run(&Args { shell: Shell::Bash }, command, &mut out).unwrap();
            std::fs::write(folder.path().join("script"), out).unwrap();
            for (words, expected) in [
                ("sub", "submit"),
                (
                    "submit --dr",
                    "--driver-memory --driver-cores --driver-java-options --driver-library-path --driver-class-path --dry-run",
                ),
                ("submit --conf a=b --kub", "--kubeconfig"),
                ("status -o y", "yaml"),
                ("kill --include", "--include-ended"),
                ("config ch", "check"),
            ] {
                // As readline calls it.
                let all: Vec<&str> = words.split(' ').collect();
                let (last, count, function) = (all.last().unwrap(), all.len(), file.replace('-', "__"));
                let before = all.iter().rev().nth(1).copied().unwrap_or(file);
                let text = format!(
                    "source ./script; COMP_WORDS=({file} {words}); COMP_CWORD={count}; _{function} {file} {last} {before}; echo ${{COMPREPLY[@]}}"
                );
                let done =
                    std::process::Command::new("bash").args(["-c", &text]).current_dir(&folder).output().unwrap();
                let found: std::collections::BTreeSet<String> =
                    String::from_utf8_lossy(&done.stdout).split_whitespace().map(str::to_owned).collect();
                let expected = expected.split(' ').map(str::to_owned).collect();
                assert_eq!(found, expected, "{file} {words}: {done:?}");
            }
        }
    }

    #[test]
    fn plugin_of_kubectl_has_completions_and_man_pages_by_the_name_of_its_file() {
        let plugin = || super::super::program::named(super::super::Cli::command(), "kubectl usher");
        let mut out = Vec::new();
        run(&Args { shell: Shell::Bash }, plugin(), &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().contains("-o default kubectl-usher"));
        let folder = tempfile::tempdir().unwrap();
        man(&ManArgs { folder: folder.path().to_owned() }, plugin(), &mut Vec::new()).unwrap();
        assert!(folder.path().join("kubectl-usher-submit.1").exists());
    }

    #[test]
    fn kubectl_gets_commands_options_and_values_with_what_they_are() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("conf")).unwrap();
        std::fs::write(folder.path().join("spark.properties"), "").unwrap();
        let of = |words: &[&str]| {
            let plugin = super::super::program::named(super::super::Cli::command(), "kubectl usher");
            candidates(plugin, words.iter().map(OsString::from).collect(), folder.path())
        };
        assert_eq!(
            of(&["sta"]),
            "status\tShow applications by their drivers: a row for each, by name, submission id, executor or label. `apps` shows executors\n:4\n"
        );
        assert!(of(&[""]).contains("\nkill\t") && of(&[""]).ends_with(":4\n"), "{}", of(&[""]));
        assert_eq!(
            of(&["submit", "--num-"]),
            "--num-executors\tExecutors, or at first with dynamic allocation [default: 2]\n:4\n"
        );
        assert_eq!(of(&["submit", "--dry-run=s"]), "--dry-run=server\n:4\n");
        assert_eq!(of(&["status", "-o", "y"]), "yaml\tYAML\n:4\n");
        assert_eq!(of(&["submit", "--properties-file", "spark"]), "spark.properties\n:4\n");
        assert_eq!(of(&["submit", "--policy", "co"]), "conf/\n:6\n");
        assert_eq!(of(&["submit", "--name", "x", "spark"]), "spark.properties\n:4\n");
        for words in
            [&["kill", "c"][..], &["status", "-n", "c"], &["submit", "--name", "c"], &["submit", "--deploy-mode", "c"]]
        {
            assert_eq!(of(words), ":4\n", "{words:?}");
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
        let closed = run(&Args { shell: Shell::Zsh }, super::super::Cli::command(), &mut Closed);
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
