//! Signatures of our webhook's decisions about a pod.
//!
//! Tenants write labels and annotations, so nothing that a pod states about itself proves its creator or its placement.
//! The webhook knows both from the review and writes them as the annotation
//! [`annotations::SIGNATURE`](crate::annotations::SIGNATURE), keyed with a secret that only replicas of spark-usher have. A
//! copied signature proves nothing about the copy: it covers the namespace, the application, the pod's
//! name, the creator and the placement.

use std::fmt;

use ring::digest::{Context, SHA256};
use ring::hmac;

/// Length of a [`Key`]'s secret in bytes: what HMAC-SHA256 recommends (RFC 2104, section 3).
pub const SECRET_LEN: usize = 32;

/// Version of the format. Signatures of another version prove nothing.
const VERSION: &str = "v1";
/// Separates these signatures from other uses of the same secret.
const DOMAIN: &[u8] = b"spark-usher.io/signature v1";
/// Bytes of the HMAC that are kept: 128 bits.
const MAC_LEN: usize = 16;

/// The key that replicas sign with. Its secret is never printed.
#[derive(Clone)]
pub struct Key(hmac::Key);

impl Key {
    /// A key with this secret.
    pub fn new(secret: &[u8; SECRET_LEN]) -> Key {
        Key(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// The creator of a pod: a digest of the creating pod's or workload's name and uid, or of a user and for whom it creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Creator {
    is_object: bool,
    digest: [u8; 8],
}

impl Creator {
    /// Whether it is a pod or a workload, and not a user.
    pub fn is_object(self) -> bool {
        self.is_object
    }

    /// The pod of this name and uid. Both count: the same uid with another name is another creator.
    pub fn of_pod(name: &str, uid: &str) -> Creator {
        Creator { is_object: true, digest: short_digest(&["pod", name, uid]) }
    }

    /// The StatefulSet, Deployment … of this name and uid.
    pub fn of_workload(name: &str, uid: &str) -> Creator {
        Creator { is_object: true, digest: short_digest(&["workload", name, uid]) }
    }

    /// The user of this name, and the uid of the object for which it creates, or an empty text.
    pub fn of_user(username: &str, creates_for: &str) -> Creator {
        Creator { is_object: false, digest: short_digest(&["user", username, creates_for]) }
    }
}

/// The first 64 bits of a SHA-256. No name and no uid contains the zero byte that separates them.
fn short_digest(parts: &[&str]) -> [u8; 8] {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(part.as_bytes());
        context.update(&[0]);
    }
    context.finish().as_ref().first_chunk().copied().unwrap_or_default()
}

/// A signature as a pod carries it. Parsing one proves nothing; see [`Signature::verifies`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    creator: Creator,
    mac: [u8; MAC_LEN],
}

/// What a signature covers beside its creator. Field boundaries cannot be moved: each field is covered with its length.
#[derive(Debug)]
pub struct Signer<'k> {
    key: &'k Key,
    /// What is covered so far: many short texts, hashed together at the end.
    covered: Vec<u8>,
    creator: Creator,
}

impl<'k> Signer<'k> {
    /// Begins a signature over a pod of this application that this creator created.
    pub fn new(key: &'k Key, namespace: &str, selector: &str, creator: Creator) -> Signer<'k> {
        let mut covered = Vec::with_capacity(512);
        covered.extend_from_slice(DOMAIN);
        covered.push(u8::from(creator.is_object));
        covered.extend_from_slice(&creator.digest);
        let mut signer = Signer { key, covered, creator };
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
        Signature { creator: self.creator, mac: tag.as_ref().first_chunk().copied().unwrap_or_default() }
    }
}

impl Signature {
    /// The creator that it claims.
    pub fn creator(&self) -> Creator {
        self.creator
    }

    /// Whether this signature equals the computed one, `expected`. Compares in constant time: a client that tries
    /// signatures must not learn how much of one was correct.
    pub fn verifies(&self, expected: &Signature) -> bool {
        let differing = self.mac.iter().zip(expected.mac).fold(0, |differing, (a, b)| differing | (a ^ b));
        self.creator == expected.creator && std::hint::black_box(differing) == 0
    }

    /// Parses what [`Signature`]'s `Display` writes; `None` for any other text.
    pub fn parse(text: &str) -> Option<Signature> {
        let mut parts = text.split('.');
        if parts.next() != Some(VERSION) {
            return None;
        }
        let is_object = match parts.next()? {
            "o" => true,
            "u" => false,
            _ => return None,
        };
        let creator = Creator { is_object, digest: hex(parts.next()?)? };
        let mac = hex(parts.next()?)?;
        parts.next().is_none().then_some(Signature { creator, mac })
    }
}

/// `v1.o.` (an object) or `v1.u.` (a user), the creator and the HMAC in lower-case hexadecimal.
impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::with_capacity(64);
        text.push_str(VERSION);
        text.push_str(if self.creator.is_object { ".o." } else { ".u." });
        push_hex(&mut text, &self.creator.digest);
        text.push('.');
        push_hex(&mut text, &self.mac);
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

    fn signed(key: &Key, namespace: &str, selector: &str, creator: Creator, fields: &[Option<&str>]) -> Signature {
        let mut signer = Signer::new(key, namespace, selector, creator);
        fields.iter().for_each(|field| signer.optional(*field));
        signer.sign()
    }

    #[test]
    fn each_signed_field_changes_signature() {
        let pod = Creator::of_pod("p", "u");
        let base = signed(&key(1), "n", "a", pod, &[Some("x"), None]);
        assert!(base.verifies(&signed(&key(1), "n", "a", pod, &[Some("x"), None])));
        for other in [
            signed(&key(2), "n", "a", pod, &[Some("x"), None]),
            signed(&key(1), "m", "a", pod, &[Some("x"), None]),
            signed(&key(1), "n", "b", pod, &[Some("x"), None]),
            signed(&key(1), "n", "a", Creator::of_pod("p", "v"), &[Some("x"), None]),
            signed(&key(1), "n", "a", Creator::of_user("p", "u"), &[Some("x"), None]),
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
        let good = signed(&key(1), "n", "a", Creator::of_user("eve", ""), &[]).to_string();
        assert!(good.starts_with("v1.u.") && good.len() == 5 + 16 + 1 + 32);
        let upper = good.to_uppercase();
        let tests = ["", "v1", "v1.u", "v2.u.00.00", upper.as_str(), &good[..good.len() - 1]];
        for text in tests.into_iter().map(str::to_owned).chain([format!("{good}.x"), good.replace(".u.", ".x.")]) {
            assert_eq!(Signature::parse(&text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn signature_round_trips_through_text(
            secret: [u8; SECRET_LEN], namespace: String, selector: String, uid: String,
        ) {
            let signature = signed(&Key::new(&secret), &namespace, &selector, Creator::of_pod("p", &uid), &[]);
            prop_assert_eq!(Signature::parse(&signature.to_string()), Some(signature));
        }

        #[test]
        fn arbitrary_input_never_panics(text: String) {
            let _ = Signature::parse(&text);
        }
    }
}
