//! Parses the frames of AMQP 0-9-1 from a stream of bytes, in either direction.

/// The size of a frame's header, in bytes: its type, channel and payload size.
const HEADER_BYTES: usize = 7;

/// The byte after each payload.
const FRAME_END: u8 = 0xce;

/// The start of the protocol header, which a client sends first. Four bytes of the version follow.
const PROTOCOL_HEADER: &[u8; 4] = b"AMQP";

/// The size of the protocol header, in bytes.
const PROTOCOL_HEADER_BYTES: usize = 8;

/// The maximum size of a frame, in bytes. RabbitMQ's default is an eighth of it.
pub(super) const FRAME_BYTES_MAX: usize = 1 << 20;

/// The kind of a frame. The protocol header counts as a frame here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    ProtocolHeader,
    Method,
    Header,
    Body,
    /// A heartbeat, or a type that AMQP does not know.
    Other,
}

/// A frame as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// All bytes of the frame, with its header and its end.
    pub(super) raw: Vec<u8>,
}

impl Frame {
    pub(super) fn kind(&self) -> FrameKind {
        match self.raw.first() {
            Some(b'A') => FrameKind::ProtocolHeader,
            Some(1) => FrameKind::Method,
            Some(2) => FrameKind::Header,
            Some(3) => FrameKind::Body,
            Some(_) | None => FrameKind::Other,
        }
    }

    /// Returns the channel number. It is 0 for a protocol header.
    pub(super) fn channel(&self) -> u16 {
        match self.raw.get(1..3) {
            Some([high, low]) if self.kind() != FrameKind::ProtocolHeader => {
                u16::from_be_bytes([*high, *low])
            }
            Some(_) | None => 0,
        }
    }

    pub(super) fn payload(&self) -> &[u8] {
        self.raw.get(HEADER_BYTES..self.raw.len().saturating_sub(1)).unwrap_or_default()
    }
}

/// Why bytes cannot be parsed into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("a frame of {0} bytes; {FRAME_BYTES_MAX} are the most")]
    TooLarge(usize),
    #[error("bytes that are not a frame of AMQP 0-9-1")]
    NotAmqp,
}

/// Parses bytes into frames.
#[derive(Debug, Default)]
pub(super) struct FrameParser {
    /// The bytes that were fed and not parsed yet.
    unparsed: Vec<u8>,
    /// Whether a frame was parsed. Only the first frame can be the protocol header.
    has_parsed_frame: bool,
}

impl FrameParser {
    /// Adds bytes that have arrived.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.unparsed.extend_from_slice(bytes);
    }

    /// Parses the next frame. Returns `None` if it is not complete yet.
    ///
    /// # Errors
    ///
    /// Returns an error if the bytes are not a frame. After that, the stream cannot be parsed.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        let is_protocol_header =
            !self.has_parsed_frame && self.unparsed.first() == Some(&PROTOCOL_HEADER[0]);
        let size = if is_protocol_header {
            PROTOCOL_HEADER_BYTES
        } else {
            let Some(header) = self.unparsed.first_chunk::<HEADER_BYTES>() else {
                return Ok(None);
            };
            let [_, _, _, encoded_size @ ..] = header;
            let payload_size = u32::from_be_bytes(*encoded_size) as usize;
            let size = payload_size.saturating_add(HEADER_BYTES + 1);
            if size > FRAME_BYTES_MAX {
                return Err(FrameError::TooLarge(size));
            }
            size
        };
        if self.unparsed.len() < size {
            return Ok(None);
        }
        let remaining = self.unparsed.split_off(size);
        let raw = std::mem::replace(&mut self.unparsed, remaining);
        self.has_parsed_frame = true;
        let is_valid = if is_protocol_header {
            raw.starts_with(PROTOCOL_HEADER)
        } else {
            raw.last() == Some(&FRAME_END)
        };
        if is_valid { Ok(Some(Frame { raw })) } else { Err(FrameError::NotAmqp) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes a frame.
    fn frame(kind: u8, channel: u8, payload: &[u8]) -> Vec<u8> {
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[kind, 0, channel][..], &size, payload, &[FRAME_END]].concat()
    }

    fn parse_all(parser: &mut FrameParser) -> Vec<Frame> {
        std::iter::from_fn(|| parser.next().unwrap()).collect()
    }

    #[test]
    fn frames_are_parsed_wherever_they_are_split() {
        let frames = [
            b"AMQP\0\0\x09\x01".to_vec(),
            frame(1, 0, &[0, 10, 0, 11]),
            frame(2, 1, &[0, 60]),
            // A body may contain the end of a frame, or the protocol header.
            frame(3, 1, &[FRAME_END, b'A', b'M', b'Q', b'P', FRAME_END]),
            frame(8, 0, &[]),
        ];
        let stream = frames.concat();
        let kinds = [
            FrameKind::ProtocolHeader,
            FrameKind::Method,
            FrameKind::Header,
            FrameKind::Body,
            FrameKind::Other,
        ];
        for split_index in 0..=stream.len() {
            let mut parser = FrameParser::default();
            let mut parsed_frames = Vec::new();
            for piece in [&stream[..split_index], &stream[split_index..]] {
                parser.feed(piece);
                parsed_frames.extend(parse_all(&mut parser));
            }
            let raw: Vec<Vec<u8>> = parsed_frames.iter().map(|frame| frame.raw.clone()).collect();
            assert_eq!(raw, frames, "split at {split_index}");
            let parsed_kinds: Vec<FrameKind> = parsed_frames.iter().map(Frame::kind).collect();
            assert_eq!(parsed_kinds, kinds);
            let body = &parsed_frames[3];
            assert_eq!((body.channel(), body.payload().len()), (1, 6));
            assert!(parser.unparsed.is_empty());
        }
        let mut parser = FrameParser::default();
        let mut frame_count = 0;
        for byte in &stream {
            parser.feed(&[*byte]);
            frame_count += parse_all(&mut parser).len();
        }
        assert_eq!(frame_count, frames.len());
    }

    #[test]
    fn a_frame_that_is_too_large_is_rejected_by_its_header() {
        let mut parser = FrameParser::default();
        parser.feed(&[3, 0, 1]);
        assert_eq!(parser.next(), Ok(None));
        parser.feed(&u32::MAX.to_be_bytes());
        assert!(matches!(parser.next(), Err(FrameError::TooLarge(_))));
        assert!(parser.unparsed.len() < 16, "no memory was allocated for the payload");
        let payload_bytes_max = u32::try_from(FRAME_BYTES_MAX - HEADER_BYTES - 1).unwrap();
        for (size, is_accepted) in [(payload_bytes_max, true), (payload_bytes_max + 1, false)] {
            let mut parser = FrameParser::default();
            parser.feed(&[3, 0, 1]);
            parser.feed(&size.to_be_bytes());
            assert_eq!(parser.next() == Ok(None), is_accepted);
        }
    }

    #[test]
    fn bytes_that_are_no_frame_are_rejected() {
        let mut parser = FrameParser::default();
        parser.feed(b"AMQX....");
        assert_eq!(parser.next(), Err(FrameError::NotAmqp));
        let mut parser = FrameParser::default();
        parser.feed(&[1, 0, 0, 0, 0, 0, 1, 9, 9]);
        assert_eq!(parser.next(), Err(FrameError::NotAmqp));
    }
}
