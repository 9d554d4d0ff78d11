//! Pod templates as Spark's client reads them: YAML 1.2 with JSON's scalars, and each field as its type in the Kubernetes API demands.
//! `value: 8080` of a variable is text, `defaultMode: 0644` is octal, `y` is text everywhere (`fabric8` with `snakeyaml-engine`).

use std::collections::{HashMap, HashSet};

use granit_parser::{Event, Parser, ScalarStyle};
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;
use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};

/// The largest template, in nodes, with aliases as often as they are used.
const MAX_NODES: usize = 100_000;
/// The deepest.
const MAX_DEPTH: usize = 100;

type Error = serde::de::value::Error;

/// A template, and the fields in it that the types of the API do not know, which are misspelled or newer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Template {
    pub(super) pod: Map<String, Value>,
    pub(super) unknown: Vec<String>,
}

/// Reads a template. `has_octal`: modes with a leading zero are octal numbers, as since Spark 4.0; otherwise the zero has no meaning.
pub(super) fn read(text: &str, has_octal: bool) -> Result<Template, String> {
    let node = parse(text)?.ok_or("expected a pod, got nothing")?;
    let Node::Map(entries) = &node else { return Err("expected a pod".to_owned()) };
    let kind = entries.iter().find(|(key, _)| key == "kind").map(|(_, kind)| kind.text());
    if let Some(Some(kind)) = kind.filter(|kind| kind.as_deref() != Some("Pod")) {
        return Err(format!("expected kind Pod, not {kind}"));
    }
    let pod = Pod::deserialize(Typed { node: &node, key: "", has_octal }).map_err(|error| error.to_string())?;
    let mut typed = serde_json::to_value(pod).map_err(|error| error.to_string())?;
    let mut unknown = Vec::new();
    tidy(&mut typed, &node, "", &mut unknown);
    match typed {
        Value::Object(pod) => Ok(Template { pod, unknown }),
        _ => Err("expected a pod".to_owned()),
    }
}

/// A node of a document. Keys are text.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    Scalar { text: String, is_plain: bool },
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Node {
    /// What a plain scalar stands for.
    fn scalar(&self) -> Option<Scalar<'_>> {
        let Node::Scalar { text, is_plain } = self else { return None };
        Some(match text.as_str() {
            _ if !is_plain => Scalar::Text(text),
            "" | "null" => Scalar::Null,
            "true" => Scalar::Bool(true),
            "false" => Scalar::Bool(false),
            text if is_number(text) => match text.parse::<i64>() {
                Ok(number) => Scalar::Integer(number),
                // Every digit counts.
                Err(_) if !text.contains(['.', 'e', 'E']) => Scalar::Text(text),
                Err(_) => text.parse().map_or(Scalar::Text(text), Scalar::Float),
            },
            text => Scalar::Text(text),
        })
    }

    /// As text; `None` for null, lists and maps.
    fn text(&self) -> Option<String> {
        Some(match self.scalar()? {
            Scalar::Null => return None,
            Scalar::Bool(value) => value.to_string(),
            Scalar::Integer(value) => value.to_string(),
            Scalar::Float(value) => super::java::double(value),
            Scalar::Text(text) => text.to_owned(),
        })
    }

    fn is_null(&self) -> bool {
        matches!(self.scalar(), Some(Scalar::Null))
    }

    fn what(&self) -> &'static str {
        match self {
            Node::Scalar { .. } => "a single value",
            Node::List(_) => "a list",
            Node::Map(_) => "a map",
        }
    }

    fn untyped(&self) -> Value {
        match self {
            Node::List(list) => list.iter().map(Node::untyped).collect(),
            Node::Map(map) => Value::Object(map.iter().map(|(key, node)| (key.clone(), node.untyped())).collect()),
            Node::Scalar { .. } => match self.scalar() {
                Some(Scalar::Bool(value)) => json!(value),
                Some(Scalar::Integer(value)) => json!(value),
                Some(Scalar::Float(value)) => json!(value),
                Some(Scalar::Text(text)) => json!(text),
                Some(Scalar::Null) | None => Value::Null,
            },
        }
    }
}

