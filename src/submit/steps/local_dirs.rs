//! Scratch space (`LocalDirsFeatureStep`).

use serde_json::{Value, json};

use crate::draft::{Draft, SubmitContext};
use crate::error::Result;

const PREFIX: &str = "spark-local-dir-";

pub(super) fn configure(context: &SubmitContext<'_>, draft: &mut Draft) -> Result<()> {
    let conf = context.conf();
    let mounts = draft.container.get("volumeMounts").and_then(Value::as_array);
    let mounted = mounts
        .into_iter()
        .flatten()
        .filter(|mount| mount.get("name").and_then(Value::as_str).is_some_and(|name| name.starts_with(PREFIX)));
    let mounted: Vec<String> =
        mounted.filter_map(|mount| mount.get("mountPath").and_then(Value::as_str)).map(str::to_owned).collect();
    if !mounted.is_empty() {
        draft.env("SPARK_LOCAL_DIRS", &mounted.join(","));
        return Ok(());
    }
    let default = format!("/var/data/spark-{}", context.unique.uuid(0));
    let dirs =
        context.env.variables.get("SPARK_LOCAL_DIRS").or_else(|| conf.get("spark.local.dir")).unwrap_or(&default);
    // As the JVM splits: without what is empty at the end.
    let dirs: Vec<&str> = match dirs.trim_end_matches(',') {
        "" if !dirs.is_empty() => Vec::new(),
        dirs => dirs.split(',').collect(),
    };
    let in_memory = conf.boolean("spark.kubernetes.local.dirs.tmpfs")?.unwrap_or(false);
    for (at, dir) in dirs.iter().enumerate() {
        let name = format!("{PREFIX}{}", at + 1);
        let source = if in_memory { json!({"medium": "Memory"}) } else { json!({}) };
        draft.volume(json!({"name": name, "emptyDir": source}));
        draft.mount(json!({"name": name, "mountPath": dir}));
    }
    draft.env("SPARK_LOCAL_DIRS", &dirs.join(","));
    Ok(())
}
