//! The options of `spark-usher submit`, for its help, completions and manual page. They are not read by clap: as in spark-submit, everything
//! after the main resource is the application's.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command, ValueHint};

use usher_submit::{SPARK_OPTIONS, SparkOption};

/// An option that spark-submit does not have.
struct UsherOption {
    name: &'static str,
    short: Option<char>,
    /// What its value is; empty for a switch.
    value: &'static str,
    help: &'static str,
}

const fn option(name: &'static str, value: &'static str, help: &'static str) -> UsherOption {
    UsherOption { name, short: None, value, help }
}

const USHER_OPTIONS: [UsherOption; 16] = [
    option(
        DRY_RUN,
        "",
        "Print what would be created, in this order, as a v1 List; nothing is sent, or (server) everything is sent but not stored: \
         admission, quota and defaults of the API server apply",
    ),
    UsherOption {
        short: Some('o'),
        ..option(
            OUTPUT,
            "FORMAT",
            "With --dry-run: yaml or json [default: yaml]. Without: text, or json for an event in each line",
        )
    },
    option("--follow", "", "Print the driver's log while waiting"),
    option(
        "--no-wait",
        "",
        "Do not wait for the end: the same as --conf spark.kubernetes.submission.waitAppCompletion=false",
    ),
    option(
        "--gang",
        "",
        "Write the number of executors and what one requests on the driver, for the gang that the policy makes",
    ),
    option(
        "--policy",
        "FILE",
        "Validate the submission against this policy file of spark-usher: print what it does with it; do not submit what it denies, or a \
         gang that never fits its queue, where the scheduler has queues with limits (Volcano)",
    ),
    option("--spark-exit-codes", "", "Exit with 0 however the driver ends"),
    option("--spark-compatible", "", "The same, and print what spark-submit logs"),
    option(
        "--spark-version",
        "VERSION",
        "The Spark in the image, 3.5 to 4.3 [default: the image's tag if it begins with a version, else 4.3.0]",
    ),
    UsherOption {
        short: Some('n'),
        ..option("--namespace", "NAME", "The same as --conf spark.kubernetes.namespace=NAME")
    },
    option("--kubeconfig", "FILE", "The default is $KUBECONFIG, ~/.kube/config, or the service account of the pod"),
    option("--context", "NAME", "Context of the kubeconfig"),
    option("--kill", "ID", "Do and print what spark-submit --kill does"),
    option("--status", "ID", "Do and print what spark-submit --status does"),
    option("--version", "", "Print the version of spark-usher, and for which versions of Spark it submits"),
    UsherOption { short: Some('h'), ..option("--help", "", "Print help") },
];

const DRY_RUN: &str = "--dry-run";
const OUTPUT: &str = "--output";

/// What follows the options in the help.
pub(super) const AFTER: &str = "\
Everything after the resource is passed to the application. Without --master, spark.master and
$MASTER, the API server of the kubeconfig is used.

Exit codes:
  0    the application succeeded, or was submitted with --no-wait
  1    it was not submitted
  2    the arguments or the configuration are wrong
  3    it failed
  4    its driver was deleted before it ended
  5    it was submitted, but its end is not known, because it cannot be watched
  130  Ctrl-C. While waiting, the application goes on; before, what was created is deleted again.
       A second Ctrl-C ends immediately, and may leave a part of a submission behind

Example:
  spark-usher submit --name pi --class org.apache.spark.examples.SparkPi \\
    --conf spark.kubernetes.container.image=apache/spark:4.0.1 --num-executors 3 \\
    local:///opt/spark/examples/jars/spark-examples.jar 1000";

/// Whether an option of spark-usher never has a value. That of `--dry-run` is optional.
pub(super) fn is_switch(name: &str) -> bool {
    USHER_OPTIONS.iter().any(|option| option.name == name && option.value.is_empty()) && name != DRY_RUN
}

/// The option of spark-usher that a word is, without its value.
pub(super) fn usher_option(word: &str) -> Option<&str> {
    let name = word.split_once('=').map_or(word, |(name, _)| name);
    let is_short = |short: char| name.strip_prefix('-').is_some_and(|rest| rest.chars().eq([short]));
    USHER_OPTIONS.iter().any(|option| option.name == name || option.short.is_some_and(is_short)).then_some(name)
}

/// The option that an unknown one may have been meant to be; `None` for one that is known. As clap suggests them, with more confidence.
pub(super) fn similar(name: &str) -> Option<&'static str> {
    const CONFIDENT: f64 = 0.8;
    let all = || USHER_OPTIONS.iter().map(|option| option.name).chain(SPARK_OPTIONS.iter().map(|option| option.name));
    let word = name.strip_prefix("--").filter(|_| all().all(|known| known != name))?;
    let rated = all().map(|known| (strsim::jaro(word, known.trim_start_matches('-')), known));
    let best = rated.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    Some(best.1).filter(|_| best.0 > CONFIDENT)
}

