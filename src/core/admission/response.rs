//! Writes the response: an AdmissionReview, directly as bytes.

use std::io::Write;

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;

use super::decision::{Decision, Denial, Verdict};
use super::patch::{self, json_string};
use super::request::Review;
use crate::reason::Reason;

/// The response to a review. `patch` and `patchType` are set together or not at all.
pub fn write(review: &Review<'_>, decision: &Decision<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(2048);
    out.extend_from_slice(br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"#);
    json_string(&mut out, &review.uid);
    match &decision.verdict {
        Verdict::Allow { mutations } => {
            out.extend_from_slice(br#","allowed":true"#);
            if let Some(pod) = review.pod.as_ref().filter(|_| !mutations.is_empty()) {
                out.extend_from_slice(br#","patchType":"JSONPatch","patch":""#);
                let mut operations = Vec::with_capacity(1024);
                patch::write(pod, mutations, &mut operations);
                // Writing to a Vec never fails.
                _ = write!(out, "{}", Base64Display::new(&operations, &STANDARD));
                out.push(b'"');
            }
        }
        Verdict::Deny(denial) => {
            out.extend_from_slice(br#","allowed":false,"status":{"code":403,"reason":"Forbidden","message":"#);
            json_string(&mut out, &message(decision, *denial));
            out.push(b'}');
        }
    }
    let mut warnings = decision.warnings().peekable();
    if warnings.peek().is_some() {
        out.extend_from_slice(br#","warnings":["#);
        for (i, warning) in warnings.enumerate() {
            if i > 0 {
                out.push(b',');
            }
            json_string(&mut out, &warning);
        }
        out.push(b']');
    }
    audit(&mut out, decision);
    out.extend_from_slice(b"}}");
    out
}

/// The message of a denial: why the pod is denied, and how to change that.
pub fn denial(decision: &Decision<'_>) -> Option<String> {
    match decision.verdict {
        Verdict::Allow { .. } => None,
        Verdict::Deny(denial) => Some(message(decision, denial)),
    }
}

fn message(decision: &Decision<'_>, denial: Denial) -> String {
    let policy = decision.policy.unwrap_or("default");
    if denial == Denial::Violations {
        return format!("spark-usher: {} ({}; policy {policy} enforces)", findings(decision), reasons(decision));
    }
    let (_, sentence) = decision
        .notes
        .iter()
        .find(|(reason, _)| *reason == decision.reason)
        .cloned()
        .unwrap_or_else(|| (decision.reason, decision.reason.text().to_owned()));
    format!("spark-usher: {} ({}; policy {policy} is strict)", bounded(&sentence), decision.reason)
}

/// Sentences may quote text of a tenant, which must not bloat the response, nor the audit log with every retry.
fn bounded(text: &str) -> String {
    const MAX: usize = 1024;
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX).collect()
}

/// The reasons of the findings.
fn reasons(decision: &Decision<'_>) -> String {
    let names: Vec<&str> = decision.findings.iter().map(|(reason, _)| reason.as_str()).collect();
    names.join(", ")
}

/// The sentences of the findings.
fn findings(decision: &Decision<'_>) -> String {
    let all: Vec<&str> = decision.findings.iter().map(|(_, sentence)| sentence.as_str()).collect();
    bounded(&all.join("; "))
}

/// Audit annotations; the API server prefixes the keys with the webhook's name. Other pods get none.
fn audit(out: &mut Vec<u8>, decision: &Decision<'_>) {
    if matches!(decision.reason, Reason::NotAPod | Reason::NotCreate | Reason::NotSpark | Reason::Valid) {
        return;
    }
    out.extend_from_slice(br#","auditAnnotations":{"reason":""#);
    out.extend_from_slice(decision.reason.as_str().as_bytes());
    out.push(b'"');
    if let Some(policy) = decision.policy {
        out.extend_from_slice(br#","policy":"#);
        json_string(out, policy);
    }
    if let Some(driver) = &decision.driver {
        out.extend_from_slice(br#","driver":"#);
        json_string(out, &crate::ownership::resolve::write_evidence(driver));
    }
    if !decision.findings.is_empty() {
        out.extend_from_slice(br#","violations":"#);
        json_string(out, &reasons(decision));
        out.extend_from_slice(br#","message":"#);
        json_string(out, &findings(decision));
    }
    out.push(b'}');
}
