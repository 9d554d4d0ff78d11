//! Authentication: an administrator, a service account with its bound pod, or an impersonated user.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, header};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use ring::hmac;
use serde_json::{Value, json};

use super::error::{ApiError, Result};
use super::resource::Collection;
use super::store::Store;
use usher_runtime::random::{hex as random_hex, uuid as random_uuid};
use usher_spark::json;

/// An authenticated user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) username: String,
    pub(super) uid: String,
    pub(super) groups: Vec<String>,
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// The administrator in the kubeconfig.
    pub(super) fn admin() -> User {
        User {
            username: "sandbox-admin".to_owned(),
            uid: String::new(),
            groups: vec!["system:masters".to_owned(), "system:authenticated".to_owned()],
            extra: BTreeMap::new(),
        }
    }

    /// A component of the control plane.
    pub(super) fn component(account: &str) -> User {
        User {
            username: format!("system:serviceaccount:kube-system:{account}"),
            uid: String::new(),
            groups: vec!["system:serviceaccounts".to_owned(), "system:authenticated".to_owned()],
            extra: BTreeMap::new(),
        }
    }

    /// `userInfo` of a review.
    pub(super) fn info(&self) -> Value {
        let mut info = json!({"username": self.username});
        if !self.uid.is_empty() {
            json::set(&mut info, &["uid"], self.uid.clone());
        }
        if !self.groups.is_empty() {
            json::set(&mut info, &["groups"], self.groups.clone());
        }
        if !self.extra.is_empty() {
            json::set(&mut info, &["extra"], json!(self.extra));
        }
        info
    }
}

/// Tokens: one for the administrator, and signed ones for service accounts.
#[derive(Debug)]
pub(super) struct Tokens {
    admin: String,
    key: hmac::Key,
}

/// How long after its deletion a pod's token is still valid (`serviceaccount/claims.go`).
const LEEWAY_SECS: i64 = 60;

impl Tokens {
    pub(super) fn new() -> Tokens {
        Tokens { admin: random_hex(16), key: hmac::Key::new(hmac::HMAC_SHA256, random_hex(32).as_bytes()) }
    }

    pub(super) fn admin(&self) -> &str {
        &self.admin
    }

