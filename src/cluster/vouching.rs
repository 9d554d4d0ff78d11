//! What vouches for signatures. The webhook signs what a review states, so a signature is evidence only if a review comes from an API
//! server, or if the API server stores no pod whose stated creator it did not authenticate:
//!
//! * the creator policy ([`creator_policy`]), which the chart installs; or
//! * client certificates: only API servers can call the webhook then.
//!
//! A third is to come: tokens by which an API server authenticates itself (KEP-6060).

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use kube::api::{Api, DynamicObject};
use serde_json::Value;

use super::request::Result;
use super::view::resource;
use crate::json::{at, list, text};
use crate::manifests::creator_policy;
use crate::manifests::validating_policy::{BINDING, KIND, differences};

/// By then every API server enforces a new or changed policy: once its watch has shown it, and it looks at what changed once a second.
pub const SETTLE: Duration = Duration::from_secs(10);

/// Our own user name, shared with the task that determines it.
pub type Account = Arc<ArcSwapOption<String>>;

/// What may vouch for signatures.
#[derive(Clone, Debug)]
pub struct Vouching {
    /// The first part of the names of the creator policy.
    pub policy: String,
    /// After this time API servers enforce the policy.
    pub settle: Duration,
    /// Whether only clients with a certificate can call the webhook.
    pub client_certificates: bool,
}

/// Whether something vouches for signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vouched {
    /// This does; the key depends on it ([`Key::vouched_by`](crate::signature::Key::vouched_by)).
    By(String),
    /// The creator policy is new or changed; every API server enforces it after this time.
    Soon(Duration),
    /// Nothing does, for this reason.
    Nothing(String),
}

