//! spark-submit's command line (`SparkSubmitOptionParser`): options, then the main resource; everything after it is the application's.

use super::error::{Result, SubmitError};
use super::options::Options;

/// Parses the arguments of spark-submit.
pub fn parse(args: &[String]) -> Result<Options> {
    parse_with(&passed_on(args), |_, _, _| Ok(false))
}

/// The arguments as `bin/spark-class` passes them on: without carriage returns.
pub fn passed_on(args: &[String]) -> Vec<String> {
    args.iter().map(|arg| arg.replace('\r', "")).collect()
}

/// The arguments that have not been read yet.
pub type Rest<'a> = std::slice::Iter<'a, String>;

/// Like [`parse`], with another program's options among them, in arguments that were [`passed_on`]. `take` gets an option's name, the
/// value after its `=`, and the arguments that follow; it returns whether it took the option.
pub fn parse_with<'a>(
    args: &'a [String],
    mut take: impl FnMut(&'a str, Option<&'a str>, &mut Rest<'a>) -> Result<bool>,
) -> Result<Options> {
    let mut options = Options::default();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        // `--name=value`.
        let (name, inline) =
            match arg.split_once('=').filter(|(name, value)| name.starts_with("--") && !value.is_empty()) {
                Some((name, value)) => (name, Some(value)),
                None => (arg.as_str(), None),
            };
        if name.starts_with('-') && take(name, inline, &mut rest)? {
            continue;
        }
        let mut value = || {
            let value = inline.map(str::to_owned).or_else(|| rest.next().cloned());
            value.ok_or_else(|| SubmitError::new(format!("Missing argument for option '{name}'.")))
        };
        // What configures the JVM is a setting from the beginning: the last one counts, in either form.
        if let Some((_, key)) = SETTINGS.iter().find(|(option, _)| *option == name) {
            options.conf.push(format!("{key}={}", value()?));
            continue;
        }
        if let Some(place) = place(&mut options, name) {
            let value = value()?;
            match place {
                Place::One(one) => *one = Some(value),
                Place::Many(many) => many.push(value),
            }
            continue;
        }
        match name {
            "--remote" => {
                return Err(SubmitError::new("Remote cannot be specified with master and/or deploy mode."));
            }
            "--load-spark-defaults" => options.load_spark_defaults = true,
            // They do nothing in cluster mode on Kubernetes.
            "--supervise" | "--verbose" | "-v" => {}
            _ if arg.starts_with('-') => return Err(unrecognized(arg)),
            _ => {
                options.resource = Some(arg.clone());
                options.args = rest.cloned().collect();
                break;
            }
        }
    }
    Ok(options)
}

/// An option of spark-submit, as help, completions and manual pages describe it.
#[derive(Clone, Copy, Debug)]
pub struct SparkOption {
    /// With its dashes.
    pub name: &'static str,
    /// What its value is; empty for a switch.
    pub value: &'static str,
    /// What it does.
    pub help: &'static str,
}

const fn option(name: &'static str, value: &'static str, help: &'static str) -> SparkOption {
    SparkOption { name, value, help }
}

/// The options of spark-submit that a submission takes.
pub const SPARK_OPTIONS: [SparkOption; 29] = [
    option("--master", "URL", "API server: k8s://https://HOST:PORT"),
    option("--deploy-mode", "MODE", "Only cluster, the default"),
    option("--name", "NAME", "Name of the application"),
    option("--class", "CLASS", "Main class of a Java or Scala application"),
    option("--conf", "KEY=VALUE", "A setting; may be repeated"),
    option("--properties-file", "FILE", "Settings, instead of those of spark-defaults.conf"),
    option("--load-spark-defaults", "", "With --properties-file: also read spark-defaults.conf"),
    option("--jars", "FILES", "JARs for the class paths of driver and executors, separated by commas"),
    option("--files", "FILES", "Files for the working directories of the executors"),
    option("--archives", "FILES", "Archives that are unpacked into the working directories of the executors"),
    option("--py-files", "FILES", "Python files and archives of them, for the PYTHONPATH"),
    option("--packages", "COORDINATES", "Maven coordinates of JARs, GROUP:ARTIFACT:VERSION; the driver resolves them"),
    option("--exclude-packages", "COORDINATES", "GROUP:ARTIFACT that --packages does not need"),
    option("--repositories", "URLS", "Repositories for --packages"),
    option("--driver-memory", "MEMORY", "Memory of the driver, such as 4g [default: 1g]"),
    option("--driver-cores", "CORES", "Cores of the driver [default: 1]"),
    option("--driver-java-options", "OPTIONS", "JVM options of the driver"),
    option("--driver-library-path", "PATHS", "Library path of the driver"),
    option("--driver-class-path", "PATHS", "Class path of the driver; --jars are in it already"),
    option("--executor-memory", "MEMORY", "Memory of an executor [default: 1g]"),
    option("--executor-cores", "CORES", "Cores of an executor [default: 1]"),
    option("--total-executor-cores", "CORES", "Accepted; it has no effect on Kubernetes"),
    option("--num-executors", "NUMBER", "Executors, or at first with dynamic allocation [default: 2]"),
    option("--queue", "QUEUE", "Accepted; it has no effect on Kubernetes"),
    option("--principal", "PRINCIPAL", "Kerberos principal"),
    option("--keytab", "FILE", "Keytab of the principal"),
    option("--proxy-user", "USER", "User whom the application impersonates"),
    option("--supervise", "", "Accepted; it has no effect on Kubernetes"),
    option("--verbose", "", "Accepted; it has no effect"),
];

