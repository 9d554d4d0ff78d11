//! Kubernetes quantities (apimachinery `pkg/api/resource/quantity.go`): parse, add, multiply, compare, print.
//!
//! The published crate computes with a decimal type that panics on overflow, and tenants write the values that are added
//! here. This type is total: it counts nano-units in an i128 and saturates.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

const NANO: i128 = 1_000_000_000;
/// The API server caps a quantity at 2^63-1 units; a sum of many stays below i128 and saturates where it would not.
const CAP: i128 = (i64::MAX as i128) * NANO;

/// How a quantity was written, and so how sums of it are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Format {
    /// Ki, Mi, Gi …
    Binary,
    /// m, k, M … or an exponent.
    Decimal,
}

/// An amount of a resource, exact to a billionth of its unit (cores, bytes, devices).
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

/// Text that is not a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a quantity: expected digits with an optional suffix such as 500m, 2, 1408Mi or 1e3")]
pub struct BadQuantity;

const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

impl Quantity {
    pub const ZERO: Quantity = Quantity { nanos: 0, format: Format::Decimal };

    /// Whole mebibytes, the unit in which Spark requests memory.
    pub fn mebibytes(count: u64) -> Quantity {
        Quantity { nanos: i128::from(count).saturating_mul(1 << 20).saturating_mul(NANO), format: Format::Binary }
    }

    /// Whole units: cores, devices, pods.
    pub fn units(count: u64) -> Quantity {
        Quantity { nanos: i128::from(count).saturating_mul(NANO), format: Format::Decimal }
    }

    /// As a number of whole units, rounded to the nearest that a float has.
    #[expect(clippy::cast_precision_loss, reason = "costs need no more than a float's 53 bits")]
    pub fn as_f64(self) -> f64 {
        self.nanos as f64 / NANO as f64
    }

    /// Whether it is zero.
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// The sum. Printed as the first operand that is not zero was written.
    pub fn plus(self, other: Quantity) -> Quantity {
        let format = if self.is_zero() { other.format } else { self.format };
        Quantity { nanos: self.nanos.saturating_add(other.nanos), format }
    }

    /// The difference, such as the rest of a capacity.
    pub fn minus(self, other: Quantity) -> Quantity {
        Quantity { nanos: self.nanos.saturating_sub(other.nanos), ..self }
    }

    /// How many times this amount, which is not zero, is in another one.
    pub fn times_in(self, other: Quantity) -> u64 {
        let times = other.nanos.checked_div(self.nanos).unwrap_or_default();
        u64::try_from(times.max(0)).unwrap_or(u64::MAX)
    }

    /// `count` times this amount.
    pub fn times(self, count: u32) -> Quantity {
        Quantity { nanos: self.nanos.saturating_mul(i128::from(count)), ..self }
    }

    /// Rounded up to whole units, as a scheduler of whole devices or bytes counts.
    pub fn whole_units(self) -> i128 {
        let whole = self.nanos.div_euclid(NANO);
        if self.nanos.rem_euclid(NANO) == 0 { whole } else { whole.saturating_add(1) }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}
impl Eq for Quantity {}
impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl FromStr for Quantity {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        let (negative, body) = match text.as_bytes().first() {
            Some(b'-') => (true, text.get(1..)),
            Some(b'+') => (false, text.get(1..)),
            _ => (false, Some(text)),
        };
        let body = body.ok_or(BadQuantity)?;
        let end = body.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(body.len());
        let (number, suffix) = body.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || body.len() > 64 {
            return Err(BadQuantity);
        }
        let (format, shift) = scale(suffix)?;
        let nanos = match format {
            Format::Binary => binary_nanos(whole, fraction, shift),
            Format::Decimal => decimal_nanos(whole, fraction, shift),
        }
        .min(CAP);
        Ok(Quantity { nanos: if negative { -nanos } else { nanos }, format })
    }
}

/// The suffix's format and its power of two or ten.
fn scale(suffix: &str) -> Result<(Format, i32), BadQuantity> {
    if let Some((_, bits)) = BINARY.iter().find(|(s, _)| *s == suffix) {
        return Ok((Format::Binary, bits.cast_signed()));
    }
    if let Some((_, exponent)) = DECIMAL.iter().find(|(s, _)| *s == suffix) {
        return Ok((Format::Decimal, *exponent));
    }
    let exponent = suffix.strip_prefix(['e', 'E']).ok_or(BadQuantity)?;
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    if digits.is_empty() || digits.len() > 4 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(BadQuantity);
    }
    exponent.parse().map(|e| (Format::Decimal, e)).map_err(|_| BadQuantity)
}

/// Digits to a number, saturating.
fn digits(text: &str) -> i128 {
    text.bytes().fold(0i128, |n, b| n.saturating_mul(10).saturating_add(i128::from(b.wrapping_sub(b'0'))))
}

/// The first nine digits of a fraction as nano-units; a remainder that is not zero rounds up, as in Kubernetes.
fn fraction_nanos(fraction: &str) -> i128 {
    let kept = fraction.get(..9.min(fraction.len())).unwrap_or_default();
    let lost = fraction.get(kept.len()..).unwrap_or_default();
    let nanos = digits(kept).saturating_mul(10i128.pow(9u32.saturating_sub(kept.len() as u32)));
    if lost.bytes().any(|b| b != b'0') { nanos + 1 } else { nanos }
}

