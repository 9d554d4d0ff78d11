//! Spark's configuration while an application is submitted (`SparkConf`, `ConfigBuilder`).

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::error::{Result, SubmitError};
use super::java;
use super::scala;
use super::substitution::{Bindings, Unresolved};
use usher_spark::conf;
use usher_spark::version::SparkVersion;

/// Keys and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SparkConf {
    values: BTreeMap<String, String>,
    /// Of values with references: what they are with the references replaced.
    resolved: BTreeMap<String, String>,
}

/// Keys, and prefixes that end with `.`, whose values Spark reads unprocessed, although it defines these settings.
const RAW: [&str; 12] = [
    "spark.app.name",
    "spark.blockManager.port",
    "spark.connect.grpc.binding.port",
    "spark.driver.blockManager.port",
    "spark.driver.port",
    "spark.driver.resource.",
    "spark.kerberos.keytab",
    "spark.kubernetes.authenticate.driver.caCertFile",
    "spark.kubernetes.authenticate.driver.clientCertFile",
    "spark.kubernetes.authenticate.driver.clientKeyFile",
    "spark.kubernetes.authenticate.driver.oauthToken",
    "spark.local.dir",
];
/// Parts of the keys of settings that Spark reads by the beginning of their keys, as they are.
const FAMILIES: [&str; 7] =
    [".annotation.", ".label.", "Env.", ".node.selector.", ".secretKeyRef.", ".secrets.", ".volumes."];

impl SparkConf {
    /// The value of a key, as a setting that Spark defines: references are replaced once `SparkConf::resolve` was called.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.resolved.get(key).or_else(|| self.values.get(key)).map(String::as_str)
    }

    pub fn set(&mut self, key: &str, value: impl Into<String>) {
        self.resolved.remove(key);
        self.values.insert(key.to_owned(), value.into());
    }

    /// Sets a key that has no value.
    pub fn set_if_missing(&mut self, key: &str, value: &str) {
        self.values.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.resolved.remove(key);
        self.values.remove(key);
    }

    /// Replaces the references in the values of settings that Spark defines. Returns those to nothing, each with its key; they stay.
    pub(super) fn resolve(
        &mut self,
        variable: &dyn Fn(&str) -> Option<String>,
        property: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Vec<(String, String)>> {
        let bindings = Bindings { conf: &self.values, variable, property, memo: RefCell::default() };
        let mut resolved = BTreeMap::new();
        let mut to_nothing = Vec::new();
        for (key, value) in self.values.iter().filter(|(key, value)| value.contains("${") && !is_raw(key)) {
            let mut unresolved = Unresolved::default();
            // What only the driver or the application reads is theirs.
            let is_read = key.starts_with("spark.kubernetes.");
            match bindings.substituted(value, &mut unresolved) {
                Ok(value) => _ = resolved.insert(key.clone(), value),
                Err(error) if is_read => return Err(error),
                Err(_) => {}
            }
            to_nothing.extend(unresolved.0.into_iter().filter(|_| is_read).map(|reference| (key.clone(), reference)));
        }
        self.resolved = resolved;
        Ok(to_nothing)
    }

    /// All keys and values as they are, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// What follows a prefix in its keys, and their values.
    pub(crate) fn with_prefix<'c>(&'c self, prefix: &'c str) -> impl Iterator<Item = (&'c str, &'c str)> {
        self.iter().filter_map(move |(key, value)| Some((key.strip_prefix(prefix)?, value)))
    }

    /// The same in the order in which Spark iterates them.
    pub(super) fn in_sparks_order<'c>(&'c self, prefix: &'c str, version: SparkVersion) -> Vec<(&'c str, &'c str)> {
        let is_2_12 = version.major < 4;
        let all = scala::set_order(self.iter(), is_2_12).into_iter();
        let all = all.filter_map(|(key, value)| Some((key.strip_prefix(prefix)?, value))).collect();
        scala::map_order(all, is_2_12)
    }

    /// A list, separated by commas.
    pub(super) fn list(&self, key: &str) -> Vec<&str> {
        self.get(key)
            .into_iter()
            .flat_map(|list| list.split(','))
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .collect()
    }

    pub(super) fn boolean(&self, key: &str) -> Result<Option<bool>> {
        let parse = |value: &str| match value.trim().to_ascii_lowercase().as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(SubmitError::mismatch(key, value, "boolean")),
        };
        self.get(key).map(parse).transpose()
    }

    pub(super) fn integer(&self, key: &str) -> Result<Option<i32>> {
        let parse = |value: &str| match is_raw(key) {
            true => value.parse().map_err(|_| {
                SubmitError::new(format!("Illegal value for config key {key}: For input string: \"{value}\""))
            }),
            false => value.trim().parse().map_err(|_| SubmitError::mismatch(key, value, "int")),
        };
        self.get(key).map(parse).transpose()
    }

    pub(super) fn port(&self, key: &str) -> Result<Option<i32>> {
        let port = self.integer(key)?;
        match port.filter(|port| !(0..=65535).contains(port)) {
            Some(port) => Err(SubmitError::new(format!("{key} should be a port from 0 to 65535, but was {port}"))),
            None => Ok(port),
        }
    }

    /// A factor that is not negative, or greater than 0.
    pub(super) fn factor(&self, key: &str, is_positive: bool) -> Result<Option<f64>> {
        let parse = |value: &str| {
            let factor = java::parse_double(value).ok_or_else(|| SubmitError::mismatch(key, value, "double"))?;
            let words = if is_positive { "a double greater than 0" } else { "non-negative" };
            // Not a number is neither.
            if factor > 0.0 || (factor == 0.0 && !is_positive) {
                return Ok(factor);
            }
            let words = format!("Ensure that memory overhead is {words}");
            Err(SubmitError::requirement(key, &java::double(factor), &words))
        };
        self.get(key).map(parse).transpose()
    }

    /// One of these.
    pub(super) fn one_of<'c>(&'c self, key: &str, options: &[&str]) -> Result<Option<&'c str>> {
        match self.get(key) {
            Some(value) if !options.contains(&value) => Err(SubmitError::no_option(key, value, options)),
            value => Ok(value),
        }
    }

    /// A size of the JVM's in whole mebibytes: a bare number means mebibytes.
    pub(super) fn mebibytes(&self, key: &str, version: SparkVersion) -> Result<Option<u64>> {
        let parse = |value: &str| conf::mebibytes(value, version).ok_or_else(|| SubmitError::no_size(key, value));
        self.get(key).map(parse).transpose()
    }
}

/// Whether Spark reads a setting as it is.
fn is_raw(key: &str) -> bool {
    RAW.iter().any(|raw| key == *raw || (raw.ends_with('.') && key.starts_with(raw)))
        || FAMILIES.iter().any(|part| key.contains(part))
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for SparkConf {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(all: I) -> SparkConf {
        let values = all.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        SparkConf { values, resolved: BTreeMap::new() }
    }
}
