//! Parses from certificates when they expire.

use base::times;
use engine::Timestamp;
use rustls::pki_types::CertificateDer;

/// The DER tags (X.690) of the parts of a certificate (RFC 5280) that are parsed here.
const INTEGER: u8 = 0x02;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The most bytes in which the length of an element is encoded. No certificate needs more.
const LENGTH_BYTES_MAX: usize = 4;

/// How long before its expiry a certificate counts as expiring soon, in seconds.
pub const EXPIRY_WARNING_S: i64 = 14 * 24 * 3600;

/// Returns the earliest expiry of the certificates. Returns `None` if none can be parsed.
pub(super) fn not_after(chain: &[CertificateDer<'_>]) -> Option<Timestamp> {
    chain
        .iter()
        .filter_map(|certificate| parse_not_after(certificate))
        .min_by_key(|not_after| not_after.0)
}

/// Parses the end of a certificate's validity (RFC 5280, section 4.1.2.5).
fn parse_not_after(certificate: &[u8]) -> Option<Timestamp> {
    let (certificate, _) = parse_element(certificate, SEQUENCE)?;
    let (signed_part, _) = parse_element(certificate, SEQUENCE)?;
    // The optional version, the serial number, the algorithm and the issuer precede the validity.
    let rest = parse_element(signed_part, VERSION).map_or(signed_part, |(_, rest)| rest);
    let (_, rest) = parse_element(rest, INTEGER)?;
    let (_, rest) = parse_element(rest, SEQUENCE)?;
    let (_, rest) = parse_element(rest, SEQUENCE)?;
    let (validity, _) = parse_element(rest, SEQUENCE)?;
    let (_not_before, rest) = parse_time(validity)?;
    let (not_after, _) = parse_time(rest)?;
    times::parse_rfc3339(&not_after)
}

/// Parses a time. Returns it in the format of RFC 3339, and the bytes that follow it.
fn parse_time(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (text, rest, year_digits) = match parse_element(bytes, UTC_TIME) {
        Some((text, rest)) => (text, rest, 2),
        None => parse_element(bytes, GENERALIZED_TIME).map(|(text, rest)| (text, rest, 4))?,
    };
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let (year, fields) = text.split_at_checked(year_digits)?;
    let century = match (year_digits, year.parse::<u32>().ok()?) {
        (4, _) => "",
        // A year of two digits is from 1950 to 2049.
        (_, 0..50) => "20",
        _ => "19",
    };
    let field = |index: usize| fields.get(2 * index..2 * index + 2);
    let (month, day) = (field(0)?, field(1)?);
    let (hour, minute, second) = (field(2)?, field(3)?, field(4)?);
    Some((format!("{century}{year}-{month}-{day}T{hour}:{minute}:{second}Z"), rest))
}

/// Parses a DER element with this tag. Returns its content, and the bytes that follow it.
fn parse_element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let [actual_tag, first_length_byte, rest @ ..] = bytes else { return None };
    if *actual_tag != tag {
        return None;
    }
    // The short form is the length itself; the long form is the number of length bytes.
    if *first_length_byte < 0x80 {
        return rest.split_at_checked(usize::from(*first_length_byte));
    }
    let (length_bytes, rest) = rest.split_at_checked(usize::from(first_length_byte & 0x7f))?;
    if length_bytes.len() > LENGTH_BYTES_MAX {
        return None;
    }
    let length = length_bytes.iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    /// Returns a certificate that expires at the end of this year.
    fn self_signed(year: i32) -> CertificateDer<'static> {
        let mut params =
            CertificateParams::new(vec!["localhost".to_owned()]).expect("the name is valid");
        params.not_before = date_time_ymd(1999, 1, 2);
        params.not_after = date_time_ymd(year, 12, 31);
        let key = KeyPair::generate().expect("a key is generated");
        params.self_signed(&key).expect("the certificate is signed").der().clone()
    }

    #[test]
    fn the_earliest_expiry_of_a_chain_counts() {
        for year in [2025, 2049, 2050, 2099] {
            let expected = times::parse_rfc3339(&format!("{year}-12-31T00:00:00Z"));
            assert!(expected.is_some());
            assert_eq!(not_after(&[self_signed(year)]), expected, "{year}");
        }
        let chain = [self_signed(2030), self_signed(2027), self_signed(2099)];
        assert_eq!(not_after(&chain), times::parse_rfc3339("2027-12-31T00:00:00Z"));
    }

    #[test]
    fn a_truncated_certificate_has_no_expiry() {
        let certificate = self_signed(2030);
        for length in 0..certificate.len() {
            let truncated = CertificateDer::from(certificate[..length].to_vec());
            assert_eq!(not_after(&[truncated]), None, "{length}");
        }
        assert_eq!(not_after(&[]), None);
    }
}
