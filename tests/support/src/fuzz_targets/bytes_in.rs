//! Reads an input as a row of choices. An input that is used up goes on as zeros, so every input
//! means something.

/// What is left of an input.
pub(crate) struct Choices<'a>(pub &'a [u8]);

impl<'a> Choices<'a> {
    /// The next byte.
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number below `end`, which is at least 1.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    /// Whether anything is left.
    pub(crate) fn more(&self) -> bool {
        !self.0.is_empty()
    }

    /// Up to `length` bytes.
    pub(crate) fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A text: its length in one byte, then its bytes, with what is no UTF-8 replaced.
    pub(crate) fn text(&mut self) -> String {
        let length = usize::from(self.byte());
        String::from_utf8_lossy(self.take(length)).into_owned()
    }
}
