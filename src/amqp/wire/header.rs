//! Checks whether lapin can parse a content header, and builds the substitute for one that it
//! cannot.

use std::borrow::Cow;

/// The deepest nesting of arrays and tables in a header. The broker's own `x-death` nests two deep.
pub const NESTING_MAX: usize = 16;

/// The most values in the headers of a message, counting those in arrays and tables. The limit
/// bounds memory: a value takes about fifty bytes in lapin, and may take a single byte on the wire.
pub const VALUES_MAX: usize = 4_096;

/// The header that says why a message is unreadable. A message whose sender sets it is quarantined
/// as well.
pub const REASON_HEADER: &str = "x-workflow-manager-unreadable";

/// The header that holds the original content header, cut at half of the largest frame.
pub const ORIGINAL_HEADER: &str = "x-workflow-manager-original-header";

/// The length of class, weight and body size, which precede the property flags.
const FIXED_BYTES: usize = 12;

/// The id of the class `basic`.
const CLASS_BASIC: [u8; 2] = 60u16.to_be_bytes();

/// The property flags of a content header whose only property is the table of headers.
const FLAGS_HEADERS: u16 = 1 << 13;

/// An upper bound of what the table of a substitute takes besides the original header: the reason,
/// and the names, types and lengths.
const SUBSTITUTE_OVERHEAD_BYTES: usize = 256;

/// Why lapin cannot handle a content header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsupportedHeader {
    /// A property is a short string, and not UTF-8.
    #[error("the property {0} is not UTF-8")]
    InvalidText(Property),
    /// The name of a header, at any depth, is not UTF-8.
    #[error("the name of a header is not UTF-8")]
    InvalidName,
    /// Its values nest deeper than [`NESTING_MAX`].
    #[error("its headers nest more than {NESTING_MAX} deep")]
    TooDeep,
    /// It has more than [`VALUES_MAX`] values.
    #[error("its headers have more than {VALUES_MAX} values")]
    TooManyValues,
    /// A value has a type that neither AMQP 0-9-1 nor RabbitMQ defines.
    #[error("a header has a value of the unknown type {:?}", char::from(*.0))]
    UnknownType(u8),
    /// A value is longer than the header or the container that it is in.
    #[error("its content header ends within a value")]
    Truncated,
    /// Bytes follow the last property. The field is their number.
    #[error("its content header has {0} bytes too many")]
    TrailingBytes(usize),
    /// Its flags name properties that do not exist.
    #[error("its content header has unknown properties")]
    UnknownFlags,
    /// It is larger than a frame may be. The field is its size in bytes.
    #[error("its content header has {0} bytes, more than a frame may have")]
    TooLarge(usize),
}

/// A property of a message. The variants are in the order of their flags, highest bit first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "AMQP 0-9-1 names them")]
pub enum Property {
    ContentType,
    ContentEncoding,
    Headers,
    DeliveryMode,
    Priority,
    CorrelationId,
    ReplyTo,
    Expiration,
    MessageId,
    Timestamp,
    Type,
    UserId,
    AppId,
    ClusterId,
}

impl Property {
    const ALL: [Property; 14] = [
        Property::ContentType,
        Property::ContentEncoding,
        Property::Headers,
        Property::DeliveryMode,
        Property::Priority,
        Property::CorrelationId,
        Property::ReplyTo,
        Property::Expiration,
        Property::MessageId,
        Property::Timestamp,
        Property::Type,
        Property::UserId,
        Property::AppId,
        Property::ClusterId,
    ];

    /// Reads the bytes of the value, without their length.
    fn read_value<'a>(self, reader: &mut Reader<'a>) -> Result<&'a [u8], UnsupportedHeader> {
        match self {
            Property::Headers => reader.read_long(),
            Property::DeliveryMode | Property::Priority => reader.take(1),
            Property::Timestamp => reader.take(8),
            Property::ContentType
            | Property::ContentEncoding
            | Property::CorrelationId
            | Property::ReplyTo
            | Property::Expiration
            | Property::MessageId
            | Property::Type
            | Property::UserId
            | Property::AppId
            | Property::ClusterId => reader.read_short(),
        }
    }

    fn is_text(self) -> bool {
        !matches!(
            self,
            Property::Headers | Property::DeliveryMode | Property::Priority | Property::Timestamp
        )
    }
}