enum Scalar<'n> {
    Null,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(&'n str),
}

/// `-?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][-+]?[0-9]+)?`
fn is_number(text: &str) -> bool {
    let text = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = text.split_once(['e', 'E']).map_or((text, None), |(one, other)| (one, Some(other)));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_whole = whole == "0" || (!whole.is_empty() && digits(whole) && !whole.starts_with('0'));
    let is_exponent = |text: &str| {
        let text = text.strip_prefix(['-', '+']).unwrap_or(text);
        !text.is_empty() && digits(text)
    };
    is_whole && digits(fraction) && exponent.is_none_or(is_exponent)
}

/// A map or a list that has not ended.
struct Open {
    node: Node,
    /// A key whose value has not come.
    key: Option<String>,
    /// The keys that it has.
    keys: HashSet<String>,
    anchor: usize,
}

/// Parses the only document; `None` if there is none.
fn parse(text: &str) -> Result<Option<Node>, String> {
    let mut open: Vec<Open> = Vec::new();
    let mut anchors: HashMap<usize, (Node, usize, usize)> = HashMap::new();
    let (mut root, mut nodes) = (None, 0);
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| error.to_string())?;
        let at = |what: &str| format!("{what} at line {}", span.start.line());
        let done = match event {
            Event::Scalar(value, style, anchor, tag) => {
                nodes += 1;
                let is_plain = match tag.as_deref() {
                    None => style == ScalarStyle::Plain,
                    Some(tag) => match (tag.core_suffix(), tag.handle(), tag.suffix()) {
                        (Some("str"), ..) | (None, "!", "") => false,
                        (Some("bool" | "int" | "float" | "null"), ..) => true,
                        (_, handle, suffix) => {
                            return Err(at(&format!("could not determine a constructor for the tag {handle}{suffix}")));
                        }
                    },
                };
                // The parser makes a `~` of nothing.
                let is_nothing = is_plain && span.slice(text).is_none_or(str::is_empty);
                (Node::Scalar { text: if is_nothing { String::new() } else { value.into_owned() }, is_plain }, anchor)
            }
            Event::SequenceStart(_, anchor, _) => {
                open.push(Open { node: Node::List(Vec::new()), key: None, keys: HashSet::new(), anchor });
                if open.len() > MAX_DEPTH {
                    return Err(at("too many levels"));
                }
                continue;
            }
            Event::MappingStart(_, anchor, _) => {
                open.push(Open { node: Node::Map(Vec::new()), key: None, keys: HashSet::new(), anchor });
                if open.len() > MAX_DEPTH {
                    return Err(at("too many levels"));
                }
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                nodes += 1;
                let Some(Open { node, anchor, .. }) = open.pop() else { continue };
                (node, anchor)
            }
            Event::Alias(anchor) => {
                let Some((node, size, depth)) = anchors.get(&anchor) else {
                    return Err(at("an alias of what has not ended"));
                };
                nodes += size;
                if nodes > MAX_NODES {
                    return Err(at("too many values"));
                }
                if open.len() + depth > MAX_DEPTH {
                    return Err(at("too many levels"));
                }
                (node.clone(), 0)
            }
            _ => continue,
        };
        if nodes > MAX_NODES {
            return Err(at("too many values"));
        }
        let (node, anchor) = done;
        if anchor != 0 {
            // What has a name is kept a second time.
            let (size, depth) = size(&node);
            nodes += size;
            anchors.insert(anchor, (node.clone(), size, depth));
        }
        let Some(parent) = open.last_mut() else {
            // A document after the pod may be empty: the template ends with `---`.
            if root.is_none() {
                root = Some(node);
            } else if !node.is_null() {
                return Err("expected one document".to_owned());
            }
            continue;
        };
        match (&mut parent.node, parent.key.take()) {
            (Node::List(list), _) => list.push(node),
            (Node::Map(map), Some(key)) => {
                if !parent.keys.insert(key.clone()) {
                    return Err(at(&format!("duplicate key {key}")));
                }
                map.push((key, node));
            }
            (Node::Map(_), None) => {
                parent.key = Some(match node {
                    Node::Scalar { text, .. } => text,
                    _ => return Err(at("expected text as a key")),
                });
            }
            (Node::Scalar { .. }, _) => {}
        }
    }
    Ok(root)
}

