//! Signatures of our webhook's decisions about a pod, and the creator that they name.
//!
//! Tenants write labels and annotations, so nothing that a pod states about itself proves its creator or its placement.
//! The webhook knows both from the review. It writes the creator in plain text
//! ([`annotations::CREATOR`](crate::annotations::CREATOR)) and a signature over creator and placement
//! ([`annotations::SIGNATURE`](crate::annotations::SIGNATURE)), keyed with a secret that only replicas of spark-usher have. A
//! copied signature proves nothing about the copy: it covers the namespace, the application, the pod's name, the creator and the
//! placement.
//!
//! The webhook signs what a review states, and any client that reaches its port can post one. So a signature alone is no evidence: the
//! API server vouches for it ([`creator_policy`](crate::manifests::creator_policy)), or a client certificate does.
//! `cluster::vouching` decides, and [`Key::vouched_by`] ties the key to what vouches.

use std::fmt;
use std::sync::Arc;

use ring::digest::{SHA256, digest};
use ring::hmac;

/// Length of a [`Key`]'s secret in bytes: what HMAC-SHA256 recommends (RFC 2104, section 3).
pub const SECRET_LEN: usize = 32;

/// Version of the format. Signatures of another version prove nothing.
const VERSION: &str = "v2.";
/// Separates these signatures from other uses of the same secret.
const DOMAIN: &[u8] = b"spark-usher.io/signature v2";
/// Separates the keys that are derived from a secret from signatures.
const KEY_DOMAIN: &[u8] = b"spark-usher.io/key v2";
/// Bytes of the HMAC that are kept: 128 bits.
const MAC_LEN: usize = 16;
/// Longest text of a creator: a longer user name is not signed.
const MAX_CREATOR: usize = 1024;

/// The key that replicas sign with. Its secret is never printed.
#[derive(Clone)]
pub struct Key(hmac::Key);

