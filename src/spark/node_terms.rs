//! What a pod requires of its node: its nodeName, its nodeSelector, and the node selector terms of its required nodeAffinity
//! (`NodeSelectorTerm` of `core/v1`, `nodeaffinity.go` of `component-helpers`).

use serde::Deserialize;

use super::pod::Spec;
use super::wire_text::{Entries, Text, bounded};
use crate::text::is_label_value;

/// The only field that `matchFields` supports.
pub const NAME: &str = "metadata.name";

/// The label with the name of a node's host.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// What a pod requires of its node. What it prefers, tolerates or requires of other pods is not among it.
#[derive(Debug, Default)]
pub struct NodeRequirements<'p> {
    name: Option<&'p str>,
    selector: Option<&'p Entries<'p>>,
    terms: Option<Vec<Term<'p>>>,
}

/// A node selector term: all of its requirements must be met. Terms are alternatives.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, bound(deserialize = "'de: 'p"))]
pub struct Term<'p> {
    #[serde(deserialize_with = "bounded")]
    match_expressions: Option<Vec<Requirement<'p>>>,
    #[serde(deserialize_with = "bounded")]
    match_fields: Option<Vec<Requirement<'p>>>,
}

/// A requirement of a term (`labels.Requirement` of apimachinery).
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'p"))]
struct Requirement<'p> {
    key: Text<'p>,
    operator: Text<'p>,
    #[serde(deserialize_with = "bounded")]
    values: Option<Vec<Text<'p>>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, bound(deserialize = "'de: 'p"))]
struct Affinity<'p> {
    node_affinity: Option<NodeAffinity<'p>>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'p"))]
struct NodeAffinity<'p> {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    required: Option<NodeSelector<'p>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, bound(deserialize = "'de: 'p"))]
struct NodeSelector<'p> {
    #[serde(deserialize_with = "bounded")]
    node_selector_terms: Option<Vec<Term<'p>>>,
}

/// How many more terms and requirements may be compared with nodes: the time would otherwise be a product of what a tenant
/// writes and of what the cluster has.
#[derive(Debug)]
pub struct Work(Option<usize>);

impl Work {
    /// At most this many terms and requirements together.
    pub fn new(max: usize) -> Work {
        Work(Some(max))
    }

    /// Whether more were needed: then the results are not to be used.
    pub fn is_exceeded(&self) -> bool {
        self.0.is_none()
    }

    /// Counts so many more. False if that is too many.
    pub fn spend(&mut self, steps: usize) -> bool {
        self.0 = self.0.and_then(|left| left.checked_sub(steps));
        self.0.is_some()
    }

    /// Counts one more. If it is too many, everything is met, so that nothing more is compared.
    fn count(&mut self) -> bool {
        self.spend(1)
    }
}

impl<'p> NodeRequirements<'p> {
    /// Reads the requirements of a pod.
    ///
    /// # Errors
    ///
    /// The affinity is none that an API server accepts, or a list in it is longer than any pod's
    /// ([`is_too_many`](super::wire_text::is_too_many)).
    pub fn of(spec: &'p Spec<'_>) -> Result<NodeRequirements<'p>, serde_json::Error> {
        let raw = spec.affinity.as_deref().filter(|raw| raw.contains("nodeAffinity"));
        let affinity: Option<Affinity<'p>> = raw.map(serde_json::from_str).transpose()?;
        let required = affinity.and_then(|affinity| affinity.node_affinity?.required);
        let terms = required.map(|required| required.node_selector_terms.unwrap_or_default());
        Ok(NodeRequirements {
            name: spec.node_name.as_deref().filter(|name| !name.is_empty()),
            selector: spec.node_selector.as_ref().filter(|selector| !selector.is_empty()),
            terms: terms.map(|terms| terms.into_iter().filter_map(Term::understood).collect()),
        })
    }

    /// Whether every node meets them.
    pub fn is_empty(&self) -> bool {
        self.name.is_none() && self.selector.is_none() && self.terms.is_none()
    }

    /// Whether a node of this name and with these labels meets them.
    pub fn allow<'n>(&self, name: &'n str, label: impl Fn(&str) -> Option<&'n str>, work: &mut Work) -> bool {
        self.allow_besides(name, &label, work)
            && self.terms.as_ref().is_none_or(|terms| terms.iter().any(|term| term.matches(name, &label, work)))
    }

    /// The alternatives, of which a node must meet one: one per term, or a single one without terms.
    pub fn alternatives(&self) -> impl Iterator<Item = Alternative<'_, 'p>> {
        let all = (self.terms.is_none()).then_some(Alternative { all: self, term: None });
        let each = self.terms.iter().flatten().map(|term| Alternative { all: self, term: Some(term) });
        all.into_iter().chain(each)
    }

    fn allow_besides<'n>(&self, name: &'n str, label: impl Fn(&str) -> Option<&'n str>, work: &mut Work) -> bool {
        self.name.is_none_or(|wanted| !work.count() || wanted == name)
            && self
                .selector
                .is_none_or(|selector| selector.iter().all(|(key, value)| !work.count() || label(key) == Some(value)))
    }
}

