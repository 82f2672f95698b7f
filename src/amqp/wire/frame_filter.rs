//! Filters inbound frames one by one. The input may arrive in pieces of any size.

use super::header::{UnsupportedHeader, build_substitute, check_header};

/// The length of the frame header: type, channel and size.
const HEAD_BYTES: usize = 7;

/// The length of the end marker after each payload.
const END_BYTES: usize = 1;

/// The smallest frame limit that AMQP allows, in bytes.
const FRAME_BYTES_MIN: usize = 4_096;

// The types of frames.
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
    /// This many bytes, which are skipped.
    Bytes(usize),
    /// A short string.
    Text,
}

use Field::{Bytes, Text};

/// The methods in which the broker sends short strings: names that clients chose, and texts about
/// them. The broker truncates these at 255 bytes, even in the middle of a character. Each entry has
/// the class and method, and the fields up to the last short string.
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

/// The error for a frame that exceeds the negotiated limit and is not a content header. Such a
/// broker violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the broker sent a frame of {size} bytes; {max} were agreed")]
pub struct FrameTooLarge {
    /// The size of the frame, in bytes.
    size: usize,
    /// The negotiated limit, in bytes.
    max: usize,
}

/// Forwards frames, and replaces those that lapin cannot handle. It buffers at most one frame.
#[derive(Debug)]
pub struct FrameFilter {
    /// The negotiated limit of a frame.
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
    /// The bytes of the current body that no frame has announced yet; 0 if no body is current.
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

    /// Counts a body frame with a payload of this size, which belongs to the current body.
    fn add_body_frame(&mut self, channel: u16, bytes: usize) {
        if channel != self.channel || self.missing == 0 {
            return;
        }
        self.missing = self.missing.saturating_sub(bytes as u64);
        if self.missing == 0 {
            self.completed = self.completed.saturating_add(self.size);
        }
    }
}

/// Where in the input the filter is.
#[derive(Debug)]
enum FilterState {
    /// In the header of a frame. The field has the bytes of it that have arrived.
    Head(Vec<u8>),
    /// In a frame that is forwarded as it arrives. The field is the number of its missing bytes.
    Forwarding(usize),
    /// In a frame that is buffered, because it is checked as a whole.
    Buffering(BufferedFrame),
    /// The input is not AMQP. It is forwarded unchanged, and lapin reports the error.
    Foreign,
}

