//! From spark-submit's options to a configuration (`SparkSubmitArguments`, `SparkSubmit.prepareSubmitEnvironment`).

use std::borrow::Cow;

use super::conf::SparkConf;
use super::error::{Result, SubmitError, require};
use super::files::Files;
use usher_spark::properties;
use usher_spark::version::SparkVersion;

/// What spark-submit passes where an application has no resource of its own.
pub(super) const NO_RESOURCE: &str = "spark-internal";

/// The options of spark-submit that count in cluster mode on Kubernetes. Each field is the option of the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub master: Option<String>,
    pub deploy_mode: Option<String>,
    pub name: Option<String>,
    pub class: Option<String>,
    pub jars: Option<String>,
    pub files: Option<String>,
    pub archives: Option<String>,
    pub py_files: Option<String>,
    pub packages: Option<String>,
    pub exclude_packages: Option<String>,
    pub repositories: Option<String>,
    pub driver_cores: Option<String>,
    pub executor_memory: Option<String>,
    pub executor_cores: Option<String>,
    pub total_executor_cores: Option<String>,
    pub num_executors: Option<String>,
    pub queue: Option<String>,
    pub principal: Option<String>,
    pub keytab: Option<String>,
    pub proxy_user: Option<String>,
    pub properties_file: Option<String>,
    pub load_spark_defaults: bool,
    /// `--conf`, as given.
    pub conf: Vec<String>,
    /// The main resource: a JAR, a Python or an R file.
    pub resource: Option<String>,
    /// The arguments of the application.
    pub args: Vec<String>,
}

/// Options that few applications have: after the resource, they are in the wrong place.
const LATE: [&str; 8] = [
    "--conf",
    "--class",
    "--master",
    "--deploy-mode",
    "--num-executors",
    "--driver-memory",
    "--executor-memory",
    "--executor-cores",
];

/// Variables of the environment that spark-submit reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// The user of the operating system.
    pub user: String,
    pub variables: SparkConf,
}

impl Environment {
    /// The user who submits (`Utils.getCurrentUserName`, and Hadoop's `UserGroupInformation`).
    pub(super) fn current_user(&self) -> &str {
        if let Some(user) = self.variables.get("SPARK_USER") {
            return user;
        }
        let of_hadoop = ["HADOOP_PROXY_USER", "HADOOP_USER_NAME"].iter().find_map(|name| self.variables.get(name));
        // The short name: neither the host nor the realm of a principal.
        of_hadoop.map_or(&self.user, |user| user.split(['/', '@']).next().unwrap_or(user))
    }
}

/// An application's main resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    /// None: the class is Spark's own, or in its class path.
    None,
    /// A JAR.
    Java(String),
    /// A Python file.
    Python(String),
    /// An R file.
    R(String),
}

/// What is submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Application {
    /// The configuration.
    pub conf: SparkConf,
    /// The main resource.
    pub resource: Resource,
    /// The class that the driver runs.
    pub main_class: String,
    /// The arguments.
    pub args: Vec<String>,
    /// Whom the driver impersonates.
    pub proxy_user: Option<String>,
    /// What is ignored, for people.
    pub warnings: Vec<String>,
}

/// A setting, and what states it: its option, then its key, its older name, and a variable of the environment.
struct Assigned {
    key: &'static str,
    option: fn(&Options) -> &Option<String>,
    older: Option<&'static str>,
    variable: Option<&'static str>,
}

impl Assigned {
    const fn new(key: &'static str, option: fn(&Options) -> &Option<String>) -> Assigned {
        Assigned { key, option, older: None, variable: None }
    }

    const fn older(self, key: &'static str) -> Assigned {
        Assigned { older: Some(key), ..self }
    }

    const fn variable(self, name: &'static str) -> Assigned {
        Assigned { variable: Some(name), ..self }
    }
}