impl Key {
    /// A key with this secret.
    pub fn new(secret: &[u8; SECRET_LEN]) -> Key {
        Key(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// The key of this secret for what vouches for signatures, such as the uids and generations of the creator policy. What
    /// nothing vouched for when it was signed proves nothing later: a policy that was installed again or changed has others.
    pub fn vouched_by(secret: &[u8; SECRET_LEN], what: &str) -> Key {
        let derived = hmac::sign(&Key::new(secret).0, &[KEY_DOMAIN, what.as_bytes()].concat());
        Key(hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref()))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// A creator as a key: a digest of its text ([`StatedCreator`]). The pods of an account of another namespace are one creator, their
/// account: a controller with several pods, or one that was restarted, creates the executors of one application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Creator {
    kind: CreatorKind,
    digest: [u8; 8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum CreatorKind {
    Pod,
    Workload,
    Account,
}

impl Creator {
    /// Whether it is a pod of the namespace of what it created.
    pub fn is_pod(self) -> bool {
        self.kind == CreatorKind::Pod
    }

    /// Whether it is a pod or a workload of the namespace of what it created, and not an account.
    pub fn is_object(self) -> bool {
        self.kind != CreatorKind::Account
    }

    /// The pod of this name and uid. Both count: the same uid with another name is another creator.
    pub fn of_pod(name: &str, uid: &str) -> Creator {
        Creator::of_text(&[POD, name, "/", uid].concat())
    }

    /// The StatefulSet, Deployment … of this name and uid.
    pub fn of_workload(name: &str, uid: &str) -> Creator {
        Creator::of_text(&[WORKLOAD, name, "/", uid].concat())
    }

    /// The first 64 bits of a SHA-256.
    fn of_text(text: &str) -> Creator {
        let digest = digest(&SHA256, text.as_bytes()).as_ref().first_chunk().copied().unwrap_or_default();
        let kind = match text {
            text if text.starts_with(POD) => CreatorKind::Pod,
            text if text.starts_with(WORKLOAD) => CreatorKind::Workload,
            _ => CreatorKind::Account,
        };
        Creator { kind, digest }
    }
}

/// How the text of a creator begins, by its kind. The creator policy builds the same texts in CEL.
pub const POD: &str = "pod/";
/// The same for the StatefulSet, Deployment … for which a controller of the control plane created the pod.
pub const WORKLOAD: &str = "workload/";
/// The same for a pod of another namespace than what it created; the service account of its token states which.
pub const POD_ELSEWHERE: &str = "elsewhere/";
/// The same for a user or service account.
pub const ACCOUNT: &str = "account/";

/// A creator as a pod states it: `pod/NAME/UID`, `workload/NAME/UID`, `elsewhere/NAME/UID/USERNAME` or `account/USERNAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatedCreator {
    text: Arc<str>,
    key: Creator,
}

impl StatedCreator {
    /// The pod of this name and uid.
    pub fn of_pod(name: &str, uid: &str) -> StatedCreator {
        StatedCreator::new([POD, name, "/", uid].concat())
    }

    /// The StatefulSet, Deployment … of this name and uid.
    pub fn of_workload(name: &str, uid: &str) -> StatedCreator {
        StatedCreator::new([WORKLOAD, name, "/", uid].concat())
    }

    /// The pod of this name and uid in the namespace of this service account.
    pub(crate) fn of_pod_elsewhere(name: &str, uid: &str, account: &str) -> StatedCreator {
        StatedCreator::new([POD_ELSEWHERE, name, "/", uid, "/", account].concat())
    }

    /// The user of this name.
    pub fn of_account(username: &str) -> StatedCreator {
        StatedCreator::new([ACCOUNT, username].concat())
    }

    fn new(text: String) -> StatedCreator {
        let account = elsewhere(&text).map(|(.., account)| [ACCOUNT, account].concat());
        StatedCreator { key: Creator::of_text(account.as_deref().unwrap_or(&text)), text: text.into() }
    }

    /// What a pod states; `None` for a text of another form, and for one that is longer than what is signed.
    pub fn parse(text: &str) -> Option<StatedCreator> {
        let is_object = |prefix| {
            let parts = text.strip_prefix(prefix).and_then(|rest| rest.split_once('/'));
            parts.is_some_and(|(name, uid)| !name.is_empty() && !uid.is_empty() && !uid.contains('/'))
        };
        let is_account = text.strip_prefix(ACCOUNT).is_some_and(|name| !name.is_empty());
        let is_elsewhere = || elsewhere(text).is_some_and(|(_, name, uid, _)| !name.is_empty() && !uid.is_empty());
        let is_creator = is_account || is_object(POD) || is_object(WORKLOAD) || is_elsewhere();
        (is_creator && text.len() <= MAX_CREATOR).then(|| StatedCreator::new(text.to_owned()))
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// Namespace, name and uid, if it is a pod of another namespace.
    pub fn pod_elsewhere(&self) -> Option<(&str, &str, &str)> {
        elsewhere(&self.text).map(|(namespace, name, uid, _)| (namespace, name, uid))
    }

    /// Name and uid, if it is a pod of the namespace of what it created.
    pub fn pod(&self) -> Option<(&str, &str)> {
        self.text.strip_prefix(POD)?.split_once('/')
    }

    /// The user's name, if it is an account.
    pub fn account(&self) -> Option<&str> {
        self.text.strip_prefix(ACCOUNT)
    }

    /// The same as a key.
    pub fn key(&self) -> Creator {
        self.key
    }

    /// Whether it is short enough to be signed.
    pub(crate) fn is_signable(&self) -> bool {
        self.text.len() <= MAX_CREATOR
    }
}

/// Namespace, name, uid and service account of a pod of another namespace.
fn elsewhere(text: &str) -> Option<(&str, &str, &str, &str)> {
    let (name, rest) = text.strip_prefix(POD_ELSEWHERE)?.split_once('/')?;
    let (uid, account) = rest.split_once('/')?;
    Some((namespace_of_account(account)?, name, uid, account))
}

/// The namespace of a service account, by its user name.
pub fn namespace_of_account(username: &str) -> Option<&str> {
    let (namespace, name) = username.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty()).then_some(namespace)
}

/// A signature as a pod carries it. Parsing one proves nothing; see [`Signature::verifies`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature([u8; MAC_LEN]);

/// What a signature covers. Field boundaries cannot be moved: each field is covered with its length.
#[derive(Debug)]
pub struct Signer<'k> {
    key: &'k Key,
    /// What is covered so far: many short texts, hashed together at the end.
    covered: Vec<u8>,
}

impl<'k> Signer<'k> {
    /// Begins a signature over a pod of this application that this creator created.
    pub fn new(key: &'k Key, namespace: &str, selector: &str, creator: &StatedCreator) -> Signer<'k> {
        let mut covered = Vec::with_capacity(512);
        covered.extend_from_slice(DOMAIN);
        let mut signer = Signer { key, covered };
        signer.field(creator.text());
        signer.field(namespace);
        signer.field(selector);
        signer
    }

    /// Covers one more text.
    pub fn field(&mut self, text: &str) {
        // No pod contains a text of 4 GiB.
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        self.covered.extend_from_slice(&length.to_le_bytes());
        self.covered.extend_from_slice(text.as_bytes());
    }

    /// Covers a text that may be absent, which is not the same as empty.
    pub fn optional(&mut self, text: Option<&str>) {
        self.covered.push(u8::from(text.is_some()));
        self.field(text.unwrap_or_default());
    }

    /// The signature over everything that was covered.
    pub fn sign(self) -> Signature {
        let tag = hmac::sign(&self.key.0, &self.covered);
        Signature(tag.as_ref().first_chunk().copied().unwrap_or_default())
    }
}

impl Signature {
    /// Whether this signature equals the computed one, `expected`. Compares in constant time: a client that tries
    /// signatures must not learn how much of one was correct.
    pub fn verifies(&self, expected: &Signature) -> bool {
        let differing = self.0.iter().zip(expected.0).fold(0, |differing, (a, b)| differing | (a ^ b));
        std::hint::black_box(differing) == 0
    }

    /// Parses what [`Signature`]'s `Display` writes; `None` for any other text.
    pub fn parse(text: &str) -> Option<Signature> {
        text.strip_prefix(VERSION).and_then(hex).map(Signature)
    }
}

/// `v2.` and the HMAC in lower-case hexadecimal.
impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::with_capacity(VERSION.len() + 2 * MAC_LEN);
        text.push_str(VERSION);
        push_hex(&mut text, &self.0);
        f.write_str(&text)
    }
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    text.extend(digits.map(|digit| char::from(if digit < 10 { b'0' + digit } else { b'a' + digit - 10 })));
}

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut out = [0; N];
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in out.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(byte: u8) -> Key {
        Key::new(&[byte; SECRET_LEN])
    }

