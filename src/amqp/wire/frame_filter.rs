//! Filters inbound frames one by one. The input may arrive in pieces of any size.

use super::header::{UnsupportedHeader, build_substitute, check_header};

/// The length of the frame header: type, channel and size.
const HEAD_BYTES: usize = 7;

/// The length of the end marker after each payload.
const END_BYTES: usize = 1;

/// The smallest frame limit that AMQP allows, in bytes.
const FRAME_BYTES_MIN: usize = 4_096;

const METHOD: u8 = 1;
const CONTENT_HEADER: u8 = 2;
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;

/// The class and method of `connection.tune`, by which the broker limits the size of frames.
const TUNE: [u8; 4] = [0, 10, 0, 30];

/// The class and method of `basic.return`, which precedes a returned message.
const RETURN: [u8; 4] = [0, 60, 0, 50];

/// An argument of a method.
#[derive(Clone, Copy)]
enum Field {
    /// `n` bytes that are skipped.
    Bytes(usize),
    /// A short string.
    Text,
}

use Field::{Bytes, Text};

/// The methods in which the broker sends short strings: names that clients chose, and messages
/// about them. The broker cuts these at 255 bytes, even in the middle of a character. Each entry
/// has the class and method, and the fields up to the last short string.
const METHODS_WITH_TEXTS: [([u8; 4], &[Field]); 10] = [
    ([0, 10, 0, 50], &[Bytes(2), Text]), // connection.close: code, text
    ([0, 10, 0, 60], &[Text]),           // connection.blocked: reason
    ([0, 20, 0, 40], &[Bytes(2), Text]), // channel.close: code, text
    ([0, 50, 0, 11], &[Text]),           // queue.declare-ok: queue
    ([0, 60, 0, 21], &[Text]),           // basic.consume-ok: tag
    ([0, 60, 0, 30], &[Text]),           // basic.cancel: tag
    ([0, 60, 0, 31], &[Text]),           // basic.cancel-ok: tag
    ([0, 60, 0, 50], &[Bytes(2), Text, Text, Text]), // basic.return: code, text, exchange, key
    // basic.deliver: consumer tag, delivery tag and redelivered, exchange, key
    ([0, 60, 0, 60], &[Text, Bytes(9), Text, Text]),
    // basic.get-ok: delivery tag and redelivered, exchange, key
    ([0, 60, 0, 71], &[Bytes(9), Text, Text]),
];

/// The error for a frame that exceeds the negotiated limit and is no content header. The broker
/// violates the protocol then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the broker sent a frame of {size} bytes; {max} were agreed")]
pub struct FrameTooLarge {
    size: usize,
    max: usize,
}

/// Forwards frames, and replaces those that lapin cannot handle. It buffers at most one frame.
#[derive(Debug)]
pub struct FrameFilter {
    frame_bytes_max: usize,
    state: FilterState,
    bodies: BodyCounter,
    /// How many messages the broker has returned since the last [`FrameFilter::take_returns`].
    returns: u64,
}

/// Counts the bytes of complete bodies that arrive over one channel.
#[derive(Debug, Default)]
struct BodyCounter {
    /// The channel; 0 for none.
    channel: u16,
    /// The size of the current body, in bytes.
    size: u64,
    /// The bytes of the current body that have not arrived yet.
    missing: u64,
    /// The total size of the complete bodies, in bytes.
    completed: u64,
}

impl BodyCounter {
    /// Starts a body. The `payload` of its content header begins with class, weight and body size.
    fn begin_body(&mut self, channel: u16, payload: &[u8]) {
        if let Some(size) = payload.get(4..12).filter(|_| channel == self.channel) {
            self.size = size.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
            self.missing = self.size;
        }
    }

    /// Counts `bytes` of the current body.
    fn add_part(&mut self, channel: u16, bytes: usize) {
        if channel != self.channel || self.missing == 0 {
            return;
        }
        self.missing = self.missing.saturating_sub(bytes as u64);
        if self.missing == 0 {
            self.completed = self.completed.saturating_add(self.size);
        }
    }
}

#[derive(Debug)]
enum FilterState {
    /// Reading the header of a frame; with the bytes of it that have arrived.
    Head(Vec<u8>),
    /// Forwarding a frame as it arrives; with the number of its missing bytes.
    Forwarding(usize),
    /// Buffering a frame that is checked as a whole.
    Buffering(BufferedFrame),
    /// The input is not AMQP. It is forwarded unchanged, and lapin reports the error.
    Foreign,
}