/// One way of meeting what a pod requires of its node.
#[derive(Clone, Copy, Debug)]
pub struct Alternative<'r, 'p> {
    all: &'r NodeRequirements<'p>,
    term: Option<&'r Term<'p>>,
}

impl Alternative<'_, '_> {
    /// Whether a node of this name and with these labels meets it.
    pub fn allows<'n>(&self, name: &'n str, label: impl Fn(&str) -> Option<&'n str>, work: &mut Work) -> bool {
        self.all.allow_besides(name, &label, work) && self.term.is_none_or(|term| term.matches(name, label, work))
    }

    /// Whether it names certain nodes: by their name, or by the label of their host's.
    pub fn names_nodes(&self) -> bool {
        let is_host = |requirement: &Requirement<'_>| requirement.key == HOSTNAME && requirement.operator == "In";
        self.all.name.is_some()
            || self.all.selector.is_some_and(|selector| selector.get(HOSTNAME).is_some())
            || self.term.is_some_and(|term| {
                list(&term.match_expressions).iter().any(is_host)
                    || list(&term.match_fields).iter().any(|field| field.operator == "In")
            })
    }

    /// Whether it names all of these labels, alone or among others.
    pub fn names_all<'l>(&self, mut labels: impl Iterator<Item = (&'l str, &'l str)>, work: &mut Work) -> bool {
        labels.all(|(key, value)| {
            !work.count()
                || self.all.selector.and_then(|selector| selector.get(key)) == Some(value)
                || self.term.is_some_and(|term| term.names(key, value, work))
        })
    }
}

impl Term<'_> {
    /// The term, unless schedulers skip it because they cannot parse one of its requirements (`newNodeSelectorTerm`): not every version
    /// of an API server validates the values of `In` and `NotIn`.
    pub fn understood(mut self) -> Option<Self> {
        let expression = |requirement: &Requirement<'_>| {
            let values = list(&requirement.values);
            let is_number = || values.iter().all(|value| value.parse::<i64>().is_ok());
            values.iter().all(|value| is_label_value(value))
                && match requirement.operator.as_str() {
                    "In" | "NotIn" => !values.is_empty(),
                    "Exists" | "DoesNotExist" => values.is_empty(),
                    "Gt" | "Lt" => values.len() == 1 && is_number(),
                    _ => false,
                }
        };
        let field = |requirement: &Requirement<'_>| {
            matches!(requirement.operator.as_str(), "In" | "NotIn") && list(&requirement.values).len() == 1
        };
        let is_understood =
            list(&self.match_expressions).iter().all(expression) && list(&self.match_fields).iter().all(field);
        for requirement in self.match_expressions.iter_mut().flatten() {
            requirement.values.iter_mut().for_each(|values| values.sort_unstable());
        }
        is_understood.then_some(self)
    }

    /// Whether a node matches. An empty term matches none.
    pub fn matches<'n>(&self, name: &'n str, label: impl Fn(&str) -> Option<&'n str>, work: &mut Work) -> bool {
        if !work.count() {
            return true;
        }
        let (expressions, fields) = (list(&self.match_expressions), list(&self.match_fields));
        let field = |key: &str| (key == NAME).then_some(name);
        !(expressions.is_empty() && fields.is_empty())
            && expressions.iter().all(|requirement| requirement.is_met(&label, work))
            && fields.iter().all(|requirement| requirement.is_met(field, work))
    }

    fn names(&self, key: &str, value: &str, work: &mut Work) -> bool {
        list(&self.match_expressions).iter().any(|wanted| {
            !work.count()
                || (wanted.key == *key
                    && (wanted.operator == "Exists" || (wanted.operator == "In" && wanted.has(value))))
        })
    }
}

impl Requirement<'_> {
    fn is_met<'n>(&self, value_of: impl Fn(&str) -> Option<&'n str>, work: &mut Work) -> bool {
        if !work.count() {
            return true;
        }
        let value = value_of(&self.key);
        let number = |text: &str| text.parse::<i64>().ok();
        let compare = || Some((number(value?)?, number(list(&self.values).first()?)?));
        let is_met = match self.operator.as_str() {
            "In" => value.is_some_and(|value| self.has(value)),
            "NotIn" => value.is_none_or(|value| !self.has(value)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => compare().is_some_and(|(value, than)| value > than),
            "Lt" => compare().is_some_and(|(value, than)| value < than),
            _ => false,
        };
        is_met || work.is_exceeded()
    }

    /// Whether this is one of the values, which are sorted.
    fn has(&self, value: &str) -> bool {
        list(&self.values).binary_search_by(|listed| (**listed).cmp(value)).is_ok()
    }
}

