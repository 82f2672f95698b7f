//! Parses frames from bytes that arrive in pieces of any size, in either direction.

/// The type, channel and size of a frame.
const HEAD_BYTES: usize = 7;

/// The byte after each payload.
const END: u8 = 0xce;

/// The start of the protocol header, with which a client begins. Four bytes of the version follow.
const PROTOCOL_HEADER: &[u8; 4] = b"AMQP";
const PROTOCOL_HEADER_BYTES: usize = 8;

/// The largest frame, in bytes. RabbitMQ's default is an eighth of it.
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

    pub(super) fn channel(&self) -> u16 {
        match self.raw.get(1..3) {
            Some([high, low]) if self.kind() != FrameKind::ProtocolHeader => {
                u16::from_be_bytes([*high, *low])
            }
            Some(_) | None => 0,
        }
    }

    pub(super) fn payload(&self) -> &[u8] {
        self.raw.get(HEAD_BYTES..self.raw.len().saturating_sub(1)).unwrap_or_default()
    }
}

/// Why bytes are no frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("a frame of {0} bytes; {FRAME_BYTES_MAX} are the most")]
    TooLarge(usize),
    #[error("bytes that are no frame of AMQP 0-9-1")]
    NotAmqp,
}

/// Parses bytes into frames. It buffers what was fed, and at most one frame.
#[derive(Debug, Default)]
pub(super) struct FrameParser {
    bytes: Vec<u8>,
    has_started: bool,
}

impl FrameParser {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next frame, if it has arrived completely.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        let is_greeting = !self.has_started && self.bytes.first() == Some(&PROTOCOL_HEADER[0]);
        let size = if is_greeting {
            PROTOCOL_HEADER_BYTES
        } else {
            let Some(head) = self.bytes.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
            let [_, _, _, size @ ..] = head;
            let size = u32::from_be_bytes(*size) as usize;
            let size = size.saturating_add(HEAD_BYTES + 1);
            if size > FRAME_BYTES_MAX {
                return Err(FrameError::TooLarge(size));
            }
            size
        };
        if self.bytes.len() < size {
            return Ok(None);
        }
        let rest = self.bytes.split_off(size);
        let raw = std::mem::replace(&mut self.bytes, rest);
        self.has_started = true;
        let is_whole =
            if is_greeting { raw.starts_with(PROTOCOL_HEADER) } else { raw.last() == Some(&END) };
        if is_whole { Ok(Some(Frame { raw })) } else { Err(FrameError::NotAmqp) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, channel: u8, payload: &[u8]) -> Vec<u8> {
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[kind, 0, channel][..], &size, payload, &[END]].concat()
    }

    fn all(frames: &mut FrameParser) -> Vec<Frame> {
        std::iter::from_fn(|| frames.next().unwrap()).collect()
    }

    #[test]
    fn frames_are_parsed_wherever_they_are_split() {
        let parts = [
            b"AMQP\0\0\x09\x01".to_vec(),
            frame(1, 0, &[0, 10, 0, 11]),
            frame(2, 1, &[0, 60]),
            // A body may hold what looks like the end, or like a greeting.
            frame(3, 1, &[END, b'A', b'M', b'Q', b'P', END]),
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
        for cut in 0..=stream.len() {
            let mut frames = FrameParser::default();
            let mut found = Vec::new();
            for piece in [&stream[..cut], &stream[cut..]] {
                frames.feed(piece);
                found.extend(all(&mut frames));
            }
            let raw: Vec<Vec<u8>> = found.iter().map(|frame| frame.raw.clone()).collect();
            assert_eq!(raw, parts, "cut at {cut}");
            let found_kinds: Vec<FrameKind> = found.iter().map(Frame::kind).collect();
            assert_eq!(found_kinds, kinds);
            assert_eq!((found[3].channel(), found[3].payload().len()), (1, 6));
            assert!(frames.bytes.is_empty());
        }
        let mut frames = FrameParser::default();
        let mut found = 0;
        for byte in &stream {
            frames.feed(&[*byte]);
            found += all(&mut frames).len();
        }
        assert_eq!(found, parts.len());
    }

    #[test]
    fn a_frame_that_is_too_large_is_rejected_by_its_head_alone() {
        let mut frames = FrameParser::default();
        frames.feed(&[3, 0, 1]);
        assert_eq!(frames.next(), Ok(None));
        frames.feed(&u32::MAX.to_be_bytes());
        assert!(matches!(frames.next(), Err(FrameError::TooLarge(_))));
        assert!(frames.bytes.len() < 16);
        let largest = u32::try_from(FRAME_BYTES_MAX - HEAD_BYTES - 1).unwrap();
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
