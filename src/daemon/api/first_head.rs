//! Repairs the first head of a connection. nginx passes requests on over HTTP/1.0 by default, and a
//! POST without a body then has no `Content-Length`, which the server takes for malformed. Here
//! `Content-Length: 0` is inserted.

use bytes::{Buf, BytesMut};
use std::io;
use std::task::{Poll, ready};
use tokio::io::ReadBuf;

/// The longest head that is examined. A longer one is passed on unchanged, and the server rejects
/// it.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// How many bytes are read at once.
const CHUNK_BYTES: usize = 4096;

const NO_BODY: &[u8] = b"Content-Length: 0\r\n";

/// The state of the first head of a connection.
#[derive(Default)]
pub(super) struct FirstHead {
    buffered: BytesMut,
    is_done: bool,
}

impl FirstHead {
    /// Reads with `read`. While the first head has to be examined, nothing is passed on until it is
    /// complete.
    pub(super) fn poll_read(
        &mut self,
        buffer: &mut ReadBuf<'_>,
        mut read: impl FnMut(&mut ReadBuf<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        while !self.is_done {
            let mut chunk = [0; CHUNK_BYTES];
            let mut chunk = ReadBuf::new(&mut chunk);
            ready!(read(&mut chunk))?;
            self.buffered.extend_from_slice(chunk.filled());
            self.is_done = chunk.filled().is_empty() || complete_head(&mut self.buffered);
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

/// Returns whether the buffered bytes can be passed on. Inserts the length if it is missing.
fn complete_head(buffered: &mut BytesMut) -> bool {
    let begins = b"POST ";
    let length = buffered.len().min(begins.len());
    if buffered[..length] != begins[..length] || buffered.len() > HEAD_BYTES_MAX {
        return true;
    }
    let Some(line_end) = find(buffered, b"\r\n") else { return false };
    if !buffered[..line_end].ends_with(b" HTTP/1.0") {
        return true;
    }
    let Some(head_end) = find(buffered, b"\r\n\r\n") else { return false };
    let headers_from = line_end + 2;
    let mut names = buffered[headers_from.min(head_end)..head_end]
        .split(|byte| *byte == b'\n')
        .map(|line| line.split(|byte| *byte == b':').next().unwrap_or_default());
    let has_length = names.any(|name| {
        name.eq_ignore_ascii_case(b"content-length")
            || name.eq_ignore_ascii_case(b"transfer-encoding")
    });
    if !has_length {
        let rest = buffered.split_off(headers_from);
        buffered.extend_from_slice(NO_BODY);
        buffered.extend_from_slice(&rest);
    }
    true
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is passed on of a text that arrives in pieces of `piece` bytes.
    fn pass_through(text: &str, piece: usize) -> String {
        let mut head = FirstHead::default();
        let mut pieces = text.as_bytes().chunks(piece);
        let mut passed = Vec::new();
        loop {
            let mut storage = [0; 7];
            let mut buffer = ReadBuf::new(&mut storage);
            let read = head.poll_read(&mut buffer, |buffer| {
                // The pieces are shorter than the buffer.
                pieces.next().into_iter().for_each(|piece| buffer.put_slice(piece));
                Poll::Ready(Ok(()))
            });
            assert!(matches!(read, Poll::Ready(Ok(()))));
            if buffer.filled().is_empty() {
                return String::from_utf8(passed).expect("UTF-8");
            }
            passed.extend_from_slice(buffer.filled());
        }
    }

    #[test]
    fn a_post_of_http_1_0_without_a_length_has_no_body() {
        let without = "POST /a HTTP/1.0\r\nHost: a\r\nX: content-length: 1\r\n\r\n";
        let with = without.replacen("Host", "Content-Length: 0\r\nHost", 1);
        for piece in 1..7 {
            assert_eq!(pass_through(without, piece), with);
            assert_eq!(
                pass_through("POST / HTTP/1.0\r\n\r\n", piece),
                "POST / HTTP/1.0\r\nContent-Length: 0\r\n\r\n"
            );
        }
    }

    #[test]
    fn all_else_is_passed_on_as_it_comes() {
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
            for piece in 1..7 {
                assert_eq!(pass_through(text, piece), text);
            }
        }
        let long = format!("POST / HTTP/1.0\r\nX: {}", "x".repeat(2 * HEAD_BYTES_MAX));
        assert_eq!(pass_through(&long, 7), long);
    }
}
