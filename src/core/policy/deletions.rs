//! Which pods spark-usher deletes, and when: the one text that `config check`, the log, doctor and the page show.

use std::time::Duration;

use crate::snapshot::Stage;

use super::{Finished, Mode, Policies, RecoveryRule};

/// Which pods are deleted by what, such as `pods are deleted by: recovery.orphans (an executor exists although its driver is gone, for
/// 5m)`; or that none are.
pub fn deletions(policies: &Policies) -> String {
    let Policies { recovery, lifecycle, .. } = policies;
    let rules = RecoveryRule::ALL.into_iter().filter(|rule| rule.can_act() && recovery.may_act(*rule));
    let mut all: Vec<String> = rules
        .map(|rule| {
            let text = rule.text().trim_end_matches('.');
            let mut first = text.chars();
            let text: String = first.next().into_iter().flat_map(char::to_lowercase).chain(first).collect();
            let after = recovery.rule(rule).after;
            let after = match rule {
                RecoveryRule::GivenUp => format!(", by {} views", recovery.given_up_views),
                RecoveryRule::Stuck => {
                    format!(
                        ", for {}, or {} in init containers",
                        shown(after),
                        shown(recovery.starts_within(Stage::Initializing))
                    )
                }
                _ if after.is_zero() => String::new(),
                _ => format!(", for {}", shown(after)),
            };
            format!("recovery.{} ({text}{after})", rule.as_str())
        })
        .collect();
    if lifecycle.finished == Finished::Delete {
        let kept = shown(lifecycle.keep_failed);
        all.push(format!(
            "lifecycle.finished (an executor has finished, and its driver leaves its pod; {kept} later if it failed)"
        ));
    }
    match all.is_empty() {
        true if RecoveryRule::ALL.into_iter().any(|rule| recovery.rule(rule).mode != Mode::Off) => {
            "no pods are deleted: recovery rules only report".to_owned()
        }
        true => "no pods are deleted".to_owned(),
        false if recovery.dry_run => {
            format!("no pods are deleted (lifecycle.dryRun); they would be by: {}", all.join("; "))
        }
        false => format!("pods are deleted by: {}", all.join("; ")),
    }
}

fn shown(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds % 3600, seconds % 60) {
        (0, _) => format!("{}h", seconds / 3600),
        (_, 0) => format!("{}m", seconds / 60),
        _ => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Recovery, RuleSettings};
    use super::*;

    #[test]
    fn text_names_each_rule_that_acts_and_when() {
        let with = |recovery: Recovery| Policies::default().with_recovery(recovery);
        assert_eq!(deletions(&Policies::default()), "no pods are deleted: recovery rules only report");
        let acts = Recovery { acts: true, ..Recovery::default() };
        assert_eq!(
            deletions(&with(acts.clone())),
            "pods are deleted by: recovery.orphans (an executor exists although its driver is gone, for 5m); recovery.refused \
             (a kubelet rejected or evicted an executor, and its pod remains, for 1h)"
        );
        let settings = |rule: RecoveryRule, mode| RuleSettings { mode, ..rule.defaults() };
        let given_up = acts.clone().with_rule(RecoveryRule::GivenUp, settings(RecoveryRule::GivenUp, Mode::Act));
        let text = deletions(&with(given_up.clone()));
        assert!(
            text.contains("recovery.givenUp (an executor runs although its driver has removed it, by 10 views);"),
            "{text}"
        );
        let dry = deletions(&with(Recovery { dry_run: true, ..given_up }));
        assert!(dry.starts_with("no pods are deleted (lifecycle.dryRun); they would be by: recovery.givenUp"), "{dry}");
        let off = RecoveryRule::ALL
            .into_iter()
            .fold(Recovery::default(), |recovery, rule| recovery.with_rule(rule, settings(rule, Mode::Off)));
        assert_eq!(deletions(&with(off)), "no pods are deleted");
    }
}
