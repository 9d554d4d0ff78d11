//! The parameters of the objects: their names, the namespaces, and our own account.

use serde_json::Value;

/// The parameters of the manifests.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// The first part of the objects' names.
    pub name: String,
    /// Requirements on the namespace's labels, as `matchExpressions`.
    pub namespaces: Vec<Value>,
    /// The user name of spark-usher's own account, which may change owners and gang keys.
    pub account: String,
}
