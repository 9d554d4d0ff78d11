//! Random numbers from the operating system.

use std::cell::Cell;

use ring::rand::{SecureRandom, SystemRandom};

thread_local! {
    /// In a simulation: the state of a generator (xorshift64).
    static SIMULATED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// For simulations: seeds all randomness of this thread. Never for keys that protect anything.
pub fn simulate(seed: u64) {
    SIMULATED.set(Some(seed | 1));
}

fn fill(bytes: &mut [u8]) {
    let Some(mut state) = SIMULATED.get() else {
        // The system's source of randomness fails only if nothing else would work either.
        let _ = SystemRandom::new().fill(bytes);
        return;
    };
    for byte in bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        [*byte, ..] = (state >> 24).to_le_bytes();
    }
    SIMULATED.set(Some(state));
}

/// This many random bytes, as hex.
pub fn hex(bytes: usize) -> String {
    let mut random = vec![0; bytes];
    fill(&mut random);
    random.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Random bytes.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut random = [0; N];
    fill(&mut random);
    random
}

/// A random number.
pub fn number() -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// A random fraction: at least 0, and less than 1.
pub fn fraction() -> f64 {
    let bits = u32::try_from(number() >> 32).unwrap_or_default();
    f64::from(bits) / (f64::from(u32::MAX) + 1.0)
}

/// A random version 4 UUID.
pub fn uuid() -> String {
    let hex = hex(16);
    let part = |range: std::ops::Range<usize>| hex.get(range).unwrap_or_default();
    format!("{}-{}-4{}-a{}-{}", part(0..8), part(8..12), part(13..16), part(17..20), part(20..32))
}
