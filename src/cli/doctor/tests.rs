//! Tests of the doctor's findings, each with the facts that cause it.

use serde_json::json;

use super::gather::{Policy, Trial};
use super::*;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use usher_net::tls::ca::Authority;
use usher_server::cluster::vouching::{SETTLE, Vouching};

const NOW: Timestamp = Timestamp::constant(1_790_000_000, 0);
const POLICY: &str =
    "apiVersion: spark-usher.io/v1alpha1\nkind: PolicyFile\npolicies: [{name: batch, scheduler: {type: volcano}}]";

fn policy_file(policies: &str) -> String {
    format!("apiVersion: spark-usher.io/v1alpha1\nkind: PolicyFile\npolicies: {policies}")
}

fn webhook(name: &str, bundle: &str) -> Value {
    json!({
        "name": name, "failurePolicy": "Ignore", "timeoutSeconds": 2, "reinvocationPolicy": "IfNeeded",
        "objectSelector": {"matchExpressions": [{"key": "spark-role", "operator": "In", "values": ["driver", "executor"]}]},
        "namespaceSelector": {"matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "spark-usher"]},
        ]},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
        "clientConfig": {"caBundle": STANDARD.encode(bundle), "service": {"name": "spark-usher", "namespace": "spark-usher"}},
    })
}

fn configuration(name: &str, webhook: &Value) -> Value {
    json!({"metadata": {"name": name}, "webhooks": [webhook]})
}

fn secret(authority: &Authority) -> Value {
    let pair = authority.serve(&["spark-usher.spark-usher.svc"], &[]).unwrap();
    json!({"data": {"tls.crt": STANDARD.encode(pair.certificate), "tls.key": STANDARD.encode(pair.key)}})
}

/// The creator policy as it is installed.
fn creator_policy(account: &str) -> Vec<Value> {
    usher_core::manifests::creator_policy::manifests("spark-usher", account).unwrap()
}