    fn signed(key: &Key, namespace: &str, selector: &str, creator: &str, fields: &[Option<&str>]) -> Signature {
        let mut signer = Signer::new(key, namespace, selector, &StatedCreator::parse(creator).unwrap());
        fields.iter().for_each(|field| signer.optional(*field));
        signer.sign()
    }

    #[test]
    fn each_signed_field_changes_signature() {
        let pod = "pod/p/u";
        let base = signed(&key(1), "n", "a", pod, &[Some("x"), None]);
        assert!(base.verifies(&signed(&key(1), "n", "a", pod, &[Some("x"), None])));
        for other in [
            signed(&key(2), "n", "a", pod, &[Some("x"), None]),
            signed(&key(1), "m", "a", pod, &[Some("x"), None]),
            signed(&key(1), "n", "b", pod, &[Some("x"), None]),
            signed(&key(1), "n", "a", "pod/p/v", &[Some("x"), None]),
            signed(&key(1), "n", "a", "workload/p/u", &[Some("x"), None]),
            signed(&key(1), "n", "a", "account/p/u", &[Some("x"), None]),
            signed(&key(1), "n", "a", "elsewhere/p/u/system:serviceaccount:n:a", &[Some("x"), None]),
            signed(&Key::vouched_by(&[1; SECRET_LEN], "uid"), "n", "a", pod, &[Some("x"), None]),
            signed(&key(1), "n", "a", pod, &[Some("y"), None]),
            signed(&key(1), "n", "a", pod, &[Some("x"), Some("")]),
            signed(&key(1), "n", "a", pod, &[None, Some("x")]),
            signed(&key(1), "na", "", pod, &[Some("x"), None]),
        ] {
            assert!(!base.verifies(&other) && !other.verifies(&base));
        }
    }

    #[test]
    fn debug_output_of_key_hides_secret() {
        assert_eq!(format!("{:?}", key(7)), "Key(..)");
    }