/// Those that precede everything else that was given.
const ASSIGNED: [Assigned; 16] = [
    Assigned::new("spark.master", |options| &options.master).variable("MASTER"),
    Assigned::new("spark.submit.deployMode", |options| &options.deploy_mode).variable("DEPLOY_MODE"),
    Assigned::new("spark.app.name", |options| &options.name),
    // The option sets the key itself.
    Assigned::new("spark.driver.memory", |_| &None).variable("SPARK_DRIVER_MEMORY"),
    Assigned::new("spark.driver.cores", |options| &options.driver_cores),
    Assigned::new("spark.executor.instances", |options| &options.num_executors),
    Assigned::new("spark.executor.cores", |options| &options.executor_cores).variable("SPARK_EXECUTOR_CORES"),
    Assigned::new("spark.executor.memory", |options| &options.executor_memory).variable("SPARK_EXECUTOR_MEMORY"),
    Assigned::new("spark.files", |options| &options.files),
    Assigned::new("spark.archives", |options| &options.archives),
    Assigned::new("spark.jars", |options| &options.jars),
    Assigned::new("spark.jars.packages", |options| &options.packages),
    Assigned::new("spark.jars.repositories", |options| &options.repositories),
    Assigned::new("spark.jars.excludes", |options| &options.exclude_packages),
    Assigned::new("spark.kerberos.keytab", |options| &options.keytab).older("spark.yarn.keytab"),
    Assigned::new("spark.kerberos.principal", |options| &options.principal).older("spark.yarn.principal"),
];
/// The others.
const READ: [Assigned; 2] = [
    Assigned::new("spark.cores.max", |options| &options.total_executor_cores),
    Assigned::new("spark.submit.pyFiles", |options| &options.py_files),
];

/// What was given: options, and settings in other ways.
struct Given<'o> {
    options: &'o Options,
    env: &'o Environment,
    conf: SparkConf,
}

impl Given<'_> {
    /// The value of one of the settings of these tables.
    fn value(&self, key: &str) -> Option<&str> {
        let row = ASSIGNED.iter().chain(&READ).find(|row| row.key == key)?;
        let set = || self.conf.get(row.key).or_else(|| self.conf.get(row.older?));
        let option = (row.option)(self.options).as_deref();
        option.or_else(set).or_else(|| self.env.variables.get(row.variable?))
    }

    /// What spark-submit refuses, in its order.
    fn check(&self) -> Result<()> {
        [Given::sizes, Given::users, Given::settings, Given::java_options, Given::deploy_mode]
            .iter()
            .try_for_each(|check| check(self))
    }

    /// `SparkSubmitArguments.validateSubmitArguments`.
    fn sizes(&self) -> Result<()> {
        let is_count = |text: &str| text.parse::<i32>().is_ok_and(|count| count > 0);
        // The version is determined later: `refuse_units`.
        let is_memory = |text: &str| is_memory(text, SparkVersion::NEWEST);
        let is_dynamic =
            self.conf.get("spark.dynamicAllocation.enabled").is_some_and(|is| is.eq_ignore_ascii_case("true"));
        positive(self.value("spark.driver.memory"), &is_memory, "Driver memory")?;
        positive(self.value("spark.driver.cores"), &is_count, "Driver cores")?;
        positive(self.value("spark.executor.memory"), &is_memory, "Executor memory")?;
        positive(self.value("spark.executor.cores"), &is_count, "Executor cores")?;
        positive(self.value("spark.cores.max"), &is_count, "Total executor cores")?;
        positive(self.value("spark.executor.instances").filter(|_| !is_dynamic), &is_count, "Number of executors")
    }

    fn users(&self) -> Result<()> {
        let proxy_user = self.options.proxy_user.as_deref();
        require(proxy_user.is_none() || self.value("spark.kerberos.principal").is_none(), || {
            "Only one of --proxy-user or --principal can be provided.".to_owned()
        })?;
        require(proxy_user != Some(""), || "Null user (--proxy-user is empty)".to_owned())
    }

    fn settings(&self) -> Result<()> {
        require(self.conf.get("spark.remote").is_none(), || {
            "Remote cannot be specified with master and/or deploy mode. (spark.remote is set)".to_owned()
        })?;
        require(self.conf.get("spark.kubernetes.namespace") != Some(""), || {
            "namespace not specified for an operation requiring one. (spark.kubernetes.namespace is empty)".to_owned()
        })
    }

    fn java_options(&self) -> Result<()> {
        let mut options = ["spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions"]
            .iter()
            .filter_map(|key| self.conf.get(key));
        let has_heap = options.find(|options| options.contains("-Xmx"));
        require(has_heap.is_none(), || {
            format!(
                "Not allowed to specify max heap(Xmx) memory settings through java options (was {}). Use the corresponding \
                 --driver-memory or spark.driver.memory configuration instead.",
                has_heap.unwrap_or_default()
            )
        })
    }

    fn deploy_mode(&self) -> Result<()> {
        let is_mode = |mode: Option<&str>| matches!(mode, None | Some("client" | "cluster"));
        require(is_mode(self.options.deploy_mode.as_deref()), || {
            "--deploy-mode must be either \"client\" or \"cluster\"".to_owned()
        })?;
        let mode = self.value("spark.submit.deployMode");
        require(is_mode(mode), || "Deploy mode must be either client or cluster".to_owned())?;
        require(mode != Some("client"), || {
            "only cluster mode is supported: expected --deploy-mode cluster; in client mode the driver runs in this process, \
             which needs a JVM: use spark-submit"
                .to_owned()
        })
    }
}

