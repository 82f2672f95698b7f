//! Parses the frames of AMQP 0-9-1 from a stream of bytes, in either direction.

/// The size of a frame's header, in bytes: its type, channel and payload size.
const HEADER_BYTES: usize = 7;

/// The byte after each payload.
const FRAME_END: u8 = 0xce;

/// The start of the protocol header, which a client sends first. Four bytes of the version follow.
const PROTOCOL_HEADER: &[u8; 4] = b"AMQP";
const PROTOCOL_HEADER_BYTES: usize = 8;

/// The maximum size of a frame, in bytes. RabbitMQ's default is an eighth of it.
pub(super) const FRAME_BYTES_MAX: usize = 1 << 20;

/// The kind of a frame.
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
    #[error("bytes that are no frame of AMQP 0-9-1")]
    NotAmqp,
}

/// Parses bytes into frames. It buffers the bytes that were fed and not parsed yet.
#[derive(Debug, Default)]
pub(super) struct FrameParser {
    bytes: Vec<u8>,
    /// Whether a frame was parsed. Only the first one can be the protocol header.
    has_parsed: bool,
}

impl FrameParser {
    /// Adds bytes that have arrived.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Parses the next frame. Returns `None` if it is not complete yet.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        let is_protocol_header =
            !self.has_parsed && self.bytes.first() == Some(&PROTOCOL_HEADER[0]);
        let size = if is_protocol_header {
            PROTOCOL_HEADER_BYTES
        } else {
            let Some(header) = self.bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
            let [_, _, _, payload_size @ ..] = header;
            let payload_size = u32::from_be_bytes(*payload_size) as usize;
            let size = payload_size.saturating_add(HEADER_BYTES + 1);
            if size > FRAME_BYTES_MAX {
                return Err(FrameError::TooLarge(size));
            }
            size
        };
        if self.bytes.len() < size {
            return Ok(None);
        }
        let remaining = self.bytes.split_off(size);
        let raw = std::mem::replace(&mut self.bytes, remaining);
        self.has_parsed = true;
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

    fn frame(kind: u8, channel: u8, payload: &[u8]) -> Vec<u8> {
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[kind, 0, channel][..], &size, payload, &[FRAME_END]].concat()
    }

    fn parse_all(frames: &mut FrameParser) -> Vec<Frame> {
        std::iter::from_fn(|| frames.next().unwrap()).collect()
    }

    #[test]
    fn frames_are_parsed_wherever_they_are_split() {
        let parts = [
            b"AMQP\0\0\x09\x01".to_vec(),
            frame(1, 0, &[0, 10, 0, 11]),
            frame(2, 1, &[0, 60]),
            // A body may contain the end of a frame, or the protocol header.
            frame(3, 1, &[FRAME_END, b'A', b'M', b'Q', b'P', FRAME_END]),
            frame(8, 0, &[]),
        ];
        let stream = parts.concat();
        let kinds = [
            FrameKind::ProtocolHeader,
            FrameKind::Method,
            FrameKind::Header,
            FrameKind::Body,
            FrameKind::Other,
        ];
        for split in 0..=stream.len() {
            let mut frames = FrameParser::default();
            let mut parsed = Vec::new();
            for piece in [&stream[..split], &stream[split..]] {
                frames.feed(piece);
                parsed.extend(parse_all(&mut frames));
            }
            let raw: Vec<Vec<u8>> = parsed.iter().map(|frame| frame.raw.clone()).collect();
            assert_eq!(raw, parts, "split at {split}");
            let found_kinds: Vec<FrameKind> = parsed.iter().map(Frame::kind).collect();
            assert_eq!(found_kinds, kinds);
            assert_eq!((parsed[3].channel(), parsed[3].payload().len()), (1, 6));
            assert!(frames.bytes.is_empty());
        }
        let mut frames = FrameParser::default();
        let mut parsed = 0;
        for byte in &stream {
            frames.feed(&[*byte]);
            parsed += parse_all(&mut frames).len();
        }
        assert_eq!(parsed, parts.len());
    }

    #[test]
    fn a_frame_that_is_too_large_is_rejected_by_its_header() {
        let mut frames = FrameParser::default();
        frames.feed(&[3, 0, 1]);
        assert_eq!(frames.next(), Ok(None));
        frames.feed(&u32::MAX.to_be_bytes());
        assert!(matches!(frames.next(), Err(FrameError::TooLarge(_))));
        assert!(frames.bytes.len() < 16);
        let largest = u32::try_from(FRAME_BYTES_MAX - HEADER_BYTES - 1).unwrap();
        for (size, is_accepted) in [(largest, true), (largest + 1, false)] {
            let mut frames = FrameParser::default();
            frames.feed(&[3, 0, 1]);
            frames.feed(&size.to_be_bytes());
            assert_eq!(frames.next() == Ok(None), is_accepted);
        }
    }

    #[test]
    fn bytes_that_are_no_frame_are_rejected() {
        let mut frames = FrameParser::default();
        frames.feed(b"AMQX....");
        assert_eq!(frames.next(), Err(FrameError::NotAmqp));
        let mut frames = FrameParser::default();
        frames.feed(&[1, 0, 0, 0, 0, 0, 1, 9, 9]);
        assert_eq!(frames.next(), Err(FrameError::NotAmqp));
    }
}