/// The number of nodes, and of levels.
fn size(node: &Node) -> (usize, usize) {
    let sum = |all: &mut dyn Iterator<Item = &Node>| {
        let all = all.map(size).fold((0, 0), |(nodes, depth), (more, deep)| (nodes + more, depth.max(deep)));
        (all.0 + 1, all.1 + 1)
    };
    match node {
        Node::Scalar { .. } => (1, 1),
        Node::List(list) => sum(&mut list.iter()),
        Node::Map(map) => sum(&mut map.iter().map(|(_, node)| node)),
    }
}

/// A node that becomes what a type asks for.
#[derive(Clone, Copy)]
struct Typed<'n> {
    node: &'n Node,
    /// The key under which it is.
    key: &'n str,
    has_octal: bool,
}

impl<'n> Typed<'n> {
    fn of(self, node: &'n Node, key: &'n str) -> Typed<'n> {
        Typed { node, key, ..self }
    }

    fn wrong(self, expected: &str) -> Error {
        let got = self.node.text().map_or_else(|| self.node.what().to_owned(), |text| format!("{text:?}"));
        Error::custom(format!("{}: expected {expected}, got {got}", self.key))
    }

    fn integer(self) -> Result<i64, Error> {
        let wrong = || self.wrong("a whole number");
        match self.node.scalar().ok_or_else(wrong)? {
            // The fraction is dropped.
            Scalar::Float(number) => Ok(number as i64),
            Scalar::Integer(number) => Ok(number),
            Scalar::Text(text) => {
                let is_mode = matches!(self.key, "mode" | "defaultMode");
                let octal = ["0o", "0"].iter().find_map(|prefix| text.strip_prefix(prefix));
                match octal.filter(|digits| is_mode && self.has_octal && !digits.is_empty()) {
                    Some(digits) => i64::from_str_radix(digits, 8).map_err(|_| wrong()),
                    None => text.trim().parse().map_err(|_| wrong()),
                }
            }
            Scalar::Null | Scalar::Bool(_) => Err(wrong()),
        }
    }
}

impl<'de> Deserializer<'de> for Typed<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.node {
            Node::List(_) => self.deserialize_seq(visitor),
            Node::Map(_) => self.deserialize_map(visitor),
            Node::Scalar { .. } => match self.node.scalar() {
                Some(Scalar::Bool(value)) => visitor.visit_bool(value),
                Some(Scalar::Integer(value)) => visitor.visit_i64(value),
                Some(Scalar::Float(value)) => visitor.visit_f64(value),
                Some(Scalar::Text(text)) => visitor.visit_str(text),
                Some(Scalar::Null) | None => visitor.visit_unit(),
            },
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        // As Jackson reads it.
        let text = match self.node.scalar() {
            Some(Scalar::Bool(value)) => return visitor.visit_bool(value),
            Some(Scalar::Integer(number)) => return visitor.visit_bool(number != 0),
            Some(Scalar::Text(text)) => text.trim(),
            _ => "",
        };
        match text {
            "true" | "True" | "TRUE" => visitor.visit_bool(true),
            "false" | "False" | "FALSE" => visitor.visit_bool(false),
            _ => Err(self.wrong("true or false")),
        }
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i32(self.integer()?.try_into().map_err(|_| self.wrong("a whole number"))?)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i64(self.integer()?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.node.text() {
            Some(text) => visitor.visit_string(text),
            // In a map; elsewhere null is nothing.
            None if self.node.is_null() => visitor.visit_str(""),
            None => Err(self.wrong("text")),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.node.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Node::List(list) = self.node else { return Err(self.wrong("a list")) };
        visitor.visit_seq(Items { parent: self, rest: list.iter() })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Node::Map(map) = self.node else { return Err(self.wrong("a map")) };
        visitor.visit_map(Entries { parent: self, rest: map.iter(), next: None })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_map(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier
    }
}

struct Items<'n> {
    parent: Typed<'n>,
    rest: std::slice::Iter<'n, Node>,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        self.rest.next().map(|node| seed.deserialize(self.parent.of(node, self.parent.key))).transpose()
    }
}

