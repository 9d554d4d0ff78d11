//! `spark-usher submit`: spark-submit in cluster mode, without a JVM.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use kube::Config;
use serde_json::{Value, json};

use super::output::{OK, UNREADABLE, block_on, failed, plain};
use crate::cluster::{client, submit as cluster};
use crate::runtime::{clock, random};
use crate::spark::version::SparkVersion;
use crate::submit::{self, Environment, Files, Options, Rest, SparkConf, Submission, SubmitError, Unique};
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
  --dry-run                Print what would be created, in this order, as a v1 List; nothing is sent
  -o, --output yaml|json   Format of --dry-run [default: yaml]
  --spark-version VERSION  The Spark in the image, 3.5 to 4.3 [default: the image's tag if it begins with a version, else 4.3.0]
  -n, --namespace NAME     The same as --conf spark.kubernetes.namespace=NAME
  --kubeconfig FILE        The default is $KUBECONFIG, ~/.kube/config, or the service account of the pod
  --context NAME           Context of the kubeconfig
  --help                   Print this

Without --master, spark.master and $MASTER, the API server of the kubeconfig is used.";

/// The options that spark-submit does not have.
#[derive(Debug, Default)]
struct Own {
    dry_run: bool,
    json: bool,
    help: bool,
    version: Option<String>,
    namespace: Option<String>,
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
}

impl Own {
    fn take<'a>(&mut self, name: &str, inline: Option<&'a str>, rest: &mut Rest<'a>) -> Result<bool, SubmitError> {
        let mut value = || {
            let value = inline.map(str::to_owned).or_else(|| rest.next().cloned());
            value.ok_or_else(|| SubmitError::expected(&format!("a value after {name}")))
        };
        match name {
            "--dry-run" if inline.is_none_or(|value| value == "client") => self.dry_run = true,
            "--help" | "-h" => self.help = true,
            "--output" | "-o" => {
                self.json = match value()?.as_str() {
                    "json" => true,
                    "yaml" => false,
                    other => return Err(SubmitError::expected(&format!("-o yaml or -o json, not {other}"))),
                }
            }
            "--spark-version" => self.version = Some(value()?),
            "--namespace" | "-n" => self.namespace = Some(value()?),
            "--kubeconfig" => self.kubeconfig = Some(value()?.into()),
            "--context" => self.context = Some(value()?),
            _ => return Ok(false),
        }
        Ok(true)
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
    match block_on(submitted(options, own, out, err)) {
        Ok(()) => Ok(OK),
        Err(error) => match error.downcast_ref::<SubmitError>() {
            Some(error) => unreadable(err, error),
            None => failed(err, &error),
        },
    }
}

fn unreadable(err: &mut dyn Write, error: &SubmitError) -> io::Result<u8> {
    writeln!(err, "error: {}", plain(&error.to_string()))?;
    Ok(UNREADABLE)
}

async fn submitted(mut options: Options, own: Own, out: &mut dyn Write, err: &mut dyn Write) -> anyhow::Result<()> {
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
    let app = submit::prepare(&options, &env, &Disk, unique.millis)?;
    let (version, note) = version(own.version.as_deref(), &app.conf)?;
    let submission = submit::build(&app, &env, &Disk, version, &unique)?;
    for warning in submission.warnings.iter().chain(&note) {
        writeln!(err, "warning: {}", plain(warning))?;
    }
    if own.dry_run {
        return Ok(print(&submission, own.json, out)?);
    }
    let master = app.conf.get("spark.master").unwrap_or_default();
    let client = client::of(with_master(found, master)?)?.client;
    cluster::upload(&submission.uploads)?;
    let cluster::Submitted { pod, .. } = cluster::create(&client, &submission).await?;
    let name = app.conf.get("spark.app.name").unwrap_or_default();
    let Submission { namespace, app_id, .. } = &submission;
    writeln!(
        out,
        "{}",
        plain(&format!(
            "Deployed Spark application {name} with application ID {app_id} and submission ID {namespace}:{pod} into Kubernetes"
        ))
    )?;
    Ok(())
}

/// The configuration of the kubeconfig, with the API server that `--master` names.
fn with_master(found: anyhow::Result<Config>, master: &str) -> anyhow::Result<Config> {
    let url = master.strip_prefix("k8s://").unwrap_or(master);
    let url: hyper::Uri = url.parse().map_err(|error| anyhow!("--master {master}: {error}"))?;
    match found {
        Ok(mut config) => {
            config.cluster_url = url;
            Ok(config)
        }
        // An API server that needs no credentials, such as kubectl proxy.
        Err(_) if url.scheme_str() == Some("http") => Ok(Config::new(url)),
        Err(error) => Err(error),
    }
}

/// All variables whose names spark-submit reads.
fn environment() -> Environment {
    const READ: [&str; 11] = [
        "SPARK_CONF_DIR",
        "SPARK_HOME",
        "SPARK_LOCAL_DIRS",
        "SPARK_DRIVER_MEMORY",
        "SPARK_EXECUTOR_MEMORY",
        "SPARK_EXECUTOR_CORES",
        "HADOOP_CONF_DIR",
        "PYSPARK_PYTHON",
        "PYSPARK_DRIVER_PYTHON",
        "MASTER",
        "DEPLOY_MODE",
    ];
    #[expect(clippy::disallowed_methods, reason = "spark-submit is configured by these variables")]
    let read = |name: &str| std::env::var(name).ok();
    let user = ["SPARK_USER", "USER", "LOGNAME"].iter().find_map(|name| read(name));
    let variables: SparkConf = READ.iter().filter_map(|name| Some((*name, read(name)?))).collect();
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

fn print(submission: &Submission, as_json: bool, out: &mut dyn Write) -> io::Result<()> {
    // The uid is known only after the pod was created.
    let items: Vec<Value> = std::iter::once(submission.pod.clone()).chain(submission.owned("")).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    if as_json {
        return writeln!(out, "{}", serde_json::to_string_pretty(&list)?);
    }
    let text = serde_saphyr::to_string(&list).map_err(io::Error::other)?;
    write!(out, "{text}")
}

/// The files of this machine.
struct Disk;

impl Files for Disk {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        std::fs::read(path).map_err(|error| error.to_string())
    }

    fn list(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let files = entries.filter(|entry| entry.path().is_file());
        files.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn absolute(&self, path: &str) -> String {
        let whole = std::path::absolute(path).unwrap_or_else(|_| Path::new(path).to_owned());
        whole.canonicalize().unwrap_or(whole).display().to_string()
    }
}
