//! `spark-usher submit`: spark-submit in cluster mode, without a JVM.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};

use super::drivers::Which;
use super::environment::environment;
use super::follow::{Ended, Follow, Form};
use super::local_files::LocalFiles;
use super::output::{FAILED, INTERRUPTED, OK, UNKNOWN_END, UNREADABLE, block_on, failed, one_line, plain, unreadable};
use super::program::program;
use super::spark_compatible;
use super::submit_help::{self, AFTER};
use super::submit_options::{DryRun, Format, UsherOptions};
use crate::cli::upload::{Uploaded, upload};
use usher_core::policy::Policies;
use usher_core::snapshot::Namespace;
use usher_kube::access::Access;
use usher_kube::client;
use usher_kube::request::Error;
use usher_runtime::shutdown::Interrupt;
use usher_runtime::{clock, random};
use usher_spark::time::whole_second;
use usher_spark::version::SparkVersion;
use usher_submit::api::Failure;
use usher_submit::api::drivers::Selection;
use usher_submit::submission::{DriverStatus, Preview, SubmissionId, preview};
use usher_submit::{Environment, Options, SparkConf, Submission, SubmitError, Unique, Waiting, api};

/// Versions whose spark-submit is reproduced, by their minor version and the patch that is assumed for it.
const VERSIONS: [SparkVersion; 5] = [
    SparkVersion::new(3, 5, 9),
    SparkVersion::new(4, 0, 1),
    SparkVersion::new(4, 1, 0),
    SparkVersion::new(4, 2, 0),
    SparkVersion::new(4, 3, 0),
];

const NAMESPACE: &str = "spark.kubernetes.namespace";

#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    override_usage = "spark-usher submit [OPTIONS] RESOURCE [ARGUMENTS]",
    after_help = AFTER
)]
pub(super) struct Args {
    /// JAR, Python or R file of the application, then the application's own arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "RESOURCE")]
    arguments: Vec<String>,
}

fn kill_or_status(usher: &UsherOptions, id: &str, options: &Options, err: &mut dyn Write) -> io::Result<u8> {
    let env = match environment() {
        Ok(env) => env,
        Err(error) => return failed(err, &error),
    };
    let found = usher_submit::settings(options, &env, &LocalFiles);
    let read = found
        .and_then(|(conf, warnings)| Ok((usher.server(&conf)?, usher_submit::kill_grace_period(&conf)?, warnings)));
    let (server, grace, warnings) = match read {
        Ok(read) => read,
        Err(error) => return unreadable(err, &error),
    };
    for warning in warnings {
        writeln!(err, "warning: {}", one_line(&warning))?;
    }
    let which = Which { ids: vec![id.to_owned()], namespace: usher.namespace.clone(), server, ..Which::default() };
    if usher.kill.is_some() {
        spark_compatible::kill(&which, grace, err)
    } else {
        spark_compatible::status(&which, err)
    }
}

