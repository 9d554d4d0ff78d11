//! What vouches for signatures. The webhook signs what a review states, so a signature is evidence only if a review comes from an API
//! server, or if the API server stores no pod whose stated creator it did not authenticate:
//!
//! * the creator policy ([`creator_policy`]), which the chart installs; or
//! * client certificates: only API servers can call the webhook then.
//!
//! A third is to come: tokens by which an API server authenticates itself (KEP-6060).

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use kube::api::{Api, DynamicObject};
use serde_json::Value;

pub use usher_core::manifests::converge::SETTLE;
use usher_core::manifests::object::{GROUP, KINDS, is_validating};
use usher_core::manifests::{creator_policy, differences};
use usher_kube::request;
use usher_kube::view::resource;
use usher_spark::json::{at, list, text};
use usher_spark::time::Now;

/// A policy that was not written for this long is enforced, whatever the difference between its API server's clock and ours.
const LONG_AGO: Duration = Duration::from_secs(60);

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

/// What vouches for signatures, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Voucher {
    /// The key depends on it ([`Key::vouched_by`](usher_core::signature::Key::vouched_by)): of the creator policy, the uids and generations.
    pub version: String,
    /// When the policy was last written, by the clock of an API server; `None` for client certificates.
    pub written: Option<Timestamp>,
}

/// Whether something vouches for signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vouched {
    /// This does.
    By(String),
    /// The creator policy is new or changed; every API server enforces it after this time.
    Soon(Duration),
    /// Nothing does, for this reason.
    Nothing(String),
}

/// The version of a voucher that was read last, and when it was read first.
#[derive(Debug, Default)]
pub struct Belief(Option<(String, Instant)>);

impl Belief {
    /// Whether what was read vouches now. A version that vouched keeps vouching, whatever is written to the policy besides its spec.
    pub fn judge(&mut self, read: Result<Voucher, String>, settle: Duration, now: Now) -> Vouched {
        let Voucher { version, written } = match read {
            Ok(voucher) => voucher,
            Err(reason) => return Vouched::Nothing(reason),
        };
        let is_old = written.is_none_or(|written| {
            Duration::try_from(now.wall.duration_since(written)).is_ok_and(|age| age >= LONG_AGO)
        });
        let since = match &self.0 {
            Some((seen, since)) if *seen == version => *since,
            _ => now.at.checked_sub(settle).filter(|_| is_old).unwrap_or(now.at),
        };
        self.0 = Some((version.clone(), since));
        let rest = settle.saturating_sub(now.at.saturating_duration_since(since));
        if rest.is_zero() { Vouched::By(version) } else { Vouched::Soon(rest) }
    }
}

impl Vouching {
    /// Waits for our own user name, if it is needed.
    pub(super) async fn account_known(&self, account: &Account) {
        while !self.client_certificates && account.load().is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Reads the creator policy, unless clients need a certificate: what vouches, or why nothing does. `None` while our own user name, which
    /// the policy exempts, is not known.
    pub(super) async fn read(
        &self,
        client: &kube::Client,
        account: &Account,
    ) -> request::Result<Option<Result<Voucher, String>>> {
        // First, and without reading the policy: the key must not change with a policy that is upgraded.
        if self.client_certificates {
            return Ok(Some(Ok(Voucher { version: "client certificates".to_owned(), written: None })));
        }
        let Some(account) = account.load_full() else { return Ok(None) };
        Ok(Some(self.voucher(&live(client, &self.policy).await?, &account)))
    }

    /// What these objects are if they are the creator policy.
    ///
    /// # Errors
    ///
    /// Why they are not.
    pub fn voucher(&self, live: &[Value], account: &str) -> Result<Voucher, String> {
        let expected = creator_policy::manifests(&self.policy, account).map_err(|refused| refused.to_string())?;
        let differences = differences(live, &expected);
        if !differences.is_empty() {
            return Err(format!("{}; expected the creator policy for account {account}", differences.join("; ")));
        }
        let mut versions: Vec<String> = live.iter().map(version).collect();
        versions.sort_unstable();
        // One whose time cannot be read is new.
        let written = live.iter().filter_map(written).max().unwrap_or(Timestamp::MAX);
        Ok(Voucher { version: versions.join(" "), written: Some(written) })
    }
}

/// When an object was created, or something but its status was written.
fn written(object: &Value) -> Option<Timestamp> {
    let time = |object: &Value, path: &[&str]| text(object, path).parse::<Timestamp>().ok();
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
pub async fn live(client: &kube::Client, name: &str) -> request::Result<Vec<Value>> {
    let mut out = Vec::new();
    for (kind, plural) in KINDS.into_iter().filter(|(kind, _)| is_validating(kind)) {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(GROUP, "v1", kind, plural));
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
    use usher_runtime::clock;

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
            if object["kind"] == usher_core::manifests::object::VALIDATING {
                object["spec"]["matchConstraints"]["namespaceSelector"] = json!({});
                object["status"] = json!({"observedGeneration": 1});
            }
        }
        all
    }

