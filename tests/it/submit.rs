//! Submissions, compared with what the real spark-submit sent for the same arguments (`tests/submit_spark.py`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::support::policy_file;
use serde_json::{Value, json};
use usher_spark::properties;
use usher_spark::version::SparkVersion;
use usher_submit::submission::{Preview, preview};
use usher_submit::{Environment, Files, SparkConf, Submission, Unique};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/submit")
}

/// The files of the captures.
struct Recorded;

impl Recorded {
    fn path(path: &str) -> PathBuf {
        fixtures().join("files").join(path.strip_prefix("@FILES@/").unwrap_or(path))
    }
}

impl Files for Recorded {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        std::fs::read(Recorded::path(path)).map_err(|error| error.to_string())
    }

    fn list(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(Recorded::path(folder)).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }

    fn absolute(&self, path: &str) -> String {
        format!("@FILES@/{path}")
    }

    fn matching(&self, path: &str) -> Result<Option<Vec<String>>, String> {
        let whole = Recorded::path(path);
        if whole.exists() {
            return Ok(Some(if whole.is_file() { vec![path.to_owned()] } else { Vec::new() }));
        }
        if !path.contains('*') {
            return Ok(None);
        }
        let found = glob::glob(whole.to_str().unwrap()).unwrap().map(Result::unwrap);
        let name = |file: PathBuf| {
            format!("@FILES@/{}", file.strip_prefix(fixtures().join("files")).unwrap().to_str().unwrap())
        };
        Ok(Some(found.filter(|file| file.is_file()).map(name).collect()))
    }

    fn main_class(&self, path: &str) -> Result<Option<String>, String> {
        Err(format!("File file:{path} does not exist"))
    }
}

fn unique() -> Unique {
    Unique {
        millis: 1_795_227_631_055,
        app: "0123456789abcdef0123456789abcdef".to_owned(),
        digits: ["aaaaaa", "bbbbbb", "cccccc"].map(str::to_owned),
        uuids: (0..9).map(|number| format!("{number:08}-0000-4000-8000-000000000000")).collect(),
    }
}

