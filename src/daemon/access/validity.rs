//! When certificates expire.

use base::times;
use engine::Timestamp;
use rustls::pki_types::CertificateDer;

/// Tags of DER (X.690) that occur in a certificate (RFC 5280).
const INTEGER: u8 = 0x02;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// How long before its expiry a certificate should have been replaced, in seconds.
pub const EXPIRY_WARNING_S: i64 = 14 * 24 * 3600;

/// Returns the earliest expiry of the certificates. Returns `None` if none can be parsed.
pub(super) fn not_after(chain: &[CertificateDer<'_>]) -> Option<Timestamp> {
    chain.iter().filter_map(|certificate| parse_not_after(certificate)).min_by_key(|at| at.0)
}

fn parse_not_after(certificate: &[u8]) -> Option<Timestamp> {
    let (certificate, _) = parse_element(certificate, SEQUENCE)?;
    let (signed, _) = parse_element(certificate, SEQUENCE)?;
    // A version, a serial number, the algorithm, the issuer; then the validity.
    let rest = parse_element(signed, VERSION).map_or(signed, |(_, rest)| rest);
    let (_, rest) = parse_element(rest, INTEGER)?;
    let (_, rest) = parse_element(rest, SEQUENCE)?;
    let (_, rest) = parse_element(rest, SEQUENCE)?;
    let (validity, _) = parse_element(rest, SEQUENCE)?;
    let (_, until) = parse_time(validity)?;
    let (until, _) = parse_time(until)?;
    times::parse_rfc3339(&until)
}

/// Parses a time. Returns it in the form of RFC 3339, and the bytes that follow.
fn parse_time(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (text, rest, digits) = match parse_element(bytes, UTC_TIME) {
        Some((text, rest)) => (text, rest, 2),
        None => parse_element(bytes, GENERALIZED_TIME).map(|(text, rest)| (text, rest, 4))?,
    };
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let (year, within) = text.split_at_checked(digits)?;
    let century = match (digits, year.parse::<u32>().ok()?) {
        (4, _) => "",
        (_, 0..50) => "20",
        _ => "19",
    };
    let part = |at: usize| within.get(2 * at..2 * at + 2);
    let (month, day) = (part(0)?, part(1)?);
    let (hour, minute, second) = (part(2)?, part(3)?, part(4)?);
    Some((format!("{century}{year}-{month}-{day}T{hour}:{minute}:{second}Z"), rest))
}

/// Parses an element with this tag. Returns its content, and the bytes that follow.
fn parse_element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let [found, length, rest @ ..] = bytes else { return None };
    if *found != tag {
        return None;
    }
    if *length < 0x80 {
        return rest.split_at_checked(usize::from(*length));
    }
    let (length, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
    if length.len() > 4 {
        return None;
    }
    let length = length.iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    fn self_signed(year: i32) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        params.not_before = date_time_ymd(1999, 1, 2);
        params.not_after = date_time_ymd(year, 12, 31);
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("signed").der().clone()
    }

    #[test]
    fn the_end_is_that_of_the_one_that_ends_first() {
        for year in [2025, 2049, 2050, 2099] {
            let expected = times::parse_rfc3339(&format!("{year}-12-31T00:00:00Z"));
            assert!(expected.is_some());
            assert_eq!(not_after(&[self_signed(year)]), expected, "{year}");
        }
        let chain = [self_signed(2030), self_signed(2027), self_signed(2099)];
        assert_eq!(not_after(&chain), times::parse_rfc3339("2027-12-31T00:00:00Z"));
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        let whole = self_signed(2030);
        for length in 0..whole.len() {
            let part = CertificateDer::from(whole[..length].to_vec());
            assert_eq!(not_after(&[part]), None, "{length}");
        }
        assert_eq!(not_after(&[]), None);
    }
}
