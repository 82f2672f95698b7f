//! What the broker sends: frames in pieces, content headers and names with whatever bytes. What is
//! let through is parsed by the AMQP library's own parser.

use super::bytes_in::Choices;
use lapin::protocol::basic::parse_properties;
use workflow_manager::amqp::wire::{FrameFilter, ORIGINAL_HEADER, REASON_HEADER, check_header};

const FRAME_BYTES_MAX: usize = 16_384;
const FRAME_END: u8 = 0xce;
const CONTENT_HEADER: u8 = 2;

/// Class, weight and size of the body.
const FIXED: [u8; 12] = [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2];

/// Where to cut, then a stream of frames; the rest is once more a content header, and a name.
pub fn run(data: &[u8]) {
    let mut choices = Choices(data);
    let piece = choices.below(64) + 1;
    in_pieces(choices.0, piece);
    a_content_header(choices.0, piece);
    a_delivery(choices.0, piece);
}

/// However it is cut, the same comes through.
fn in_pieces(input: &[u8], piece: usize) {
    let (mut whole, mut output) = (Vec::new(), Vec::new());
    let first = FrameFilter::new(FRAME_BYTES_MAX).filter(input, &mut whole);
    let mut sieve = FrameFilter::new(FRAME_BYTES_MAX);
    let second = input.chunks(piece).try_for_each(|piece| sieve.filter(piece, &mut output));
    assert_eq!(first, second);
    assert_eq!(whole, output);
    assert!(output.len() <= input.len() + (input.len() / 20 + 1) * 256, "what stands in is small");
}

fn a_content_header(properties: &[u8], piece: usize) {
    let payload = [&FIXED, properties].concat();
    let sifted = sifted(CONTENT_HEADER, &payload, piece);
    let (rest, read) = parse_properties(&sifted[FIXED.len()..]).expect("the library reads it");
    assert!(rest.is_empty());
    assert_eq!(sifted[..FIXED.len()], FIXED, "the body has the same size");
    let is_large = payload.len() + 8 > FRAME_BYTES_MAX;
    match check_header(&payload) {
        Ok(()) if !is_large => assert_eq!(sifted, payload),
        checked => {
            let headers = read.headers().clone().expect("headers");
            assert!(
                headers.inner().contains_key(REASON_HEADER)
                    && headers.inner().contains_key(ORIGINAL_HEADER),
                "{checked:?}"
            );
            assert!(sifted.len() + 8 <= FRAME_BYTES_MAX);
        }
    }
}

/// Exchange and routing key that others chose.
fn a_delivery(name: &[u8], piece: usize) {
    let name = &name[..name.len().min(255)];
    let text = [&[u8::try_from(name.len()).unwrap_or_default()][..], name].concat();
    let payload = [&[0, 60, 0, 60, 1, b'c'][..], &[0; 9], &text, &text].concat();
    let sifted = sifted(1, &payload, piece);
    assert_eq!(sifted.len(), payload.len());
    let (_, parsed) =
        lapin::protocol::basic::parse_deliver(&sifted[4..]).expect("the library reads it");
    assert_eq!(parsed.exchange, parsed.routing_key);
    assert!(std::str::from_utf8(name).is_err() || parsed.exchange.as_str().as_bytes() == name);
}

/// The payload of a frame after the sieve.
fn sifted(kind: u8, payload: &[u8], piece: usize) -> Vec<u8> {
    let size = u32::try_from(payload.len()).expect("small").to_be_bytes();
    let frame = [&[kind, 0, 1][..], &size, payload, &[FRAME_END]].concat();
    let (mut sieve, mut output) = (FrameFilter::new(FRAME_BYTES_MAX), Vec::new());
    frame
        .chunks(piece)
        .for_each(|piece| sieve.filter(piece, &mut output).expect("no frame is too large"));
    let size = u32::from_be_bytes([output[3], output[4], output[5], output[6]]) as usize;
    assert_eq!((output.len(), output.last()), (size + 8, Some(&FRAME_END)));
    output[7..size + 7].to_vec()
}