struct Entries<'n> {
    parent: Typed<'n>,
    rest: std::slice::Iter<'n, (String, Node)>,
    next: Option<(&'n str, &'n Node)>,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        let Some((key, node)) = self.rest.next() else { return Ok(None) };
        self.next = Some((key, node));
        let key: StrDeserializer<'_, Error> = key.as_str().into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let (key, node) = self.next.take().ok_or_else(|| Error::custom("a value without a key"))?;
        seed.deserialize(self.parent.of(node, key))
    }
}

/// Makes a typed value what Spark's client sends: with the fields that the types do not know, and without empty lists and maps of text.
fn tidy(typed: &mut Value, node: &Node, path: &str, unknown: &mut Vec<String>) {
    match (typed, node) {
        (Value::Object(fields), Node::Map(entries)) => {
            for (key, node) in entries {
                match fields.get_mut(key) {
                    Some(value) => tidy(value, node, &format!("{path}{key}."), unknown),
                    None if !is_empty(node) => {
                        unknown.push(format!("{path}{key}"));
                        fields.insert(key.clone(), node.untyped());
                    }
                    None => {}
                }
            }
            // A field that the types demand, and that the template does not have.
            let known: HashSet<&str> = entries.iter().map(|(key, _)| key.as_str()).collect();
            fields.retain(|key, _| known.contains(key.as_str()) || is_of_every_object(key));
            fields.retain(|key, value| {
                !(is_empty_value(value) && (value.is_array() || TEXT_MAPS.contains(&key.as_str())))
            });
        }
        (Value::Array(items), Node::List(nodes)) => {
            items.iter_mut().zip(nodes).for_each(|(item, node)| tidy(item, node, path, unknown));
        }
        _ => {}
    }
}

/// Maps of text, which are not sent if they are empty; empty objects are.
const TEXT_MAPS: [&str; 8] =
    ["annotations", "labels", "limits", "matchLabels", "nodeSelector", "requests", "overhead", "volumeAttributes"];

fn is_of_every_object(key: &str) -> bool {
    matches!(key, "apiVersion" | "kind")
}

fn is_empty(node: &Node) -> bool {
    match node {
        Node::Scalar { .. } => node.is_null(),
        Node::List(list) => list.is_empty(),
        Node::Map(map) => map.is_empty(),
    }
}