pub(super) fn run(
    args: &Args,
    command_line: fn() -> clap::Command,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<u8> {
    let mut usher = UsherOptions::default();
    let arguments = usher_submit::passed_on(&args.arguments);
    let mut last = "";
    let options = match usher_submit::parse_with(&arguments, |name, inline, rest| {
        last = name;
        usher.take(name, inline, rest)
    }) {
        Ok(options) => options,
        Err(error) => {
            let code = unreadable(err, &error)?;
            if let Some(similar) = submit_help::similar(last) {
                writeln!(err, "\n  tip: a similar argument exists: '{similar}'")?;
            }
            return Ok(code);
        }
    };
    if usher.help || arguments.is_empty() {
        let to: &mut dyn Write = if usher.help { out } else { err };
        write!(to, "{}", submit_help::help(command_line()))?;
        return Ok(if usher.help { OK } else { UNREADABLE });
    }
    if usher.shows_version {
        let (first, last) = (VERSIONS.first(), VERSIONS.last());
        let versions = first
            .zip(last)
            .map(|(first, last)| format!("{}.{} to {}.{}", first.major, first.minor, last.major, last.minor));
        let program_version = env!("CARGO_PKG_VERSION");
        writeln!(out, "spark-usher {program_version}, which submits for Spark {}", versions.unwrap_or_default())?;
        return Ok(OK);
    }
    if let Err(error) = usher.check() {
        return unreadable(err, &error);
    }
    // As for spark-submit, they are the application's: --dry-run there submits.
    let late: Vec<&str> = options.args.iter().filter_map(|word| submit_help::usher_option(word)).collect();
    if let (Some(resource), false, false) = (&options.resource, late.is_empty(), usher.spark_compatible) {
        let (resource, late) = (one_line(resource), late.join(", "));
        writeln!(
            err,
            "warning: {late} after {resource} is passed to the application: put options of spark-usher before {resource}"
        )?;
    }
    if let Some(id) = usher.kill.as_ref().or(usher.status.as_ref()) {
        return kill_or_status(&usher, id, &options, err);
    }
    match block_on(submitted(options, usher, out, err)) {
        Ok(code) => Ok(code),
        Err(error) => match error.downcast_ref::<SubmitError>() {
            Some(error) => unreadable(err, error),
            // The reader closed the pipe: `--dry-run | head`.
            None if error.downcast_ref().is_some_and(|error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe) => {
                Ok(OK)
            }
            None => failed(err, &error),
        },
    }
}

async fn submitted(
    options: Options,
    usher: UsherOptions,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> anyhow::Result<u8> {
    let (request, found) = Request::read(options, usher, err).await?;
    let (format, submission) = (request.usher.format, &request.submission);
    let config = request.usher.policy.as_deref().map(super::input::policy_file).transpose();
    let config = config.map_err(|error| SubmitError::expected(&format!("a policy file after --policy: {error}")))?;
    let policies = config.map(|config| config.policies);
    if request.usher.dry_run == Some(DryRun::Client) {
        if let Some(policies) = &policies {
            validated(submission, policies, None, err)?;
        }
        // The uid is known only after the pod was created.
        let objects = std::iter::once(submission.pod.clone()).chain(submission.owned("")).collect();
        print(objects, format, out)?;
        return Ok(OK);
    }
    let client = client::of(client::with_access(found, Some(&request.master), &request.access)?)?.client;
    if let Some(policies) = &policies {
        let namespace = api::namespace(&client, &submission.namespace).await;
        let preview = validated(submission, policies, namespace.as_ref(), err)?;
        fits(&client, &preview, err).await?;
    }
    if request.usher.dry_run == Some(DryRun::Server) {
        let objects = api::dry_run(&client, submission).await;
        print(objects.with_context(|| request.master.clone())?, format, out)?;
        return Ok(OK);
    }
    // From here on a signal does not end the process between two objects.
    let mut interrupt = Interrupt::listen(INTERRUPTED)?;
    let driver = match request.send(&client, &mut interrupt, err).await? {
        Ok(driver) => driver,
        Err(code) => return Ok(code),
    };
    if !request.announce(&driver, out, err)? {
        return Ok(UNKNOWN_END);
    }
    if !request.waits {
        return Ok(OK);
    }
    request.follow(&client, driver, interrupt, out, err).await
}

/// A submission, and where it goes.
struct Request {
    usher: UsherOptions,
    env: Environment,
    conf: SparkConf,
    submission: Submission,
    /// The API server: `k8s://` and its URL,
    master: String,
    /// whether the kubeconfig names it,
    is_of_kubeconfig: bool,
    /// and how it is accessed.
    access: Access,
    /// Whether the process waits for the driver's end, and how often it reports meanwhile.
    waits: bool,
    interval: Duration,
}

impl Request {
    /// Reads everything that decides about a submission, and writes warnings. Returns the configuration of the kubeconfig, too.
    async fn read(
        mut options: Options,
        usher: UsherOptions,
        err: &mut dyn Write,
    ) -> anyhow::Result<(Request, anyhow::Result<kube::Config>)> {
        if let Some(namespace) = &usher.namespace {
            let mut set = options.conf.iter().filter_map(|pair| pair.strip_prefix(NAMESPACE)?.strip_prefix('='));
            if let Some(other) = set.next_back().filter(|other| other != namespace) {
                let what = format!("only one namespace: --namespace is {namespace}, and {NAMESPACE} is {other}");
                return Err(SubmitError::expected(&what).into());
            }
            options.conf.push(format!("{NAMESPACE}={namespace}"));
        }
        let mut env = environment()?;
        let (settings, _) = usher_submit::settings(&options, &env, &LocalFiles)?;
        let (version, note) = version(usher.version.as_deref(), &settings)?;
        let access = usher_submit::access(&settings).map_err(|error| error.of_major(version.major))?;
        let context = usher.context.as_deref().or(access.context.as_deref());
        let mut found = client::configure(usher.kubeconfig.as_deref(), context).await;
        if usher.kubeconfig.is_some() || context.is_some() || settings.get("spark.master").is_none() {
            let unknown = |error| format!("an API server, by --master k8s://URL or a kubeconfig: {error:#}");
            found = Ok(found.map_err(|error| SubmitError::expected(&unknown(error)))?);
        }
        // Every other way to name the API server precedes this variable.
        let of_kubeconfig =
            found.as_ref().ok().map(|config| format!("k8s://{}", config.cluster_url.to_string().trim_end_matches('/')));
        if let Some(url) = &of_kubeconfig {
            env.variables.set_if_missing("MASTER", url);
        }
        let unique = unique();
        let app = usher_submit::prepare(&options, &env, &LocalFiles, unique.millis)?;
        let mut submission = match usher_submit::build(&app, &env, &LocalFiles, version, &unique) {
            Ok(submission) => submission,
            Err(error) => {
                // Its warnings may explain the error.
                app.warnings.iter().try_for_each(|warning| writeln!(err, "warning: {}", one_line(warning)))?;
                return Err(error.into());
            }
        };
        if usher.gang {
            submission.add_gang()?;
        }
        let Waiting { waits, interval } = Waiting::of(&app.conf).map_err(|error| error.of_major(version.major))?;
        let elsewhere = client::named_namespace(usher.kubeconfig.as_deref(), context);
        let elsewhere = elsewhere.filter(|of_context| *of_context != submission.namespace);
        let hint = elsewhere.filter(|_| app.conf.get(NAMESPACE).is_none() && !usher.spark_compatible).map(|of_context| {
            let namespace = &submission.namespace;
            format!("the namespace is {namespace}, as for spark-submit; that of the context is {of_context}: --namespace {of_context}")
        });
        for warning in submission.warnings.iter().chain(&note).chain(&hint) {
            writeln!(err, "warning: {}", one_line(warning))?;
        }
        let master = app.conf.get("spark.master").unwrap_or_default().to_owned();
        let (is_of_kubeconfig, waits) = (of_kubeconfig.as_ref() == Some(&master), waits && !usher.no_wait);
        let conf = app.conf;
        Ok((Request { usher, env, conf, submission, master, is_of_kubeconfig, access, waits, interval }, found))
    }

    /// Uploads files and creates the objects. Returns the driver, or the exit code.
    async fn send(
        &self,
        client: &kube::Client,
        interrupt: &mut Interrupt,
        err: &mut dyn Write,
    ) -> io::Result<Result<DriverStatus, u8>> {
        let Request { submission, conf, env, master, .. } = self;
        let mut uploaded = Uploaded::default();
        let mut signal = interrupt.clone();
        let sending = async {
            match upload(&submission.uploads, conf, &env.variables, interrupt, &mut uploaded).await {
                Ok(()) => api::create(client, submission, interrupt).await,
                Err(_) if interrupt.has_come() => Err(api::Interrupted.into()),
                Err(error) => Err(error.into()),
            }
        };
        let Failure { error, pod } = match saying(TAKING_BACK, &mut signal, err, sending).await {
            Ok(driver) => return Ok(Ok(driver)),
            Err(failure) => failure,
        };
        let is_of_connection = error.downcast_ref().is_some_and(Error::is_of_connection);
        let error = if is_of_connection { error.context(format!("the API server is {master}")) } else { error };
        failed(err, &error)?;
        if let Some(pod) = pod {
            writeln!(err, "note: {}", one_line(&pod))?;
        }
        // A driver that exists all the same needs its files.
        let left = if error.is::<api::MayExist>() { uploaded.all() } else { uploaded.take_back().await };
        for left in left {
            writeln!(err, "warning: {} is left behind", one_line(&left))?;
        }
        Ok(Err(if error.is::<api::Interrupted>() { INTERRUPTED } else { FAILED }))
    }

    /// Says that the application was submitted. Returns whether that could be written.
    fn announce(&self, driver: &DriverStatus, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<bool> {
        let usher = &self.usher;
        let name = self.conf.get("spark.app.name").unwrap_or_default();
        let said = match usher.format {
            Some(Format::Json) => submitted_event(driver, name).to_string(),
            _ => one_line(&format!(
                "Deployed Spark application {name} with application ID {} and submission ID {} into Kubernetes",
                self.submission.app_id, driver.submission_id
            )),
        };
        if usher.spark_compatible && self.waits {
            return Ok(true);
        }
        // With --follow, standard output has only the log.
        let events: &mut dyn Write = if usher.follow && usher.format.is_none() { &mut *err } else { out };
        let written = writeln!(events, "{said}").and_then(|()| events.flush());
        if let Err(error) = &written {
            // The application runs: the error must say so.
            writeln!(err, "error: cannot write to standard output: {error}\n{said}")?;
        }
        Ok(written.is_ok())
    }

    /// Waits until the driver has ended, and shows what happens to it.
    async fn follow(
        &self,
        client: &kube::Client,
        driver: DriverStatus,
        interrupt: Interrupt,
        out: &mut dyn Write,
        err: &mut dyn Write,
    ) -> anyhow::Result<u8> {
        let usher = &self.usher;
        let place = usher.place(Some(&*self.master).filter(|_| !self.is_of_kubeconfig));
        let form = match usher.format {
            _ if usher.spark_compatible => Form::Spark { interval: self.interval },
            Some(Format::Json) => Form::Data(super::output::Output::Json),
            _ => Form::Lines,
        };
        let id = format!("{place}{}", driver.submission_id);
        let ids = vec![SubmissionId::parse_as_spark(&driver.submission_id).map_err(anyhow::Error::msg)?];
        let selection = Selection { ids, namespace: None, labels: None };
        let follow = Follow { client, selection, until: Some(vec![driver]), form, log: usher.follow };
        wait(follow, interrupt, &id, usher.spark_exit_codes || usher.spark_compatible, out, err).await
    }
}

/// What is said where a signal has come, and the API server does not answer.
const TAKING_BACK: &str = "interrupted: waiting for the API server's answer, to delete what was created; another Ctrl-C or \
                           SIGTERM ends immediately, and may leave it behind";

/// Says this if it takes long to end after a signal.
async fn saying<T>(what: &str, interrupt: &mut Interrupt, err: &mut dyn Write, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    let signalled = async {
        interrupt.wait().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    tokio::select! {
        biased;
        done = &mut work => return done,
        // The reader of the output may have closed it.
        () = signalled => drop(writeln!(err, "{what}")),
    }
    work.await
}

/// Says what the policies do with the submission, and fails if the webhook will deny it.
fn validated(
    submission: &Submission,
    policies: &Policies,
    namespace: Option<&Namespace>,
    err: &mut dyn Write,
) -> anyhow::Result<Preview> {
    let preview = preview(submission, policies, namespace).map_err(|error| anyhow!("--policy: {error}"))?;
    writeln!(err, "note: {}", one_line(&preview.summary()))?;
    // Both pods may have the same.
    for note in preview.notes.iter().collect::<BTreeSet<_>>() {
        writeln!(err, "note: {}", one_line(note))?;
    }
    if !preview.denials.is_empty() {
        bail!("not submitted: spark-usher's policy denies it: {}", preview.denials.join("; "));
    }
    Ok(preview)
}

/// Fails if the gang will never fit its queue. What cannot be read is said.
async fn fits(client: &kube::Client, preview: &Preview, err: &mut dyn Write) -> anyhow::Result<()> {
    let Some((object, queue)) = preview.queue_object() else { return Ok(()) };
    match api::queue(client, object, queue).await {
        Ok(Some(found)) => match preview.never_fits(&(object.max)(&found)) {
            Some(why) => bail!("not submitted: {why}"),
            None => Ok(()),
        },
        Ok(None) => bail!("not submitted: {} {queue}, the queue of the policy, does not exist", object.kind),
        Err(Error::NotFound(_)) => {
            let api = format!("{}.{}", object.plural, object.group);
            writeln!(
                err,
                "warning: whether the gang fits queue {queue} is not known: the cluster does not serve {api}"
            )?;
            Ok(())
        }
        Err(error) => {
            writeln!(
                err,
                "warning: whether the gang fits queue {queue} is not known: {}",
                one_line(&error.to_string())
            )?;
            Ok(())
        }
    }
}

/// Waits until the driver has ended, and shows what happens to it. `id` is how other commands name it.
async fn wait(
    follow: Follow<'_>,
    interrupt: Interrupt,
    id: &str,
    spark_exit_codes: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> anyhow::Result<u8> {
    let ended = super::follow::follow(follow, interrupt, out, err).await;
    let program = program();
    let still_runs = format!("it goes on: `{program} watch {id}` shows it, `{program} kill {id}` stops it");
    match ended {
        Ok(ended) => {
            if ended == Ended::Interrupted {
                writeln!(err, "{still_runs}")?;
            }
            Ok(ended.code(spark_exit_codes))
        }
        Err(error) => {
            let what = if error.is::<io::Error>() { "its output cannot be written" } else { "it cannot be watched" };
            let error = plain(&format!("{error:#}"));
            writeln!(err, "error: the application was submitted, but {what}: {error}\n{still_runs}")?;
            Ok(if spark_exit_codes { OK } else { UNKNOWN_END })
        }
    }
}

fn submitted_event(driver: &DriverStatus, name: &str) -> Value {
    let DriverStatus { submission_id, namespace, name: pod, uid, app_id, app_name, .. } = driver;
    json!({"time": whole_second(clock::now()).to_string(), "event": "submitted", "submissionId": submission_id,
        "namespace": namespace, "name": pod, "uid": uid, "appId": app_id, "appName": app_name, "application": name})
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
            let why = "the image's tag does not begin with a version";
            Ok((newest, Some(format!("{why}: Spark {newest} is assumed; --spark-version VERSION sets another"))))
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn misspelled_option_is_an_error_with_the_one_that_was_meant() {
        let printed = |arguments: &[&str]| {
            let args = Args { arguments: arguments.iter().map(|word| (*word).to_owned()).collect() };
            let (mut out, mut err) = (Vec::new(), Vec::new());
            let code = run(&args, super::super::Cli::command, &mut out, &mut err).unwrap();
            assert_eq!((code, &*out), (UNREADABLE, &b""[..]));
            String::from_utf8(err).unwrap()
        };
        let expected =
            "error: Unrecognized option: --num-excutors\n\n  tip: a similar argument exists: '--num-executors'\n";
        assert_eq!(printed(&["--num-excutors", "3", "x.py"]), expected);
        assert_eq!(printed(&["--quxx", "x.py"]), "error: Unrecognized option: --quxx\n");
        assert_eq!(printed(&["--class"]), "error: Missing argument for option '--class'.\n");
    }
}
