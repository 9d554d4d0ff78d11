//! Evaluates ValidatingAdmissionPolicies with the `cel` crate, as an API server does; creates policies in a cluster.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use cel::extractors::This;
use cel::{Context, Env, Program};
use hyper::http::{HeaderName, HeaderValue};
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::ApiResource;
use regex::Regex;
use serde_json::{Value, json};
use usher_core::manifests::creator_policy;
use usher_core::manifests::object::{VALIDATING, VALIDATING_BINDING};

use super::PodBuilder;
use super::cluster::Cluster;

/// The API server's environment has the extension for strings, too.
static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    env.add_extension(cel::extensions::strings).unwrap();
    Arc::new(env)
});

/// The value for a key, made once in this process.
fn once<T: Clone>(made: &Mutex<HashMap<String, T>>, key: &str, make: impl FnOnce() -> T) -> T {
    let found = made.lock().unwrap().get(key).cloned();
    found.unwrap_or_else(|| {
        let value = make();
        made.lock().unwrap().insert(key.to_owned(), value.clone());
        value
    })
}

/// A compiled expression. It must be valid.
pub fn program(expression: &str) -> Arc<Program> {
    static PROGRAMS: LazyLock<Mutex<HashMap<String, Arc<Program>>>> = LazyLock::new(Mutex::default);
    once(&PROGRAMS, expression, || {
        // The crate's own `matches` compiles its pattern at every call, which takes longer than everything else.
        let text = expression.replace(".matches(", ".matchesCompiled(");
        Arc::new(ENV.compile(&text).unwrap_or_else(|error| panic!("{expression}: {error}")))
    })
}

/// A context with these variables, for what [`program`] compiles.
pub fn context<'n>(variables: impl IntoIterator<Item = (&'n str, Value)>) -> Context<'static, 'static> {
    static PATTERNS: LazyLock<Mutex<HashMap<String, Regex>>> = LazyLock::new(Mutex::default);
    let mut context = Context::with_env(Arc::clone(&ENV));
    let matches = |This(text): This<Arc<String>>, pattern: Arc<String>| {
        once(&PATTERNS, &pattern, || Regex::new(&pattern).unwrap()).is_match(&text)
    };
    context.add_function("matchesCompiled", matches).unwrap();
    for (name, value) in variables {
        context.add_variable(name, value).unwrap();
    }
    context
}

/// A policy with compiled expressions, and the actions of its binding.
pub struct Compiled {
    programs: Vec<(&'static str, String, Arc<Program>)>,
    constraints: Value,
    pub actions: Vec<String>,
}

/// A validation that does not hold: its message, and that of its expression.
pub struct Violation {
    pub message: String,
    pub expression: String,
}

/// Compiles policies, each followed by its binding.
pub fn compiled(manifests: &[Value]) -> Vec<Compiled> {
    let pairs = manifests.chunks(2).map(|pair| {
        assert_eq!((pair[0]["kind"].as_str(), pair[1]["kind"].as_str()), (Some(VALIDATING), Some(VALIDATING_BINDING)));
        assert_eq!(pair[0]["metadata"], pair[1]["metadata"]);
        assert_eq!(pair[1]["spec"]["policyName"], pair[0]["metadata"]["name"]);
        assert_eq!(pair[0]["spec"]["failurePolicy"], "Fail");
        Compiled {
            programs: programs(&pair[0]["spec"]),
            constraints: pair[0]["spec"]["matchConstraints"].clone(),
            actions: serde_json::from_value(pair[1]["spec"]["validationActions"].clone()).unwrap(),
        }
    });
    pairs.collect()
}

fn programs(spec: &Value) -> Vec<(&'static str, String, Arc<Program>)> {
    let mut out = Vec::new();
    for (kind, list, name, expression) in [
        ("condition", "matchConditions", "name", "expression"),
        ("variable", "variables", "name", "expression"),
        ("validation", "validations", "message", "expression"),
        ("message", "validations", "message", "messageExpression"),
        ("audit", "auditAnnotations", "key", "valueExpression"),
    ] {
        for one in spec[list].as_array().into_iter().flatten() {
            // Each is a separate variable here, which is cheaper than a growing map.
            let text = one[expression].as_str().unwrap().replace("variables.", "variables_");
            out.push((kind, one[name].as_str().unwrap().to_owned(), program(&text)));
        }
    }
    out
}

impl Compiled {
    /// Whether the rules and the object selector select this request. Selectors of namespaces are ignored.
    fn selects(&self, request: &Value) -> bool {
        let resource =
            [&request["resource"]["resource"], &request["subResource"]].map(|part| part.as_str().unwrap_or_default());
        let resource = resource.join("/").trim_end_matches('/').to_owned();
        let has = |list: &Value, item: &str| list.as_array().unwrap().iter().any(|one| one == item);
        let mut rules = self.constraints["resourceRules"].as_array().unwrap().iter();
        let operation = request["operation"].as_str().unwrap();
        let by_rule = rules.any(|rule| has(&rule["operations"], operation) && has(&rule["resources"], &resource));
        let requirements = self.constraints["objectSelector"]["matchExpressions"].as_array();
        let by_labels = |object: &Value| {
            requirements.into_iter().flatten().all(|one| {
                assert_eq!(one["operator"], "In");
                object["metadata"]["labels"][one["key"].as_str().unwrap()]
                    .as_str()
                    .is_some_and(|label| has(&one["values"], label))
            })
        };
        by_rule && (by_labels(&request["object"]) || by_labels(&request["oldObject"]))
    }

