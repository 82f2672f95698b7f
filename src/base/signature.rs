//! Signs outgoing HTTP requests with HMAC-SHA256, so that their receivers can verify the sender.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The header with the signed time, in seconds since 1970.
pub const TIMESTAMP_HEADER: &str = "X-Signature-Timestamp";

/// The header with the signature.
pub const SIGNATURE_HEADER: &str = "X-Signature-256";

/// Returns the signature of a request: `sha256=<hex>`, the HMAC of `<timestamp>.<body>`. The
/// signature covers the time too, so that receivers can reject replayed requests.
pub fn sign(secret: &str, timestamp: &str, body: &[u8]) -> String {
    // Cannot fail: HMAC takes a key of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.as_bytes()) else {
        return String::new();
    };
    for part in [timestamp.as_bytes(), b".", body] {
        mac.update(part);
    }
    let hex: String =
        mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256={hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_an_hmac_of_the_timestamp_and_the_body() {
        // python3 -c 'import hmac; print(hmac.new(b"secret", b"1.{}", "sha256").hexdigest())'
        let expected = "sha256=1122767b193110cfec322b6f199b599edbf608ed087f2d27afb0b97d99523908";
        assert_eq!(sign("secret", "1", b"{}"), expected);
    }
}
