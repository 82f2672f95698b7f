//! Parses the expiry of certificates.

use base::times;
use engine::Timestamp;
use rustls::pki_types::CertificateDer;

/// The DER tags (X.690) of the parts of a certificate (RFC 5280) that are parsed here.
const INTEGER: u8 = 0x02;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The bit that marks the long form in the first byte of an element's length.
const LONG_FORM_BIT: u8 = 0x80;

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
    let certificate = Element::parse(certificate, SEQUENCE)?.content;
    let signed_part = Element::parse(certificate, SEQUENCE)?.content;
    // The optional version, the serial number, the algorithm and the issuer precede the validity.
    let mut fields =
        Element::parse(signed_part, VERSION).map_or(signed_part, |version| version.following);
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        fields = Element::parse(fields, tag)?.following;
    }
    let validity = Element::parse(fields, SEQUENCE)?.content;
    let (_not_before, following) = parse_time(validity)?;
    let (not_after, _) = parse_time(following)?;
    times::parse_rfc3339(&not_after)
}

/// Parses a time. Returns it in the format of RFC 3339, and the bytes that follow it.
fn parse_time(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (element, year_digits) = match Element::parse(bytes, UTC_TIME) {
        Some(element) => (element, 2),
        None => (Element::parse(bytes, GENERALIZED_TIME)?, 4),
    };
    let text = std::str::from_utf8(element.content).ok()?.strip_suffix('Z')?;
    let (year, fields) = text.split_at_checked(year_digits)?;
    let century = match (year_digits, year.parse::<u32>().ok()?) {
        (4, _) => "",
        // A year of two digits is from 1950 to 2049.
        (_, 0..50) => "20",
        _ => "19",
    };
    // The other fields have two digits each.
    let field = |index: usize| fields.get(2 * index..2 * index + 2);
    let (month, day) = (field(0)?, field(1)?);
    let (hour, minute, second) = (field(2)?, field(3)?, field(4)?);
    let time = format!("{century}{year}-{month}-{day}T{hour}:{minute}:{second}Z");
    Some((time, element.following))
}

/// A DER element.
struct Element<'a> {
    content: &'a [u8],
    /// The bytes that follow the element.
    following: &'a [u8],
}

impl Element<'_> {
    /// Parses the element at the start of `bytes`. Returns `None` if it is truncated, or has
    /// another tag.
    fn parse(bytes: &[u8], tag: u8) -> Option<Element<'_>> {
        let [actual_tag, first_length_byte, rest @ ..] = bytes else { return None };
        if *actual_tag != tag {
            return None;
        }
        // The short form is the length itself; the long form is the number of length bytes.
        let (length, rest) = if *first_length_byte < LONG_FORM_BIT {
            (usize::from(*first_length_byte), rest)
        } else {
            let length_byte_count = usize::from(first_length_byte & !LONG_FORM_BIT);
            let (length_bytes, rest) = rest.split_at_checked(length_byte_count)?;
            if length_bytes.len() > LENGTH_BYTES_MAX {
                return None;
            }
            let append = |length: usize, byte: &u8| length << 8 | usize::from(*byte);
            (length_bytes.iter().fold(0, append), rest)
        };
        let (content, following) = rest.split_at_checked(length)?;
        Some(Element { content, following })
    }
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