/// Makes the configuration. `submit_millis` is the time.
pub fn prepare(options: &Options, env: &Environment, files: &dyn Files, submit_millis: i64) -> Result<Application> {
    let mut warnings = Vec::new();
    let given = Given { options, env, conf: given(options, env, files, &mut warnings)? };
    let resource = options.resource.as_deref().ok_or_else(|| {
        SubmitError::new("Missing application resource. (expected a JAR, a Python or an R file after the options)")
    })?;
    let late: Vec<&str> = options.args.iter().map(String::as_str).filter(|arg| LATE.contains(arg)).collect();
    if !late.is_empty() {
        warnings.push(format!("what follows {resource} is passed to the application: {}", late.join(", ")));
    }
    let is_shell = matches!(resource, "spark-shell" | "pyspark-shell" | "sparkr-shell");
    let resource = if is_shell || resource == NO_RESOURCE { resource.to_owned() } else { resolved(resource, files) };
    given.check()?;
    let master = master_url(given.value("spark.master").unwrap_or_default())?;
    require(!is_shell, || "Cluster deploy mode is not applicable to Spark shells.".to_owned())?;
    let file_name = resource.rsplit('/').next().unwrap_or_default();
    let name = given.value("spark.app.name").or(options.class.as_deref()).unwrap_or(file_name).to_owned();
    let (main_class, resource) = main(options, resource, files)?;

    let mut conf = SparkConf::default();
    for Assigned { key, .. } in &ASSIGNED {
        if let Some(value) = given.value(key) {
            conf.set(key, value);
        }
    }
    conf.set("spark.master", master);
    conf.set("spark.submit.deployMode", "cluster");
    conf.set("spark.app.name", name);
    let packages = conf.get("spark.jars.packages").or(given.conf.get("spark.jars.packages"));
    coordinates(packages.unwrap_or_default())?;
    for key in ["spark.jars", "spark.files", "spark.archives"] {
        if let Some(list) = conf.get(key) {
            let list = all_matching(key, list, files, &mut warnings)?;
            conf.set(key, list);
        }
    }
    if let Resource::None | Resource::Java(_) = &resource {
        let mut jars: Vec<String> = conf.list("spark.jars").into_iter().map(str::to_owned).collect();
        if let Resource::Java(jar) = &resource {
            jars.push(jar.clone());
        }
        conf.set("spark.jars", jars.join(","));
    }
    for (key, value) in given.conf.iter() {
        conf.set_if_missing(key, value);
    }
    // The driver's own address is that of its Service.
    conf.remove("spark.driver.host");
    let py_files = given.value("spark.submit.pyFiles").unwrap_or_default();
    conf.set("spark.submit.pyFiles", all_matching("spark.submit.pyFiles", py_files, files, &mut warnings)?);
    conf.set("spark.app.submitTime", submit_millis.to_string());
    for (key, reference) in conf.resolve(&|name| variable(env, name), &|name| property(env, files, name))? {
        warnings.push(format!("{key} refers to {reference}, which has no value: it stays as it is"));
    }
    Ok(Application {
        conf,
        resource,
        main_class,
        args: options.args.clone(),
        proxy_user: options.proxy_user.clone(),
        warnings,
    })
}

/// The class that the driver runs, and the main resource.
fn main(options: &Options, resource: String, files: &dyn Files) -> Result<(String, Resource)> {
    if resource.ends_with(".py") {
        return Ok(("org.apache.spark.deploy.PythonRunner".to_owned(), Resource::Python(resource)));
    }
    if resource.ends_with(".R") || resource.ends_with(".r") {
        return Ok(("org.apache.spark.deploy.RRunner".to_owned(), Resource::R(resource)));
    }
    let class = match &options.class {
        Some(class) => class.clone(),
        None => main_class(&resource, files)?,
    };
    Ok((class, if resource == NO_RESOURCE { Resource::None } else { Resource::Java(resource) }))
}

