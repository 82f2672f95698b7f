//! Compresses responses to GET requests with gzip, for clients that accept it. Streams of events
//! are never compressed, because a compressor holds back what it is given, and neither are parts of
//! a text. `docs/reference/security.md` says why compression tells nobody a secret.

use actix_web::HttpMessage;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::ResponseHead;
use actix_web::http::StatusCode;
use actix_web::http::header::{self, AcceptEncoding, Encoding, Header, HeaderMap, HeaderValue};
use base::budget::{Permit, ResourceBudget};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::error::Error;
use std::io::Write;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The smallest body that is compressed, in bytes. A smaller one fits into one packet anyway.
const COMPRESSED_BYTES_MIN: u64 = 1_400;

/// The largest body that is compressed at once, in bytes. A larger one is compressed while it is
/// sent.
const WHOLE_BYTES_MAX: u64 = 256 * 1024;

/// The encoding of compressed responses, as a header.
pub(super) const GZIP: HeaderValue = HeaderValue::from_static("gzip");

/// The type of streams of events.
pub(super) const EVENT_STREAM_TYPE: &str = "text/event-stream";

/// The level for files, which are compressed once.
const FILE_LEVEL: Compression = Compression::new(6);

/// The level for everything else.
const RESPONSE_LEVEL: Compression = Compression::new(1);

/// Returns whether the client accepts gzip, and prefers it to an uncompressed response.
pub(super) fn accepts_gzip(request: &impl HttpMessage) -> bool {
    let supported = [Encoding::gzip(), Encoding::identity()];
    AcceptEncoding::parse(request)
        .is_ok_and(|accepted| accepted.negotiate(supported.iter()) == Some(Encoding::gzip()))
}

/// Compresses a file of the page. Returns `None` if that does not make it smaller.
pub(super) fn compress_file(content: &[u8]) -> Option<Bytes> {
    compress_whole(content, FILE_LEVEL)
}

/// Compresses the body of a response to a GET request if it may be compressed and the client
/// accepts it. A large body is compressed while it is sent, which takes a permit of `compressors`;
/// if none is free, it is sent uncompressed.
pub(super) fn compress(
    head: &mut ResponseHead,
    body: BoxBody,
    is_accepted: bool,
    compressors: &ResourceBudget,
) -> BoxBody {
    if !is_compressible(head) {
        return body;
    }
    // Caches must not give the compressed response to other clients.
    head.headers_mut().append(header::VARY, HeaderValue::from_static("accept-encoding"));
    let is_small = match body.size() {
        BodySize::None => true,
        BodySize::Sized(bytes) => bytes < COMPRESSED_BYTES_MIN,
        BodySize::Stream => false,
    };
    if is_small || !is_accepted {
        return body;
    }
    let is_large = !matches!(body.size(), BodySize::Sized(bytes) if bytes <= WHOLE_BYTES_MAX);
    let whole = if is_large { Err(body) } else { body.try_into_bytes() };
    let compressed = match whole {
        Ok(content) => match compress_whole(&content, RESPONSE_LEVEL) {
            Some(compressed) => Ok(BoxBody::new(compressed)),
            None => Err(BoxBody::new(content)),
        },
        Err(body) => GzipBody::new(body, compressors).map(BoxBody::new),
    };
    match compressed {
        Ok(compressed) => {
            let headers = head.headers_mut();
            headers.remove(header::CONTENT_LENGTH);
            headers.insert(header::CONTENT_ENCODING, GZIP);
            weaken_etag(headers);
            compressed
        }
        Err(body) => body,
    }
}

/// Returns whether a response may be compressed: it is complete, is not compressed yet, and is no
/// stream of events.
fn is_compressible(head: &ResponseHead) -> bool {
    let headers = head.headers();
    let content_type = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    head.status == StatusCode::OK
        && !headers.contains_key(header::CONTENT_ENCODING)
        && !content_type.starts_with(EVENT_STREAM_TYPE.as_bytes())
}

/// Makes the tag of a response weak: the compressed response has other bytes than the tag stands
/// for, and the same meaning.
fn weaken_etag(headers: &mut HeaderMap) {
    let Some(tag) = headers.get(header::ETAG).filter(|tag| tag.as_bytes().starts_with(b"\""))
    else {
        return;
    };
    let weak_tag = [b"W/", tag.as_bytes()].concat();
    if let Ok(weak_tag) = HeaderValue::from_bytes(&weak_tag) {
        headers.insert(header::ETAG, weak_tag);
    }
}

/// Compresses a body at once. Returns `None` if that does not make it smaller.
fn compress_whole(content: &[u8], level: Compression) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), level);
    let compressed = encoder.write_all(content).and_then(|()| encoder.finish()).ok()?;
    (compressed.len() < content.len()).then(|| compressed.into())
}

/// A body that is compressed while it is sent.
struct GzipBody {
    body: BoxBody,
    /// `None` once the body has ended.
    encoder: Option<GzEncoder<Vec<u8>>>,
    /// The permit for the memory of the encoder.
    _permit: Permit,
}

impl GzipBody {
    /// Makes the body. Returns it uncompressed if there are no more compressors.
    fn new(body: BoxBody, compressors: &ResourceBudget) -> Result<GzipBody, BoxBody> {
        match compressors.try_acquire(1) {
            Some(permit) => {
                let encoder = Some(GzEncoder::new(Vec::new(), RESPONSE_LEVEL));
                Ok(GzipBody { body, encoder, _permit: permit })
            }
            None => Err(body),
        }
    }
}