fn list<T>(list: &Option<Vec<T>>) -> &[T] {
    list.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn allows(spec: &Value, name: &str, labels: &[(&str, &str)]) -> Option<bool> {
        let text = json!({"spec": spec}).to_string();
        let pod: super::super::pod::Pod<'_> = serde_json::from_str(&text).unwrap();
        let requirements = NodeRequirements::of(&pod.spec).ok()?;
        let label = |key: &str| labels.iter().find(|(known, _)| *known == key).map(|(_, value)| *value);
        let mut work = Work::new(1000);
        let allowed = requirements.allow(name, label, &mut work);
        assert!(!work.is_exceeded());
        Some(allowed)
    }

    fn affinity(terms: &Value) -> Value {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
    }

    #[test]
    fn name_selector_and_terms_must_all_allow_a_node() {
        let labels = [("pool", "spark"), ("disks", "8")];
        let allowed = |spec: Value| allows(&spec, "n-1", &labels).unwrap();
        assert!(allowed(json!({})) && allowed(json!({"nodeName": ""})) && allowed(json!({"nodeSelector": {}})));
        assert!(allowed(json!({"nodeName": "n-1"})) && !allowed(json!({"nodeName": "n-2"})));
        assert!(allowed(json!({"nodeSelector": {"pool": "spark"}})));
        assert!(!allowed(json!({"nodeSelector": {"pool": "spark", "x": "y"}})));
        let mut both = affinity(&json!([{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}]));
        assert!(allowed(both.clone()));
        both["nodeSelector"] = json!({"pool": "web"});
        assert!(!allowed(both));
    }

    #[test]
    fn operators_mean_what_the_scheduler_takes_them_for() {
        let labels = [("pool", "spark"), ("disks", "8")];
        let met = |key: &str, operator: &str, values: &[&str]| {
            let term = json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]);
            allows(&affinity(&term), "n-1", &labels).unwrap()
        };
        assert!(met("pool", "In", &["web", "spark"]) && !met("pool", "In", &["web"]) && !met("x", "In", &["web"]));
        assert!(
            !met("pool", "NotIn", &["web", "spark"]) && met("pool", "NotIn", &["web"]) && met("x", "NotIn", &["web"])
        );
        assert!(met("pool", "Exists", &[]) && !met("x", "Exists", &[]));
        assert!(!met("pool", "DoesNotExist", &[]) && met("x", "DoesNotExist", &[]));
        assert!(met("disks", "Gt", &["7"]) && !met("disks", "Gt", &["8"]) && !met("pool", "Gt", &["1"]));
        assert!(met("disks", "Lt", &["9"]) && !met("disks", "Lt", &["8"]) && !met("x", "Lt", &["1"]));
        assert!(!met("disks", "Near", &["8"]), "not understood");
        let named = |operator: &str, name: &str| {
            let term = json!([{"matchFields": [{"key": NAME, "operator": operator, "values": [name]}]}]);
            allows(&affinity(&term), "n-1", &labels).unwrap()
        };
        assert!(named("In", "n-1") && !named("In", "n-2") && named("NotIn", "n-2") && !named("NotIn", "n-1"));
        for empty in [json!([]), json!([{}]), json!([{"matchExpressions": []}]), Value::Null] {
            assert_eq!(allows(&affinity(&empty), "n-1", &labels), Some(false), "{empty}");
        }
        let two = json!([{"matchFields": [{"key": NAME, "operator": "In", "values": ["x"]}]},
            {"matchExpressions": [{"key": "pool", "operator": "Exists"}]}]);
        assert_eq!(allows(&affinity(&two), "n-1", &labels), Some(true), "terms are alternatives");
        assert_eq!(allows(&affinity(&json!([5])), "n-1", &labels), None);
    }

    #[test]
    fn work_is_counted_for_every_term_and_requirement() {
        let requirement = |n: usize| json!({"key": "x", "operator": "NotIn", "values": vec!["v"; n]});
        let terms = |requirement: Value| affinity(&json!(vec![json!({"matchExpressions": [requirement]}); 500]));
        for (spec, steps) in [
            (affinity(&json!([{"matchExpressions": [requirement(1000)]}])), 2),
            (affinity(&json!(vec![json!({"matchFields": [{"operator": "In", "values": ["x"]}]}); 500])), 1000),
            (json!({"nodeSelector": {"x": "y", "z": "y"}}), 2),
            (json!({"nodeName": "n"}), 1),
            // Those that compare no value.
            (affinity(&json!(vec![json!({}); 500])), 500),
            (terms(json!({"key": "absent", "operator": "In", "values": ["v"]})), 1000),
            (terms(json!({"key": "x", "operator": "Gt", "values": ["1"]})), 1000),
            (terms(json!({"key": "x", "operator": "DoesNotExist"})), 1000),
        ] {
            let text = json!({"spec": spec}).to_string();
            let pod: super::super::pod::Pod<'_> = serde_json::from_str(&text).unwrap();
            let requirements = NodeRequirements::of(&pod.spec).unwrap();
            let exceeded = |max: usize| {
                let mut work = Work::new(max);
                let allowed = requirements.allow("n", |key| (key != "absent").then_some("y"), &mut work);
                assert!(allowed || !work.is_exceeded(), "nothing more is compared");
                work.is_exceeded()
            };
            assert!(exceeded(steps - 1) && !exceeded(steps), "{spec}");
        }
    }
}