fn binary_nanos(whole: &str, fraction: &str, bits: i32) -> i128 {
    let nanos = digits(whole).saturating_mul(NANO).saturating_add(fraction_nanos(fraction));
    nanos.saturating_mul(1i128 << bits.clamp(0, 60))
}

fn decimal_nanos(whole: &str, fraction: &str, exponent: i32) -> i128 {
    // All digits as one integer, then one shift: exact for fractions such as 0.0000000005G.
    let all = digits(&[whole, fraction].concat());
    let shift = exponent.saturating_add(9).saturating_sub(fraction.len() as i32);
    if shift >= 0 {
        10i128
            .checked_pow(shift.unsigned_abs())
            .map_or(if all == 0 { 0 } else { i128::MAX }, |factor| all.saturating_mul(factor))
    } else {
        match 10i128.checked_pow(shift.unsigned_abs()) {
            Some(divisor) => all / divisor + i128::from(all % divisor != 0),
            None => i128::from(all != 0),
        }
    }
}

impl fmt::Display for Quantity {
    /// Canonical form: the largest suffix of its format that leaves a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return f.write_str("0");
        }
        if self.format == Format::Binary && self.nanos % NANO == 0 {
            let units = self.nanos / NANO;
            let best = BINARY.iter().rev().find(|(_, bits)| units % (1i128 << bits) == 0);
            return match best {
                Some((suffix, bits)) => write!(f, "{}{suffix}", units >> bits),
                None => write!(f, "{units}"),
            };
        }
        let best = DECIMAL.iter().rev().find_map(|(suffix, exponent)| {
            let factor = 10i128.checked_pow(exponent.saturating_add(9).unsigned_abs())?;
            (self.nanos % factor == 0).then_some((*suffix, self.nanos / factor))
        });
        match best {
            Some((suffix, count)) => write!(f, "{count}{suffix}"),
            None => write!(f, "{}n", self.nanos),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn q(text: &str) -> Quantity {
        text.parse().unwrap()
    }

    #[test]
    fn kubernetes_quantities_are_parsed() {
        assert_eq!(q("1408Mi"), Quantity::mebibytes(1408));
        assert_eq!(q("1").nanos, NANO);
        assert_eq!(q("100m").nanos, NANO / 10);
        assert_eq!(q("0.5").nanos, NANO / 2);
        assert_eq!(q(".5").nanos, NANO / 2);
        assert_eq!(q("1.5Gi"), q("1536Mi"));
        assert_eq!(q("1e3"), q("1k"));
        assert_eq!(q("12E2"), q("1200"));
        assert_eq!(q("1E"), q("1000P"));
        assert_eq!(q("+2"), q("2"));
        assert_eq!(q("-2").nanos, -2 * NANO);
        assert_eq!(q("0.0000000001").nanos, 1, "rounds up below a nano-unit");
    }

    #[test]
    fn malformed_quantity_is_rejected() {
        for bad in ["", "-", "Mi", "1 Mi", "1mi", "1.2.3", "1e", "1e+", "1e99999", "0x10", "1Kii", "é", "--1"] {
            assert_eq!(bad.parse::<Quantity>().map(|_| ()), Err(BadQuantity), "{bad}");
        }
    }

    #[test]
    fn quantity_prints_in_canonical_form() {
        for (text, canonical) in [
            ("1408Mi", "1408Mi"),
            ("2048Mi", "2Gi"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("0.1", "100m"),
            ("1000000", "1M"),
            ("1024", "1024"),
            ("3Ki", "3Ki"),
            ("0.5Ki", "512"),
            ("0", "0"),
            ("0Mi", "0"),
            ("5e-9", "5n"),
        ] {
            assert_eq!(q(text).to_string(), canonical);
        }
    }

    #[test]
    fn sums_and_products_keep_format_of_operands() {
        assert_eq!(q("1408Mi").times(3).to_string(), "4224Mi");
        assert_eq!(Quantity::ZERO.plus(q("1Gi")).to_string(), "1Gi");
        assert_eq!(q("100m").plus(q("1")).to_string(), "1100m");
        assert_eq!(q("1Gi").max(q("1G")).to_string(), "1Gi");
        assert_eq!(q("1100m").whole_units(), 2);
        assert_eq!(q("2").whole_units(), 2);
    }

    #[test]
    fn huge_quantities_saturate() {
        assert_eq!(q("999999999999999999999999E").nanos, CAP);
        assert_eq!(q("1e9999").nanos, CAP);
        assert_eq!(q("0e9999").nanos, 0);
        assert_eq!(q("1e-9999").nanos, 1);
        let giant = q("9223372036854775807");
        assert!(giant.times(u32::MAX).plus(giant.times(u32::MAX)) > giant);
    }

    proptest! {
        #[test]
        fn arbitrary_input_never_panics(text in any::<String>(), n in any::<u32>()) {
            if let Ok(quantity) = text.parse::<Quantity>() {
                let _ = quantity.times(n).plus(quantity).to_string();
            }
        }

        #[test]
        fn quantity_round_trips_through_text(n in 0u64..1_000_000_000_000, suffix in 0usize..16) {
            let suffix = ["", "m", "k", "M", "G", "u", "n", "Ki", "Mi", "Gi", "Ti", "e3", "e-3", "P", "T", "E"][suffix];
            let quantity = q(&format!("{n}{suffix}"));
            prop_assert_eq!(q(&quantity.to_string()), quantity);
        }
    }
}