impl std::fmt::Display for Property {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Property::ContentType => "content_type",
            Property::ContentEncoding => "content_encoding",
            Property::Headers => "headers",
            Property::DeliveryMode => "delivery_mode",
            Property::Priority => "priority",
            Property::CorrelationId => "correlation_id",
            Property::ReplyTo => "reply_to",
            Property::Expiration => "expiration",
            Property::MessageId => "message_id",
            Property::Timestamp => "timestamp",
            Property::Type => "type",
            Property::UserId => "user_id",
            Property::AppId => "app_id",
            Property::ClusterId => "cluster_id",
        })
    }
}

/// Checks whether lapin can handle the payload of a content header frame. A header of another
/// class, or without the fixed part, passes: it is the broker's error, and lapin reports it.
///
/// # Errors
///
/// Returns the first reason why lapin cannot handle the header.
pub fn check_header(payload: &[u8]) -> Result<(), UnsupportedHeader> {
    if !payload.starts_with(&CLASS_BASIC) {
        return Ok(());
    }
    let Some(mut reader) = payload.get(FIXED_BYTES..).map(Reader) else { return Ok(()) };
    let flags = reader.read_flags()?;
    for property in Property::ALL.into_iter().filter(|property| is_set(flags, *property)) {
        let value = property.read_value(&mut reader)?;
        if property == Property::Headers {
            check_table(value)?;
        } else if property.is_text() && std::str::from_utf8(value).is_err() {
            return Err(UnsupportedHeader::InvalidText(property));
        }
    }
    if reader.0.is_empty() { Ok(()) } else { Err(UnsupportedHeader::TrailingBytes(reader.0.len())) }
}

/// Reads one property of a content header. Invalid UTF-8 is replaced. Returns `None` if the
/// property is missing, or the header is damaged before the end of the property.
pub fn read_property(payload: &[u8], property: Property) -> Option<Cow<'_, str>> {
    let mut reader = Reader(payload.get(FIXED_BYTES..)?);
    let flags = reader.read_flags().ok()?;
    for set_property in Property::ALL.into_iter().filter(|property| is_set(flags, *property)) {
        let value = set_property.read_value(&mut reader).ok()?;
        if set_property == property {
            return Some(String::from_utf8_lossy(value));
        }
    }
    None
}

/// Builds the substitute for a content header. It announces a body of the same size, and carries
/// the reason and the original in its headers. `payload` may be truncated. Returns `None` if it
/// lacks the fixed part.
pub(super) fn build_substitute(
    payload: &[u8],
    reason: UnsupportedHeader,
    frame_bytes_max: usize,
) -> Option<Vec<u8>> {
    let fixed_part = payload.get(..FIXED_BYTES)?;
    let original = &payload[..payload.len().min(frame_bytes_max / 2)];
    let reason_text = reason.to_string();
    let mut table = Vec::with_capacity(original.len() + SUBSTITUTE_OVERHEAD_BYTES);
    for (name, kind, value) in
        [(REASON_HEADER, b'S', reason_text.as_bytes()), (ORIGINAL_HEADER, b'x', original)]
    {
        table.extend(u8::try_from(name.len()).ok()?.to_be_bytes());
        table.extend(name.as_bytes());
        table.push(kind);
        table.extend(u32::try_from(value.len()).ok()?.to_be_bytes());
        table.extend(value);
    }
    let length = u32::try_from(table.len()).ok()?.to_be_bytes();
    Some([fixed_part, &FLAGS_HEADERS.to_be_bytes(), &length, &table].concat())
}

/// Returns whether `flags` has the bit of `property`.
fn is_set(flags: u16, property: Property) -> bool {
    flags & (1 << (15 - property as u16)) != 0
}

/// A table or array that is being read.
struct Container<'a> {
    /// Reads the remaining values.
    reader: Reader<'a>,
    /// Whether each value has a name, as in a table.
    has_names: bool,
}