#[derive(Debug)]
struct BufferedFrame {
    head: [u8; HEAD_BYTES],
    /// The size of the payload, as the frame header says.
    size: usize,
    /// The payload that has arrived, cut at the largest frame.
    payload: Vec<u8>,
    /// The bytes of the payload that have not arrived yet.
    missing: usize,
}

impl FrameFilter {
    /// Creates a filter for frames of at most `frame_bytes_max` bytes, or of the broker's limit if
    /// that is lower.
    pub fn new(frame_bytes_max: usize) -> FrameFilter {
        FrameFilter {
            frame_bytes_max: frame_bytes_max.max(FRAME_BYTES_MIN),
            state: FilterState::Head(Vec::new()),
            bodies: BodyCounter::default(),
            returns: 0,
        }
    }

    /// Sets the channel whose bodies are counted from now on; 0 for none.
    pub(crate) fn set_counted_channel(&mut self, channel: u16) {
        self.bodies.channel = channel;
    }

    /// Returns the total size of the bodies completed since the last call, and resets it.
    pub(crate) fn take_body_bytes(&mut self) -> usize {
        usize::try_from(std::mem::take(&mut self.bodies.completed)).unwrap_or(usize::MAX)
    }

    /// Returns how many messages the broker returned since the last call, and resets the count.
    pub(crate) fn take_returns(&mut self) -> u64 {
        std::mem::take(&mut self.returns)
    }

    /// Filters bytes from the broker, and appends to `output` what lapin may read.
    ///
    /// # Errors
    ///
    /// Returns an error if a frame exceeds the negotiated limit and is no content header.
    pub fn filter(&mut self, mut input: &[u8], output: &mut Vec<u8>) -> Result<(), FrameTooLarge> {
        while let Some(first) = input.first() {
            let consumed = match &mut self.state {
                FilterState::Head(head) => {
                    if head.is_empty()
                        && !matches!(*first, METHOD | CONTENT_HEADER | BODY | HEARTBEAT)
                    {
                        self.state = FilterState::Foreign;
                        continue;
                    }
                    let consumed = input.len().min(HEAD_BYTES - head.len());
                    head.extend(&input[..consumed]);
                    if let Ok(head) = <[u8; HEAD_BYTES]>::try_from(head.as_slice()) {
                        self.state = self.begin_frame(head, output)?;
                    }
                    consumed
                }
                FilterState::Forwarding(missing) => {
                    let consumed = input.len().min(*missing);
                    output.extend(&input[..consumed]);
                    *missing -= consumed;
                    if *missing == 0 {
                        self.state = FilterState::Head(Vec::new());
                    }
                    consumed
                }
                FilterState::Buffering(buffered) if buffered.missing > 0 => {
                    let consumed = input.len().min(buffered.missing);
                    let capacity = self
                        .frame_bytes_max
                        .saturating_sub(HEAD_BYTES + END_BYTES + buffered.payload.len());
                    buffered.payload.extend(&input[..consumed.min(capacity)]);
                    buffered.missing -= consumed;
                    consumed
                }
                FilterState::Buffering(buffered) => {
                    let frame = std::mem::replace(
                        buffered,
                        BufferedFrame {
                            head: [0; HEAD_BYTES],
                            size: 0,
                            payload: Vec::new(),
                            missing: 0,
                        },
                    );
                    self.state = FilterState::Head(Vec::new());
                    self.end_frame(frame, *first, output);
                    END_BYTES
                }
                FilterState::Foreign => {
                    output.extend(input);
                    input.len()
                }
            };
            input = &input[consumed..];
        }
        Ok(())
    }

    /// Decides from the frame header `head` how its frame is handled.
    fn begin_frame(
        &mut self,
        head: [u8; HEAD_BYTES],
        output: &mut Vec<u8>,
    ) -> Result<FilterState, FrameTooLarge> {
        let [kind, high, low, size @ ..] = head;
        let size = u32::from_be_bytes(size) as usize;
        let frame_bytes = size.saturating_add(HEAD_BYTES + END_BYTES);
        // The broker does not split content headers, and it adds headers to dead letters. So a
        // content header may exceed the limit.
        if frame_bytes > self.frame_bytes_max && kind != CONTENT_HEADER {
            return Err(FrameTooLarge { size: frame_bytes, max: self.frame_bytes_max });
        }
        if matches!(kind, METHOD | CONTENT_HEADER) {
            return Ok(FilterState::Buffering(BufferedFrame {
                head,
                size,
                payload: Vec::with_capacity(size.min(self.frame_bytes_max)),
                missing: size,
            }));
        }
        if kind == BODY {
            self.bodies.add_part(u16::from_be_bytes([high, low]), size);
        }
        output.extend(head);
        Ok(FilterState::Forwarding(size + END_BYTES))
    }