/// A method or content header that is being read.
#[derive(Debug, Default)]
struct BufferedFrame {
    head: [u8; HEAD_BYTES],
    /// The size of the payload, as the frame header says.
    size: usize,
    /// The payload that has arrived, truncated at the size of the largest frame.
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
    /// Returns an error if a frame exceeds the negotiated limit and is not a content header.
    pub fn filter(&mut self, mut input: &[u8], output: &mut Vec<u8>) -> Result<(), FrameTooLarge> {
        while let Some(next_byte) = input.first() {
            let consumed = match &mut self.state {
                FilterState::Head(head) => {
                    if head.is_empty()
                        && !matches!(*next_byte, METHOD | CONTENT_HEADER | BODY | HEARTBEAT)
                    {
                        self.state = FilterState::Foreign;
                        continue;
                    }
                    let consumed = input.len().min(HEAD_BYTES - head.len());
                    head.extend(&input[..consumed]);
                    if let Ok(complete_head) = <[u8; HEAD_BYTES]>::try_from(head.as_slice()) {
                        self.state = self.begin_frame(complete_head, output)?;
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
                    let free_bytes = self
                        .frame_bytes_max
                        .saturating_sub(HEAD_BYTES + END_BYTES + buffered.payload.len());
                    buffered.payload.extend(&input[..consumed.min(free_bytes)]);
                    buffered.missing -= consumed;
                    consumed
                }
                FilterState::Buffering(buffered) => {
                    let frame = std::mem::take(buffered);
                    self.state = FilterState::Head(Vec::new());
                    self.end_frame(frame, *next_byte, output);
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

    /// Returns the state for the frame with the header `head`. Appends the header to `output` if
    /// the frame is forwarded as it arrives.
    fn begin_frame(
        &mut self,
        head: [u8; HEAD_BYTES],
        output: &mut Vec<u8>,
    ) -> Result<FilterState, FrameTooLarge> {
        let [kind, channel_high, channel_low, size_bytes @ ..] = head;
        let size = u32::from_be_bytes(size_bytes) as usize;
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
            self.bodies.add_body_frame(u16::from_be_bytes([channel_high, channel_low]), size);
        }
        output.extend(head);
        Ok(FilterState::Forwarding(size + END_BYTES))
    }

    /// Checks a complete buffered frame, and forwards it or its substitute.
    fn end_frame(&mut self, frame: BufferedFrame, end_marker: u8, output: &mut Vec<u8>) {
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
        output.push(end_marker);
    }

    /// Counts a returned message, and adopts a lower frame limit of the broker.
    fn inspect_method(&mut self, method: &[u8]) {
        self.returns += u64::from(method.starts_with(&RETURN));
        // The limit follows the highest channel number, which has two bytes.
        let Some(limit_bytes) =
            method.strip_prefix(&TUNE).and_then(|arguments| arguments.get(2..6))
        else {
            return;
        };
        let limit = limit_bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte));
        // 0 means that the broker sets no limit.
        if limit > 0 {
            self.frame_bytes_max = self.frame_bytes_max.min(limit.max(FRAME_BYTES_MIN));
        }
    }
}

/// Replaces the non-ASCII bytes of short strings that are not UTF-8 by `?`. This is safe, because
/// the manager depends on none of these names and texts.
fn replace_invalid_texts(method: &mut [u8]) {
    let Some((method_id, mut remaining)) = method.split_at_mut_checked(4) else { return };
    let Some((_, fields)) = METHODS_WITH_TEXTS.iter().find(|(id, _)| id == method_id) else {
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

    /// A limit that no frame of most tests exceeds.
    const FRAME_BYTES_MAX: usize = 131_072;

    /// Encodes a frame on channel 1.
    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let size = u32::try_from(payload.len()).expect("small").to_be_bytes();
        [&[kind, 0, 1][..], &size, payload, &[FRAME_END]].concat()
    }

    /// Encodes a short string.
    fn short_string(text: &[u8]) -> Vec<u8> {
        [&[u8::try_from(text.len()).expect("short")][..], text].concat()
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

    /// Encodes the method `basic.deliver`.
    fn deliver(exchange: &[u8], key: &[u8]) -> Vec<u8> {
        let (tag, exchange, key) =
            (short_string(b"tag"), short_string(exchange), short_string(key));
        frame(METHOD, &[&[0, 60, 0, 60][..], &tag, &[0; 9], &exchange, &key].concat())
    }

    /// Encodes a content header with the property `type`, for a body of three bytes.
    fn header_with_type(kind: &[u8]) -> Vec<u8> {
        frame(
            CONTENT_HEADER,
            &[&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 1 << 5][..], &short_string(kind)].concat(),
        )
    }

    fn contains(bytes: &[u8], part: &[u8]) -> bool {
        bytes.windows(part.len()).any(|window| window == part)
    }

    /// Encodes deliveries as the broker sends them: with an invalid header, then with a valid one.
    fn deliveries() -> Vec<u8> {
        let tune = frame(METHOD, &[0, 10, 0, 30, 7, 255, 0, 2, 0, 0, 0, 60]);
        [
            tune,
            deliver(b"", b"q"),
            header_with_type(b"ma\xf1ana"),
            frame(BODY, b"abc"),
            frame(HEARTBEAT, b""),
            deliver(b"e", b"q"),
            header_with_type(b"error"),
            frame(BODY, b"def"),
        ]
        .concat()
    }

    #[test]
    fn valid_frames_pass_unchanged() {
        let valid = [
            deliver("ü".as_bytes(), b"k"),
            header_with_type("größe".as_bytes()),
            frame(BODY, &[0xff; 9]),
            frame(HEARTBEAT, b""),
        ]
        .concat();
        assert_eq!(filtered(&mut FrameFilter::new(FRAME_BYTES_MAX), &valid), valid);
        for foreign in [&b"HTTP/1.1 400 Bad Request"[..], b"AMQP\0\0\x09\x01", &[21, 3, 3, 0, 2]] {
            assert_eq!(filtered(&mut FrameFilter::new(FRAME_BYTES_MAX), foreign), foreign);
        }
    }

    #[test]
    fn the_bodies_of_one_channel_are_counted_once_complete() {
        let mut header = header_with_type(b"");
        // The size of the body precedes the flags.
        header[7 + 11] = 6;
        let mut filter = FrameFilter::new(FRAME_BYTES_MAX);
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
        let output = filtered(&mut FrameFilter::new(FRAME_BYTES_MAX), &deliveries());
        assert!(
            contains(&output, REASON_HEADER.as_bytes())
                && contains(&output, ORIGINAL_HEADER.as_bytes())
        );
        let invalid = header_with_type(b"ma\xf1ana");
        let payload = &invalid[HEAD_BYTES..invalid.len() - END_BYTES];
        assert!(
            !contains(&output, &invalid) && contains(&output, payload),
            "the original is the value of a header"
        );
        let valid = [deliver(b"e", b"q"), header_with_type(b"error"), frame(BODY, b"def")].concat();
        assert!(output.ends_with(&valid));
    }

    #[test]
    fn frames_may_arrive_in_pieces_of_any_size() {
        let expected = filtered(&mut FrameFilter::new(FRAME_BYTES_MAX), &deliveries());
        let input = deliveries();
        for split_index in 0..=input.len() {
            let mut filter = FrameFilter::new(FRAME_BYTES_MAX);
            let mut output = filtered(&mut filter, &input[..split_index]);
            output.extend(filtered(&mut filter, &input[split_index..]));
            assert_eq!(output, expected, "split at {split_index}");
        }
        let mut filter = FrameFilter::new(FRAME_BYTES_MAX);
        let output: Vec<u8> =
            input.iter().flat_map(|byte| filtered(&mut filter, &[*byte])).collect();
        assert_eq!(output, expected);
    }

    #[test]
    fn invalid_short_strings_are_replaced_by_valid_utf8() {
        assert_eq!(
            filtered(&mut FrameFilter::new(FRAME_BYTES_MAX), &deliver(b"\xff\xfe", b"a\xe9b")),
            deliver(b"??", b"a?b")
        );
        let basic_return = |text: &[u8], key: &[u8]| {
            let (text, exchange, key) = (short_string(text), short_string(b""), short_string(key));
            frame(METHOD, &[&[0, 60, 0, 50, 1, 56][..], &text, &exchange, &key].concat())
        };
        assert_eq!(
            filtered(&mut FrameFilter::new(FRAME_BYTES_MAX), &basic_return(b"NO\xc3", b"\xe9")),
            basic_return(b"NO?", b"?")
        );
        let get_ok = |key: &[u8]| {
            let (exchange, key) = (short_string(b"x"), short_string(key));
            frame(METHOD, &[&[0, 60, 0, 71][..], &[1; 9], &exchange, &key, &[0, 0, 0, 4]].concat())
        };
        assert_eq!(
            filtered(&mut FrameFilter::new(FRAME_BYTES_MAX), &get_ok(b"k\xe9")),
            get_ok(b"k?")
        );
        let channel_close = |text: &[u8]| {
            let text = short_string(text);
            frame(METHOD, &[&[0, 20, 0, 40, 1, 148][..], &text, &[0, 50, 0, 10]].concat())
        };
        let truncated_text = [&[b'x'; 254][..], &[0xc3]].concat();
        assert_eq!(
            filtered(&mut FrameFilter::new(FRAME_BYTES_MAX), &channel_close(&truncated_text)),
            channel_close(&[&[b'x'; 254][..], b"?"].concat())
        );
        // A truncated method passes, and lapin rejects it.
        for length in 0..20 {
            let truncated_method = frame(
                METHOD,
                &[0, 60, 0, 60, 9, 0xff, 0xff, 0, 60, 0, 60, 9, 0, 0, 0, 0, 0, 0, 0, 0][..length],
            );
            assert_eq!(
                filtered(&mut FrameFilter::new(FRAME_BYTES_MAX), &truncated_method).len(),
                truncated_method.len()
            );
        }
    }

    #[test]
    fn a_header_larger_than_a_frame_is_replaced_and_not_buffered() {
        // A header `k` with a value of 60,000 bytes.
        let payload = [
            &[
                0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0x20, 0, 0, 0, 0xea, 0x67, 1, b'k', b'S', 0,
                0, 0xea, 0x60,
            ][..],
            &[b'v'; 60_000],
        ]
        .concat();
        let frame = frame(CONTENT_HEADER, &payload);
        assert_eq!(filtered(&mut FrameFilter::new(FRAME_BYTES_MAX), &frame), frame);
        let mut filter = FrameFilter::new(8_192);
        let mut output = Vec::new();
        for piece in frame.chunks(1_000) {
            output.extend(filtered(&mut filter, piece));
            assert!(
                !matches!(
                    &filter.state,
                    FilterState::Buffering(buffered) if buffered.payload.capacity() > 8_192
                ),
                "memory is bounded"
            );
        }
        assert!(contains(&output, b"its content header has 60025 bytes") && output.len() < 8_192);
    }

    #[test]
    fn a_frame_above_the_limit_is_an_error_unless_it_is_a_content_header() {
        let tune = |max: u32| {
            frame(METHOD, &[&[0, 10, 0, 30, 0, 0][..], &max.to_be_bytes(), &[0, 0]].concat())
        };
        for (announced, max) in [
            (0, FRAME_BYTES_MAX),
            (16_384, 16_384),
            (1, FRAME_BYTES_MIN),
            (u32::MAX, FRAME_BYTES_MAX),
        ] {
            let mut filter = FrameFilter::new(FRAME_BYTES_MAX);
            filtered(&mut filter, &tune(announced));
            let payload_bytes_max = max - HEAD_BYTES - END_BYTES;
            filtered(&mut filter, &frame(BODY, &vec![0; payload_bytes_max]));
            let too_large = frame(BODY, &vec![0; payload_bytes_max + 1]);
            let error = filter.filter(&too_large, &mut Vec::new());
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
            split_index in 0usize..300,
            kind in 0u8..10
        ) {
            let input = [&[kind, 0, 0, 0, 0, 0][..], &bytes].concat();
            let (start, end) = input.split_at(split_index.min(input.len()));
            let (mut output, mut split_output) = (Vec::new(), Vec::new());
            let result = FrameFilter::new(4_096).filter(&input, &mut output);
            let mut filter = FrameFilter::new(4_096);
            let split_result = filter
                .filter(start, &mut split_output)
                .and_then(|()| filter.filter(end, &mut split_output));
            prop_assert_eq!((result, output), (split_result, split_output));
        }
    }
}
