//! Helpers that the benchmarks share.

/// The recorded review of an executor in client mode, in the compact form that the API server sends.
pub(crate) fn recorded() -> Vec<u8> {
    let text = include_str!("../../tests/fixtures/reviews/spark-4.3.0/client-mode/exec-1.mutate.create.json");
    compact(text)
}

/// Removes the indentation and retains the order of the fields.
fn compact(text: &str) -> Vec<u8> {
    let (mut out, mut quoted, mut escaped) = (Vec::new(), false, false);
    for byte in text.bytes() {
        if quoted || !byte.is_ascii_whitespace() {
            out.push(byte);
        }
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            _ => {}
        }
    }
    out
}
