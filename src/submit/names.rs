//! Names of what a submission creates (`KubernetesConf.getResourceNamePrefix`, `KubernetesUtils.uniqueID`).

/// What makes a submission unique. The caller chooses it, so that the core is deterministic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unique {
    /// Milliseconds since 1970.
    pub millis: i64,
    /// 32 hexadecimal digits for the application's id.
    pub app: String,
    /// Six hexadecimal digits each, for the names of the pod, the Service and the ConfigMap.
    pub digits: [String; 3],
    /// UUIDs: of the local folder, and one for each upload. Uploads for which none is left get the first, with their number.
    pub uuids: Vec<String>,
}

impl Unique {
    /// `spark-` and a UUID without dashes.
    pub(super) fn app_id(&self) -> String {
        format!("spark-{}", self.app)
    }

    /// The unique part of a name.
    pub(super) fn id(&self, at: usize) -> String {
        let digits = self.digits.get(at).map_or("000000", String::as_str);
        format!("{digits}{:x}", self.millis & 0xFF_FFFF_FFFF)
    }

    pub(super) fn uuid(&self, at: usize) -> String {
        let first = || self.uuids.first().map_or("", String::as_str);
        self.uuids.get(at).cloned().unwrap_or_else(|| format!("{}-{at}", first()))
    }
}

/// Lower case, with a single dash for all that a name cannot contain.
fn dashed(text: &str) -> String {
    let mut name = String::new();
    for c in text.trim_matches(|c| c <= ' ').to_lowercase().chars() {
        let c = if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
        if !(c == '-' && name.ends_with('-')) {
            name.push(c);
        }
    }
    name
}

/// The prefix of the names of an application's objects. Names begin with a letter, because a Service's must.
pub(super) fn prefix(app_name: &str, unique: &str) -> String {
    let name = dashed(&format!("{app_name}-{unique}"));
    let name = name.strip_prefix('-').unwrap_or(&name);
    match name.strip_prefix(|c: char| c.is_ascii_digit()) {
        Some(rest) => format!("x{rest}"),
        None => name.to_owned(),
    }
}

/// The value of the label [`APP_NAME`](usher_spark::labels::APP_NAME).
pub(super) fn label(app_name: &str) -> String {
    let name: String = dashed(app_name).chars().take(63).collect();
    let name = name.strip_prefix('-').unwrap_or(&name);
    name.strip_suffix('-').unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_spark() {
        assert_eq!(prefix("123 Ärger__Test.App--x ", "u1"), "x23-rger-test-app-x-u1");
        assert_eq!(label("123 Ärger__Test.App--x "), "123-rger-test-app-x");
        assert_eq!(label(&"a-".repeat(40)), format!("{}a", "a-".repeat(31)));
        let unique = Unique {
            millis: 1_795_565_554_688,
            app: "a".repeat(32),
            digits: ["0a0b0c".into(), "1".into(), "2".into()],
            uuids: vec![],
        };
        assert_eq!(unique.id(0), "0a0b0ca2100c0c00");
    }

    #[test]
    fn every_upload_has_a_folder_of_its_own() {
        let unique = Unique {
            millis: 0,
            app: String::new(),
            digits: [const { String::new() }; 3],
            uuids: vec!["a".into(), "b".into()],
        };
        let all: std::collections::BTreeSet<String> = (0..100).map(|at| unique.uuid(at)).collect();
        assert_eq!(all.len(), 100);
        assert!(all.iter().all(|uuid| uuid.starts_with(['a', 'b'])));
    }
}