    #[test]
    fn malformed_signature_is_rejected() {
        let good = signed(&key(1), "n", "a", "account/eve", &[]).to_string();
        assert!(good.starts_with("v2.") && good.len() == 3 + 32);
        let upper = good.to_uppercase();
        let earlier = "v1.u.0011223344556677.00112233445566778899aabbccddeeff";
        let tests = ["", "v1", "v2.", "v2.00.00", earlier, upper.as_str(), &good[..good.len() - 1]];
        for text in tests.into_iter().map(str::to_owned).chain([format!("{good}.x"), good.replace("v2.", "v1.")]) {
            assert_eq!(Signature::parse(&text), None, "{text}");
        }
    }

    #[test]
    fn key_depends_on_what_vouches_for_signatures() {
        let key_of = |what| signed(&Key::vouched_by(&[1; SECRET_LEN], what), "n", "a", "pod/p/u", &[]);
        assert!(key_of("uid-1").verifies(&key_of("uid-1")));
        assert!(!key_of("uid-1").verifies(&key_of("uid-2")) && !key_of("").verifies(&key_of("uid-1")));
    }

    #[test]
    fn stated_creator_is_read_whole() {
        for (text, expected) in [
            ("pod/p/u-1", StatedCreator::of_pod("p", "u-1")),
            ("workload/w/u-1", StatedCreator::of_workload("w", "u-1")),
            (
                "elsewhere/p/u-1/system:serviceaccount:n:a",
                StatedCreator::of_pod_elsewhere("p", "u-1", "system:serviceaccount:n:a"),
            ),
            ("account/oidc:a/b", StatedCreator::of_account("oidc:a/b")),
        ] {
            let read = StatedCreator::parse(text).unwrap();
            assert_eq!((&read, read.text()), (&expected, text));
            let has = |prefix| text.starts_with(prefix);
            let kinds = (read.key().is_pod(), read.key().is_object());
            assert_eq!(kinds, (has("pod"), has("pod") || has("workload")), "{text}");
            assert_eq!(read.pod(), has("pod").then_some(("p", "u-1")));
            assert_eq!(read.pod_elsewhere(), has("elsewhere").then_some(("n", "p", "u-1")));
            assert!(read.is_signable());
        }
        assert_eq!(StatedCreator::of_pod("p", "u").key(), Creator::of_pod("p", "u"));
        assert_eq!(StatedCreator::of_workload("p", "u").key(), Creator::of_workload("p", "u"));
        assert_ne!(Creator::of_pod("p", "u"), Creator::of_workload("p", "u"));
        let account = "system:serviceaccount:n:a";
        let by_pods = ["p", "q"].map(|pod| StatedCreator::of_pod_elsewhere(pod, "u", account));
        assert_ne!(by_pods[0], by_pods[1]);
        assert!(by_pods.iter().all(|by_pod| by_pod.key() == StatedCreator::of_account(account).key()));
        let long = format!("account/{}", "a".repeat(MAX_CREATOR));
        assert!(!StatedCreator::of_account(&long[8..]).is_signable());
        let elsewhere = [
            "elsewhere/p/u".to_owned(),
            "elsewhere/p/u/eve".to_owned(),
            "elsewhere/p/u/system:serviceaccount:n:".to_owned(),
            format!("elsewhere/p/u/v/{account}"),
            format!("elsewhere//u/{account}"),
            format!("elsewhere/p//{account}"),
        ];
        let others = ["", "pod", "pod/", "pod/p", "pod/p/", "pod//u", "pod/p/u/v", "user/eve", "account/", &long];
        for text in elsewhere.iter().map(String::as_str).chain(others) {
            assert_eq!(StatedCreator::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn signature_round_trips_through_text(
            secret: [u8; SECRET_LEN], namespace: String, selector: String, uid: String,
        ) {
            let creator = format!("account/x{}", uid.chars().take(200).collect::<String>());
            let signature = signed(&Key::new(&secret), &namespace, &selector, &creator, &[]);
            prop_assert_eq!(Signature::parse(&signature.to_string()), Some(signature));
        }

        #[test]
        fn arbitrary_input_never_panics(text: String) {
            let _ = (Signature::parse(&text), StatedCreator::parse(&text));
        }
    }
}
