//! The tail of a program's standard error. It becomes part of the reason why an attempt failed.

use engine::text::escape_lines;

/// The maximum size of the tail before it is escaped, in bytes.
const TAIL_BYTES_MAX: usize = 2048;

/// The maximum number of rendered lines.
const LINES_MAX: usize = 20;

/// The maximum size of the rendered text, in bytes. Escaping may make a text longer.
const RENDERED_BYTES_MAX: usize = 3072;

/// The last bytes of a stream.
#[derive(Default)]
pub(super) struct Tail {
    bytes: Vec<u8>,
    /// Whether older bytes were dropped.
    is_truncated: bool,
}

impl Tail {
    /// Adds bytes, and drops the oldest ones beyond the maximum.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let excess = self.bytes.len().saturating_sub(TAIL_BYTES_MAX);
        if excess > 0 {
            self.bytes.drain(..excess);
            self.is_truncated = true;
        }
    }

    /// Renders the last lines, with control characters escaped.
    pub(super) fn render(&self) -> String {
        let text = String::from_utf8_lossy(&self.bytes);
        let lines: Vec<&str> = text.trim_end().lines().collect();
        // If bytes were dropped, the first line may be incomplete.
        let incomplete_lines = usize::from(self.is_truncated && lines.len() > 1);
        let first_line = incomplete_lines.max(lines.len().saturating_sub(LINES_MAX));
        let rendered = escape_lines(&lines[first_line..].join("\n"));
        let mut start = rendered.len().saturating_sub(RENDERED_BYTES_MAX);
        while !rendered.is_char_boundary(start) {
            start += 1;
        }
        rendered[start..].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render_tail(text: &str) -> String {
        let mut tail = Tail::default();
        for part in text.as_bytes().chunks(7) {
            tail.add(part);
        }
        tail.render()
    }

    #[test]
    fn the_last_lines_are_rendered() {
        assert_eq!(render_tail(""), "");
        assert_eq!(render_tail("a\r\nb\n\n"), "a\nb");
        let lines: Vec<String> = (0..100).map(|line| format!("line {line}")).collect();
        let tail = render_tail(&lines.join("\n"));
        assert!(tail.starts_with("line 80\n") && tail.ends_with("line 99"), "{tail}");
        assert_eq!(render_tail("\u{1b}[31mred"), "\\u{1b}[31mred");
    }

    #[test]
    fn the_rendered_text_is_bounded() {
        assert_eq!(render_tail(&"x".repeat(10_000)).len(), TAIL_BYTES_MAX);
        assert!(render_tail(&"\u{1}".repeat(10_000)).len() <= RENDERED_BYTES_MAX);
        let escaped_tail = render_tail(&"ö\u{1b}".repeat(10_000));
        assert!(escaped_tail.len() <= RENDERED_BYTES_MAX && escaped_tail.ends_with("\\u{1b}"));
    }
}