    fn instant(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// What is believed after these seconds if the policy is read every ten seconds, by this clock of the replica.
    fn judged(belief: &mut Belief, live: &[Value], wall: &str, begin: Instant, after: u64) -> Vouched {
        let now = Now { at: begin + Duration::from_secs(after), wall: instant(wall) };
        belief.judge(vouching().voucher(live, ACCOUNT), SETTLE, now)
    }

    const FIRST: &str = "u-0/1 u-1/1 u-2/1 u-3/1";

    #[test]
    fn new_policy_vouches_ten_seconds_after_it_was_first_read_and_an_old_one_at_once() {
        let begin = clock::instant();
        let mut belief = Belief::default();
        // Whatever our clock says: it is behind, right and ahead.
        for wall in ["2026-11-25T09:00:00Z", "2026-11-25T10:00:04Z", "2026-11-25T10:00:55Z"] {
            let mut belief = Belief::default();
            assert_eq!(judged(&mut belief, &stored(), wall, begin, 0), Vouched::Soon(SETTLE), "{wall}");
            assert_eq!(judged(&mut belief, &stored(), wall, begin, 4), Vouched::Soon(Duration::from_secs(6)));
            assert_eq!(judged(&mut belief, &stored(), wall, begin, 10), Vouched::By(FIRST.into()));
        }
        let later = "2026-11-25T10:01:03Z";
        assert_eq!(judged(&mut belief, &stored(), later, begin, 0), Vouched::By(FIRST.into()));
        // A policy that was created again is another one.
        let mut again = stored();
        again[2]["metadata"]["uid"] = json!("u-9");
        again[2]["metadata"]["creationTimestamp"] = json!(later);
        assert_eq!(judged(&mut belief, &again, later, begin, 10), Vouched::Soon(SETTLE));
        assert_eq!(judged(&mut belief, &again, later, begin, 20), Vouched::By("u-0/1 u-1/1 u-3/1 u-9/1".into()));
    }

    /// Between two changes of it, the API server may have stored anything. An upgrade of the chart writes labels only.
    #[test]
    fn policy_whose_spec_was_changed_and_restored_is_another_one_and_one_with_other_labels_is_not() {
        let (begin, wall) = (clock::instant(), "2026-11-26T09:00:20Z");
        let mut belief = Belief::default();
        assert_eq!(judged(&mut belief, &stored(), wall, begin, 0), Vouched::By(FIRST.into()));
        let mut labelled = stored();
        labelled[1]["metadata"]["managedFields"] = json!([
            {"manager": "helm", "operation": "Update", "time": "2026-11-26T09:00:09Z"},
            {"manager": "kube-controller-manager", "subresource": "status", "time": "2026-11-26T09:01:00Z"},
        ]);
        assert_eq!(judged(&mut belief, &labelled, wall, begin, 10), Vouched::By(FIRST.into()));
        assert_eq!(judged(&mut Belief::default(), &labelled, wall, begin, 10), Vouched::Soon(SETTLE), "who knows");
        let mut restored = labelled;
        restored[1]["metadata"]["generation"] = json!(3);
        assert_eq!(judged(&mut belief, &restored, wall, begin, 20), Vouched::Soon(SETTLE));
        assert_eq!(judged(&mut belief, &restored, wall, begin, 30), Vouched::By("u-0/1 u-1/3 u-2/1 u-3/1".into()));
        // While the policy is incomplete, nothing vouches; the same one does again immediately.
        let mut missing = restored.clone();
        missing.pop();
        assert!(matches!(judged(&mut belief, &missing, wall, begin, 40), Vouched::Nothing(_)));
        assert!(matches!(judged(&mut belief, &restored, wall, begin, 50), Vouched::By(_)));
    }

    #[test]
    fn incomplete_or_changed_policy_does_not_vouch() {
        let nothing = |change: &dyn Fn(&mut Vec<Value>)| {
            let mut live = stored();
            change(&mut live);
            vouching().voucher(&live, ACCOUNT).unwrap_err()
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
        assert!(vouching().voucher(&stored(), "system:serviceaccount:a:b").is_err(), "it exempts another account");
    }
}
