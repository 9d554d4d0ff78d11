//! The environment of a submission: this process's variables, and those that `spark-env.sh` sets (`bin/load-spark-env.sh`).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow};

use usher_submit::{Environment, SparkConf};

/// Reads the script, prints what it prints to standard error, and then all variables.
const SCRIPT: &str = r#"set -a; . "$1" >&2; exec env -0"#;

/// spark-submit is configured by the environment, and configurations may refer to any of it.
pub(super) fn environment() -> anyhow::Result<Environment> {
    let mut variables = readable(std::env::vars_os());
    let script = script(&variables).filter(|script| script.is_file());
    if let Some(script) = script.filter(|_| variables.get("SPARK_ENV_LOADED").is_none_or(str::is_empty)) {
        variables = sourced(&script)?;
    }
    Ok(Environment { user: user(&variables), variables })
}

fn readable(all: impl Iterator<Item = (OsString, OsString)>) -> SparkConf {
    all.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))).collect()
}

fn script(variables: &SparkConf) -> Option<PathBuf> {
    let set = |name: &str| variables.get(name).filter(|value| !value.is_empty());
    let folder = set("SPARK_CONF_DIR").map(PathBuf::from);
    Some(folder.or_else(|| Some(Path::new(set("SPARK_HOME")?).join("conf")))?.join("spark-env.sh"))
}

/// The variables after the script was read, by bash, for which it is written.
fn sourced(script: &Path) -> anyhow::Result<SparkConf> {
    let mut bash = Command::new("bash");
    bash.args(["-c", SCRIPT, "bash"]).arg(script).stdin(Stdio::null()).stderr(Stdio::inherit());
    let done = bash.output().with_context(|| format!("cannot read {} with bash", script.display()))?;
    if !done.status.success() {
        return Err(anyhow!("{} failed: {}", script.display(), done.status));
    }
    // env prints at least PATH, or what the script set.
    if done.stdout.is_empty() {
        return Err(anyhow!("{} ended before its end: expected no exit in it", script.display()));
    }
    let pairs = done.stdout.split(|byte| *byte == 0).filter_map(|pair| {
        let at = pair.iter().position(|byte| *byte == b'=')?;
        let (name, value) = pair.split_at_checked(at)?;
        Some((OsString::from_vec(name.to_vec()), OsString::from_vec(value.get(1..)?.to_vec())))
    });
    Ok(readable(pairs))
}

/// The name of the user whose process this is, as the JVM finds it; the variables may say anything.
fn user(variables: &SparkConf) -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten().map(|user| user.name);
    let named = || ["USER", "LOGNAME"].iter().find_map(|name| variables.get(name)).map(str::to_owned);
    user.or_else(named).unwrap_or_else(|| "root".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_sets_variables() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("spark-env.sh");
        std::fs::write(&script, "echo read\nHADOOP_CONF_DIR=/etc/hadoop\nLINES_OF=\"a\nb=c\"\n").unwrap();
        let variables = sourced(&script).unwrap();
        assert_eq!(
            (variables.get("HADOOP_CONF_DIR"), variables.get("LINES_OF")),
            (Some("/etc/hadoop"), Some("a\nb=c"))
        );
        assert!(variables.get("PATH").is_some());
        std::fs::write(&script, "exit 3\n").unwrap();
        assert!(sourced(&script).unwrap_err().to_string().contains("spark-env.sh failed"), "");
        std::fs::write(&script, "exit 0\n").unwrap();
        assert!(sourced(&script).unwrap_err().to_string().contains("ended before its end"), "");
    }

    #[test]
    fn script_is_in_the_folder_of_the_configuration() {
        let script_of = |pairs: &[(&str, &str)]| script(&pairs.iter().copied().collect());
        assert_eq!(script_of(&[("SPARK_CONF_DIR", "/c"), ("SPARK_HOME", "/s")]), Some("/c/spark-env.sh".into()));
        assert_eq!(script_of(&[("SPARK_CONF_DIR", ""), ("SPARK_HOME", "/s")]), Some("/s/conf/spark-env.sh".into()));
        assert_eq!(script_of(&[]), None);
    }
}
