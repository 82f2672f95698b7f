//! Fuzzes what the broker sends: frames that arrive in pieces, and content headers and names with
//! arbitrary bytes. What the filter passes must be readable for the parser of the AMQP library.

use super::bytes_in::Choices;
use lapin::protocol::basic::parse_properties;
use workflow_manager::amqp::wire::{FrameFilter, ORIGINAL_HEADER, REASON_HEADER, check_header};

/// The negotiated maximum size of a frame, in bytes.
const FRAME_BYTES_MAX: usize = 16_384;

/// The type of method frames, of which `basic.deliver` is one.
const METHOD: u8 = 1;

/// The type of frames with a content header.
const CONTENT_HEADER: u8 = 2;

/// The last byte of each frame.
const FRAME_END: u8 = 0xce;

/// The size of a frame without its payload, in bytes: type, channel, size and the end.
const FRAME_OVERHEAD_BYTES: usize = 8;

/// The start of a content header: the class `basic` (60), the weight, and the size of the body.
const HEADER_START: [u8; 12] = [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2];

/// Filters an input. Its first byte chooses the size of the pieces. The others are taken in three
/// ways: as a stream of frames, as the properties of a content header, and as a name in a delivery.
pub fn run(data: &[u8]) {
    let mut choices = Choices { bytes: data };
    let piece_bytes = choices.below(64) + 1;
    check_pieces(choices.bytes, piece_bytes);
    check_content_header(choices.bytes, piece_bytes);
    check_delivery(choices.bytes, piece_bytes);
}

/// Checks that the output does not depend on the size of the pieces.
fn check_pieces(input: &[u8], piece_bytes: usize) {
    let (mut output, mut output_of_pieces) = (Vec::new(), Vec::new());
    let result = FrameFilter::new(FRAME_BYTES_MAX).filter(input, &mut output);
    let mut filter = FrameFilter::new(FRAME_BYTES_MAX);
    let result_of_pieces =
        input.chunks(piece_bytes).try_for_each(|piece| filter.filter(piece, &mut output_of_pieces));
    assert_eq!(result, result_of_pieces);
    assert_eq!(output, output_of_pieces);
    // A replaced header has at least 20 bytes, and its replacement at most 256 bytes more.
    assert!(output.len() <= input.len() + (input.len() / 20 + 1) * 256, "replacements are small");
}

/// Checks that a content header is passed unchanged if it is valid. Otherwise its replacement must
/// say why, and contain the original.
fn check_content_header(properties: &[u8], piece_bytes: usize) {
    let payload = [&HEADER_START, properties].concat();
    let filtered = filter_frame(CONTENT_HEADER, &payload, piece_bytes);
    let (unread, parsed) =
        parse_properties(&filtered[HEADER_START.len()..]).expect("the library parses it");
    assert!(unread.is_empty());
    assert_eq!(filtered[..HEADER_START.len()], HEADER_START, "the body has the same size");
    let is_large = payload.len() + FRAME_OVERHEAD_BYTES > FRAME_BYTES_MAX;
    match check_header(&payload) {
        Ok(()) if !is_large => assert_eq!(filtered, payload),
        result => {
            let headers = parsed.headers().clone().expect("headers");
            assert!(
                headers.inner().contains_key(REASON_HEADER)
                    && headers.inner().contains_key(ORIGINAL_HEADER),
                "{result:?}"
            );
            assert!(filtered.len() + FRAME_OVERHEAD_BYTES <= FRAME_BYTES_MAX);
        }
    }
}

/// Checks that the library can parse a delivery whose exchange and routing key have this name.
fn check_delivery(name: &[u8], piece_bytes: usize) {
    let name = &name[..name.len().min(255)];
    let short_string = [&[u8::try_from(name.len()).unwrap_or_default()][..], name].concat();
    // The method `basic.deliver` with the consumer tag `c`, delivery tag 0, not redelivered.
    let payload = [&[0, 60, 0, 60, 1, b'c'][..], &[0; 9], &short_string, &short_string].concat();
    let filtered = filter_frame(METHOD, &payload, piece_bytes);
    assert_eq!(filtered.len(), payload.len());
    let (_, parsed) =
        lapin::protocol::basic::parse_deliver(&filtered[4..]).expect("the library parses it");
    assert_eq!(parsed.exchange, parsed.routing_key);
    assert!(std::str::from_utf8(name).is_err() || parsed.exchange.as_str().as_bytes() == name);
}

/// Filters a frame on channel 1, piece by piece. Returns the payload of the frame that comes out.
fn filter_frame(frame_type: u8, payload: &[u8], piece_bytes: usize) -> Vec<u8> {
    let size = u32::try_from(payload.len()).expect("small").to_be_bytes();
    let frame = [&[frame_type, 0, 1][..], &size, payload, &[FRAME_END]].concat();
    let (mut filter, mut output) = (FrameFilter::new(FRAME_BYTES_MAX), Vec::new());
    frame
        .chunks(piece_bytes)
        .for_each(|piece| filter.filter(piece, &mut output).expect("no frame is too large"));
    let size = u32::from_be_bytes([output[3], output[4], output[5], output[6]]) as usize;
    assert_eq!((output.len(), output.last()), (size + FRAME_OVERHEAD_BYTES, Some(&FRAME_END)));
    output[7..size + 7].to_vec()
}
