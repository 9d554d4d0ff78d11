//! Kerberos (`KerberosConfDriverFeatureStep`): the files and Secrets that a driver gets. Delegation tokens are not obtained here, which
//! needs Hadoop's own clients: a keytab, or a Secret with tokens, is what the driver works with.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::draft::{Draft, SubmitContext};
use crate::error::{Result, SubmitError, require};
use crate::options::local_path;

const KRB5_FILE: &str = "krb5.conf";
const KEYTAB_FOLDER: &str = "/mnt/secrets/kerberos-keytab";
const TOKENS_FOLDER: &str = "/mnt/secrets/hadoop-credentials";

pub(super) fn configure(context: &SubmitContext<'_>, draft: &mut Draft) -> Result<()> {
    let conf = context.conf();
    let key = |name: &str| format!("spark.kubernetes.kerberos.{name}");
    let (path, map) =
        (conf.get("spark.kubernetes.kerberos.krb5.path"), conf.get("spark.kubernetes.kerberos.krb5.configMapName"));
    require(path.is_none() || map.is_none(), || {
        "Do not specify both a Krb5 local file and the ConfigMap as the creation of an additional ConfigMap, when one is already \
         specified, is extraneous"
            .to_owned()
    })?;
    let (principal, keytab) = (conf.get("spark.kerberos.principal"), conf.get("spark.kerberos.keytab"));
    require(principal.is_none() || keytab.is_some(), || {
        "If a Kerberos principal is specified you must also specify a Kerberos keytab".to_owned()
    })?;
    require(keytab.is_none() || principal.is_some(), || {
        "If a Kerberos keytab is specified you must also specify a Kerberos principal".to_owned()
    })?;
    let (secret, item) = (key("tokenSecret.name"), key("tokenSecret.itemKey"));
    let (secret, item) = (conf.get(&secret), conf.get(&item));
    require(secret.is_none() || item.is_some(), || {
        "If a secret storing a Kerberos Delegation Token is specified you must also specify the item-key where the data is stored \
         (spark.kubernetes.kerberos.tokenSecret.itemKey is missing)"
            .to_owned()
    })?;
    require(item.is_none() || secret.is_some(), || {
        "If a secret data item-key where the data of the Kerberos Delegation Token is specified you must also specify the name of the \
         secret (spark.kubernetes.kerberos.tokenSecret.name is missing)"
            .to_owned()
    })?;

    // Keytab and tokens first, then krb5.conf, as the pod's lists have them.
    let generated = path.map(|_| format!("{}-krb5-file", context.prefix));
    if let Some(name) = generated.as_deref().or(map) {
        let mut source = json!({"name": name});
        if let (true, Some(source)) = (generated.is_some(), source.as_object_mut()) {
            source.insert("items".into(), json!([{"key": KRB5_FILE, "path": KRB5_FILE}]));
        }
        draft.volume(json!({"name": "krb5-file", "configMap": source}));
        draft.mount(json!({"name": "krb5-file", "mountPath": "/etc/krb5.conf", "subPath": KRB5_FILE}));
    }
    if let Some(keytab) = keytab.filter(|keytab| !keytab.starts_with("local:")) {
        let name = format!("{}-kerberos-keytab", context.prefix);
        draft.volume(json!({"name": "kerberos-keytab", "secret": {"secretName": name}}));
        draft.mount(json!({"name": "kerberos-keytab", "mountPath": KEYTAB_FOLDER}));
        let file = local_path(keytab).rsplit('/').next().unwrap_or_default().to_owned();
        draft.property("spark.kerberos.keytab", format!("{KEYTAB_FOLDER}/{file}"));
    } else if let (Some(secret), Some(item)) = (secret, item) {
        draft.volume(json!({"name": "hadoop-secret", "secret": {"secretName": secret}}));
        draft.mount(json!({"name": "hadoop-secret", "mountPath": TOKENS_FOLDER}));
        draft.env("HADOOP_TOKEN_FILE_LOCATION", &format!("{TOKENS_FOLDER}/{item}"));
        draft.property("spark.kubernetes.kerberos.tokenSecret.name", secret);
        draft.property("spark.kubernetes.kerberos.tokenSecret.itemKey", item);
    }
    if let Some(path) = path {
        let content = context.text(path, "spark.kubernetes.kerberos.krb5.path")?;
        draft.resources.push(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("{}-krb5-file", context.prefix)},
            "immutable": true, "data": {KRB5_FILE: content}}));
    }
    if let Some(keytab) = keytab.filter(|keytab| !keytab.starts_with("local:")) {
        // A path, and no URI.
        let content = context.files.read(keytab).map_err(|why| {
            SubmitError::new(format!("Keytab file: {keytab} does not exist (spark.kerberos.keytab: {why})"))
        })?;
        let file = local_path(keytab).rsplit('/').next().unwrap_or_default().to_owned();
        let name = format!("{}-kerberos-keytab", context.prefix);
        draft
            .resources
            .push(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "immutable": true,
            "data": {file: STANDARD.encode(content)}}));
    }
    Ok(())
}
