//! Exit codes of executors, and Spark's explanations (`ExecutorPodsLifecycleManager.describeExitCode`).

/// Exit codes that Spark explains, in its order.
const EXPLAINED: &[(i32, &str)] = &[
    (0, "(success)"),
    (1, "(generic, look at logs to clarify)"),
    (42, "(Douglas Adams fan)"),
    (10, "(Uncaught exception)"),
    (50, "(Uncaught exception)"),
    (52, "(JVM OOM)"),
    (53, "(DiskStore failed to create temp dir)"),
    (126, "(not executable - possibly perm or arch)"),
    (137, "(SIGKILL, possible container OOM)"),
    (139, "(SIGSEGV: that's unexpected)"),
    (255, "(exit-1, your guess is as good as mine)"),
];

/// Spark's explanation of an exit code.
pub fn explain(code: i32) -> &'static str {
    EXPLAINED.iter().find(|(known, _)| *known == code).map_or("(unexpected)", |(_, text)| text)
}

/// An exit code as a metric's label value: one of those that Spark explains, `none` or `other`.
pub fn bounded(code: Option<i32>) -> &'static str {
    match code {
        None => "none",
        Some(0) => "0",
        Some(1) => "1",
        Some(10) => "10",
        Some(42) => "42",
        Some(50) => "50",
        Some(52) => "52",
        Some(53) => "53",
        Some(126) => "126",
        Some(127) => "127",
        Some(137) => "137",
        Some(139) => "139",
        Some(143) => "143",
        Some(255) => "255",
        Some(_) => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_exit_code_has_text_and_metric_label() {
        for (code, text) in EXPLAINED {
            assert_eq!(explain(*code), *text);
            assert_ne!(bounded(Some(*code)), "other", "{code}");
        }
        assert_eq!(explain(-1), "(unexpected)");
        assert_eq!((bounded(None), bounded(Some(7))), ("none", "other"));
    }
}