/// `--conf`, then the properties file, then `spark-defaults.conf`: the first that has a key decides.
fn given(options: &Options, env: &Environment, files: &dyn Files, warnings: &mut Vec<String>) -> Result<SparkConf> {
    let mut all = SparkConf::default();
    for pair in &options.conf {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(SubmitError::new(format!("Invalid argument to --conf: {pair} (expected KEY=VALUE)")));
        };
        all.set(key, value);
    }
    if let Some(path) = &options.properties_file {
        let content =
            files.read(path).map_err(|why| SubmitError::new(format!("Invalid properties file '{path}'. ({why})")))?;
        merge(&mut all, &content)?;
    }
    if options.properties_file.is_none() || options.load_spark_defaults {
        let folder = conf_dir(env);
        if let Some(content) = folder.and_then(|folder| files.read(&format!("{folder}/spark-defaults.conf")).ok()) {
            merge(&mut all, &content)?;
        }
    }
    for (key, value) in of_jvm(env)? {
        all.set_if_missing(&key, &value);
    }
    let foreign: Vec<String> =
        all.iter().map(|(key, _)| key).filter(|key| !key.starts_with("spark.")).map(str::to_owned).collect();
    for key in foreign {
        warnings.push(format!("Ignoring non-Spark config property: {key}"));
        all.remove(&key);
    }
    Ok(all)
}

/// The settings that the JVM of spark-submit gets as system properties (`SparkConf.loadFromSystemProperties`).
fn of_jvm(env: &Environment) -> Result<Vec<(String, String)>> {
    let Some(options) = variable(env, "SPARK_SUBMIT_OPTS") else { return Ok(Vec::new()) };
    let words = shlex::split(&options)
        .ok_or_else(|| SubmitError::new("Invalid option string in SPARK_SUBMIT_OPTS: expected a quote at its end"))?;
    let settings = words.iter().filter_map(|word| {
        let (key, value) = word.strip_prefix("-D")?.split_once('=')?;
        key.starts_with("spark.").then(|| (key.to_owned(), value.to_owned()))
    });
    // The last one counts.
    Ok(settings.rev().collect())
}

/// Adds what a file sets and nothing before it did. Within a file the last value of a key counts.
fn merge(all: &mut SparkConf, content: &[u8]) -> Result<()> {
    let content = String::from_utf8_lossy(content);
    require(properties::is_well_formed(&content), || r"Malformed \uxxxx encoding.".to_owned())?;
    let mut of_file = SparkConf::default();
    // Blanks around a value do not count (`Utils.trimExceptCRLF`).
    properties::each(&content, |key, value| {
        of_file.set(key, value.trim_matches(|c: char| c <= ' ' && c != '\r' && c != '\n'));
    });
    of_file.iter().for_each(|(key, value)| all.set_if_missing(key, value));
    Ok(())
}

/// The system properties of a JVM to which people refer.
fn property(env: &Environment, files: &dyn Files, name: &str) -> Option<String> {
    Some(match name {
        "user.name" => env.user.clone(),
        "user.home" => variable(env, "HOME")?,
        "user.dir" => files.absolute("."),
        "java.io.tmpdir" => "/tmp".to_owned(),
        "os.name" => "Linux".to_owned(),
        "file.separator" => "/".to_owned(),
        _ => return None,
    })
}

/// The folder with Spark's configuration.
pub(super) fn conf_dir(env: &Environment) -> Option<String> {
    variable(env, "SPARK_CONF_DIR").or_else(|| Some(format!("{}/conf", variable(env, "SPARK_HOME")?)))
}

pub(super) fn variable(env: &Environment, name: &str) -> Option<String> {
    env.variables.get(name).map(str::to_owned)
}

/// Refuses units that this version does not read.
pub(super) fn refuse_units(conf: &SparkConf, version: SparkVersion) -> Result<()> {
    let is_memory = |text: &str| is_memory(text, version);
    positive(conf.get("spark.driver.memory"), &is_memory, "Driver memory")?;
    positive(conf.get("spark.executor.memory"), &is_memory, "Executor memory")
}

fn is_memory(text: &str, version: SparkVersion) -> bool {
    usher_spark::conf::bytes(text, version).is_some_and(|bytes| bytes > 0)
}

fn positive(value: Option<&str>, is_valid: &dyn Fn(&str) -> bool, what: &str) -> Result<()> {
    require(value.is_none_or(is_valid), || {
        format!(
            "{what} must be a positive number{}",
            value.map_or_else(String::new, |value| format!(" (it is {value})"))
        )
    })
}