/// What is submitted with these arguments; those of the form `KEY=VALUE` before the first option are variables.
fn submitted(arguments: &[String], version: SparkVersion) -> usher_submit::Result<Submission> {
    let is_variable = |arg: &&String| {
        arg.split_once('=').is_some_and(|(key, _)| key.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'))
    };
    let variables: Vec<&String> = arguments.iter().take_while(is_variable).collect();
    let mut given: Vec<String> =
        ["--master", "k8s://http://127.0.0.1:18080", "--deploy-mode", "cluster", "--conf"].map(str::to_owned).into();
    given.push("spark.kubernetes.submission.waitAppCompletion=false".to_owned());
    given.extend(arguments.iter().skip(variables.len()).cloned());
    let env = Environment {
        user: "root".to_owned(),
        variables: variables.iter().filter_map(|arg| arg.split_once('=')).collect::<SparkConf>(),
    };
    let options = usher_submit::parse(&given)?;
    let unique = unique();
    let app = usher_submit::prepare(&options, &env, &Recorded, unique.millis)?;
    usher_submit::build(&app, &env, &Recorded, version, &unique)
}

/// What differs from run to run, replaced.
fn normal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let hex = |text: &str, count: usize| {
        text.len() >= count
            && text.as_bytes()[..count].iter().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase())
    };
    let uuid = |text: &str| {
        let parts = [8, 4, 4, 4, 12];
        let mut at = 0;
        parts.iter().enumerate().all(|(number, length)| {
            let ok = text.get(at..).is_some_and(|rest| hex(rest, *length))
                && (number == 4 || text.get(at + length..at + length + 1) == Some("-"));
            at += length + 1;
            ok
        })
    };
    while let Some(c) = rest.chars().next() {
        let begins = !out.ends_with(|c: char| c.is_ascii_alphanumeric());
        if begins && uuid(rest) {
            out.push_str("UUID");
            rest = &rest[36..];
        } else if begins && hex(rest, 32) {
            out.push_str("APP");
            rest = &rest[32..];
        } else if begins && hex(rest, 16) && !rest[16..].starts_with(|c: char| c.is_ascii_alphanumeric()) {
            out.push_str("UNIQUE");
            rest = &rest[16..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

/// Spark shuffles several local folders: their order, and with it the numbers of their volumes, is that of the configuration here. All else
/// has Spark's order.
fn unshuffled(object: &mut Value) {
    let names: BTreeMap<String, String> = [("spark-local-dir-1", "/a"), ("spark-local-dir-2", "/b")]
        .map(|(name, path)| (path.to_owned(), name.to_owned()))
        .into();
    let is_local = |mount: &Value| mount["name"].as_str().is_some_and(|name| name.starts_with("spark-local-dir-"));
    if let Some(mounts) = object.pointer_mut("/spec/containers/0/volumeMounts").and_then(Value::as_array_mut) {
        for mount in mounts.iter_mut().filter(|mount| is_local(mount)) {
            if let Some(name) = mount["mountPath"].as_str().and_then(|path| names.get(path)) {
                mount["name"] = name.as_str().into();
            }
        }
        mounts.sort_by_key(|mount| if is_local(mount) { mount["mountPath"].to_string() } else { String::new() });
    }
    for variable in object.pointer_mut("/spec/containers/0/env").and_then(Value::as_array_mut).into_iter().flatten() {
        if variable["name"] == "SPARK_LOCAL_DIRS" && variable["value"] == "/b,/a" {
            variable["value"] = "/a,/b".into();
        }
    }
}

/// An object in a form in which order and what is random do not matter.
fn comparable(object: &Value) -> Value {
    let mut object: Value = serde_json::from_str(&normal(&object.to_string())).unwrap();
    if let Some(text) = object.pointer("/data/spark.properties").and_then(Value::as_str) {
        let mut all = BTreeMap::new();
        properties::each(text, |key, value| _ = all.insert(key.to_owned(), value.to_owned()));
        if all.contains_key("spark.app.submitTime") {
            all.insert("spark.app.submitTime".to_owned(), "TIME".to_owned());
        }
        object["data"]["spark.properties"] = json!(all);
    }
    unshuffled(&mut object);
    object
}

fn captured(version: &str, case: &str) -> Value {
    let path = fixtures().join(version).join(format!("{case}.json"));
    serde_json::from_str(&with_folders(&path)).unwrap()
}

/// A recorded file; its placeholder stands for an absolute path.
fn with_folders(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.replace("@UPLOADS@", "/@UPLOADS@")
}

fn cases() -> BTreeMap<String, Vec<String>> {
    serde_json::from_str(&with_folders(&fixtures().join("cases.json"))).unwrap()
}

/// Where two values differ.
fn differences(at: &str, real: &Value, own: &Value, out: &mut Vec<String>) {
    match (real, own) {
        (Value::Object(one), Value::Object(other)) => {
            let keys: std::collections::BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            for key in keys {
                differences(
                    &format!("{at}/{key}"),
                    one.get(key).unwrap_or(&Value::Null),
                    other.get(key).unwrap_or(&Value::Null),
                    out,
                );
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (number, (one, other)) in one.iter().zip(other).enumerate() {
                differences(&format!("{at}/{number}"), one, other, out);
            }
        }
        _ if real != own => out.push(format!("{at}: spark-submit has {real}, spark-usher {own}")),
        _ => {}
    }
}

fn compare(name: &str) {
    let version = SparkVersion::parse(name).unwrap();
    let mut wrong = Vec::new();
    // An option that came with Spark 4 is accepted for every version.
    let is_known = |case: &str| name == "3.5.9" && case == "defaults-too";
    for (case, arguments) in cases().into_iter().filter(|(case, _)| !is_known(case)) {
        let capture = captured(name, &case);
        let own = submitted(&arguments, version);
        let requests: Vec<&Value> = capture["requests"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|request| request["body"].is_object() && request["method"] != "DELETE")
            .collect();
        match (&own, capture.get("error")) {
            (Err(error), Some(real)) => {
                let lines: Vec<&str> = real.as_array().unwrap().iter().filter_map(Value::as_str).collect();
                let real = lines.join("\n");
                let words = error.to_string();
                let said = words.split(" (").next().unwrap_or_default();
                if !real.contains(said) {
                    wrong.push(format!("{case}: spark-submit says {real}\n     spark-usher says {words}"));
                }
            }
            (Ok(own), None) => {
                let mut objects = vec![own.pod.clone()];
                objects.extend(own.owned("00000000-0000-4000-8000-000000000001"));
                let kinds = |objects: &mut dyn Iterator<Item = &Value>| {
                    objects.map(|object| object["kind"].to_string()).collect::<Vec<_>>()
                };
                let (real_kinds, own_kinds) =
                    (kinds(&mut requests.iter().map(|request| &request["body"])), kinds(&mut objects.iter()));
                if real_kinds != own_kinds {
                    wrong.push(format!("{case}: spark-submit creates {real_kinds:?}, spark-usher {own_kinds:?}"));
                    continue;
                }
                for (request, object) in requests.iter().zip(&objects) {
                    let mut found = Vec::new();
                    differences(
                        &format!("{case} {}", object["kind"]),
                        &comparable(&request["body"]),
                        &comparable(object),
                        &mut found,
                    );
                    wrong.extend(found);
                }
            }
            (Ok(_), Some(real)) => wrong.push(format!("{case}: spark-submit fails with {real}")),
            (Err(error), None) => wrong.push(format!("{case}: spark-usher fails with {error}")),
        }
    }
    assert!(wrong.is_empty(), "{} differences from spark-submit {name}:\n{}", wrong.len(), wrong.join("\n"));
}

/// spark-submit does not read the sizes of executors: their driver fails.
#[test]
fn size_that_the_driver_cannot_read_is_said() {
    let arguments = |size: &str| {
        let conf = format!("spark.executor.memoryOverhead={size}");
        let more = ["--conf", "spark.kubernetes.container.image=i", "--conf", "spark.my.overhead=1g", "local:///a.jar"];
        ["--class", "A", "--conf", &conf].into_iter().chain(more).map(str::to_owned).collect::<Vec<_>>()
    };
    let of = |size: &str, minor: u16| submitted(&arguments(size), SparkVersion::new(4, minor, 0)).unwrap();
    assert_eq!(of("1Gi", 2).warnings, [""; 0]);
    let warnings = of("1Gi", 1).warnings;
    assert_eq!(
        warnings,
        ["Spark 4.1.0 cannot read spark.executor.memoryOverhead, which is \"1Gi\": it will create no executors"]
    );
    // Spark resolves a reference when it reads the setting.
    let mut reference = of("${spark.my.overhead}", 3);
    assert!(reference.warnings.iter().all(|warning| !warning.contains("cannot read")), "{:?}", reference.warnings);
    reference.add_gang().unwrap();
    let mut submission = of("1.5g", 3);
    assert_eq!(submission.warnings.len(), 1);
    let error = submission.add_gang().unwrap_err().to_string();
    assert_eq!(error, "what executors request is unknown: Spark cannot read spark.executor.memoryOverhead");
}

/// Captures that others made: the arguments, one a line, and the requests.
#[test]
fn objects_equal_those_of_captures_of_others() {
    let mut compared = 0;
    for name in ["4.3.0", "3.5.9"] {
        for case in std::fs::read_dir(fixtures().join(format!("spark-{name}"))).unwrap() {
            let folder = case.unwrap().path();
            let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
            let arguments: Vec<String> = read("args").lines().map(str::to_owned).collect();
            let own = submitted(&arguments, SparkVersion::parse(name).unwrap()).unwrap();
            let requests: Vec<Value> = serde_json::from_str(&read("requests.json")).unwrap();
            let real: Vec<&Value> =
                requests.iter().map(|request| &request["body"]).filter(|body| body.is_object()).collect();
            let uid = real.iter().find_map(|body| body["metadata"]["ownerReferences"][0]["uid"].as_str()).unwrap();
            let objects: Vec<Value> = std::iter::once(own.pod.clone()).chain(own.owned(uid)).collect();
            assert_eq!(real.len(), objects.len(), "{}", folder.display());
            let mut found = Vec::new();
            for (real, own) in real.into_iter().zip(&objects) {
                differences(&folder.display().to_string(), &comparable(real), &comparable(own), &mut found);
            }
            assert!(found.is_empty(), "{}", found.join("\n"));
            compared += 1;
        }
    }
    assert_eq!(compared, 8);
}

#[test]
fn objects_equal_those_of_spark_submit_4_3_0() {
    compare("4.3.0");
}

#[test]
fn objects_equal_those_of_spark_submit_3_5_9() {
    compare("3.5.9");
}

fn previewed(config: &str, more: &[&str]) -> Preview {
    let arguments = ["--name=etl", "--class=a.B", "--num-executors=40", "--executor-memory=14g", "--executor-cores=4"];
    let mut arguments: Vec<String> = arguments.map(str::to_owned).into();
    arguments.push("--conf=spark.kubernetes.container.image=reg.example/spark:1".to_owned());
    arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
    arguments.push("local:///x.jar".to_owned());
    let submission = submitted(&arguments, SparkVersion::NEWEST).unwrap();
    let policies = usher_config::from_text(&policy_file(config)).unwrap().policies;
    preview(&submission, &policies, None).unwrap()
}

const VOLCANO: &str = "policies:\n- name: batch\n  scheduler: {type: volcano}\n  queue: etl\n";

#[test]
fn preview_says_what_the_policies_will_do() {
    let found = previewed(VOLCANO, &[]);
    assert_eq!(
        (found.policy.as_deref(), found.scheduler.as_str(), found.queue.as_deref(), found.members),
        (Some("batch"), "volcano", Some("etl"), Some(40))
    );
    assert_eq!(
        found.summary(),
        "policy batch: scheduler volcano, queue etl, a gang of 40 executors, 160 cpu, 630760Mi memory in all"
    );
    assert_eq!(found.denials, Vec::<String>::new());
    // The driver's annotations count, where the policy allows them.
    let found = previewed(VOLCANO, &["--conf=spark.kubernetes.driver.annotation.spark-usher.io/min-member=10"]);
    assert_eq!(found.members, Some(10), "{found:?}");
    let found = previewed("policies: []", &[]);
    assert_eq!((found.members, found.queue.as_deref(), found.scheduler.as_str()), (None, None, "default-scheduler"));
    assert!(found.summary().ends_with("no gang"), "{}", found.summary());
}

#[test]
fn gang_that_never_fits_its_queue_is_known() {
    let found = previewed(VOLCANO, &[]);
    let (object, queue) = found.queue_object().unwrap();
    assert_eq!((object.plural, queue), ("queues", "etl"));
    let fits = |capability: Value| found.never_fits(&(object.max)(&json!({"spec": {"capability": capability}})));
    assert_eq!(
        fits(json!({"cpu": "64", "memory": "1Ti"})).unwrap(),
        "a gang of 40 executors will never fit queue etl: it requests 160 cpu, and the queue has at most 64"
    );
    assert_eq!((fits(json!({"cpu": "160"})), fits(json!({})), fits(json!({"memory": "2Ti"}))), (None, None, None));
}

#[test]
fn submission_that_the_policy_denies_is_known() {
    let enforced =
        "policies:\n- name: batch\n  scheduler: {type: volcano}\n  queue: etl\n  queues: [etl]\n  validate: Enforce\n";
    assert_eq!(previewed(enforced, &[]).denials, Vec::<String>::new());
    let other = "--conf=spark.kubernetes.executor.label.kueue.x-k8s.io/queue-name=gold";
    let found = previewed(enforced, &[other]);
    assert!(found.denials.iter().any(|why| why.contains("gold")), "{found:?}");
}