    /// Checks a complete buffered frame, and forwards it or its substitute.
    fn end_frame(&mut self, frame: BufferedFrame, end: u8, output: &mut Vec<u8>) {
        let BufferedFrame { mut head, size, mut payload, .. } = frame;
        if head[0] == METHOD {
            self.inspect_method(&payload);
            replace_invalid_texts(&mut payload);
        } else {
            self.bodies.begin_body(u16::from_be_bytes([head[1], head[2]]), &payload);
            let result = if payload.len() < size {
                Err(UnsupportedHeader::TooLarge(size))
            } else {
                check_header(&payload)
            };
            if let Some(substitute) = result
                .err()
                .and_then(|reason| build_substitute(&payload, reason, self.frame_bytes_max))
            {
                // The substitute fits into a frame, so its size fits into four bytes.
                let substitute_bytes = u32::try_from(substitute.len()).unwrap_or(u32::MAX);
                head[3..].copy_from_slice(&substitute_bytes.to_be_bytes());
                payload = substitute;
            }
        }
        output.extend(head);
        output.extend(payload);
        output.push(end);
    }

    /// Counts a returned message, and adopts a lower frame limit of the broker.
    fn inspect_method(&mut self, method: &[u8]) {
        self.returns += u64::from(method.starts_with(&RETURN));
        // The limit follows the highest channel number, which has two bytes.
        let Some(bytes) = method.strip_prefix(&TUNE).and_then(|arguments| arguments.get(2..6))
        else {
            return;
        };
        let limit = bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte));
        // 0 means that the broker has no limit of its own.
        if limit > 0 {
            self.frame_bytes_max = self.frame_bytes_max.min(limit.max(FRAME_BYTES_MIN));
        }
    }
}