    /// The validations that do not hold. Panics if an expression fails.
    pub fn evaluate(&self, review: &Value, namespace_labels: &Value) -> Vec<Violation> {
        let request = &review["request"];
        if !self.selects(request) {
            return Vec::new();
        }
        let mut context = context([
            ("object", request["object"].clone()),
            ("oldObject", request["oldObject"].clone()),
            ("request", request.clone()),
            ("namespaceObject", json!({"metadata": {"name": request["namespace"], "labels": namespace_labels}})),
        ]);
        // One for each validation, and its message.
        let (mut held, mut messages) = (Vec::new(), Vec::new());
        for (kind, name, program) in &self.programs {
            let value = program.execute(&context).unwrap_or_else(|error| panic!("{kind} {name}: {error}\n{review:#}"));
            let value = value.json().unwrap();
            match *kind {
                "condition" if value == json!(false) => return Vec::new(),
                // The API server evaluates variables lazily; evaluating all of them proves more.
                "variable" => context.add_variable(format!("variables_{name}"), value).unwrap(),
                "validation" => held.push((name, value == json!(true))),
                "message" => {
                    let text = value.as_str().unwrap().to_owned();
                    assert!(text.len() < 2000 && !text.contains(char::is_control), "{text}");
                    messages.push(text);
                }
                _ => assert!(value == json!(true) || *kind == "audit", "{kind} {value}"),
            }
        }
        let all = held.into_iter().zip(messages).filter(|((_, held), _)| !held);
        all.map(|((message, _), expression)| Violation { message: message.clone(), expression }).collect()
    }
}

impl Cluster {
    /// [`Cluster::dry_run`] as a user of these `userInfo`, by impersonation. `None` if it cannot be sent in headers.
    pub async fn dry_run_as(&self, user: &Value, pod: &PodBuilder) -> Option<Result<(), String>> {
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let pods = kube::core::Request::new(format!("/api/v1/namespaces/{}/pods", self.namespace));
        let mut request = pods.create(&params, self.sent(pod).to_string().into_bytes()).unwrap();
        let mut add = |name: &str, value: &Value| {
            let (name, value) = (HeaderName::try_from(name).ok()?, HeaderValue::try_from(value.as_str()?).ok()?);
            request.headers_mut().append(name, value);
            Some(())
        };
        add("Impersonate-User", &user["username"])?;
        for group in user["groups"].as_array().into_iter().flatten() {
            add("Impersonate-Group", group)?;
        }
        for (key, values) in user["extra"].as_object().into_iter().flatten() {
            for value in values.as_array().into_iter().flatten() {
                add(&format!("Impersonate-Extra-{}", key.replace('/', "%2F")), value)?;
            }
        }
        Some(self.client.request::<Value>(request).await.map(drop).map_err(|error| error.to_string()))
    }

    /// A real cluster, because the sandbox does not evaluate policies. Without one, returns `None` and prints why.
    pub async fn start_evaluating() -> Option<Cluster> {
        let cluster = Cluster::start().await;
        if !cluster.is_real() {
            #[expect(clippy::print_stderr, reason = "a skipped test prints this")]
            {
                eprintln!(
                    "SKIPPED: requires a kube-apiserver in KUBEBUILDER_ASSETS: the sandbox does not evaluate policies"
                );
            }
            return None;
        }
        Some(cluster)
    }

    /// Installs the creator policy, unless an earlier replica has, so that replicas of this client's account believe signatures.
    pub async fn install_creator_policy(&self) {
        let account = self.account().await;
        for manifest in creator_policy::manifests(creator_policy::NAME, &account).unwrap() {
            let (api, object) = self.admission_policy(&manifest);
            match api.create(&PostParams::default(), &object).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                created => drop(created.unwrap()),
            }
        }
    }

    /// Creates an admission policy or its binding, and returns it as the API server has it.
    pub async fn create_admission_policy(&self, manifest: &Value) -> Value {
        let (api, object) = self.admission_policy(manifest);
        serde_json::to_value(api.create(&PostParams::default(), &object).await.unwrap()).unwrap()
    }

    /// The object of a manifest, and its API.
    pub fn admission_policy(&self, manifest: &Value) -> (Api<DynamicObject>, DynamicObject) {
        let kind = manifest["kind"].as_str().unwrap();
        let plural = kind.to_lowercase().strip_suffix('y').map(|stem| format!("{stem}ies"));
        let resource = ApiResource {
            group: "admissionregistration.k8s.io".into(),
            version: "v1".into(),
            api_version: "admissionregistration.k8s.io/v1".into(),
            kind: kind.to_owned(),
            plural: plural.unwrap_or_else(|| format!("{}s", kind.to_lowercase())),
        };
        (Api::all_with(self.client.clone(), &resource), serde_json::from_value(manifest.clone()).unwrap())
    }
}