/// What `spark-submit --kill` and `--status` read: the settings of `--conf`, the properties file and `spark-defaults.conf`, with
/// `spark.master`. Returns warnings, too.
pub fn settings(options: &Options, env: &Environment, files: &dyn Files) -> Result<(SparkConf, Vec<String>)> {
    let mut warnings = Vec::new();
    let mut conf = given(options, env, files, &mut warnings)?;
    let master = options.master.clone().or_else(|| conf.get("spark.master").map(str::to_owned));
    if let Some(master) = master.or_else(|| variable(env, "MASTER")) {
        master_url(&master)?;
        conf.set("spark.master", master);
    }
    conf.resolve(&|name| variable(env, name), &|name| property(env, files, name))?;
    Ok((conf, warnings))
}

/// `Utils.checkAndGetK8sMasterUrl`: an error unless it is `k8s://` and a URL, and otherwise the same with the scheme.
pub fn master_url(master: &str) -> Result<String> {
    let Some(url) = master.strip_prefix("k8s://") else {
        let was = if master.is_empty() { "it is missing".to_owned() } else { format!("it is {master}") };
        return Err(SubmitError::new(format!(
            "Kubernetes master URL must start with k8s:// ({was}): expected --master k8s://HOST:PORT"
        )));
    };
    let host = url.split_once("://").map_or(url, |(_, host)| host);
    require(!host.is_empty(), || format!("expected k8s://HOST:PORT as the master, not {master}"))?;
    match url.split_once("://") {
        None => Ok(format!("k8s://https://{url}")),
        Some((scheme, _)) if matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https") => Ok(master.to_owned()),
        Some((scheme, _)) => {
            Err(SubmitError::new(format!("Invalid Kubernetes master scheme: {scheme} found in URL: {url}")))
        }
    }
}

/// The main class that the manifest of a local JAR names.
fn main_class(resource: &str, files: &dyn Files) -> Result<String> {
    let read = match scheme(resource) {
        Some("file") | None => files.main_class(&local_path(resource)),
        Some(scheme) => Err(format!("No FileSystem for scheme \"{scheme}\"")),
    };
    match read {
        Ok(Some(class)) => Ok(class),
        Ok(None) => Err(SubmitError::new(format!(
            "No main class set in JAR; please specify one with --class. (the JAR is {resource})"
        ))),
        Err(why) => Err(SubmitError::new(format!(
            "Failed to get main class in JAR with error '{why}'.  Please specify one with --class. (the JAR is {resource})"
        ))),
    }
}

pub(super) fn scheme(uri: &str) -> Option<&str> {
    let (scheme, _) = uri.split_once(':')?;
    let mut bytes = scheme.bytes();
    let is_scheme = bytes.next().is_some_and(|first| first.is_ascii_alphabetic())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
    is_scheme.then_some(scheme)
}

/// `Utils.resolveURI`: a path without a scheme is a local file.
pub(super) fn resolved(path: &str, files: &dyn Files) -> String {
    if scheme(path).is_some() {
        return path.to_owned();
    }
    match path.split_once('#') {
        Some((path, fragment)) => format!("{}#{fragment}", file_uri(&files.absolute(path))),
        None => file_uri(&files.absolute(path)),
    }
}

/// A path as a URI. Only what would stand for another character is escaped.
fn file_uri(path: &str) -> String {
    format!("file:{}", path.replace('%', "%25"))
}

/// The path of a `file:` URI, or a path.
pub(super) fn local_path(uri: &str) -> Cow<'_, str> {
    let Some(path) = uri.strip_prefix("file:") else { return uri.into() };
    let path = path.strip_prefix("//").unwrap_or(path);
    let path = percent_encoding::percent_decode_str(path).decode_utf8().unwrap_or(path.into());
    if path.starts_with("//") { format!("/{}", path.trim_start_matches('/')).into() } else { path }
}