/// Checks a table iteratively, so that deep nesting cannot overflow the stack.
fn check_table(table: &[u8]) -> Result<(), UnsupportedHeader> {
    let mut containers = vec![Container { reader: Reader(table), has_names: true }];
    let mut value_count = 0;
    while let Some(container) = containers.last_mut() {
        if container.reader.0.is_empty() {
            containers.pop();
            continue;
        }
        if container.has_names && std::str::from_utf8(container.reader.read_short()?).is_err() {
            return Err(UnsupportedHeader::InvalidName);
        }
        value_count += 1;
        if value_count > VALUES_MAX {
            return Err(UnsupportedHeader::TooManyValues);
        }
        // The value types of AMQP 0-9-1 and RabbitMQ: each is followed by a value of a fixed size,
        // or by a length and the value.
        let kind = container.reader.take(1)?[0];
        let nested_container = match kind {
            b'V' => None,
            b't' | b'b' | b'B' => container.reader.take(1).map(|_| None)?,
            b's' | b'U' | b'u' => container.reader.take(2).map(|_| None)?,
            b'I' | b'i' | b'f' => container.reader.take(4).map(|_| None)?,
            b'D' => container.reader.take(5).map(|_| None)?,
            b'L' | b'l' | b'd' | b'T' => container.reader.take(8).map(|_| None)?,
            b'S' | b'x' => container.reader.read_long().map(|_| None)?,
            b'A' | b'F' => Some(container.reader.read_long()?),
            unknown_kind => return Err(UnsupportedHeader::UnknownType(unknown_kind)),
        };
        if let Some(content) = nested_container {
            if containers.len() == NESTING_MAX {
                return Err(UnsupportedHeader::TooDeep);
            }
            containers.push(Container { reader: Reader(content), has_names: kind == b'F' });
        }
    }
    Ok(())
}

