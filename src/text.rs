//! Text of tenants in our messages.

/// A tenant's text for a message: short, and without control characters, which could steer a terminal.
pub(crate) fn shown(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c });
    if text.chars().count() <= MAX_SHOWN {
        return plain.collect();
    }
    plain.take(MAX_SHOWN - 1).chain(['…']).collect()
}

/// The longest text of a tenant in a message, in characters.
const MAX_SHOWN: usize = 80;
