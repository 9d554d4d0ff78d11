//! `spark-usher explain` and `spark-usher config`, run as programs.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::support::*;
use serde_json::{Value, json};

fn usher(args: &[&str], stdin: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_spark-usher"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.wait_with_output().unwrap()
}

fn check_policy(text: &str) -> Output {
    usher(&["config", "check", "-"], &policy_file(text))
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn out(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn err(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn json_of(args: &[&str], stdin: &str) -> Value {
    let output = usher(&[&["explain", "-o", "json"], args].concat(), stdin);
    serde_json::from_str(out(&output)).unwrap_or_else(|e| panic!("{e}: {}{}", out(&output), err(&output)))
}

fn file(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

const VOLCANO: &str = "
policies:
- name: batch
  match: {namespaces: ['def*']}
  scheduler: {type: volcano, name: volcano, replace: default}
  queue: analytics
  priorityClass: {driver: high, executor: batch}
  gang: {enabled: true, shape: executors, minMember: auto, name: '{driver}-{app8}'}
  overrides: [queue]
  validate: Audit
  strict: false
creators: {never: []}
trustedWriters: []
lifecycle: {grace: 180s, finished: label, keepFailed: 1h, poll: 5m, dryRun: false}
recovery: {stuck: {mode: warn, after: 10m, initAfter: 1h, budget: 5/h}}
nodes: {window: 30m, failures: 3, avoid: false, maxShare: 5%}
";

#[test]
fn json_has_every_key_for_every_recorded_review() {
    let (_folder, config) = file("policy.yaml", &policy_file(VOLCANO));
    for (name, review) in all_recorded() {
        let path = fixture_path(&format!("reviews/spark-4.3.0/{name}.json"));
        let explained = json_of(&["--config", config.to_str().unwrap(), "-f", path.to_str().unwrap()], "");
        let keys: Vec<&str> = explained.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            ["allowed", "driver", "object", "patch", "policy", "reason", "violations", "warnings"],
            "{name}"
        );
        assert_eq!(explained["allowed"], true);
        let mut object = review["request"]["object"].clone();
        let patch: json_patch::Patch = serde_json::from_value(explained["patch"].clone()).unwrap();
        json_patch::patch(&mut object, &patch).unwrap();
        assert_eq!(explained["object"], object, "{name}");
    }
}

#[test]
fn explain_shows_decision_for_recorded_client_mode_executor() {
    let (_folder, config) = file("policy.yaml", &policy_file(VOLCANO));
    let path = fixture_path("reviews/spark-4.3.0/client-mode/exec-1.mutate.create.json");
    let explained = json_of(&["--config", config.to_str().unwrap(), "-f", path.to_str().unwrap()], "");
    assert_eq!(explained["reason"], "SchedulingSet");
    assert_eq!(explained["policy"], "batch");
    assert_eq!(
        explained["driver"],
        json!({"how": "creator", "name": "notebook-driver", "uid": DRIVER_UID, "namespace": "default"})
    );
    let text = usher(&["explain", "--config", config.to_str().unwrap(), "-f", path.to_str().unwrap()], "");
    assert_eq!(code(&text), 0);
    assert!(out(&text).contains("spec.schedulerName: default-scheduler -> volcano"), "{}", out(&text));
    assert!(out(&text).contains("identified by creator"), "{}", out(&text));
}

#[test]
fn bare_yaml_pod_from_stdin_uses_creator_from_as_flags() {
    let yaml = "kind: Pod\napiVersion: v1\nmetadata:\n  name: e\n  namespace: team\n  labels: {spark-role: executor, spark-app-selector: spark-1}\nspec: {containers: [{name: c}]}\n";
    let anonymous = json_of(&["-f", "-"], yaml);
    assert_eq!((&anonymous["reason"], &anonymous["driver"]), (&json!("NoCreator"), &Value::Null));
    assert!(anonymous["warnings"][0].as_str().unwrap().starts_with("spark-usher: "));
    let by_driver = json_of(
        &[
            "-f",
            "-",
            "--as",
            "system:serviceaccount:team:spark",
            "--as-extra",
            "authentication.kubernetes.io/pod-name=d",
            "--as-extra",
            "authentication.kubernetes.io/pod-uid=u1",
        ],
        yaml,
    );
    assert_eq!(by_driver["reason"], "Owned");
    assert_eq!(by_driver["object"]["metadata"]["ownerReferences"][0]["uid"], "u1");
}

#[test]
fn pods_flag_provides_drivers_namespaces_and_configurations() {
    let surroundings = json!({"kind": "List", "apiVersion": "v1", "items": [
        driver().conf_map("the-map").0,
        {"kind": "ConfigMap", "metadata": {"name": "the-map", "namespace": "default"}, "data": {"spark.properties": "spark.executor.instances=4"}},
        {"kind": "Namespace", "metadata": {"name": "default", "labels": {"env": "prod"}}},
        {"kind": "PriorityClass", "metadata": {"name": "other"}},
    ]});
    let (_pods, pods) = file("pods.json", &surroundings.to_string());
    let (_config, config) = file(
        "c.yaml",
        &policy_file(
            "policies:\n- name: gold\n  match: {namespaceSelector: {matchLabels: {env: prod}}}\n  scheduler: {type: koordinator}\n  priorityClass: {executor: batch}\n  gang: {membership: annotations}\n",
        ),
    );
    let review = executor(1).created_by_pod("nb-driver", DRIVER_UID).to_string();
    let explained =
        json_of(&["-f", "-", "--config", config.to_str().unwrap(), "--pods", pods.to_str().unwrap()], &review);
    assert_eq!(explained["policy"], "gold");
    assert_eq!(explained["reason"], "PriorityClassMissing");
    assert_eq!(explained["object"]["metadata"]["annotations"]["gang.scheduling.koordinator.sh/min-available"], "4");
    let cold = json_of(&["-f", "-", "--config", config.to_str().unwrap()], &review);
    assert_eq!(cold["reason"], "NamespaceUnknown");
}

#[test]
fn service_leads_to_the_driver_that_is_its_controlling_owner() {
    let by_service = |owner: Value| {
        let service =
            json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": "s", "ownerReferences": [owner]}});
        let (_pods, pods) = file("pods.json", &service.to_string());
        let review = executor(1).driver_url("s.default.svc").created_by("admin").to_string();
        json_of(&["-f", "-", "--pods", pods.to_str().unwrap()], &review)["driver"].clone()
    };
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "nb-driver", "uid": DRIVER_UID, "controller": true});
    let found = by_service(owner.clone());
    assert_eq!(
        (&found["how"], &found["name"], &found["uid"]),
        (&json!("driver-url"), &json!("nb-driver"), &json!(DRIVER_UID))
    );
    for (key, other) in [("controller", json!(false)), ("kind", json!("Job")), ("apiVersion", json!("x/v1"))] {
        let mut owner = owner.clone();
        owner[key] = other;
        assert_eq!(by_service(owner), Value::Null, "{key}");
    }
}

#[test]
fn exit_code_is_0_if_allowed_1_if_denied_2_if_unreadable() {
    let (_folder, strict) = file("strict.yaml", &policy_file("policies:\n- name: s\n  strict: true\n"));
    let review = executor(1).created_by("admin").to_string();
    assert_eq!(code(&usher(&["explain", "-f", "-"], &review)), 0);
    let denied = usher(&["explain", "-f", "-", "--config", strict.to_str().unwrap()], &review);
    assert_eq!(code(&denied), 1);
    assert!(out(&denied).contains("denied"));
    for (args, stdin, expected) in [
        (vec!["explain", "-f", "/nonexistent"], "", "cannot read /nonexistent"),
        (vec!["explain", "-f", "-"], "", "found nothing"),
        (vec!["explain", "-f", "-"], "{", "expected JSON"),
        (vec!["explain", "-f", "-"], "kind: Deployment", "found kind Deployment"),
        (vec!["explain", "-f", "-"], "a: 1", "found no kind"),
        (vec!["explain", "-f", "-"], "kind: Pod\n---\nkind: Pod\n", "several documents"),
        (
            vec!["explain", "-f", "-"],
            "kind: AdmissionReview\napiVersion: v9\n",
            "expected kind AdmissionReview of apiVersion admission.k8s.io/v1",
        ),
        (vec!["explain", "-f", "-", "--config", "/nonexistent"], "kind: Pod", "cannot read the policy file"),
        (vec!["explain", "-f", "-", "--pods", "/nonexistent"], "kind: Pod", "cannot read /nonexistent"),
    ] {
        let output = usher(&args, stdin);
        assert_eq!(code(&output), 2, "{args:?} {stdin}");
        assert!(err(&output).contains(expected), "{args:?} {stdin}: {}", err(&output));
    }
}

#[test]
fn valid_policy_file_passes_check() {
    let output = check_policy(VOLCANO);
    assert_eq!(code(&output), 0, "{}", err(&output));
    assert!(out(&output).lines().nth(1).unwrap().starts_with("batch    volcano"), "{}", out(&output));
}

#[test]
fn invalid_policy_file_is_rejected_with_line_key_and_expected_value() {
    for (text, line, key, expected) in [
        ("policies: 3", 1, "policies", "a list"),
        ("polices: []", 1, "polices", "unknown field"),
        ("policies:\n- name: A b", 2, "policies[0].name", "1 to 40 characters of a-z, 0-9 and -"),
        ("policies:\n- scheduler: {}", 2, "policies[0]", "missing field `name`"),
        ("policies:\n- name: a\n  gang: {enabled: maybe}", 3, "policies[0].gang.enabled", "expected true or false"),
        (
            "policies:\n- name: a\n  scheduler: {type: slurm}",
            3,
            "policies[0].scheduler.type",
            "expected one of none, kube-batch, volcano",
        ),
        (
            "policies:\n- name: a\n  scheduler: {replace: sometimes}",
            3,
            "policies[0].scheduler.replace",
            "expected one of default, always",
        ),
        (
            "policies:\n- name: a\n  scheduler: {type: volcano, name: A_b}",
            3,
            "policies[0].scheduler.name",
            "a letter or digit at both ends",
        ),
        (
            "policies:\n- name: a\n  priorityClass: {executor: '-x'}",
            3,
            "policies[0].priorityClass.executor",
            "a letter or digit at both ends",
        ),
        ("policies:\n- name: a\n  scheduler: {type: kueue}", 2, "policies[0].queue", "expected a queue"),
        (
            "policies:\n- name: a\n  scheduler: {type: yunikorn}\n  queue: a/b",
            4,
            "policies[0].queue",
            "reads the queue from a label",
        ),
        (
            "policies:\n- name: a\n  scheduler: {type: native}\n  gang: {shape: app}",
            4,
            "policies[0].gang.shape",
            "expected executors",
        ),
        (
            "policies:\n- name: a\n  scheduler: {type: volcano}\n  gang: {membership: annotations}",
            4,
            "policies[0].gang.membership",
            "expected podGroup",
        ),
        (
            "policies:\n- name: a\n  gang: {minMember: 0}",
            3,
            "policies[0].gang.minMember",
            "expected auto or a whole number",
        ),
        (
            "policies:\n- name: a\n  gang: {name: '{driver}'}",
            3,
            "policies[0].gang.name",
            "expected {app8} exactly once",
        ),
        (
            "policies:\n- name: a\n  overrides: [color]",
            3,
            "policies[0].overrides[0]",
            "expected one of skip, scheduler",
        ),
        ("policies:\n- name: a\n- name: a", 3, "policies[1].name", "expected a unique name"),
        ("policies:\n- name: a\n  name: b", 3, "", "duplicate mapping key"),
        (
            "policies:\n- name: a\n  match: {podSelector: {matchExpressions: [{key: x, operator: In}]}}",
            3,
            "policies[0].match.podSelector",
            "expected values",
        ),
        (
            "policies:\n- name: a\n  match: {podSelector: {matchLabels: {team: y}}}",
            3,
            "policies[0].match.podSelector",
            "boolean `true`, expected a string: write it in quotes",
        ),
        (
            "policies:\n- name: a\n  match: {namespaceSelector: {matchExpressions: [{key: a, operator: In, values: [x, n]}]}}",
            3,
            "policies[0].match.namespaceSelector",
            "boolean `false`, expected a string: write it in quotes",
        ),
        (
            "policies:\n- name: a\n  match: {podSelector: {matchLabels: {team: a b}}}",
            3,
            "policies[0].match.podSelector",
            "\"a b\" is not the value of a label",
        ),
        (
            "policies:\n- name: a\n  match: {namespaceSelector: {matchExpressions: [{key: a/b/c, operator: Exists}]}}",
            3,
            "policies[0].match.namespaceSelector",
            "\"a/b/c\" is not the key of a label",
        ),
        (
            "policies:\n- name: a\n  nodePool: {pool: 1}",
            3,
            "policies[0].nodePool",
            "expected a string: write it in quotes",
        ),
        ("lifecycle: {grace: soon}", 1, "lifecycle.grace", "expected a value such as 180s"),
        ("lifecycle: {finished: burn}", 1, "lifecycle.finished", "expected one of report, label, delete"),
        ("recovery: {stuck: {budget: lots}}", 1, "recovery.stuck.budget", "such as 5/h"),
        ("recovery: {stuck: {mode: kill}}", 1, "recovery.stuck.mode", "expected off, warn or act"),
        ("recovery: {stuck: {mode: true}}", 1, "recovery.stuck.mode", "expected off, warn or act"),
        ("recovery: {vanished: {mode: act}}", 1, "recovery.vanished.mode", "expected off or warn"),
        ("recovery: {givenUp: {after: 1m}}", 1, "recovery.givenUp", "views"),
        ("recovery: {groups: {budget: 1/h}}", 1, "recovery.groups", "mode"),
        ("nodes: {maxShare: 5}", 1, "nodes.maxShare", "expected 0% to 100%"),
        ("nodes: {failures: many}", 1, "nodes.failures", "expected a whole number"),
        ("recovery: {stuck: {mode: off, mode: act}}", 1, "recovery.stuck", "mode: expected each key once"),
        ("policies: [", 2, "", ""),
        ("policies:\n- name: default", 2, "policies[0].name", "expected another name"),
        ("policies:\n- name:", 2, "policies[0].name", "found no value, expected a string"),
    ] {
        let output = check_policy(text);
        assert_eq!(code(&output), 1, "{text}");
        let message = err(&output);
        assert!(message.contains(&format!("line {line}, ")), "{text}: {message}");
        assert!(message.contains(key) && message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn check_says_which_pods_would_be_deleted() {
    for (text, expected) in [
        ("", vec!["no pods are deleted: recovery rules only report"]),
        (
            "recovery: {act: true, stuck: {mode: act}, orphans: {mode: warn}}\nlifecycle: {finished: delete, keepFailed: 7d}",
            vec![
                "by: recovery.stuck (",
                ", for 10m, or 1h in init containers); recovery.refused (",
                "; lifecycle.finished (",
            ],
        ),
        ("recovery: {act: true}", vec!["pods are deleted by: recovery.orphans (", ", for 5m); recovery.refused ("]),
        ("recovery: {act: false, stuck: {mode: act}}", vec!["no pods are deleted: recovery rules only report"]),
        (
            "lifecycle: {dryRun: true, finished: delete}",
            vec!["no pods are deleted (lifecycle.dryRun); they would be by: lifecycle"],
        ),
    ] {
        let output = check_policy(text);
        let last = out(&output).lines().last().unwrap();
        assert!(code(&output) == 0 && expected.iter().all(|part| last.contains(part)), "{text}: {last}");
    }
    let warned = |text: &str| err(&check_policy(text)).to_owned();
    assert!(warned("nodes: {window: 0s}").contains("nodes.window is 0: no node is ever suspect"));
    assert!(warned("lifecycle: {poll: 100ms}").contains("; 1s applies"));
}

#[test]
fn unreachable_policy_and_unused_section_yield_warnings() {
    let output = check_policy("policies:\n- name: all\n- name: never\nnodes: {avoid: true}\n");
    let interval = check_policy("recovery: {driverView: {interval: 1s}}\n");
    assert!(err(&interval).contains("recovery.driverView.interval is 1s: drivers are polled every 5s at most"));
    for (text, expected) in [
        (
            "driverView: {access: none}, stuck: {mode: act}",
            "recovery.stuck.mode is act, but recovery.driverView.access is none",
        ),
        ("orphans: {after: 1s}", "recovery.orphans.after is less than 10s, which applies"),
        ("stuck: {initAfter: 1s}", "recovery.stuck.initAfter is less than 10s, which applies"),
        ("hopeless: {mode: act, budget: 0/h}", "recovery.hopeless.mode is act with a budget of 0: nothing is deleted"),
        (
            "driverView: {access: none}, hopeless: {mode: act}",
            "recovery.hopeless.mode is act, but recovery.driverView.access is none",
        ),
        ("givenUp: {views: 0}", "recovery.givenUp.views is 0: 1 applies"),
        ("budget: 0/h", "recovery.orphans.mode is act with a budget of 0: nothing is deleted"),
    ] {
        let output = check_policy(&format!("recovery: {{act: true, {text}}}"));
        assert!(code(&output) == 0 && err(&output).contains(expected), "{text}: {}", err(&output));
    }
    let unused = check_policy("recovery: {stuck: {mode: act}}");
    assert!(err(&unused).contains("recovery.stuck.mode is act, but recovery.act is false: the rule only reports"));
    // Helm reads the word off as a boolean.
    for text in ["recovery: {orphans: {mode: false}}", "recovery: {orphans: {mode: off}, act: false}"] {
        assert_eq!(err(&check_policy(text)).lines().filter(|line| line.contains("recovery")).count(), 0);
    }
    assert_eq!(code(&output), 0);
    assert!(
        err(&output).contains("policies[1] (never) is never reached: policy all before it matches every pod"),
        "{}",
        err(&output)
    );
    for (text, expected) in [
        ("nodes: {avoid: true, enabled: false}", "nodes.avoid is true, but nodes.enabled is false"),
        ("nodes: {avoid: true, maxShare: 0%}", "nodes.avoid is true with a maxShare of 0%"),
        ("nodes: {applications: 1}", "nodes.applications is 1: one broken application"),
        ("nodes: {failures: 100}", "nodes.failures is 100: 64 applies"),
    ] {
        let output = check_policy(text);
        assert!(code(&output) == 0 && err(&output).contains(expected), "{text}: {}", err(&output));
    }
}

/// Every key has a default: what is left of a file that is being written, or was lost, would switch every policy off.
#[test]
fn file_without_api_version_or_kind_is_rejected() {
    let check = |text: &str| usher(&["config", "check", "-"], text);
    let complete = check("apiVersion: spark-usher.io/v1alpha1\nkind: PolicyFile\n");
    assert_eq!((code(&complete), err(&complete)), (0, ""));
    let expected = "expected apiVersion: spark-usher.io/v1alpha1 and kind: PolicyFile, also in a file without policies";
    for (text, missing) in [
        ("policies: []", "apiVersion and kind are missing"),
        ("kind: PolicyFile", "apiVersion is missing"),
        ("apiVersion: spark-usher.io/v1alpha1", "kind is missing"),
        ("", "apiVersion and kind are missing"),
        ("# nothing yet\n", "apiVersion and kind are missing"),
        ("null", "apiVersion and kind are missing"),
        ("---\n", "apiVersion and kind are missing"),
        ("{}", "apiVersion and kind are missing"),
        ("~\n...\n", "apiVersion and kind are missing"),
    ] {
        let output = check(text);
        assert_eq!(code(&output), 1, "{text:?}");
        assert!(err(&output).contains(&format!("{missing}: {expected}")), "{text:?}: {}", err(&output));
    }
    // A later version may have keys that this one does not know: the error is the version, not the keys.
    for (text, expected) in [
        (
            "kind: PolicyFile\napiVersion: spark-usher.io/v2\nteams: []",
            "line 2, column 13: apiVersion: unknown apiVersion \"spark-usher.io/v2\": expected spark-usher.io/v1alpha1",
        ),
        (
            "apiVersion: spark-usher.io/v1alpha1\nkind: ConfigMap",
            "kind: unknown kind \"ConfigMap\": expected PolicyFile",
        ),
        ("apiVersion: 3\nkind: [PolicyFile]", "kind: expected a string"),
    ] {
        let output = check(text);
        assert_eq!(code(&output), 1, "{text}");
        assert!(err(&output).contains(expected), "{text}: {}", err(&output));
    }
}

#[test]
fn scheduler_requires_type_and_trusted_writers_default_to_its_accounts() {
    let without_type = "policies: [{name: a, scheduler: {name: x}}]";
    let (_folder, path) = file("policy.yaml", &policy_file(without_type));
    let output = usher(&["config", "check", path.to_str().unwrap()], "");
    assert_eq!(code(&output), 1, "{}", err(&output));
    assert!(err(&output).contains("scheduler.type"), "{}", err(&output));
    let writer = "system:serviceaccount:volcano-system:volcano-controllers";
    let trusts = |text: &str| usher_config::from_text(&policy_file(text)).unwrap().policies.is_trusted_writer(writer);
    assert!(trusts("policies: [{name: a, scheduler: {type: volcano}}]"));
    assert!(!trusts("policies: [{name: a, scheduler: {type: native}}]"));
    assert!(
        !trusts("policies: [{name: a, scheduler: {type: volcano}}]\ntrustedWriters: []"),
        "only the named accounts"
    );
}

#[test]
fn queue_without_effect_yields_warning() {
    let check = |rest: &str| {
        let output = check_policy(&format!("policies: [{{name: a, queue: q, scheduler: {{{rest}}}]"));
        assert_eq!(code(&output), 0, "{rest}");
        err(&output).to_owned()
    };
    assert!(check("type: coscheduling}").contains("policies[0].queue has no effect: coscheduling has no queues"));
    let alone = check("type: kube-batch}, gang: {enabled: false}");
    assert!(
        alone.contains("kube-batch reads the queue from the PodGroup, and this policy creates no gangs"),
        "{alone}"
    );
    let kai = check("type: kai}, queues: [q]");
    assert!(
        kai.contains("policies[0].queues does not restrict the queue that the labels of a pod's topmost owner name"),
        "{kai}"
    );
    // With gangs, the PodGroups have the queue.
    for kind in ["kube-batch", "volcano"] {
        let warnings = check(&format!("type: {kind}}}"));
        assert!(!warnings.contains("queue"), "{kind}: {warnings}");
    }
}

#[test]
fn schema_validates_policy_file_and_describes_every_key() {
    let output = usher(&["config", "schema"], "");
    let schema: Value = serde_json::from_str(out(&output)).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let good: Value = serde_saphyr::from_str(&policy_file(VOLCANO)).unwrap();
    let errors: Vec<String> = validator.iter_errors(&good).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}");
    for bad in [
        json!({"polices": []}),
        json!({"policies": [{}]}),
        json!({"policies": [{"name": "a", "scheduler": {"type": "slurm"}}]}),
        json!({"nodes": {"maxShare": "5"}}),
    ] {
        let of_version = json!({"apiVersion": "spark-usher.io/v1alpha1", "kind": "PolicyFile"});
        assert!(validator.is_valid(&of_version));
        let complete: serde_json::Map<String, Value> = of_version
            .as_object()
            .unwrap()
            .iter()
            .chain(bad.as_object().unwrap())
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        assert!(!validator.is_valid(&complete.into()), "{bad}");
    }
    assert!(!validator.is_valid(&json!({"policies": []})), "apiVersion and kind are required");
    fn undescribed(schema: &Value, path: &str, missing: &mut Vec<String>) {
        for (key, property) in schema["properties"].as_object().into_iter().flatten() {
            if property.get("description").is_none() {
                missing.push(format!("{path}.{key}"));
            }
        }
    }
    let mut missing = Vec::new();
    undescribed(&schema, "", &mut missing);
    for (name, definition) in schema["$defs"].as_object().unwrap() {
        undescribed(definition, name, &mut missing);
    }
    assert!(missing.is_empty(), "keys without a description: {missing:?}");
}

#[test]
fn bare_executor_defaults_to_its_driver_as_creator_unless_as_is_set() {
    let (_folder, pods) = file("pods.json", &driver().0.to_string());
    let (_other, policy) = file("policy.yaml", &policy_file(VOLCANO));
    let args = ["-f", "-", "--config", policy.to_str().unwrap(), "--pods", pods.to_str().unwrap()];
    let executor = executor(1).0.to_string();
    let assumed = json_of(&args, &executor);
    assert_eq!((&assumed["driver"]["how"], &assumed["driver"]["uid"]), (&json!("creator"), &json!(DRIVER_UID)));
    assert_eq!(assumed["object"]["metadata"]["ownerReferences"][0]["name"], "nb-driver");
    let text = usher(&[&["explain"], &args[..]].concat(), &executor);
    assert!(out(&text).contains("creator  the driver's pod nb-driver (default; --as sets another)"), "{}", out(&text));
    let by_admin = json_of(&[&args[..], &["--as", "admin"]].concat(), &executor);
    assert_eq!(by_admin["reason"], "NoCreator");
    let review = recorded("client-mode/exec-1.mutate.create").to_string();
    let both = usher(&["explain", "-f", "-", "--as", "admin"], &review);
    assert_eq!(code(&both), 2);
    assert!(err(&both).contains("--as applies to a bare Pod only"), "{}", err(&both));
}

#[test]
fn numeric_resource_quantities_are_accepted() {
    let text = "{apiVersion: v1, kind: Pod, metadata: {name: e, labels: {spark-role: executor, spark-app-selector: a}}, \
                spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 1, memory: 1Gi}}}]}}";
    let (_folder, pods) = file("pods.yaml", &text.replace("name: e", "name: f, uid: u"));
    let explained = usher(&["explain", "-f", "-", "--pods", pods.to_str().unwrap()], text);
    assert_eq!(code(&explained), 0, "{}", err(&explained));
}

/// As the webhook, which reads only the head of such a review.
#[test]
fn review_beyond_a_limit_is_explained_by_its_head() {
    let mut pod = executor(1);
    pod.0["spec"]["containers"][0]["env"] =
        (0..60_000).map(|n| json!({"name": format!("A{n}"), "value": "x"})).collect();
    let strict = policy_file("policies: [{name: s, strict: true, validate: Enforce}]");
    let (_folder, config) = file("strict.yaml", &strict);
    let output = usher(&["explain", "-f", "-", "--config", config.to_str().unwrap()], &pod.0.to_string());
    assert_eq!(code(&output), 1, "{}", err(&output));
    assert!(out(&output).contains("TooLarge") && out(&output).contains("262,144"), "{}", out(&output));
}

#[test]
fn explain_reads_nodes_and_ignores_quotas() {
    let others = json!({"kind": "List", "items": [
        {"kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "default"}},
        {"kind": "Node", "metadata": {"name": "n1", "uid": "n", "labels": {"pool": "spark"}}, "status": {}},
    ]});
    let (_folder, pods) = file("pods.json", &others.to_string());
    let (_config, config) =
        file("c.yaml", &policy_file("policies: [{name: p, scheduler: {type: volcano}, nodePool: {pool: spark}}]"));
    let on_node = executor(1).spec("nodeName", "n1").spec("schedulerName", "mine");
    let args = ["explain", "-f", "-", "--config", config.to_str().unwrap(), "--pods", pods.to_str().unwrap()];
    let output = usher(&args, &on_node.0.to_string());
    assert!(out(&output).contains("can only run on nodes with pool=spark"), "{}{}", out(&output), err(&output));
}
