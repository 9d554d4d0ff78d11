//! Durations in human-readable form.

use std::str::FromStr;
use std::time::Duration;

use jiff::SignedDuration;

/// Longer durations are reduced to this one, which exceeds any sensible value.
pub(super) const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// A length of time such as `180s`, `5m`, `1h30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct DurationText(pub Duration);

impl FromStr for DurationText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("{text:?} is not a duration: expected a value such as 180s, 5m, 1h30m or 7d");
        // A day has 24 hours here, which a calendar's has not always.
        let (days, rest) = match text.split_once('d') {
            Some((days, rest)) if days.bytes().all(|digit| digit.is_ascii_digit()) => {
                (days.parse::<u64>().map_err(|_| expected())?, rest)
            }
            _ => (0, text),
        };
        let parsed: SignedDuration = if rest.is_empty() && rest.len() < text.len() {
            SignedDuration::ZERO
        } else {
            rest.parse().map_err(|_| expected())?
        };
        let rest = Duration::try_from(parsed).map_err(|_| expected())?;
        Ok(DurationText(Duration::from_secs(days.saturating_mul(86_400)).saturating_add(rest)))
    }
}

impl TryFrom<String> for DurationText {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl schemars::JsonSchema for DurationText {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Span".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "description": "A duration such as 180s, 5m, 1h30m or 7d.",
            "pattern": "^[0-9]", "examples": ["180s", "5m", "1h30m", "7d"]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> DurationText {
        DurationText(Duration::from_secs(seconds))
    }

    #[test]
    fn duration_requires_number_and_unit() {
        assert_eq!("180s".parse(), Ok(seconds(180)));
        assert_eq!("5m".parse(), Ok(seconds(300)));
        assert_eq!("1h30m".parse(), Ok(seconds(5400)));
        assert_eq!("7d".parse(), Ok(seconds(7 * 86_400)));
        assert_eq!("1d12h".parse(), Ok(seconds(36 * 3600)));
        assert_eq!("100ms".parse::<DurationText>().unwrap().0, Duration::from_millis(100));
        for bad in ["", "5", "soon", "-5m", "d", "-1d", "1.5d", "99999999999999999999d", "1dd"] {
            assert!(bad.parse::<DurationText>().unwrap_err().contains("expected a value such as"), "{bad}");
        }
    }
}
