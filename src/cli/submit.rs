//! `spark-usher submit`: spark-submit in cluster mode, without a JVM.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use kube::Client;
use serde_json::{Value, json};

use super::drivers::{ApiServer, Which};
use super::follow::{Ended, Follow, Form};
use super::local_files::LocalFiles;
use super::output::{OK, block_on, failed, plain, unreadable};
use super::program::program;
use super::spark_compatible;
use crate::cluster::drivers::Selection;
use crate::cluster::{client, submit as cluster};
use crate::runtime::shutdown::Signals;
use crate::runtime::{clock, random};
use crate::spark::version::SparkVersion;
use crate::submission::{DriverStatus, SubmissionId};
use crate::submit::{self, Environment, Options, Rest, SparkConf, SubmitError, Unique, Waiting};
use crate::text::is_dns_label;

/// Versions whose spark-submit is reproduced, by their minor version and the patch that is assumed for it.
const VERSIONS: [SparkVersion; 5] = [
    SparkVersion::new(3, 5, 9),
    SparkVersion::new(4, 0, 1),
    SparkVersion::new(4, 1, 0),
    SparkVersion::new(4, 2, 0),
    SparkVersion::new(4, 3, 0),
];

#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    override_usage = "spark-usher submit [OPTIONS] RESOURCE [ARGUMENTS]",
    after_help = HELP
)]
pub(super) struct Args {
    /// Options of spark-submit and those below, the main resource, and the application's own arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

const HELP: &str = "\
Options of spark-submit: --master, --name, --class, --conf, --properties-file, --load-spark-defaults, --jars, --files, --py-files,
--archives, --packages, --exclude-packages, --repositories, --driver-memory, --driver-cores, --driver-java-options,
--driver-library-path, --driver-class-path, --executor-memory, --executor-cores, --num-executors, --queue, --principal, --keytab,
--proxy-user. Only cluster mode on Kubernetes: --deploy-mode cluster is the default.

Options of spark-usher:
  --dry-run[=server]       Print what would be created, in this order, as a v1 List; nothing is sent, or (server) everything is sent
                           but not stored: admission, quota and defaults of the API server apply
  -o, --output FORMAT      With --dry-run: yaml or json [default: yaml]. Without: text, or json for an event in each line
  --follow                 Print the driver's log while waiting
  --no-wait                Do not wait for the end: the same as --conf spark.kubernetes.submission.waitAppCompletion=false
  --gang                   Write the number of executors and what one requests on the driver, for the gang that the policy makes
  --spark-exit-codes       Exit with 0 however the driver ends
  --spark-compatible       The same, and print what spark-submit logs
  --spark-version VERSION  The Spark in the image, 3.5 to 4.3 [default: the image's tag if it begins with a version, else 4.3.0]
  -n, --namespace NAME     The same as --conf spark.kubernetes.namespace=NAME
  --kubeconfig FILE        The default is $KUBECONFIG, ~/.kube/config, or the service account of the pod
  --context NAME           Context of the kubeconfig
  --help                   Print this

--kill ID and --status ID do and print what they do in spark-submit. The exit code is 0 if the application succeeded, or was submitted
with --no-wait; 1 if it was not submitted; 2 if the arguments are wrong; 3 if it failed; 4 if its driver was deleted; 130 after Ctrl-C,
which leaves it running.

Without --master, spark.master and $MASTER, the API server of the kubeconfig is used.";

/// Options that have no equal in spark-submit, for completions: name, value and help.
pub(super) const OPTIONS: [(&str, &str, &str); 16] = [
    ("--dry-run", "", "Print what would be created"),
    ("--output", "FORMAT", "yaml or json with --dry-run, otherwise text or json"),
    ("--follow", "", "Print the driver's log while waiting"),
    ("--no-wait", "", "Do not wait for the end"),
    ("--gang", "", "Write the size of the gang on the driver"),
    ("--spark-exit-codes", "", "Exit with 0 however the driver ends"),
    ("--spark-compatible", "", "The same, and print what spark-submit logs"),
    ("--spark-version", "VERSION", "The Spark in the image"),
    ("--namespace", "NAME", "The namespace"),
    ("--kubeconfig", "FILE", "The kubeconfig"),
    ("--context", "NAME", "Context of the kubeconfig"),
    ("--kill", "ID", "As spark-submit --kill"),
    ("--status", "ID", "As spark-submit --status"),
    ("--load-spark-defaults", "", "Read spark-defaults.conf beside --properties-file"),
    ("--verbose", "", "Accepted, without effect"),
    ("--help", "", "Print help"),
];

/// The options that spark-submit does not have.
#[derive(Debug, Default)]
struct Own {
    dry_run: Option<DryRun>,
    format: Option<Format>,
    help: bool,
    follow: bool,
    no_wait: bool,
    gang: bool,
    spark_exit_codes: bool,
    spark_compatible: bool,
    kill: Option<String>,
    status: Option<String>,
    version: Option<String>,
    namespace: Option<String>,
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DryRun {
    Client,
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    Json,
    Yaml,
}

impl Own {
    fn take<'a>(&mut self, name: &str, inline: Option<&'a str>, rest: &mut Rest<'a>) -> Result<bool, SubmitError> {
        let mut value = || {
            let value = inline.map(str::to_owned).or_else(|| rest.next().cloned());
            value.ok_or_else(|| SubmitError::expected(&format!("a value after {name}")))
        };
        match name {
            "--dry-run" => {
                self.dry_run = Some(match inline {
                    None | Some("client") => DryRun::Client,
                    Some("server") => DryRun::Server,
                    Some(other) => {
                        return Err(SubmitError::expected(&format!("--dry-run or --dry-run=server, not {other}")));
                    }
                });
            }
            "--help" | "-h" => self.help = true,
            "--output" | "-o" => {
                self.format = Some(match value()?.as_str() {
                    "json" => Format::Json,
                    "yaml" => Format::Yaml,
                    "text" => Format::Text,
                    other => return Err(SubmitError::expected(&format!("-o yaml, json or text, not {other}"))),
                });
            }
            "--follow" => self.follow = true,
            "--no-wait" => self.no_wait = true,
            "--gang" => self.gang = true,
            "--spark-exit-codes" => self.spark_exit_codes = true,
            "--spark-compatible" => self.spark_compatible = true,
            "--kill" => self.kill = Some(value()?),
            "--status" => self.status = Some(value()?),
            "--spark-version" => self.version = Some(value()?),
            "--namespace" | "-n" => self.namespace = Some(value()?),
            "--kubeconfig" => self.kubeconfig = Some(value()?.into()),
            "--context" => self.context = Some(value()?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// What excludes each other.
    fn check(&self) -> Result<(), SubmitError> {
        let wrong = match (self.dry_run, self.format) {
            (None, Some(Format::Yaml)) => "--dry-run with -o yaml",
            (Some(_), Some(Format::Text)) => "-o yaml or -o json with --dry-run",
            _ if self.no_wait && self.follow => "only one of --follow and --no-wait",
            (_, Some(_)) if self.spark_compatible => "only one of --output and --spark-compatible",
            _ if self.spark_compatible && self.follow => "only one of --follow and --spark-compatible",
            _ => return Ok(()),
        };
        Err(SubmitError::expected(wrong))
    }

    /// The application that `--kill` or `--status` names.
    fn which(&self, id: &str, options: &Options) -> Which {
        let (kubeconfig, context) = (self.kubeconfig.clone(), self.context.clone());
        let server = ApiServer { kubeconfig, context, master: options.master.clone() };
        Which { ids: vec![id.to_owned()], namespace: self.namespace.clone(), server, ..Which::default() }
    }
}

pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    let mut own = Own::default();
    let options = match submit::parse_with(&args.arguments, |name, inline, rest| own.take(name, inline, rest)) {
        Ok(options) => options,
        Err(error) => return unreadable(err, &error),
    };
    if own.help || args.arguments.is_empty() {
        writeln!(out, "Submit an application as spark-submit does in cluster mode, without a JVM.\n\n{HELP}")?;
        return Ok(OK);
    }
    if let Err(error) = own.check() {
        return unreadable(err, &error);
    }
    if let Some(id) = &own.kill {
        return match submit::kill_grace_period(&options.conf) {
            Ok(grace) => spark_compatible::kill(&own.which(id, &options), grace, err),
            Err(error) => unreadable(err, &error),
        };
    }
    if let Some(id) = &own.status {
        return spark_compatible::status(&own.which(id, &options), err);
    }
    match block_on(submitted(options, own, out, err)) {
        Ok(code) => Ok(code),
        Err(error) => match error.downcast_ref::<SubmitError>() {
            Some(error) => unreadable(err, error),
            None => failed(err, &error),
        },
    }
}

async fn submitted(mut options: Options, own: Own, out: &mut dyn Write, err: &mut dyn Write) -> anyhow::Result<u8> {
    if let Some(namespace) = &own.namespace {
        if !is_dns_label(namespace) {
            return Err(SubmitError::expected(&format!("a namespace, not {namespace}")).into());
        }
        options.conf.push(format!("spark.kubernetes.namespace={namespace}"));
    }
    let mut env = environment();
    let found = client::configure(own.kubeconfig.as_deref(), own.context.as_deref()).await;
    if let Ok(config) = &found {
        // Every other way to name the API server precedes this variable.
        let url = config.cluster_url.to_string();
        env.variables.set_if_missing("MASTER", &format!("k8s://{}", url.trim_end_matches('/')));
    }
    let unique = unique();
    let app = submit::prepare(&options, &env, &LocalFiles, unique.millis)?;
    let (version, note) = version(own.version.as_deref(), &app.conf)?;
    let mut submission = submit::build(&app, &env, &LocalFiles, version, &unique)?;
    if own.gang {
        submission.add_gang()?;
    }
    let Waiting { waits, interval } = Waiting::of(&app.conf)?;
    let waits = waits && !own.no_wait;
    for warning in submission.warnings.iter().chain(&note) {
        writeln!(err, "warning: {}", plain(warning))?;
    }
    if own.dry_run == Some(DryRun::Client) {
        // The uid is known only after the pod was created.
        let objects = std::iter::once(submission.pod.clone()).chain(submission.owned("")).collect();
        print(objects, own.format, out)?;
        return Ok(OK);
    }
    let master = app.conf.get("spark.master").unwrap_or_default();
    let client = client::of(client::with_master(found, master)?)?.client;
    if own.dry_run == Some(DryRun::Server) {
        print(cluster::dry_run(&client, &submission).await?, own.format, out)?;
        return Ok(OK);
    }
    // From here on a signal does not end the process between two objects.
    let signals = Signals::listen()?;
    cluster::upload(&submission.uploads)?;
    let driver = cluster::create(&client, &submission).await?;
    let name = app.conf.get("spark.app.name").unwrap_or_default();
    let said = match own.format {
        Some(Format::Json) => submitted_event(&driver, name).to_string(),
        _ => format!(
            "Deployed Spark application {name} with application ID {} and submission ID {} into Kubernetes",
            submission.app_id, driver.submission_id
        ),
    };
    // With --follow, standard output has only the log.
    let events: &mut dyn Write = if own.follow && own.format.is_none() { err } else { out };
    if !own.spark_compatible || !waits {
        writeln!(events, "{}", plain(&said))?;
        events.flush()?;
    }
    if !waits {
        return Ok(OK);
    }
    wait(&client, driver, signals, &own, interval, out, err).await
}

/// Waits until the driver has ended, and shows what happens to it.
async fn wait(
    client: &Client,
    driver: DriverStatus,
    signals: Signals,
    own: &Own,
    interval: Duration,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> anyhow::Result<u8> {
    let id = driver.submission_id.clone();
    let form = match own.format {
        _ if own.spark_compatible => Form::Spark { interval },
        Some(Format::Json) => Form::Json,
        _ => Form::Lines,
    };
    let ids = vec![SubmissionId::parse_as_spark(&id).map_err(anyhow::Error::msg)?];
    let selection = Selection { ids, namespace: None, labels: None };
    let follow = Follow { client, selection, until: Some(vec![driver]), form, log: own.follow };
    let ended = super::follow::follow(follow, signals, out, err)
        .await
        .with_context(|| format!("{id} was submitted, but cannot be watched"))?;
    if let Ended::Interrupted(_) = ended {
        let program = program();
        writeln!(err, "{id} goes on: `{program} watch {id}` shows it, `{program} kill {id}` stops it")?;
    }
    Ok(ended.code(own.spark_exit_codes || own.spark_compatible))
}

fn submitted_event(driver: &DriverStatus, name: &str) -> Value {
    let DriverStatus { submission_id, namespace, name: pod, uid, app_id, .. } = driver;
    json!({"time": clock::now().round(jiff::Unit::Second).map_or_else(|_| String::new(), |time| time.to_string()),
        "event": "submitted", "submissionId": submission_id, "namespace": namespace, "name": pod, "uid": uid,
        "appId": app_id, "application": name})
}

/// The environment of this process: spark-submit is configured by it, and configurations may refer to any of it.
fn environment() -> Environment {
    let text = |text: std::ffi::OsString| text.into_string().ok();
    let variables: SparkConf =
        std::env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect();
    let user = ["SPARK_USER", "USER", "LOGNAME"].iter().find_map(|name| variables.get(name)).map(str::to_owned);
    Environment { user: user.unwrap_or_else(|| "root".to_owned()), variables }
}

fn unique() -> Unique {
    Unique {
        millis: clock::now().as_millisecond(),
        app: random::hex(16),
        digits: [random::hex(3), random::hex(3), random::hex(3)],
        // Most command lines name fewer files.
        uuids: (0..256).map(|_| random::uuid()).collect(),
    }
}

/// The version of Spark, and why it is assumed.
fn version(given: Option<&str>, conf: &SparkConf) -> Result<(SparkVersion, Option<String>), SubmitError> {
    let known = |version: SparkVersion| {
        VERSIONS.iter().find(|known| (known.major, known.minor) == (version.major, version.minor))
    };
    if let Some(text) = given {
        let version = SparkVersion::parse(text).filter(|version| known(*version).is_some());
        let version = version.ok_or_else(|| {
            SubmitError::expected(&format!(
                "--spark-version 3.5, 4.0, 4.1, 4.2 or 4.3, not {text}: what other versions send was not compared"
            ))
        })?;
        let has_patch = text.split('.').count() > 2;
        return Ok((if has_patch { version } else { known(version).copied().unwrap_or(version) }, None));
    }
    let image =
        conf.get("spark.kubernetes.driver.container.image").or_else(|| conf.get("spark.kubernetes.container.image"));
    // REGISTRY:PORT/REPOSITORY:TAG@DIGEST
    let name = image.and_then(|image| image.split('@').next()).and_then(|image| image.rsplit('/').next());
    let tag = name.and_then(|name| name.split_once(':')).map(|(_, tag)| tag);
    let of_tag = tag.filter(|tag| tag.contains('.')).and_then(SparkVersion::parse);
    match of_tag {
        Some(version) if known(version).is_some() => Ok((version, None)),
        Some(SparkVersion { major, minor, .. }) => Err(SubmitError::expected(&format!(
            "an image of Spark 3.5 to 4.3: the tag says {major}.{minor}; --spark-version overrides it"
        ))),
        None => {
            let newest = SparkVersion::NEWEST;
            Ok((SparkVersion::NEWEST, Some(format!("Spark {newest} is assumed: --spark-version names another one"))))
        }
    }
}

fn print(objects: Vec<Value>, format: Option<Format>, out: &mut dyn Write) -> io::Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    if format == Some(Format::Json) {
        return writeln!(out, "{}", serde_json::to_string_pretty(&list)?);
    }
    let text = serde_saphyr::to_string(&list).map_err(io::Error::other)?;
    write!(out, "{text}")
}
