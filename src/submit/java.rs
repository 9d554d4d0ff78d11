//! Numbers as the JVM writes and reads them.

/// A double as `Double.toString` writes it: from 1e-3 to 1e7 with a point, otherwise with an exponent.
pub(super) fn double(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || (1e-3..1e7).contains(&size) {
        return format!("{value:?}");
    }
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let text = format!("{value:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let point = if mantissa.contains('.') { "" } else { ".0" };
    format!("{mantissa}{point}E{exponent}")
}

/// A double as `Double.parseDouble` reads it: with blanks around it, and with the suffixes of literals.
pub(super) fn parse_double(text: &str) -> Option<f64> {
    let text = text.trim();
    match text {
        "NaN" => return Some(f64::NAN),
        "Infinity" | "+Infinity" => return Some(f64::INFINITY),
        "-Infinity" => return Some(f64::NEG_INFINITY),
        _ => {}
    }
    let digits = text.strip_suffix(['d', 'D', 'f', 'F']).unwrap_or(text);
    // Rust knows names that the JVM does not.
    digits.contains(|c: char| c.is_ascii_digit()).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_are_written_as_by_the_jvm() {
        for (value, expected) in [
            (0.1, "0.1"),
            (1.0, "1.0"),
            (0.0, "0.0"),
            (0.0005, "5.0E-4"),
            (0.001, "0.001"),
            (12_345_678.0, "1.2345678E7"),
            (1e9, "1.0E9"),
            (9_999_999.0, "9999999.0"),
            (-1.5e-7, "-1.5E-7"),
            (f64::INFINITY, "Infinity"),
        ] {
            assert_eq!(double(value), expected);
        }
    }

    #[test]
    fn doubles_are_read_as_by_the_jvm() {
        for (text, expected) in [
            ("0.1d", Some(0.1)),
            (" .5 ", Some(0.5)),
            ("5.", Some(5.0)),
            ("1e400", Some(f64::INFINITY)),
            ("inf", None),
            ("", None),
            ("abc", None),
        ] {
            assert_eq!(parse_double(text), expected, "{text}");
        }
    }
}
