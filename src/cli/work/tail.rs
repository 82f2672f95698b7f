//! The end of a program's standard error.

use crate::engine::words::escaped_lines;

/// How much of it is kept, in bytes.
const KEPT_BYTES: usize = 2048;

/// How many lines of it are rendered.
const LINES_MAX: usize = 20;

/// The longest rendered text, in bytes. Escaping makes a text longer.
const TOLD_BYTES_MAX: usize = 3072;

/// The last bytes of a stream.
#[derive(Default)]
pub(super) struct Tail {
    bytes: Vec<u8>,
    is_cut: bool,
}

impl Tail {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let beyond = self.bytes.len().saturating_sub(KEPT_BYTES);
        if beyond > 0 {
            self.bytes.drain(..beyond);
            self.is_cut = true;
        }
    }

    /// Renders the last lines, with control characters escaped.
    pub(super) fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.bytes);
        let lines: Vec<&str> = text.trim_end().lines().collect();
        // The first line may be the end of a longer one.
        let first = usize::from(self.is_cut && lines.len() > 1);
        let first = first.max(lines.len().saturating_sub(LINES_MAX));
        let told = escaped_lines(&lines[first..].join("\n"));
        let beyond = told.len().saturating_sub(TOLD_BYTES_MAX);
        let from = (beyond..told.len()).find(|at| told.is_char_boundary(*at)).unwrap_or_default();
        told[from..].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> String {
        let mut tail = Tail::default();
        for part in text.as_bytes().chunks(7) {
            tail.add(part);
        }
        tail.text()
    }

    #[test]
    fn the_last_lines_are_told() {
        assert_eq!(told(""), "");
        assert_eq!(told("a\r\nb\n\n"), "a\nb");
        let lines: Vec<String> = (0..100).map(|line| format!("line {line}")).collect();
        let last = told(&lines.join("\n"));
        assert!(last.starts_with("line 80\n") && last.ends_with("line 99"), "{last}");
        assert_eq!(told("\u{1b}[31mred"), "\\u{1b}[31mred");
    }

    #[test]
    fn what_is_told_is_bounded() {
        assert_eq!(told(&"x".repeat(10_000)).len(), KEPT_BYTES);
        assert!(told(&"\u{1}".repeat(10_000)).len() <= TOLD_BYTES_MAX);
        let wide = told(&"ö\u{1b}".repeat(10_000));
        assert!(wide.len() <= TOLD_BYTES_MAX && wide.ends_with("\\u{1b}"), "{wide}");
    }
}