/// The command line with the options of `submit`. No value is taken for the name of a file that is none.
pub(super) fn with_options(command: Command) -> Command {
    hinted(command).mut_subcommand("submit", |submit| {
        let spark = SPARK_OPTIONS.iter().map(|SparkOption { name, value, help }| {
            let short = match *name {
                "--conf" => Some('c'),
                "--verbose" => Some('v'),
                _ => None,
            };
            arg(name, short, value, help).help_heading("Options of spark-submit")
        });
        let usher = USHER_OPTIONS.iter().map(|UsherOption { name, short, value, help }| {
            let arg = arg(name, *short, value, help);
            match *name {
                DRY_RUN => arg
                    .action(ArgAction::Set)
                    .num_args(0..=1)
                    .require_equals(true)
                    .value_parser(PossibleValuesParser::new(["client", "server"]))
                    .hide_possible_values(true)
                    .value_name("client|server"),
                OUTPUT => {
                    arg.value_parser(PossibleValuesParser::new(["text", "json", "yaml"])).hide_possible_values(true)
                }
                _ => arg,
            }
        });
        submit.args(spark.chain(usher)).mut_arg("arguments", |resource| resource.value_hint(ValueHint::AnyPath))
    })
}

fn hinted(command: Command) -> Command {
    let of_files = |arg: Arg| match arg.get_value_hint() {
        ValueHint::Unknown if arg.get_action().takes_values() => arg.value_hint(ValueHint::Other),
        _ => arg,
    };
    command.mut_args(of_files).mut_subcommands(hinted)
}

fn arg(name: &'static str, short: Option<char>, value: &'static str, help: &'static str) -> Arg {
    let long = name.trim_start_matches('-');
    let arg = Arg::new(long).long(long).help(help);
    let arg = short.into_iter().fold(arg, Arg::short);
    match value {
        "" => arg.action(ArgAction::SetTrue),
        "FILE" | "FILES" => arg.value_name(value).value_hint(ValueHint::FilePath),
        _ => arg.value_name(value).value_hint(ValueHint::Other),
    }
}

/// The help of `submit`.
pub(super) fn help(program: Command) -> String {
    let mut program = with_options(program);
    program.build();
    program.find_subcommand_mut("submit").map_or_else(String::new, |submit| submit.render_help().to_string())
}

#[cfg(test)]
mod tests {
    use super::super::submit_options::UsherOptions;
    use super::*;
    use clap::CommandFactory;
    use usher_submit::parse_with;

    #[test]
    fn described_options_are_those_that_are_read() {
        for UsherOption { name, short, value, .. } in USHER_OPTIONS {
            let short = short.map(|short| format!("-{short}"));
            for name in std::iter::once(name).chain(short.as_deref()) {
                let value = if value == "FORMAT" { "json" } else { value };
                let words = [name, value, "x.jar"].map(str::to_owned);
                let words: Vec<String> = words.into_iter().filter(|word| !word.is_empty()).collect();
                let mut usher = UsherOptions::default();
                let read = parse_with(&words, |name, inline, rest| usher.take(name, inline, rest));
                assert_eq!(read.unwrap().resource.as_deref(), Some("x.jar"), "{name}");
                assert_eq!((usher_option(name), usher_option(&format!("{name}=x"))), (Some(name), Some(name)));
                assert_ne!(format!("{usher:?}"), format!("{:?}", UsherOptions::default()), "{name}");
            }
        }
    }

    #[test]
    fn words_of_applications_are_no_options_of_spark_usher() {
        for word in ["", "-", "--", "app.py", "--dry", "--dry-run-all", "-oo", "--conf", "dry-run"] {
            assert_eq!(usher_option(word), None, "{word}");
        }
    }

    #[test]
    fn misspelled_option_is_recognized_and_a_known_one_is_not_corrected() {
        for (name, expected) in [
            ("--num-excutors", Some("--num-executors")),
            ("--driver-mem", Some("--driver-memory")),
            ("--dryrun", Some("--dry-run")),
            ("--namespce", Some("--namespace")),
            ("--class", None),
            ("--quxx", None),
            ("--image", None),
            ("--profile", None),
            ("-x", None),
        ] {
            assert_eq!(similar(name), expected, "{name}");
        }
    }

    #[test]
    fn help_has_every_option_and_fits_its_width() {
        let help = help(super::super::Cli::command());
        let usher = USHER_OPTIONS.iter().map(|option| option.name);
        for name in usher.chain(SPARK_OPTIONS.iter().map(|option| option.name)) {
            assert!(help.contains(&format!("{name} ")) || help.contains(&format!("{name}[")), "{name}: {help}");
        }
        let widest = help.lines().max_by_key(|line| line.chars().count()).unwrap();
        assert!(widest.chars().count() <= 100, "{widest}");
    }
}
