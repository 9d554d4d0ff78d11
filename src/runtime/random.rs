//! The system's randomness.

use ring::rand::{SecureRandom, SystemRandom};

/// So many random bytes, as hex.
pub fn hex(bytes: usize) -> String {
    let mut random = vec![0; bytes];
    // The system's source of randomness fails only where nothing else would work either.
    let _ = SystemRandom::new().fill(&mut random);
    random.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Random bytes.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut random = [0; N];
    let _ = SystemRandom::new().fill(&mut random);
    random
}

/// A number.
pub fn number() -> u64 {
    let mut bytes = [0; 8];
    let _ = SystemRandom::new().fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// A version 4 UUID.
pub fn uuid() -> String {
    let hex = hex(16);
    let part = |range: std::ops::Range<usize>| hex.get(range).unwrap_or_default();
    format!("{}-{}-4{}-a{}-{}", part(0..8), part(8..12), part(13..16), part(17..20), part(20..32))
}