/// An installation without problems.
fn healthy() -> Facts {
    let authority = Authority::new("ours", NOW).unwrap();
    let namespace = |name: &str| json!({"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}});
    let executor = json!({"metadata": {"name": "exec-1", "namespace": "team-a", "labels": {"spark-role": "executor"},
        "managedFields": [{"manager": "fabric8-kubernetes-client", "fieldsV1": {"f:metadata": {"f:labels": {}}}}]}});
    Facts {
        now: NOW,
        namespace: "spark-usher".into(),
        dry_run_namespace: "team-a".into(),
        version: (1, 36),
        mutating: Ok(vec![configuration("00-spark-usher", &webhook("mutate.spark-usher.io", authority.pem()))]),
        validating: Ok(vec![configuration("spark-usher", &webhook("validate.spark-usher.io", authority.pem()))]),
        volcano_images: Ok(Vec::new()),
        policy_objects: Ok(usher_server::cluster::policies::Live::default()),
        creator_objects: Ok(creator_policy("system:serviceaccount:spark-usher:spark-usher")),
        admission: Vec::new(),
        vouching: Some(Vouching { policy: "spark-usher".into(), settle: SETTLE, client_certificates: false }),
        account: "system:serviceaccount:spark-usher:spark-usher".into(),
        namespaces: Ok(["spark-usher", "kube-system", "team-a"].map(namespace).into()),
        deployments: Ok(vec![json!({
            "spec": {"replicas": 2, "template": {"spec": {"containers": [{"args": ["serve", "--tls-secret=spark-usher-tls"]}]}}},
            "status": {"readyReplicas": 2},
        })]),
        pods: Ok(vec![json!({"spec": {"containers": [{"name": "spark-usher"}]}})]),
        slices: Ok(vec![json!({
            "metadata": {"labels": {"kubernetes.io/service-name": "spark-usher"}},
            "endpoints": [{"conditions": {"ready": true}}, {"conditions": {"ready": false}}],
        })]),
        lease: Ok(Some(json!({"spec": {"holderIdentity": "spark-usher-1_ab", "renewTime": NOW.to_string()}}))),
        secret: Ok(Some(secret(&authority))),
        policy: Ok(Policy::Text(POLICY.into())),
        served: Ok(vec!["scheduling.volcano.sh/v1beta1".into(), "events.k8s.io/v1".into()]),
        permissions: Ok(rbac::all().into_iter().map(|permission| (permission, "get", true)).collect()),
        adoptions_refused: Ok(None),
        spark_pods: Ok(vec![executor]),
        trial: Ok(Trial {
            warnings: vec!["spark-usher: no authenticated pod created this executor".into()],
            pod: json!({"metadata": {"annotations": {}}}),
        }),
    }
}

/// The findings of all parts.
fn examine(facts: &Facts) -> Vec<Finding> {
    let mut examination = Examination::default();
    let _ = Part::ALL.into_iter().all(|part| examination.examine(part, facts));
    examination.findings
}

/// The finding that is not ok, which must be the only one.
fn only_problem(facts: &Facts) -> (Grade, String) {
    let all = examine(facts);
    let mut problems: Vec<_> = all.into_iter().filter(|finding| finding.grade != Grade::Ok).collect();
    // A problem of the Secret affects both webhooks.
    problems.dedup_by_key(|finding| finding.what.replace("validating", "mutating"));
    assert_eq!(problems.len(), 1, "{problems:#?}");
    let Finding { grade, what, fix } = problems.remove(0);
    assert!(!fix.is_empty(), "{what}: the finding has no fix");
    (grade, what)
}

fn failed(facts: &Facts, words: &str) {
    let (grade, what) = only_problem(facts);
    assert!(grade == Grade::Failed && what.contains(words), "{grade:?} {what}");
}

fn warned(facts: &Facts, words: &str) {
    let (grade, what) = only_problem(facts);
    assert!(grade == Grade::Warning && what.contains(words), "{grade:?} {what}");
}

fn unchecked(facts: &Facts, words: &str) {
    let (grade, what) = only_problem(facts);
    assert!(grade == Grade::Unchecked && what.contains(words), "{grade:?} {what}");
}

#[test]
fn healthy_installation_has_only_ok_findings() {
    let all = examine(&healthy());
    assert!(all.iter().all(|finding| finding.grade == Grade::Ok && finding.fix.is_empty()), "{all:#?}");
    assert!(all.len() >= 12, "{all:#?}");
}

#[test]
fn signatures_that_nothing_vouches_for_are_reported() {
    let mut facts = healthy();
    facts.creator_objects = Ok(Vec::new());
    warned(&facts, "ValidatingAdmissionPolicy spark-usher.creator.spark-usher.io is missing");
    facts.creator_objects = Ok(creator_policy("system:serviceaccount:elsewhere:spark-usher"));
    warned(&facts, "no signature is believed");
    facts.creator_objects = Err("is forbidden".into());
    unchecked(&facts, "creator policy");
    facts.vouching.as_mut().unwrap().client_certificates = true;
    assert!(examine(&facts).iter().all(|finding| finding.grade == Grade::Ok));
    facts.vouching = None;
    warned(&facts, "decisions are not signed");
}

#[test]
fn installation_that_cannot_be_read_is_not_ok() {
    let forbidden = || "is forbidden".to_owned();
    let mut facts = healthy();
    facts.deployments = Err(forbidden());
    facts.policy = Err(format!("the Deployment that names it: {}", forbidden()));
    facts.mutating = Err(forbidden());
    let all = examine(&facts);
    let failures: Vec<&Finding> = all.iter().filter(|finding| finding.grade == Grade::Failed).collect();
    assert!(failures.len() == 1 && failures[0].what.contains("the installation cannot be checked"), "{all:#?}");
    assert!(all.iter().all(|finding| !finding.what.contains("no policy file")), "{all:#?}");
}

#[test]
fn certificate_of_a_webhook_by_url_is_verified_for_its_host() {
    let authority = Authority::new("ours", NOW).unwrap();
    let pair = authority.serve(&["usher.example"], &[[127, 0, 0, 1].into()]).unwrap();
    let mut facts = healthy();
    facts.secret =
        Ok(Some(json!({"data": {"tls.crt": STANDARD.encode(pair.certificate), "tls.key": STANDARD.encode(pair.key)}})));
    let set = |facts: &mut Facts, url: &str| {
        for (all, name) in [(&mut facts.mutating, "mutate"), (&mut facts.validating, "validate")] {
            all.as_mut().unwrap()[0]["webhooks"][0]["clientConfig"] =
                json!({"caBundle": STANDARD.encode(authority.pem()), "url": format!("https://{url}/{name}")});
        }
    };
    let is_verified = |facts: &Facts| !examine(facts).iter().any(|finding| finding.what.contains("does not verify"));
    for (url, expected) in [("usher.example:8443", true), ("127.0.0.1:8443", true), ("other.example", false)] {
        set(&mut facts, url);
        assert_eq!(is_verified(&facts), expected, "{url}");
    }
}

#[test]
fn webhook_and_certificate_problems_are_reported() {
    let other = Authority::new("theirs", NOW).unwrap();
    let with = |change: &dyn Fn(&mut Value)| {
        let mut facts = healthy();
        change(&mut facts.mutating.as_mut().unwrap()[0]["webhooks"][0]);
        facts
    };
    let mut facts = healthy();
    facts.mutating = Ok(Vec::new());
    failed(&facts, "the mutating webhook is not registered");
    let mut facts = healthy();
    facts.validating = Ok(Vec::new());
    warned(&facts, "the validating webhook is not registered");
    failed(&with(&|hook| hook["clientConfig"]["caBundle"] = Value::Null), "no caBundle");
    let mut facts = healthy();
    let bundle = STANDARD.encode(other.pem());
    facts.validating.as_mut().unwrap()[0]["webhooks"][0]["clientConfig"]["caBundle"] = bundle.into();
    failed(&facts, "of the validating webhook does not verify");
    failed(&with(&|hook| hook["clientConfig"]["caBundle"] = STANDARD.encode(other.pem()).into()), "does not verify");
    failed(&with(&|hook| hook["clientConfig"]["service"]["namespace"] = "renamed".into()), "does not verify");
    let mut facts = healthy();
    facts.secret = Ok(Some(secret(&other)));
    failed(&facts, "does not verify");
    facts.secret = Ok(None);
    failed(&facts, "does not exist");
    facts.secret = Ok(Some(json!({"data": {}})));
    failed(&facts, "cannot be served");
    facts.secret = Err("secrets is forbidden".into());
    warned(&facts, "secrets is forbidden");
    let mut facts = healthy();
    facts.now = NOW + jiff::SignedDuration::from_hours(24 * 362);
    facts.lease = Ok(Some(json!({"spec": {"holderIdentity": "x", "renewTime": facts.now.to_string()}})));
    warned(&facts, "expires in 2 days");
    warned(&with(&|hook| hook["timeoutSeconds"] = 10.into()), "timeout is 10 s");
    warned(&with(&|hook| hook["failurePolicy"] = "Fail".into()), "failurePolicy is Fail");
    let mut facts = healthy();
    facts.slices = Ok(Vec::new());
    failed(&facts, "no ready endpoint");
}

#[test]
fn dry_run_and_selector_problems_are_reported() {
    let mut facts = healthy();
    facts.trial = Ok(Trial::default());
    failed(&facts, "did not reach the webhook");
    facts.trial = Ok(Trial {
        warnings: vec![],
        pod: json!({"metadata": {"annotations": {"spark-usher.io/by": "batch/volcano"}}}),
    });
    assert!(examine(&facts).iter().all(|finding| finding.grade == Grade::Ok));
    let fallback = json!({"metadata": {"annotations": {"spark-usher.io/by": "fallback"}}});
    let fallback_warnings = vec!["spark-usher: the pod lacks schedulerName".to_owned()];
    facts.trial = Ok(Trial { warnings: fallback_warnings, pod: fallback });
    failed(&facts, "did not reach the webhook");
    facts.trial = Err("pods is forbidden".into());
    unchecked(&facts, "pods is forbidden");
    facts.dry_run_namespace = "kube-system".into();
    unchecked(&facts, "the webhook excludes namespace");
    let mut facts = healthy();
    facts.mutating.as_mut().unwrap()[0]["webhooks"][0]["objectSelector"]["matchExpressions"][0]["values"] =
        json!(["executor"]);
    failed(&facts, "excludes pods with the labels that Spark sets on drivers");
    let mut facts = healthy();
    let mut system = facts.spark_pods.clone().unwrap();
    system[0]["metadata"]["namespace"] = "kube-system".into();
    facts.spark_pods.as_mut().unwrap().extend(system);
    warned(&facts, "excludes: kube-system");
    let mut facts = healthy();
    facts.pods = Ok(vec![json!({"spec": {"containers": [{"name": "spark-usher"}, {"name": "istio-proxy"}]}})]);
    warned(&facts, "istio-proxy");
}

#[test]
fn resources_that_the_leader_does_not_see_are_reported() {
    let mut facts = healthy();
    facts.lease.as_mut().unwrap().as_mut().unwrap()["metadata"] =
        json!({"annotations": {"spark-usher.io/unseen": "pods since 2026-11-26T09:00:00Z"}});
    failed(&facts, "the leader does not see pods since 2026-11-26T09:00:00Z");
    let mut facts = healthy();
    facts.lease.as_mut().unwrap().as_mut().unwrap()["metadata"] =
        json!({"annotations": {"spark-usher.io/withheld": "3 by orphans"}});
    let said = examine(&facts).into_iter().find(|finding| finding.what.ends_with("3 by orphans")).unwrap();
    assert_eq!(said.grade, Grade::Ok);
}

#[test]
fn deployment_lease_permission_and_version_problems_are_reported() {
    let mut facts = healthy();
    facts.deployments = Ok(Vec::new());
    failed(&facts, "no Deployment");
    facts.namespace = "nope".into();
    assert!(examine(&facts).iter().any(|finding| finding.fix.ends_with("--namespace spark-usher")));
    let mut facts = healthy();
    facts.deployments.as_mut().unwrap()[0]["status"]["readyReplicas"] = 1.into();
    warned(&facts, "1 of 2 replicas");
    facts.deployments.as_mut().unwrap()[0]["spec"]["replicas"] = 1.into();
    warned(&facts, "1 of 1 replicas");
    facts.deployments.as_mut().unwrap()[0]["status"]["readyReplicas"] = 0.into();
    failed(&facts, "0 of 1 replicas");
    let mut facts = healthy();
    facts.lease = Ok(Some(json!({"spec": {"holderIdentity": "x", "renewTime": "2020-01-01T00:00:00Z"}})));
    failed(&facts, "no replica leads");
    let mut facts = healthy();
    facts.policy = Ok(Policy::Text(policy_file("[]\nrecovery: {act: false}")));
    for (permission, _, granted) in facts.permissions.as_mut().unwrap() {
        // Neither permission is needed: no executor is deleted, and no such scheduler is served.
        *granted = !(permission.verbs == ["delete"] || permission.group == "scheduling.x-k8s.io");
    }
    assert!(examine(&facts).iter().all(|finding| finding.grade == Grade::Ok));
    for (permission, _, granted) in facts.permissions.as_mut().unwrap() {
        *granted &= permission.resource != "configmaps";
    }
    failed(&facts, "get configmaps (");
    facts.policy = Ok(Policy::Text(policy_file("[{name: a, gang: {readSparkConf: false}}]")));
    // The built-in policy behind it reads the configuration.
    failed(&facts, "get configmaps");
    let mut facts = healthy();
    facts.version = (1, 28);
    warned(&facts, "Kubernetes 1.28");
}

#[test]
fn last_of_repeated_arguments_of_serve_wins() {
    let proxy = json!({"args": ["--lease=c", "--client-ca=/x", "--config=/etc/proxy/proxy.cfg"]});
    let pod = json!({"containers": [{"args": ["serve", "--lease=a", "--log=info", "--lease=b"]}, proxy]});
    assert_eq!(super::gather::argument(&pod, "--lease").as_deref(), Some("b"));
    assert_eq!(super::gather::argument(&pod, "--client-ca"), None);
    let another = json!({"containers": [{"args": ["--webhook-listen=0.0.0.0:8443"]}]});
    assert_eq!(super::gather::argument(&another, "--webhook-listen"), None, "another program");
    assert_eq!(super::gather::argument(&pod, "--leas"), None);
}

#[test]
fn koordinator_policy_reports_ignored_min_resources() {
    let mut facts = healthy();
    facts.served.as_mut().unwrap().push("scheduling.sigs.k8s.io/v1alpha1".into());
    facts.policy = Ok(Policy::Text(policy_file("[{name: k, scheduler: {type: koordinator}}]")));
    let all = examine(&facts);
    let finding = all.iter().find(|finding| finding.what.contains("ignores minResources")).unwrap();
    assert!(finding.grade == Grade::Ok && finding.what.starts_with("policy k: "), "{finding:?}");
    assert!(!examine(&healthy()).iter().any(|finding| finding.what.contains("ignores minResources")));
}

#[test]
fn kai_drivers_controlled_by_other_kinds_yield_warning() {
    let driver = |namespace: &str, kind: &str| {
        json!({"metadata": {"name": "d", "namespace": namespace, "labels": {"spark-role": "driver", "spark-app-selector": "s"},
            "ownerReferences": [{"kind": kind, "name": "o", "uid": "u", "controller": true, "apiVersion": "v1"}]}})
    };
    let mut facts = healthy();
    let policy = policy_file("[{name: k, match: {namespaces: [team-a]}, scheduler: {type: kai}}]");
    facts.policy = Ok(Policy::Text(policy));
    facts.spark_pods.as_mut().unwrap().extend([driver("team-a", "Pod"), driver("team-b", "Job")]);
    assert!(examine(&facts).iter().all(|finding| finding.grade == Grade::Ok), "a pod, and another policy's");
    facts.spark_pods.as_mut().unwrap().push(driver("team-a", "Job"));
    warned(&facts, "1 drivers that KAI schedules are controlled by a Job (such as team-a/d)");
}

#[test]
fn admission_policies_that_differ_from_policy_file_yield_warning() {
    use super::gather::Admission;
    use usher_core::manifests::installation::{Installation, Kind};
    use usher_server::cluster::policies::Live;
    let installation =
        || Installation { name: "spark-usher".into(), namespaces: Vec::new(), kinds: Kind::ALL.to_vec() };
    let generated = |facts: &Facts| {
        let policies = usher_config::from_text(POLICY).unwrap().policies;
        let (wanted, refused) = installation().wanted(&policies, &facts.account);
        let [first, _] = wanted.validating.unwrap();
        // Volcano, and a fallback that would set the scheduler.
        assert!(refused[0].contains("no fallback policy for the scheduler is possible"), "{refused:?}");
        assert_eq!(wanted.fallback.map(|objects| objects.len()), Some(2), "that of the owner is");
        first
    };
    let managing = |applies: bool| {
        let mut facts = healthy();
        let installation = Installation { kinds: vec![Kind::Validating], ..installation() };
        let owner = applies.then(|| "ClusterRole/spark-usher-validating-policies".to_owned());
        facts.admission = vec![Admission { installation, owner }];
        facts.policy_objects = Ok(Live { objects: generated(&facts), unserved: Vec::new() });
        facts
    };
    let mut facts = managing(true);
    let all = examine(&facts);
    assert!(
        all.iter().any(|finding| finding.what == "the ValidatingAdmissionPolicies are those of the policy file"),
        "{all:#?}"
    );
    assert!(all.iter().all(|finding| finding.grade == Grade::Ok), "{all:#?}");
    facts.policy = Ok(Policy::Text(POLICY.replace("}}", "}, validate: Warn}")));
    warned(&facts, "ValidatingAdmissionPolicy spark-usher.warn-b.spark-usher.io is missing");
    let mut facts = managing(false);
    facts.policy = Ok(Policy::Text(POLICY.replace("}}", "}, validate: Warn}")));
    warned(&facts, "ValidatingAdmissionPolicy spark-usher.warn-a.spark-usher.io is missing");
    let fixes: Vec<String> = examine(&facts).into_iter().map(|finding| finding.fix).collect();
    let deletes = " && sleep 10 && kubectl delete ValidatingAdmissionPolicyBinding/spark-usher.audit-a.spark-usher.io ValidatingAdmissionPolicy/spark-usher.audit-a.spark-usher.io";
    assert!(fixes.iter().any(|fix| fix.ends_with(deletes)), "{fixes:#?}");
    let mut facts = managing(false);
    facts.policy_objects.as_mut().unwrap().objects[1]["spec"]["validationActions"] = json!(["Warn"]);
    let name = "ValidatingAdmissionPolicyBinding spark-usher.audit-a.spark-usher.io";
    warned(&facts, &format!("{name} differs from the generated one"));
    let remedies: Vec<String> = examine(&facts).into_iter().map(|finding| finding.fix).collect();
    let command =
        "spark-usher policy --validating --account system:serviceaccount:spark-usher:spark-usher --name spark-usher";
    assert!(remedies.iter().any(|remedy| remedy.starts_with(command)), "{remedies:#?}");
    facts.policy_objects = Ok(Live::default());
    warned(&facts, &format!("{name} is missing"));
    facts.policy_objects = Err("validatingadmissionpolicies is forbidden".into());
    unchecked(&facts, "validatingadmissionpolicies is forbidden");
    facts.policy_objects = managing(true).policy_objects;
    // Of this release's name: left behind when the value was set to false, with a webhook configuration as their owner.
    for object in &mut facts.policy_objects.as_mut().unwrap().objects {
        object["metadata"]["ownerReferences"] =
            json!([{"kind": "MutatingWebhookConfiguration", "name": "00-spark-usher"}]);
    }
    facts.admission = Vec::new();
    warned(&facts, "that no replica of this installation manages: ValidatingAdmissionPolicy spark-usher.audit-a");
    let fixes: Vec<String> = examine(&facts).into_iter().map(|finding| finding.fix).collect();
    assert!(fixes.iter().any(|fix| fix.contains("ValidatingAdmissionPolicy/spark-usher.audit-a")), "{fixes:#?}");
    // Of another name: those without an owner, and those of our owner. What another leader or release has is theirs.
    let mut facts = managing(true);
    let other = |owner: &str, label: &str| {
        let owner = owner.split_once('/').map(|(kind, name)| json!({"kind": kind, "name": name}));
        let owners: Vec<Value> = owner.into_iter().collect();
        json!({"kind": "ValidatingAdmissionPolicy", "metadata": {"name": "old.enforce-a.spark-usher.io",
            "ownerReferences": owners, "labels": {"app.kubernetes.io/managed-by": label}}})
    };
    for (owner, label, is_reported) in [
        ("", "", true),
        ("ClusterRole/spark-usher-validating-policies", "spark-usher", true),
        ("ClusterRole/other-validating-policies", "spark-usher", false),
        ("", "Helm", false),
        // Of another name, and owned by another object: of another installation.
        ("MutatingWebhookConfiguration/00-spark-usher", "spark-usher", false),
    ] {
        facts.policy_objects.as_mut().unwrap().objects.push(other(owner, label));
        let text = "no replica of this installation manages: ValidatingAdmissionPolicy old.enforce-a";
        assert_eq!(examine(&facts).iter().any(|finding| finding.what.contains(text)), is_reported, "{owner} {label}");
        facts.policy_objects.as_mut().unwrap().objects.pop();
    }
    facts.policy_objects.as_mut().unwrap().unserved = vec!["ValidatingAdmissionPolicyBinding"];
    warned(&facts, "this cluster does not serve ValidatingAdmissionPolicyBinding");
    let mut facts = healthy();
    facts.policy = Ok(Policy::Text(POLICY.replace("}}", "}, validate: Enforce}")));
    assert!(examine(&facts).iter().any(|finding| finding.what.contains("requires a running replica")));
}

#[test]
fn scheduler_policy_file_and_other_webhook_problems_are_reported() {
    let mut facts = healthy();
    facts.served = Ok(vec!["events.k8s.io/v1".into()]);
    failed(&facts, "does not serve PodGroups of volcano");
    let mut facts = healthy();
    facts.policy = Ok(Policy::Text(policy_file("[{name: a, scheduler: {type: slurm}}]")));
    failed(&facts, "unknown scheduler type");
    facts.policy = Ok(Policy::Missing("ConfigMap p".into()));
    failed(&facts, "ConfigMap p does not exist");
    facts.policy = Ok(Policy::None);
    assert!(examine(&facts).iter().all(|finding| finding.grade == Grade::Ok));
    let pods = webhook("validatepod.volcano.sh", "");
    let mut facts = healthy();
    facts.validating.as_mut().unwrap().push(configuration("volcano-admission-service-pods-validate", &pods));
    warned(&facts, "up to v1.11.2 it denies executors whose PodGroup does not exist yet");
    let with = |facts: &Facts, image: &str| {
        let images = ["docker.io/library/redis:v1.10.0".to_owned(), image.to_owned()];
        Facts { volcano_images: Ok(images.into()), ..facts.clone() }
    };
    for image in
        ["docker.io/volcanosh/vc-webhook-manager:v1.9.0", "r:5000/vc-controller-manager:1.11.2-alpine@sha256:ab"]
    {
        failed(&with(&facts, image), "denies executors whose PodGroup does not exist yet, so no gang starts");
    }
    for image in ["volcanosh/vc-webhook-manager:v1.12.0", "volcanosh/vc-webhook-manager:v1.13.1"] {
        assert!(examine(&with(&facts, image)).iter().all(|finding| finding.grade == Grade::Ok), "{image}");
    }
    warned(&with(&facts, "volcanosh/vc-webhook-manager:latest"), "its version is unknown");
    let mut facts = healthy();
    facts.mutating.as_mut().unwrap().push(configuration("zz-other", &webhook("other", "")));
    assert!(
        examine(&facts)
            .iter()
            .any(|finding| finding.what.contains("after spark-usher: zz-other; spark-usher is then called again"))
    );
    facts.mutating.as_mut().unwrap()[0]["webhooks"][0]["reinvocationPolicy"] = "Never".into();
    warned(&facts, "spark-usher is not called again");
    let mut facts = healthy();
    facts.spark_pods.as_mut().unwrap()[0]["metadata"]["managedFields"][0]["manager"] = "vcluster-syncer".into();
    warned(&facts, "1 executors were written by vcluster-syncer");
}

#[test]
fn owner_reference_enforcement_requires_permission_to_delete_pods() {
    let without_delete = || {
        let mut facts = healthy();
        let all =
            rbac::all().into_iter().flat_map(|permission| permission.verbs.iter().map(move |verb| (permission, *verb)));
        facts.permissions = Ok(all
            .map(|(permission, verb)| (permission, verb, (permission.resource, verb) != ("pods", "delete")))
            .collect());
        facts
    };
    let mut facts = without_delete();
    facts.policy = Ok(Policy::Text(policy_file("[]\nrecovery: {act: true}")));
    failed(&facts, "lacks permissions: delete pods");
    assert!(examine(&without_delete()).iter().all(|finding| finding.grade == Grade::Ok), "nothing needs it");
    let mut facts = without_delete();
    facts.served.as_mut().unwrap().push("config.openshift.io/v1".into());
    failed(&facts, "lacks permissions: delete pods");
    let mut facts = without_delete();
    facts.adoptions_refused = Ok(Some("not adopted by d: it may not".into()));
    let problems: Vec<_> = examine(&facts).into_iter().filter(|finding| finding.grade != Grade::Ok).collect();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(
        problems[0].what.contains("lacks permissions: delete pods") && problems[1].what.contains("denied an adoption")
    );
    assert!(problems.iter().all(|finding| finding.fix.contains("rbac.ownerReferencesPermissionEnforcement: enabled")));
}
