//! `spark-usher completion SHELL` and `spark-usher man FOLDER`: generated from the commands themselves.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Arg, Command};
use clap_complete::Shell;

use super::output::OK;
use super::program::file_name;
use crate::submit::SPARK_OPTIONS;

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
    let mut command = file_named(with_options_of_submit(command));
    let name = command.get_name().to_owned();
    // The generators panic where they cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    out.write_all(&script)?;
    Ok(OK)
}

pub(super) fn man(args: &ManArgs, command: Command, err: &mut dyn Write) -> io::Result<u8> {
    let folder = &args.folder;
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(file_named(with_options_of_submit(command)), folder));
    if let Err(error) = written {
        return super::output::failed(err, &anyhow::anyhow!("{}: {error}", folder.display()));
    }
    Ok(OK)
}

/// With the name of its file, where that is a plugin of kubectl: shells and man know no names of two words.
fn file_named(command: Command) -> Command {
    let name = file_name(command.get_name());
    command.name(name).bin_name(name)
}

/// `submit` reads its options as spark-submit does, and not as the other commands do: they are added to what is generated.
fn with_options_of_submit(command: Command) -> Command {
    command.mut_subcommand("submit", |submit| {
        let spark = SPARK_OPTIONS.iter().map(|name| option(name, "VALUE", &format!("Option of spark-submit: {name}")));
        let own = super::submit_options::OPTIONS.iter().map(|(name, value, help)| option(name, value, help));
        submit.args(spark.chain(own)).disable_help_flag(true)
    })
}

fn option(name: &'static str, value: &'static str, help: &str) -> Arg {
    let long = name.trim_start_matches('-');
    let option = Arg::new(long).long(long).help(help.to_owned());
    if value.is_empty() { option.action(clap::ArgAction::SetTrue) } else { option.value_name(value) }
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
    }
}