/// A list of paths and URIs, with the local files that its paths name (`DependencyUtils.resolveGlobPaths`).
fn all_matching(key: &str, list: &str, files: &dyn Files, warnings: &mut Vec<String>) -> Result<String> {
    let mut all = Vec::new();
    for path in list.split(',').map(str::trim).filter(|path| !path.is_empty()) {
        let uri = resolved(path, files);
        if scheme(&uri) != Some("file") {
            all.push(uri);
            continue;
        }
        let (base, fragment) = uri.split_once('#').map_or((uri.as_str(), None), |(base, name)| (base, Some(name)));
        let found =
            files.matching(&local_path(base)).map_err(|why| SubmitError::new(format!("{key}: {path}: {why}")))?;
        // The upload says that it is missing.
        let Some(found) = found else {
            all.push(uri);
            continue;
        };
        if found.is_empty() {
            warnings.push(format!("{key}: {path} names no file: it is left out, as by spark-submit"));
        }
        let found: Vec<String> = found.iter().map(|file| file_uri(file)).collect();
        match fragment {
            Some(_) if found.len() > 1 => {
                return Err(SubmitError::new(format!(
                    "{base} resolves ambiguously to multiple files: {}",
                    found.join(",")
                )));
            }
            Some(name) => all.extend(found.into_iter().map(|file| format!("{file}#{name}"))),
            None => all.extend(found),
        }
    }
    Ok(all.join(","))
}

/// Checks Maven coordinates (`MavenUtils.extractMavenCoordinates`). spark-submit looks for a group with a space at its beginning, and does
/// not find it.
fn coordinates(list: &str) -> Result<()> {
    if list.trim().is_empty() {
        return Ok(());
    }
    for one in list.trim_end_matches(',').split(',') {
        let separated = one.replace('/', ":");
        let parts: Vec<&str> = separated.trim_end_matches(':').split(':').collect();
        let is_form = parts.len() == 3;
        require(is_form, || {
            format!(
                "Provided Maven Coordinates must be in the form 'groupId:artifactId:version'. The coordinate provided is: {one}"
            )
        })?;
        for (part, name) in parts.iter().zip(["groupId", "artifactId", "version"]) {
            let is_blank = part.trim().is_empty();
            require(!is_blank, || {
                format!("The {name} cannot be null or be whitespace. The {name} provided is: {part}")
            })?;
            require(!part.contains(char::is_whitespace), || {
                format!(
                    "spark.jars.packages: expected coordinates without spaces, such as GROUP:ARTIFACT:VERSION,GROUP:ARTIFACT:VERSION, not {one:?}"
                )
            })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_of_packages_have_three_parts_without_spaces() {
        for good in ["", " ", "a:b:1", "a:b:1,c/d:2,", "org.example:a_2.13:4.3.0"] {
            assert!(coordinates(good).is_ok(), "{good}");
        }
        let error = |list: &str| coordinates(list).unwrap_err().to_string();
        for list in ["a", "a:b", "a:b:", "a:b:1:2", "a:b:1,,c:d:2"] {
            assert!(error(list).contains("must be in the form 'groupId:artifactId:version'"), "{list}");
        }
        assert!(error("a: :1").contains("The artifactId cannot be null or be whitespace"));
        assert!(error("a:b:1, c:d:2").contains("without spaces"), "spark-submit resolves no group \" c\"");
    }

    #[test]
    fn file_uris_are_decoded_and_paths_are_not() {
        for (uri, path) in [
            ("file:///d/a%20b.txt", "/d/a b.txt"),
            ("file:/d/p%2520q.txt", "/d/p%20q.txt"),
            ("file:////d/lib.py", "/d/lib.py"),
            ("file:///d/a b.txt", "/d/a b.txt"),
            ("file:///d/%ff%zz", "/d/%ff%zz"),
            ("/d/p%20q.txt", "/d/p%20q.txt"),
            ("//host/x", "//host/x"),
        ] {
            assert_eq!(local_path(uri), path, "{uri}");
        }
        assert_eq!(local_path(&file_uri("/d/50% of %20.txt")), "/d/50% of %20.txt");
    }

    #[test]
    fn options_of_the_jvm_are_settings_unless_a_quote_is_open() {
        let read = |text: &str| {
            of_jvm(&Environment { user: String::new(), variables: [("SPARK_SUBMIT_OPTS", text)].into_iter().collect() })
        };
        let expected = [("spark.a".to_owned(), "2 3".to_owned()), ("spark.a".to_owned(), "1".to_owned())];
        assert_eq!(read("-Xmx1g -Dspark.a=1 '-Dspark.a=2 3' -Dother=x -Dspark.b").unwrap(), expected);
        assert!(
            read("'-Dspark.a=1").unwrap_err().to_string().starts_with("Invalid option string in SPARK_SUBMIT_OPTS")
        );
    }
}