impl MessageBody for GzipBody {
    type Error = Box<dyn Error>;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let GzipBody { body, encoder, .. } = &mut *self;
        loop {
            let Some(current) = encoder else { return Poll::Ready(None) };
            let compressed = match ready!(Pin::new(&mut *body).poll_next(context)) {
                Some(Ok(chunk)) => {
                    current.write_all(&chunk)?;
                    std::mem::take(current.get_mut())
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => match encoder.take().map(GzEncoder::finish) {
                    Some(rest) => rest?,
                    None => Vec::new(),
                },
            };
            if !compressed.is_empty() {
                return Poll::Ready(Some(Ok(compressed.into())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::HttpResponse;
    use actix_web::body::{BodyStream, to_bytes};
    use actix_web::test::TestRequest;
    use flate2::read::GzDecoder;
    use futures_util::stream;
    use std::convert::Infallible;
    use std::io::Read;

    /// The size of the chunks of a streamed body.
    const CHUNK_BYTES: usize = 64 * 1024;

    fn decompress(compressed: &[u8]) -> Vec<u8> {
        let mut content = Vec::new();
        GzDecoder::new(compressed).read_to_end(&mut content).expect("gzip");
        content
    }

    /// Compresses a response, and returns its encoding, its tag and its body.
    async fn send(
        response: HttpResponse,
        is_accepted: bool,
        compressors: &ResourceBudget,
    ) -> (String, String, Bytes) {
        let response =
            response.map_body(|head, body| compress(head, body, is_accepted, compressors));
        let text = |name| {
            let value = response.headers().get(name).map(HeaderValue::to_str);
            value.map_or(String::new(), |value| value.expect("text").to_owned())
        };
        let (encoding, tag) = (text(header::CONTENT_ENCODING), text(header::ETAG));
        (encoding, tag, to_bytes(response.into_body()).await.expect("a body"))
    }

    fn streamed(content: &Bytes) -> BoxBody {
        let chunks: Vec<_> = content
            .chunks(CHUNK_BYTES)
            .map(|chunk| Ok::<_, Infallible>(chunk.to_vec().into()))
            .collect();
        BoxBody::new(BodyStream::new(stream::iter(chunks)))
    }

    #[actix_rt::test]
    async fn a_body_is_compressed_at_once_or_while_it_is_sent_and_stays_the_same() {
        let budget = ResourceBudget::for_count(1);
        let content: Bytes = "some text of a job ".repeat(50_000).into();
        for body in [
            BoxBody::new(content.slice(..5_000)),
            BoxBody::new(content.clone()),
            streamed(&content),
        ] {
            let response = HttpResponse::Ok().insert_header((header::ETAG, "\"7\"")).body(body);
            let (encoding, tag, sent) = send(response, true, &budget).await;
            assert_eq!((&*encoding, &*tag), ("gzip", "W/\"7\""));
            let decompressed = decompress(&sent);
            assert!(content.starts_with(&decompressed) && decompressed.len() >= 5_000);
            assert!(sent.len() < decompressed.len() / 10, "{}", sent.len());
        }
        let taken = budget.try_acquire(1).expect("the compressor is given back");
        let (encoding, _, sent) =
            send(HttpResponse::Ok().body(streamed(&content)), true, &budget).await;
        assert!(encoding.is_empty() && sent == content, "there is no compressor for it");
        drop(taken);
    }

    #[actix_rt::test]
    async fn some_bodies_are_never_compressed() {
        let budget = ResourceBudget::for_count(1);
        let content: Bytes = "some text of a job ".repeat(500).into();
        let events = (header::CONTENT_TYPE, "text/event-stream; charset=utf-8");
        for (response, is_accepted) in [
            (HttpResponse::Ok().body(content.clone()), false),
            (HttpResponse::Ok().body(content.slice(..COMPRESSED_BYTES_MIN as usize - 1)), true),
            (HttpResponse::Ok().insert_header(events).body(streamed(&content)), true),
            (HttpResponse::PartialContent().body(content.clone()), true),
            (HttpResponse::NotFound().body(content.clone()), true),
        ] {
            let status = response.status();
            let (encoding, _, sent) = send(response, is_accepted, &budget).await;
            assert!(encoding.is_empty() && content.starts_with(&sent), "{status}");
        }
        let mut noise = vec![0; 5_000];
        (0..).zip(&mut noise).for_each(|(n, byte)| *byte = (n * n * 31 % 251) as u8);
        let compressed = (header::CONTENT_ENCODING, "gzip");
        let response = HttpResponse::Ok().insert_header(compressed).body(noise.clone());
        let (_, _, sent) = send(response, true, &budget).await;
        assert!(sent == noise, "it is compressed already");
    }

    #[test]
    fn only_clients_that_accept_gzip_get_it() {
        for (accepted, expected) in [
            ("gzip", true),
            ("gzip, deflate, br, zstd", true),
            ("br, gzip;q=0.5", true),
            ("gzip;q=0", false),
            ("identity", false),
            ("br", false),
            ("", false),
        ] {
            let request = TestRequest::get().insert_header((header::ACCEPT_ENCODING, accepted));
            assert_eq!(accepts_gzip(&request.to_http_request()), expected, "{accepted}");
        }
        assert!(!accepts_gzip(&TestRequest::get().to_http_request()), "nothing is said");
    }
}