/// Replaces the non-ASCII bytes of short strings that are not UTF-8 by `?`. The
/// manager depends on none of these names and messages.
fn replace_invalid_texts(method: &mut [u8]) {
    let Some((id, mut remaining)) = method.split_at_mut_checked(4) else { return };
    let Some((_, fields)) = METHODS_WITH_TEXTS.iter().find(|(method_id, _)| method_id == id) else {
        return;
    };
    for field in *fields {
        let length = match field {
            Bytes(count) => *count,
            Text => {
                let Some((length, text)) = remaining.split_first_mut() else { return };
                let length = usize::from(*length);
                remaining = text;
                length
            }
        };
        let Some((value, next)) = remaining.split_at_mut_checked(length) else { return };
        if matches!(field, Text) && std::str::from_utf8(value).is_err() {
            value.iter_mut().filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = b'?');
        }
        remaining = next;
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::{ORIGINAL_HEADER, REASON_HEADER};
    use super::*;
    use proptest::prelude::*;

    const FRAME_END: u8 = 0xce;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let size = u32::try_from(payload.len()).expect("small").to_be_bytes();
        [&[kind, 0, 1][..], &size, payload, &[FRAME_END]].concat()
    }

    fn filtered(filter: &mut FrameFilter, input: &[u8]) -> Vec<u8> {
        let mut output = Vec::new();
        filter.filter(input, &mut output).expect("no frame is too large");
        output
    }

    #[test]
    fn a_returned_message_is_counted_before_lapin_receives_it() {
        let mut filter = FrameFilter::new(4096);
        // Code, text, exchange and key.
        let returned = frame(METHOD, &[0, 60, 0, 50, 1, 56, 0, 0, 0]);
        let (start, end) = returned.split_at(returned.len() - 1);
        assert!(filtered(&mut filter, start).is_empty() && filter.take_returns() == 0);
        assert_eq!(filtered(&mut filter, end), returned);
        assert_eq!((filter.take_returns(), filter.take_returns()), (1, 0));
    }

    fn deliver(exchange: &[u8], key: &[u8]) -> Vec<u8> {
        let text = |text: &[u8]| [&[u8::try_from(text.len()).expect("short")][..], text].concat();
        frame(
            METHOD,
            &[&[0, 60, 0, 60][..], &text(b"tag"), &[0; 9], &text(exchange), &text(key)].concat(),
        )
    }

    /// Builds a content header with the property `type`.
    fn header_with_type(kind: &[u8]) -> Vec<u8> {
        let length = u8::try_from(kind.len()).expect("short");
        frame(
            CONTENT_HEADER,
            &[&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 1 << 5, length][..], kind].concat(),
        )
    }

    fn contains(bytes: &[u8], part: &[u8]) -> bool {
        bytes.windows(part.len()).any(|window| window == part)
    }

    /// Builds deliveries as the broker sends them: a bad header, then a good one.
    fn deliveries() -> Vec<u8> {
        let tune = frame(METHOD, &[0, 10, 0, 30, 7, 255, 0, 2, 0, 0, 0, 60]);
        let (good, bad) = (header_with_type(b"error"), header_with_type(b"ma\xf1ana"));
        [
            tune,
            deliver(b"", b"q"),
            bad,
            frame(BODY, b"abc"),
            frame(HEARTBEAT, b""),
            deliver(b"e", b"q"),
            good,
            frame(BODY, b"def"),
        ]
        .concat()
    }

    #[test]
    fn valid_frames_pass_unchanged() {
        let good = [
            deliver("ü".as_bytes(), b"k"),
            header_with_type("größe".as_bytes()),
            frame(BODY, &[0xff; 9]),
            frame(HEARTBEAT, b""),
        ]
        .concat();
        assert_eq!(filtered(&mut FrameFilter::new(131_072), &good), good);
        for foreign in [&b"HTTP/1.1 400 Bad Request"[..], b"AMQP\0\0\x09\x01", &[21, 3, 3, 0, 2]] {
            assert_eq!(filtered(&mut FrameFilter::new(131_072), foreign), foreign);
        }
    }

    #[test]
    fn the_bodies_of_one_channel_are_counted_once_complete() {
        let mut header = header_with_type(b"");
        // The size of the body precedes the flags.
        header[7 + 11] = 6;
        let mut filter = FrameFilter::new(131_072);
        filtered(&mut filter, &[header.clone(), frame(BODY, b"abcdef")].concat());
        assert_eq!(filter.take_body_bytes(), 0, "no channel is counted");
        filter.set_counted_channel(1);
        filtered(&mut filter, &[header.clone(), frame(BODY, b"abc")].concat());
        assert_eq!(filter.take_body_bytes(), 0, "the body is incomplete");
        filtered(
            &mut filter,
            &[frame(HEARTBEAT, b""), frame(BODY, b"def"), header.clone(), frame(BODY, b"abcdef")]
                .concat(),
        );
        assert_eq!((filter.take_body_bytes(), filter.take_body_bytes()), (12, 0));
        filter.set_counted_channel(2);
        filtered(&mut filter, &[header, frame(BODY, b"abcdef")].concat());
        assert_eq!(filter.take_body_bytes(), 0, "another channel");
    }

    #[test]
    fn a_bad_header_is_replaced_and_nothing_else_is() {
        let passed = filtered(&mut FrameFilter::new(131_072), &deliveries());
        assert!(
            contains(&passed, REASON_HEADER.as_bytes())
                && contains(&passed, ORIGINAL_HEADER.as_bytes())
        );
        let bad = header_with_type(b"ma\xf1ana");
        assert!(
            !contains(&passed, &bad) && contains(&passed, &bad[7..bad.len() - 1]),
            "the original is the value of a header"
        );
        let good = [deliver(b"e", b"q"), header_with_type(b"error"), frame(BODY, b"def")].concat();
        assert!(passed.ends_with(&good));
    }

    #[test]
    fn frames_may_arrive_in_pieces_of_any_size() {
        let expected = filtered(&mut FrameFilter::new(131_072), &deliveries());
        let input = deliveries();
        for cut in 0..=input.len() {
            let mut filter = FrameFilter::new(131_072);
            let mut output = filtered(&mut filter, &input[..cut]);
            output.extend(filtered(&mut filter, &input[cut..]));
            assert_eq!(output, expected, "cut at {cut}");
        }
        let mut filter = FrameFilter::new(131_072);
        let bytes: Vec<u8> =
            input.iter().flat_map(|byte| filtered(&mut filter, &[*byte])).collect();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn invalid_short_strings_are_replaced_by_valid_utf8() {
        assert_eq!(
            filtered(&mut FrameFilter::new(131_072), &deliver(b"\xff\xfe", b"a\xe9b")),
            deliver(b"??", b"a?b")
        );
        let text = |text: &[u8]| [&[u8::try_from(text.len()).expect("short")][..], text].concat();
        let returned = |text_: &[u8], key: &[u8]| {
            frame(
                METHOD,
                &[&[0, 60, 0, 50, 1, 56][..], &text(text_), &text(b""), &text(key)].concat(),
            )
        };
        assert_eq!(
            filtered(&mut FrameFilter::new(131_072), &returned(b"NO\xc3", b"\xe9")),
            returned(b"NO?", b"?")
        );
        let got = |key: &[u8]| {
            frame(
                METHOD,
                &[&[0, 60, 0, 71][..], &[1; 9], &text(b"x"), &text(key), &[0, 0, 0, 4]].concat(),
            )
        };
        assert_eq!(filtered(&mut FrameFilter::new(131_072), &got(b"k\xe9")), got(b"k?"));
        let closed = |text_: &[u8]| {
            frame(METHOD, &[&[0, 20, 0, 40, 1, 148][..], &text(text_), &[0, 50, 0, 10]].concat())
        };
        let cut = [&[b'x'; 254][..], &[0xc3]].concat();
        assert_eq!(
            filtered(&mut FrameFilter::new(131_072), &closed(&cut)),
            closed(&[&[b'x'; 254][..], b"?"].concat())
        );
        // lapin rejects a truncated method.
        for length in 0..20 {
            let short = frame(
                METHOD,
                &[0, 60, 0, 60, 9, 0xff, 0xff, 0, 60, 0, 60, 9, 0, 0, 0, 0, 0, 0, 0, 0][..length],
            );
            assert_eq!(filtered(&mut FrameFilter::new(131_072), &short).len(), short.len());
        }
    }

    #[test]
    fn a_header_larger_than_a_frame_is_replaced_and_not_buffered() {
        let value = [
            &[
                0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0x20, 0, 0, 0, 0xea, 0x67, 1, b'k', b'S', 0,
                0, 0xea, 0x60,
            ][..],
            &[b'v'; 60_000],
        ]
        .concat();
        let frame = frame(CONTENT_HEADER, &value);
        assert_eq!(filtered(&mut FrameFilter::new(131_072), &frame), frame);
        let mut filter = FrameFilter::new(8_192);
        let mut passed = Vec::new();
        for piece in frame.chunks(1_000) {
            passed.extend(filtered(&mut filter, piece));
            assert!(
                !matches!(
                    &filter.state,
                    FilterState::Buffering(buffered) if buffered.payload.capacity() > 8_192
                ),
                "memory is bounded"
            );
        }
        assert!(contains(&passed, b"its content header has 60025 bytes") && passed.len() < 8_192);
    }

    #[test]
    fn a_frame_above_the_limit_is_an_error_unless_it_is_a_content_header() {
        let tune = |max: u32| {
            frame(METHOD, &[&[0, 10, 0, 30, 0, 0][..], &max.to_be_bytes(), &[0, 0]].concat())
        };
        for (announced, max) in
            [(0, 131_072), (16_384, 16_384), (1, FRAME_BYTES_MIN), (u32::MAX, 131_072)]
        {
            let mut filter = FrameFilter::new(131_072);
            filtered(&mut filter, &tune(announced));
            filtered(&mut filter, &frame(BODY, &vec![0; max - 8]));
            let error = filter.filter(&frame(BODY, &vec![0; max - 7]), &mut Vec::new());
            assert_eq!(error, Err(FrameTooLarge { size: max + 1, max }), "{announced}");
        }
        let unlimited =
            FrameFilter::new(0).filter(&[METHOD, 0, 0, 0xff, 0xff, 0xff, 0xff], &mut Vec::new());
        assert!(unlimited.is_err_and(|error| error.to_string().contains("4096")));
    }

    proptest! {
        #[test]
        fn the_output_does_not_depend_on_how_the_input_is_cut(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            cut in 0usize..300,
            kind in 0u8..10
        ) {
            let input = [&[kind, 0, 0, 0, 0, 0][..], &bytes].concat();
            let cut = cut.min(input.len());
            let (mut whole, mut pieces) = (Vec::new(), Vec::new());
            let first = FrameFilter::new(4_096).filter(&input, &mut whole);
            let mut filter = FrameFilter::new(4_096);
            let second = filter
                .filter(&input[..cut], &mut pieces)
                .and_then(|()| filter.filter(&input[cut..], &mut pieces));
            prop_assert_eq!((first, whole), (second, pieces));
        }
    }
}