impl Vouching {
    /// Waits for our own user name, if it is needed.
    pub(super) async fn account_known(&self, account: &Account) {
        while !self.client_certificates && account.load().is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Reads the creator policy, unless clients need a certificate. `None` while our own user name, which the policy exempts, is not
    /// known.
    pub(super) async fn read(
        &self,
        client: &kube::Client,
        account: &Account,
        now: Timestamp,
    ) -> Result<Option<Vouched>> {
        // First, and without a look at the policy: the key must not change with a policy that is upgraded.
        if self.client_certificates {
            return Ok(Some(Vouched::By("client certificates".to_owned())));
        }
        let Some(account) = account.load_full() else { return Ok(None) };
        Ok(Some(self.judge(&live(client, &self.policy).await?, &account, now)))
    }

    /// Whether these objects are the creator policy, and have been for long enough.
    pub fn judge(&self, live: &[Value], account: &str, now: Timestamp) -> Vouched {
        let expected = match creator_policy::manifests(&self.policy, account) {
            Ok(expected) => expected,
            Err(refused) => return Vouched::Nothing(refused.to_string()),
        };
        let differences = differences(live, &expected);
        if !differences.is_empty() {
            return Vouched::Nothing(format!(
                "{}; expected the creator policy for account {account}",
                differences.join("; ")
            ));
        }
        let age = live.iter().filter_map(changed).max().map(|changed| now.duration_since(changed));
        let age = age.map_or(Duration::ZERO, |age| age.try_into().unwrap_or_default());
        match self.settle.checked_sub(age).filter(|rest| !rest.is_zero()) {
            Some(rest) => Vouched::Soon(rest),
            None => {
                let mut versions: Vec<String> = live.iter().map(version).collect();
                versions.sort_unstable();
                Vouched::By(versions.join(" "))
            }
        }
    }
}

/// When an object was created, or its spec was changed.
fn changed(object: &Value) -> Option<Timestamp> {
    let time = |of: &Value, path: &[&str]| text(of, path).parse::<Timestamp>().ok();
    let writes =
        list(object, &["metadata", "managedFields"]).iter().filter(|entry| text(entry, &["subresource"]).is_empty());
    writes.filter_map(|entry| time(entry, &["time"])).chain(time(object, &["metadata", "creationTimestamp"])).max()
}

/// An object's uid and generation, which the API server raises with every change of the spec: an object that did not vouch for a while is
/// another one.
fn version(object: &Value) -> String {
    let generation = at(object, &["metadata", "generation"]).and_then(Value::as_i64).unwrap_or_default();
    format!("{}/{generation}", text(object, &["metadata", "uid"]))
}

/// The objects of the creator policy that exist.
pub async fn live(client: &kube::Client, name: &str) -> Result<Vec<Value>> {
    let mut out = Vec::new();
    for (kind, plural) in [(KIND, "validatingadmissionpolicies"), (BINDING, "validatingadmissionpolicybindings")] {
        let api: Api<DynamicObject> =
            Api::all_with(client.clone(), &resource("admissionregistration.k8s.io", "v1", kind, plural));
        for name in creator_policy::names(name) {
            let found = api.get_opt(&name).await?;
            out.extend(found.and_then(|object| serde_json::to_value(object).ok()));
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ACCOUNT: &str = "system:serviceaccount:spark-usher:spark-usher";

    fn vouching() -> Vouching {
        Vouching { policy: "spark-usher".into(), settle: SETTLE, client_certificates: false }
    }

    fn stored() -> Vec<Value> {
        let mut all = creator_policy::manifests("spark-usher", ACCOUNT).unwrap();
        for (number, object) in all.iter_mut().enumerate() {
            object["metadata"]["uid"] = json!(format!("u-{number}"));
            object["metadata"]["generation"] = json!(1);
            object["metadata"]["creationTimestamp"] = json!(format!("2026-11-25T10:00:0{number}Z"));
            // As an API server stores them.
            if object["kind"] == KIND {
                object["spec"]["matchConstraints"]["namespaceSelector"] = json!({});
                object["status"] = json!({"observedGeneration": 1});
            }
        }
        all
    }

    fn instant(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn complete_policy_vouches_ten_seconds_after_its_last_object_was_created() {
        let judged = |time: &str| vouching().judge(&stored(), ACCOUNT, instant(time));
        assert_eq!(judged("2026-11-25T10:00:13Z"), Vouched::By("u-0/1 u-1/1 u-2/1 u-3/1".into()));
        assert_eq!(judged("2026-11-25T10:00:09Z"), Vouched::Soon(Duration::from_secs(4)));
        // The clock of the API server may be ahead.
        assert_eq!(judged("2026-11-25T09:00:00Z"), Vouched::Soon(Duration::from_secs(10)));
        let mut again = stored();
        again[2]["metadata"]["uid"] = json!("u-9");
        let judged = vouching().judge(&again, ACCOUNT, instant("2026-11-26T10:00:00Z"));
        assert_eq!(judged, Vouched::By("u-0/1 u-1/1 u-3/1 u-9/1".into()), "objects that were created again are others");
    }

    /// Between two changes of it, the API server may have stored anything.
    #[test]
    fn policy_that_was_changed_and_restored_is_another_one() {
        let mut restored = stored();
        restored[1]["metadata"]["generation"] = json!(3);
        restored[1]["metadata"]["managedFields"] = json!([
            {"manager": "helm", "operation": "Update", "time": "2026-11-25T10:00:01Z"},
            {"manager": "kubectl-edit", "operation": "Update", "time": "2026-11-26T09:00:00Z"},
            {"manager": "kube-controller-manager", "subresource": "status", "time": "2026-11-26T09:00:08Z"},
        ]);
        let judged = |time: &str| vouching().judge(&restored, ACCOUNT, instant(time));
        assert_eq!(judged("2026-11-26T09:00:04Z"), Vouched::Soon(Duration::from_secs(6)));
        assert_eq!(judged("2026-11-26T09:00:10Z"), Vouched::By("u-0/1 u-1/3 u-2/1 u-3/1".into()));
    }

    #[test]
    fn incomplete_or_changed_policy_does_not_vouch() {
        let nothing = |change: &dyn Fn(&mut Vec<Value>)| {
            let mut live = stored();
            change(&mut live);
            let judged = vouching().judge(&live, ACCOUNT, instant("2026-11-26T10:00:00Z"));
            let Vouched::Nothing(reason) = judged else { panic!("{judged:?}") };
            reason
        };
        assert_eq!(nothing(&Vec::clear).matches("is missing").count(), 4);
        for number in 0..4 {
            assert!(nothing(&|live| drop(live.remove(number))).contains("is missing"));
        }
        for change in [
            &(|live: &mut Vec<Value>| live[1]["spec"]["validationActions"] = json!(["Audit"]))
                as &dyn Fn(&mut Vec<Value>),
            &|live| live[1]["spec"]["matchResources"] = json!({"namespaceSelector": {"matchLabels": {"a": "b"}}}),
            &|live| live[0]["spec"]["failurePolicy"] = json!("Ignore"),
            &|live| live[0]["spec"]["matchConstraints"]["namespaceSelector"] = json!({"matchLabels": {"a": "b"}}),
            &|live| live[0]["spec"]["matchConstraints"]["objectSelector"] = json!({"matchLabels": {"a": "b"}}),
            &|live| live[0]["spec"]["matchConstraints"]["resourceRules"][0]["resourceNames"] = json!(["x"]),
            &|live| live[2]["spec"]["matchConstraints"]["objectSelector"] = json!({"matchLabels": {"a": "b"}}),
            &|live| live[0]["spec"]["matchConstraints"]["excludeResourceRules"] = json!([{"resources": ["pods"]}]),
            &|live| {
                live[0]["spec"]["matchConditions"]
                    .as_array_mut()
                    .unwrap()
                    .push(json!({"name": "x", "expression": "false"}))
            },
            &|live| drop(live[2]["spec"]["validations"].as_array_mut().unwrap().pop()),
        ] {
            assert!(nothing(change).contains("differs from"), "{}", nothing(change));
        }
        let other = vouching().judge(&stored(), "system:serviceaccount:a:b", instant("2026-11-26T10:00:00Z"));
        assert!(matches!(other, Vouched::Nothing(_)), "it exempts another account");
    }
}