    /// Issues a token as TokenRequest does, bound to a pod if one is named.
    pub(super) fn issue(
        &self,
        namespace: &str,
        account: (&str, &str),
        pod: Option<(&str, &str)>,
        now: Timestamp,
        seconds: i64,
    ) -> (String, Timestamp) {
        let expires = now + jiff::SignedDuration::from_secs(seconds);
        let mut bound = json!({"namespace": namespace, "serviceaccount": {"name": account.0, "uid": account.1}});
        if let Some((name, uid)) = pod {
            json::set(&mut bound, &["pod"], json!({"name": name, "uid": uid}));
        }
        let claims = json!({
            "iss": "https://sandbox.spark-usher", "aud": ["https://sandbox.spark-usher"],
            "sub": format!("system:serviceaccount:{namespace}:{}", account.0),
            "iat": now.as_second(), "nbf": now.as_second(), "exp": expires.as_second(),
            "jti": random_uuid(), "kubernetes.io": bound,
        });
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let signed = format!("{}.{}", encode(br#"{"alg":"HS256","typ":"JWT"}"#), encode(claims.to_string().as_bytes()));
        let signature = encode(hmac::sign(&self.key, signed.as_bytes()).as_ref());
        (format!("{signed}.{signature}"), expires)
    }

    /// Returns the user of a token.
    pub(super) fn authenticate(&self, token: &str, store: &Store, now: Timestamp) -> Result<User> {
        if token == self.admin {
            return Ok(User::admin());
        }
        self.service_account(token, store, now).ok_or_else(ApiError::unauthorized)
    }

    fn service_account(&self, token: &str, store: &Store, now: Timestamp) -> Option<User> {
        let (signed, signature) = token.rsplit_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        hmac::verify(&self.key, signed.as_bytes(), &signature).ok()?;
        let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(signed.split_once('.')?.1).ok()?).ok()?;
        if json::at(&claims, &["exp"])?.as_i64()? <= now.as_second() {
            return None;
        }
        let bound = json::at(&claims, &["kubernetes.io"])?;
        let namespace = json::text(bound, &["namespace"]);
        let (account, account_uid) =
            (json::text(bound, &["serviceaccount", "name"]), json::text(bound, &["serviceaccount", "uid"]));
        let key = |name: &str| (namespace.to_owned(), name.to_owned());
        store.get(&Collection::core("serviceaccounts"), &key(account)).filter(|found| found.uid == account_uid)?;
        let mut extra = BTreeMap::new();
        let mut add = |name: &str, value: &str| {
            extra.insert(format!("authentication.kubernetes.io/{name}"), vec![value.to_owned()]);
        };
        add("credential-id", &format!("JTI={}", json::text(&claims, &["jti"])));
        if let Some(pod) = json::at(bound, &["pod"]) {
            let (name, uid) = (json::text(pod, &["name"]), json::text(pod, &["uid"]));
            let found = store.get(&Collection::core("pods"), &key(name)).filter(|found| found.uid == uid)?.value();
            if let Ok(deleted) = json::text(&found, &["metadata", "deletionTimestamp"]).parse::<Timestamp>()
                && deleted.as_second() + LEEWAY_SECS < now.as_second()
            {
                return None;
            }
            add("pod-name", name);
            add("pod-uid", uid);
            let node = json::text(&found, &["spec", "nodeName"]);
            if !node.is_empty() {
                add("node-name", node);
                if let Some(node) = store.get(&Collection::core("nodes"), &(String::new(), node.to_owned())) {
                    add("node-uid", &node.uid);
                }
            }
        }
        Some(User {
            username: format!("system:serviceaccount:{namespace}:{account}"),
            uid: account_uid.to_owned(),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ],
            extra,
        })
    }
}

/// Returns the user of a request: that of its token, else the one that the listener trusts; then the impersonated user.
pub(super) fn user(headers: &HeaderMap, tokens: &Tokens, store: &Store, trusted: bool, now: Timestamp) -> Result<User> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text(header::AUTHORIZATION.as_str()).and_then(|value| value.strip_prefix("Bearer "));
    let user = match bearer {
        Some(token) => tokens.authenticate(token.trim(), store, now)?,
        None if trusted => User::admin(),
        None => return Err(ApiError::unauthorized()),
    };
    let Some(username) = text("impersonate-user") else { return Ok(user) };
    if !user.groups.iter().any(|group| group == "system:masters") {
        return Err(ApiError::forbidden("users", username, &format!("User {:?} cannot impersonate", user.username)));
    }
    let all = |name: &str| {
        headers.get_all(name).iter().filter_map(|value| value.to_str().ok().map(str::to_owned)).collect::<Vec<_>>()
    };
    let mut groups = all("impersonate-group");
    groups.push("system:authenticated".to_owned());
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in headers.keys() {
        if let Some(key) = name.as_str().strip_prefix("impersonate-extra-") {
            extra.insert(key.replace("%2f", "/").replace("%2F", "/"), all(name.as_str()));
        }
    }
    Ok(User {
        username: username.to_owned(),
        uid: text("impersonate-uid").unwrap_or_default().to_owned(),
        groups,
        extra,
    })
}

/// A suffix for `generateName`, from the letters that Kubernetes uses.
pub(super) fn random_suffix() -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let random = random_hex(5);
    let bytes = random.as_bytes().chunks(2).map(|pair| pair.iter().fold(0usize, |n, b| n * 31 + usize::from(*b)));
    bytes.filter_map(|n| LETTERS.get(n % LETTERS.len())).map(|b| char::from(*b)).collect()
}