/// Options that are another form of `--conf`.
const SETTINGS: [(&str, &str); 4] = [
    ("--driver-memory", "spark.driver.memory"),
    ("--driver-java-options", "spark.driver.extraJavaOptions"),
    ("--driver-library-path", "spark.driver.extraLibraryPath"),
    ("--driver-class-path", "spark.driver.extraClassPath"),
];

enum Place<'o> {
    One(&'o mut Option<String>),
    Many(&'o mut Vec<String>),
}

/// The field that takes an option's value; `None` for an option without one.
fn place<'o>(options: &'o mut Options, name: &str) -> Option<Place<'o>> {
    Some(Place::One(match name {
        "--conf" | "-c" => return Some(Place::Many(&mut options.conf)),
        "--master" => &mut options.master,
        "--deploy-mode" => &mut options.deploy_mode,
        "--name" => &mut options.name,
        "--class" => &mut options.class,
        "--jars" => &mut options.jars,
        "--files" => &mut options.files,
        "--archives" => &mut options.archives,
        "--py-files" => &mut options.py_files,
        "--packages" => &mut options.packages,
        "--exclude-packages" => &mut options.exclude_packages,
        "--repositories" => &mut options.repositories,
        "--driver-cores" => &mut options.driver_cores,
        "--executor-memory" => &mut options.executor_memory,
        "--executor-cores" => &mut options.executor_cores,
        "--total-executor-cores" => &mut options.total_executor_cores,
        "--num-executors" => &mut options.num_executors,
        "--queue" => &mut options.queue,
        "--principal" => &mut options.principal,
        "--keytab" => &mut options.keytab,
        "--proxy-user" => &mut options.proxy_user,
        "--properties-file" => &mut options.properties_file,
        _ => return None,
    }))
}

fn unrecognized(arg: &str) -> SubmitError {
    SubmitError::new(format!("Unrecognized option: {arg}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Options> {
        parse(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn everything_after_the_resource_belongs_to_the_application() {
        let options =
            parsed(&["--name", "a", "--conf=spark.x=y=z", "-c", "spark.u=v", "app.py", "--name", "b", "-x"]).unwrap();
        assert_eq!((options.name.as_deref(), options.resource.as_deref()), (Some("a"), Some("app.py")));
        assert_eq!(
            (options.conf, options.args),
            (
                vec!["spark.x=y=z".to_owned(), "spark.u=v".to_owned()],
                vec!["--name".to_owned(), "b".to_owned(), "-x".to_owned()]
            )
        );
    }

    #[test]
    fn listed_options_are_those_that_are_read() {
        for SparkOption { name, value, .. } in SPARK_OPTIONS {
            let takes_value = parsed(&[name]).is_err();
            assert_eq!(takes_value, !value.is_empty(), "{name}");
            let words = if takes_value { vec![name, "value", "x.jar"] } else { vec![name, "x.jar"] };
            let resource = parsed(&words).unwrap().resource;
            assert_eq!(resource.as_deref(), Some("x.jar"), "{name}");
        }
    }

    #[test]
    fn bad_options_are_named() {
        for (args, error) in [
            (&["--nope", "x"][..], "Unrecognized option: --nope"),
            (&["--class"], "Missing argument for option '--class'."),
        ] {
            assert_eq!(parsed(args).unwrap_err().to_string(), error);
        }
    }
}
