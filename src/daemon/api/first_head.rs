//! Inserts `Content-Length: 0` into an HTTP/1.0 POST without a body. nginx forwards requests over
//! HTTP/1.0 by default, and omits the header for an empty body; the HTTP server rejects such a
//! request as malformed. Only the first head of a connection is examined, because nginx sends one
//! request over each HTTP/1.0 connection.

use bytes::{Buf, BytesMut};
use std::io;
use std::task::{Poll, ready};
use tokio::io::ReadBuf;

/// The longest head that is examined, in bytes. A longer head is passed on unchanged, and the
/// server rejects it.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// How many bytes are read at once while the head is examined.
const CHUNK_BYTES: usize = 4096;

/// The header line that is inserted.
const EMPTY_BODY_HEADER: &[u8] = b"Content-Length: 0\r\n";

/// Buffers the first bytes of a connection until its first head has been examined.
#[derive(Default)]
pub(super) struct FirstHead {
    /// Bytes that were read, and not passed on yet.
    buffered: BytesMut,
    /// Whether the first head was examined, or the connection ended before.
    is_examined: bool,
}

impl FirstHead {
    /// Fills `buffer` with bytes of the connection, which `read` reads. Before the first head has
    /// been examined, nothing is passed on.
    pub(super) fn poll_read(
        &mut self,
        buffer: &mut ReadBuf<'_>,
        mut read: impl FnMut(&mut ReadBuf<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        while !self.is_examined {
            let mut chunk = [0; CHUNK_BYTES];
            let mut chunk = ReadBuf::new(&mut chunk);
            ready!(read(&mut chunk))?;
            self.buffered.extend_from_slice(chunk.filled());
            self.is_examined = chunk.filled().is_empty() || repair_head(&mut self.buffered);
        }
        if self.buffered.is_empty() {
            return read(buffer);
        }
        let length = self.buffered.len().min(buffer.remaining());
        buffer.put_slice(&self.buffered[..length]);
        self.buffered.advance(length);
        if self.buffered.is_empty() {
            self.buffered = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

/// Inserts the header into the buffered head of an HTTP/1.0 POST if it has neither a length nor a
/// transfer encoding. Returns whether the bytes can be passed on. `false`: more of the head must be
/// read first.
fn repair_head(buffered: &mut BytesMut) -> bool {
    let method = b"POST ";
    let compared_length = buffered.len().min(method.len());
    if buffered[..compared_length] != method[..compared_length] || buffered.len() > HEAD_BYTES_MAX {
        return true;
    }
    let Some(line_end) = find(buffered, b"\r\n") else { return false };
    if !buffered[..line_end].ends_with(b" HTTP/1.0") {
        return true;
    }
    let Some(head_end) = find(buffered, b"\r\n\r\n") else { return false };
    let headers_start = line_end + b"\r\n".len();
    let mut names = buffered[headers_start.min(head_end)..head_end]
        .split(|byte| *byte == b'\n')
        .map(|line| line.split(|byte| *byte == b':').next().unwrap_or_default());
    let has_length = names.any(|name| {
        name.eq_ignore_ascii_case(b"content-length")
            || name.eq_ignore_ascii_case(b"transfer-encoding")
    });
    if !has_length {
        let headers_and_body = buffered.split_off(headers_start);
        buffered.extend_from_slice(EMPTY_BODY_HEADER);
        buffered.extend_from_slice(&headers_and_body);
    }
    true
}

/// Finds the first position of a pattern in bytes.
fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is passed on of a text that arrives in chunks of `chunk_bytes` bytes.
    fn pass_through(text: &str, chunk_bytes: usize) -> String {
        let mut head = FirstHead::default();
        let mut chunks = text.as_bytes().chunks(chunk_bytes);
        let mut passed = Vec::new();
        loop {
            let mut storage = [0; 7];
            let mut buffer = ReadBuf::new(&mut storage);
            let poll = head.poll_read(&mut buffer, |buffer| {
                // The chunks are shorter than the buffer.
                chunks.next().into_iter().for_each(|chunk| buffer.put_slice(chunk));
                Poll::Ready(Ok(()))
            });
            assert!(matches!(poll, Poll::Ready(Ok(()))));
            if buffer.filled().is_empty() {
                return String::from_utf8(passed).expect("the text is UTF-8");
            }
            passed.extend_from_slice(buffer.filled());
        }
    }

    #[test]
    fn an_http_1_0_post_without_a_length_gets_length_0() {
        let without_length = "POST /a HTTP/1.0\r\nHost: a\r\nX: content-length: 1\r\n\r\n";
        let with_length = without_length.replacen("Host", "Content-Length: 0\r\nHost", 1);
        for chunk_bytes in 1..7 {
            assert_eq!(pass_through(without_length, chunk_bytes), with_length);
            assert_eq!(
                pass_through("POST / HTTP/1.0\r\n\r\n", chunk_bytes),
                "POST / HTTP/1.0\r\nContent-Length: 0\r\n\r\n"
            );
        }
    }

    #[test]
    fn other_requests_are_passed_on_unchanged() {
        for text in [
            "",
            "P",
            "POST / HTTP/1.0\r\nHost: a\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\n\r\nPOST / HTTP/1.0\r\n\r\n",
            "POST / HTTP/1.0\r\ncontent-LENGTH: 2\r\n\r\n{}",
            "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "GET / HTTP/1.0\r\n\r\n",
            "\u{16}\u{3}\u{1}",
        ] {
            for chunk_bytes in 1..7 {
                assert_eq!(pass_through(text, chunk_bytes), text);
            }
        }
        let long_head = format!("POST / HTTP/1.0\r\nX: {}", "x".repeat(2 * HEAD_BYTES_MAX));
        assert_eq!(pass_through(&long_head, 7), long_head);
    }
}
