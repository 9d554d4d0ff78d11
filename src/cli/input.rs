//! Reads input: files or standard input, JSON or YAML, one document or several.

use std::io::Read;
use std::path::Path;

use serde_json::Value;
use usher_config::{BadConfig, Config};

/// Returns the text of a file, or of standard input for `-`.
pub(super) fn read(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = if path.as_os_str() == "-" {
        std::io::stdin().lock().read_to_string(&mut text).map(|_| ())
    } else {
        std::fs::read_to_string(path).map(|read| text = read)
    };
    read.map(|()| text).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// Reads and validates a policy file.
pub(super) fn policy_file(path: &Path) -> Result<Config, BadConfig> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| BadConfig::Unreadable { path: path.display().to_string(), source })?;
    usher_config::from_text(&text)
}

/// Returns all documents of a text, JSON or YAML; lists are split into their items.
pub(super) fn documents(text: &str) -> Result<Vec<Value>, String> {
    let yaml = || serde_saphyr::from_multiple::<Value>(text);
    let documents = if text.trim_start().starts_with('{') {
        // YAML's flow style begins like JSON.
        match serde_json::from_str(text) {
            Ok(document) => vec![document],
            Err(error) => yaml().map_err(|_| format!("expected JSON: {error}"))?,
        }
    } else {
        yaml().map_err(|error| format!("expected JSON or YAML: {error}"))?
    };
    let mut all = Vec::new();
    for document in documents.into_iter().filter(|document| !document.is_null()) {
        match document.get("items").and_then(Value::as_array) {
            Some(items) if is_list(&document) => all.extend(items.clone()),
            _ => all.push(document),
        }
    }
    Ok(all)
}

fn is_list(document: &Value) -> bool {
    let kind = document.get("kind").and_then(Value::as_str);
    kind.is_none_or(|kind| kind.ends_with("List"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_read_from_json_yaml_and_lists() {
        let kinds = |text: &str| {
            documents(text).unwrap().iter().map(|d| d["kind"].as_str().unwrap_or("-").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(kinds(r#"{"kind":"Pod"}"#), ["Pod"]);
        assert_eq!(kinds("kind: Pod\nmetadata: {name: a}\n"), ["Pod"]);
        assert_eq!(kinds("---\nkind: Pod\n---\n---\nkind: Namespace\n"), ["Pod", "Namespace"]);
        assert_eq!(kinds(r#"{"kind":"PodList","items":[{"kind":"A"},{}]}"#), ["A", "-"]);
        assert!(documents("{").unwrap_err().starts_with("expected JSON: "));
        assert!(documents("a: [").unwrap_err().starts_with("expected JSON or YAML: "));
    }
}
