//! What a pod's name says about the application's name, for pods without the label `spark-app-name`.

/// The application's name in the name of its driver's or executor's pod. Spark names them `NAME-UNIQUE-driver` and
/// `NAME-UNIQUE-exec-ID`, with 16 hexadecimal digits (`KubernetesUtils.uniqueID`); the whole name for a pod that is named otherwise.
pub fn app_name_of_pod(pod: &str) -> &str {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let of_executor = || pod.rsplit_once("-exec-").filter(|(_, id)| is_number(id)).map(|(prefix, _)| prefix);
    let prefix = pod.strip_suffix("-driver").or_else(of_executor).unwrap_or(pod);
    match prefix.rsplit_once('-') {
        Some((name, unique)) if !name.is_empty() && is_unique(unique) => name,
        _ => prefix,
    }
}

/// Whether a part of a name is random: at least 12 hexadecimal digits.
fn is_unique(part: &str) -> bool {
    part.len() >= 12 && part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn application_is_named_by_its_pods() {
        for (pod, expected) in [
            ("spark-pi-0a0b0ca2100c0c00-driver", "spark-pi"),
            ("spark-pi-0a0b0ca2100c0c00-exec-12", "spark-pi"),
            ("nb-driver", "nb"),
            ("nb-exec-1", "nb"),
            ("notebook-0", "notebook-0"),
            ("nightly-exec-report", "nightly-exec-report"),
            ("etl-20261128-driver", "etl-20261128"),
            ("deadbeefdeadbeef-driver", "deadbeefdeadbeef"),
            ("-driver", ""),
            ("", ""),
        ] {
            assert_eq!(app_name_of_pod(pod), expected, "{pod}");
        }
    }
}
