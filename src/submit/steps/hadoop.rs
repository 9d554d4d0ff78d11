//! Hadoop's configuration (`HadoopConfDriverFeatureStep`).

use serde_json::{Map, Value, json};

use crate::draft::{Draft, SubmitContext};
use crate::error::{Result, require};

const FOLDER: &str = "/opt/hadoop/conf";
const VOLUME: &str = "hadoop-properties";
const KEY: &str = "spark.kubernetes.hadoop.configMapName";

pub(super) fn configure(context: &SubmitContext<'_>, draft: &mut Draft) -> Result<()> {
    let folder = context.env.variables.get("HADOOP_CONF_DIR");
    let existing = context.conf().get(KEY);
    require(folder.is_none() || existing.is_none(), || {
        format!(
            "Do not specify both the `HADOOP_CONF_DIR` in your ENV and the ConfigMap as the creation of an additional ConfigMap, when one is already specified is extraneous ({KEY})"
        )
    })?;
    let name = format!("{}-hadoop-config", context.prefix);
    let mut source = Map::new();
    let name = match (folder, existing) {
        (None, None) => return Ok(()),
        (_, Some(existing)) => existing.to_owned(),
        (Some(folder), None) => {
            let mut data = Map::new();
            let mut names = context.files.list(folder);
            names.sort_unstable();
            for name in names {
                data.insert(name.clone(), json!(context.text(&format!("{folder}/{name}"), "HADOOP_CONF_DIR")?));
            }
            let items: Vec<Value> = data.keys().map(|name| json!({"key": name, "path": name})).collect();
            let mut map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "immutable": true, "data": data});
            if items.is_empty() {
                map.as_object_mut().map(|map| map.remove("data"));
            } else {
                source.insert("items".into(), json!(items));
            }
            draft.resources.push(map);
            name
        }
    };
    source.insert("name".into(), json!(name));
    draft.volume(json!({"name": VOLUME, "configMap": source}));
    draft.mount(json!({"name": VOLUME, "mountPath": FOLDER}));
    draft.env("HADOOP_CONF_DIR", FOLDER);
    draft.property("spark.kubernetes.executor.hadoopConfigMapName", name);
    Ok(())
}