/// Reads fields from the front of a slice, which holds what was not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads `count` bytes.
    fn take(&mut self, count: usize) -> Result<&'a [u8], UnsupportedHeader> {
        let (field, remaining) =
            self.0.split_at_checked(count).ok_or(UnsupportedHeader::Truncated)?;
        self.0 = remaining;
        Ok(field)
    }

    /// Reads the property flags.
    fn read_flags(&mut self) -> Result<u16, UnsupportedHeader> {
        let bytes = self.take(2)?;
        let flags = u16::from_be_bytes([bytes[0], bytes[1]]);
        // No property uses the two lowest bits. The lowest one would announce further flags.
        if flags & 0b11 == 0 { Ok(flags) } else { Err(UnsupportedHeader::UnknownFlags) }
    }

    /// Reads a value that is preceded by its length in one byte.
    fn read_short(&mut self) -> Result<&'a [u8], UnsupportedHeader> {
        let length = self.take(1)?[0];
        self.take(usize::from(length))
    }

    /// Reads a value that is preceded by its length in four bytes.
    fn read_long(&mut self) -> Result<&'a [u8], UnsupportedHeader> {
        let length = self.take(4)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        self.take(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapin::protocol::basic::parse_properties;
    use lapin::types::AMQPValue;
    use proptest::prelude::*;

    const FRAME_BYTES_MAX: usize = 131_072;

    /// Builds the payload of a content header from flags and encoded properties.
    fn payload(flags: u16, properties: &[u8]) -> Vec<u8> {
        [&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7][..], &flags.to_be_bytes(), properties].concat()
    }

    /// Builds the payload of a content header with this encoded table of headers.
    fn payload_with_table(table: &[u8]) -> Vec<u8> {
        let length = u32::try_from(table.len()).expect("short").to_be_bytes();
        payload(FLAGS_HEADERS, &[&length[..], table].concat())
    }

    /// Builds the payload for a header `k` of type `kind` with the encoded `value`.
    fn payload_with_header(kind: u8, value: &[u8]) -> Vec<u8> {
        payload_with_table(&[&[1, b'k', kind][..], value].concat())
    }

    /// Builds the payload for a header with `depth` nested arrays or tables.
    fn payload_with_nesting(kind: u8, depth: usize) -> Vec<u8> {
        let mut value = Vec::new();
        for _ in 0..depth {
            let content = if value.is_empty() {
                Vec::new()
            } else if kind == b'F' {
                [&[1, b'k', kind][..], &value].concat()
            } else {
                [&[kind][..], &value].concat()
            };
            let length = u32::try_from(content.len()).expect("short").to_be_bytes();
            value = [&length[..], &content].concat();
        }
        payload_with_header(kind, &value)
    }

    /// Returns whether lapin parses the payload to its end.
    fn is_supported(payload: &[u8]) -> bool {
        parse_properties(&payload[FIXED_BYTES..]).is_ok_and(|(remaining, _)| remaining.is_empty())
    }

    /// Returns the result of [`check_header`]. Asserts that lapin parses a payload that passes, and
    /// the substitute in any case.
    fn check_with_lapin(payload: &[u8]) -> Result<(), UnsupportedHeader> {
        let result = check_header(payload);
        let substitute = build_substitute(
            payload,
            result.err().unwrap_or(UnsupportedHeader::Truncated),
            FRAME_BYTES_MAX,
        )
        .expect("a substitute");
        assert!(is_supported(&substitute), "{result:?}");
        assert_eq!(
            substitute[..FIXED_BYTES],
            payload[..FIXED_BYTES],
            "the size of the body is kept"
        );
        assert!(substitute.len() < FRAME_BYTES_MAX);
        if result.is_ok() {
            assert!(is_supported(payload), "lapin parses {payload:?}");
        }
        result
    }

    #[test]
    fn every_short_string_must_be_utf8() {
        for property in Property::ALL.into_iter().filter(|property| property.is_text()) {
            let flags = 1 << (15 - property as u16);
            assert_eq!(
                check_with_lapin(&payload(flags, "\u{2}é".as_bytes())),
                Ok(()),
                "{property}"
            );
            for text in
                [&[1, 0xe9][..], &[3, 0xff, 0xfe, 0x80], &[2, b'a', 0xc3], &[3, 0xed, 0xa0, 0x80]]
            {
                let invalid = payload(flags, text);
                assert_eq!(
                    check_with_lapin(&invalid),
                    Err(UnsupportedHeader::InvalidText(property))
                );
                assert!(!is_supported(&invalid), "lapin rejects it: {property}");
            }
            assert_eq!(
                check_with_lapin(&payload(flags, &[5, b'a'])),
                Err(UnsupportedHeader::Truncated)
            );
            assert_eq!(check_with_lapin(&payload(flags, &[])), Err(UnsupportedHeader::Truncated));
        }
    }

    #[test]
    fn exactly_the_value_types_that_lapin_parses_are_accepted() {
        // The kinds with the sizes of their shortest values, in bytes.
        let kinds_by_size: [(usize, &[u8]); 6] =
            [(0, b"V"), (1, b"tbB"), (2, b"sUu"), (4, b"IifSxAF"), (5, b"D"), (8, b"LldT")];
        for kind in 0..=u8::MAX {
            let entry = kinds_by_size.iter().find(|(_, kinds)| kinds.contains(&kind));
            let check_size =
                |size: usize| check_with_lapin(&payload_with_header(kind, &vec![0; size]));
            match entry {
                Some((size, _)) => {
                    let name = char::from(kind);
                    assert_eq!(check_size(*size), Ok(()), "{name:?}");
                    assert!(*size == 0 || check_size(size - 1).is_err(), "{name:?}");
                    assert!(check_size(size + 1).is_err(), "{name:?}");
                }
                None => assert_eq!(check_size(8), Err(UnsupportedHeader::UnknownType(kind))),
            }
        }
        for kind in [b'S', b'x', b'A', b'F'] {
            assert_eq!(
                check_with_lapin(&payload_with_header(kind, &[0xff; 4])),
                Err(UnsupportedHeader::Truncated)
            );
        }
        assert_eq!(
            check_with_lapin(&payload_with_header(b'S', &[0, 0, 0, 2, 0xff, 0xfe])),
            Ok(()),
            "a long string need not be UTF-8"
        );
    }

    #[test]
    fn names_must_be_utf8_at_any_depth() {
        assert_eq!(
            check_with_lapin(&payload_with_table(&[2, 0xff, 0xfe, b'V'])),
            Err(UnsupportedHeader::InvalidName)
        );
        assert_eq!(
            check_with_lapin(&payload_with_header(b'F', &[0, 0, 0, 3, 1, 0xe9, b'V'])),
            Err(UnsupportedHeader::InvalidName)
        );
        assert_eq!(
            check_with_lapin(&payload_with_header(
                b'A',
                &[0, 0, 0, 8, b'F', 0, 0, 0, 3, 1, 0xe9, b'V']
            )),
            Err(UnsupportedHeader::InvalidName)
        );
    }

    #[test]
    fn deep_nesting_is_rejected_without_recursion() {
        for kind in [b'A', b'F'] {
            assert_eq!(check_with_lapin(&payload_with_nesting(kind, NESTING_MAX - 1)), Ok(()));
            for depth in [NESTING_MAX, 3_000, 20_000] {
                assert_eq!(
                    check_header(&payload_with_nesting(kind, depth)),
                    Err(UnsupportedHeader::TooDeep),
                    "{depth}"
                );
            }
        }
    }

    #[test]
    fn too_many_small_values_are_rejected() {
        let array_of_voids = |count: usize| {
            let length = u32::try_from(count).expect("few").to_be_bytes();
            payload_with_header(b'A', &[&length[..], &vec![b'V'; count]].concat())
        };
        // The array itself is a value too.
        assert_eq!(check_with_lapin(&array_of_voids(VALUES_MAX - 1)), Ok(()));
        assert_eq!(
            check_with_lapin(&array_of_voids(VALUES_MAX)),
            Err(UnsupportedHeader::TooManyValues)
        );
    }

    #[test]
    fn bytes_around_the_properties_are_checked_too() {
        assert_eq!(check_with_lapin(&payload(0, &[])), Ok(()));
        assert_eq!(check_with_lapin(&payload(0, &[0])), Err(UnsupportedHeader::TrailingBytes(1)));
        assert_eq!(check_with_lapin(&payload(1, &[])), Err(UnsupportedHeader::UnknownFlags));
        assert_eq!(check_with_lapin(&payload(2, &[])), Err(UnsupportedHeader::UnknownFlags));
        assert_eq!(check_header(&payload(0, &[])[..13]), Err(UnsupportedHeader::Truncated));
        assert_eq!(
            (check_header(&[]), build_substitute(&[0; 11], UnsupportedHeader::Truncated, 4096)),
            (Ok(()), None)
        );
        assert_eq!(
            check_header(&[0, 50, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0xff]),
            Ok(()),
            "of another class than `basic`"
        );
    }

    #[test]
    fn a_substitute_has_the_reason_and_the_original() {
        let original = payload(1 << 5, &[1, 0xe9]);
        let reason = UnsupportedHeader::InvalidText(Property::Type);
        let substitute =
            build_substitute(&original, reason, FRAME_BYTES_MAX).expect("a substitute");
        let (_, properties) = parse_properties(&substitute[FIXED_BYTES..]).expect("readable");
        let headers = properties.headers().clone().expect("headers");
        assert_eq!(
            headers.inner().get(REASON_HEADER),
            Some(&AMQPValue::LongString("the property type is not UTF-8".into()))
        );
        assert_eq!(
            headers.inner().get(ORIGINAL_HEADER),
            Some(&AMQPValue::ByteArray(original.into()))
        );
    }

    #[test]
    fn a_property_is_read_as_far_as_it_is_valid() {
        let flags = 1 << 10 | FLAGS_HEADERS;
        let invalid =
            payload(flags, &[&[0, 0, 0, 2, 0xff, 0xff][..], &[3, b'a', 0xe9, b'c']].concat());
        assert_eq!(check_header(&invalid), Err(UnsupportedHeader::Truncated));
        assert_eq!(read_property(&invalid, Property::CorrelationId).as_deref(), Some("a\u{fffd}c"));
        assert_eq!(read_property(&invalid, Property::Type), None);
        assert_eq!(read_property(&invalid[..16], Property::CorrelationId), None);
    }

    proptest! {
        /// Tests random bytes, which are rarely a valid header.
        #[test]
        fn lapin_parses_every_header_that_passes_the_check(
            flags: u16,
            bytes in proptest::collection::vec(any::<u8>(), 0..200)
        ) {
            let _ = check_with_lapin(&payload(flags & !0b11, &bytes));
        }

        /// Tests headers that are nearly valid: one byte is changed, or the end is cut off.
        #[test]
        fn a_damaged_header_is_supported_or_rejected(
            index in 0usize..200,
            byte: u8,
            cut_bytes in 0usize..40
        ) {
            let table: &[u8] = b"\x01kS\0\0\0\x03abc\x01fF\0\0\0\x09\x01aA\0\0\0\x02tV\
                                 \x01tT\0\0\0\0\0\0\0\x09";
            let length = u32::try_from(table.len()).expect("short").to_be_bytes();
            let mut bytes = [
                b"\x04json",
                &length[..],
                table,
                &[2, 9],
                b"\x05a:one",
                b"\x02id",
                b"\0\0\0\0\0\0\0\x09",
                b"\x05error",
            ]
            .concat();
            let flags =
                1 << 15 | FLAGS_HEADERS | 1 << 12 | 1 << 11 | 1 << 10 | 1 << 7 | 1 << 6 | 1 << 5;
            prop_assert_eq!(check_with_lapin(&payload(flags, &bytes)), Ok(()));
            let index = index % bytes.len();
            bytes[index] = byte;
            bytes.truncate(bytes.len() - cut_bytes.min(bytes.len()) * usize::from(byte & 1));
            let _ = check_with_lapin(&payload(flags, &bytes));
        }
    }
}