fn is_empty_value(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pod(text: &str) -> Value {
        Value::Object(read(text, true).unwrap().pod)
    }

    #[test]
    fn fields_become_what_their_types_demand() {
        let text = "kind: Pod\nmetadata: {labels: {num: 1, ver: 1.10, yes: yes, bool: true, hex: 0x10, e: 1e3, o: 012, s: .5, t: ~}}\n\
                    spec:\n  priority: '7'\n  hostNetwork: true\n  nodeSelector: {gpu: true}\n  \
                    volumes: [{name: c, configMap: {name: c, defaultMode: 0644, items: [{key: a, path: b, mode: 0o440}]}}]\n  \
                    containers: [{name: x, env: [{name: PORT, value: 8080}], ports: [{containerPort: '9001'}], \
                    livenessProbe: {httpGet: {port: 4040}}, resources: {limits: {cpu: 0.5, gpu: 1}}, new: {a: [1, y]}}]\n";
        assert_eq!(
            pod(text),
            json!({"kind": "Pod", "apiVersion": "v1",
            "metadata": {"labels": {"num": "1", "ver": "1.1", "yes": "yes", "bool": "true", "hex": "0x10", "e": "1000.0", "o": "012",
                "s": ".5", "t": "~"}},
            "spec": {"priority": 7, "hostNetwork": true, "nodeSelector": {"gpu": "true"},
                "volumes": [{"name": "c", "configMap": {"name": "c", "defaultMode": 420, "items": [{"key": "a", "path": "b", "mode": 288}]}}],
                "containers": [{"name": "x", "env": [{"name": "PORT", "value": "8080"}], "ports": [{"containerPort": 9001}],
                    "livenessProbe": {"httpGet": {"port": 4040}}, "resources": {"limits": {"cpu": "0.5", "gpu": "1"}},
                    "new": {"a": [1, "y"]}}]}})
        );
        let modes = "spec: {volumes: [{name: c, secret: {defaultMode: 0644}}]}";
        assert_eq!(read(text, true).unwrap().unknown, ["spec.containers.new"]);
        assert_eq!(read(modes, false).unwrap().pod["spec"]["volumes"][0]["secret"]["defaultMode"], 644);
    }

    #[test]
    fn what_is_empty_is_not_sent_unless_it_is_an_object() {
        let text = "metadata: {labels: {}, annotations: {}, creationTimestamp: null, ownerReferences: []}\n\
                    spec: {securityContext: {sysctls: []}, affinity: {nodeAffinity: {}}, tolerations: [], containers: [{name: x, command: , args: []}]}";
        assert_eq!(
            pod(text),
            json!({"kind": "Pod", "apiVersion": "v1", "metadata": {},
                "spec": {"securityContext": {}, "affinity": {"nodeAffinity": {}}, "containers": [{"name": "x"}]}})
        );
    }

    #[test]
    fn anchors_are_followed_and_bombs_refused() {
        assert_eq!(pod("metadata: {labels: &l {a: b}, annotations: *l}")["metadata"]["annotations"], json!({"a": "b"}));
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..10 {
            let last = format!("*a{}", level - 1);
            bomb.push_str(&format!("a{level}: &a{level} [{}]\n", [last.as_str(); 10].join(", ")));
        }
        assert!(read(&bomb, true).unwrap_err().contains("too many values"));
        assert!(read(&"[".repeat(10_000), true).is_err());
        let mut deep = "a0: &a0 [x]\n".to_owned();
        for level in 1..40 {
            deep.push_str(&format!("a{level}: &a{level} {}*a{}{}\n", "[".repeat(90), level - 1, " ]".repeat(90)));
        }
        assert!(read(&deep, true).unwrap_err().contains("too many levels"));
    }

    #[test]
    fn errors_say_where_and_what_was_expected() {
        for (text, expected) in [
            ("", "expected a pod, got nothing"),
            ("- a", "expected a pod"),
            ("kind: Deployment", "expected kind Pod, not Deployment"),
            ("spec: {priority: high}", "priority: expected a whole number, got \"high\""),
            ("spec: {hostNetwork: yes}", "hostNetwork: expected true or false, got \"yes\""),
            ("spec: {containers: {name: x}}", "containers: expected a list, got a map"),
            ("spec: {nodeName: [a]}", "nodeName: expected text, got a list"),
            ("metadata: {labels: {a: b, a: c}}", "duplicate key a at line 1"),
            ("a: b\n---\na: c", "expected one document"),
        ] {
            assert_eq!(read(text, true).unwrap_err(), expected, "{text}");
        }
        assert!(read("spec: {containers: [}", true).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in any::<String>(), yaml in "[a-z:{}\\[\\], \n&*'\"|>-]{0,60}") {
            let _ = read(&text, true);
            let _ = read(&format!("spec: {yaml}"), false);
        }
    }
}
