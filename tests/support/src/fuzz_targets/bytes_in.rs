//! Reads a fuzz input as a sequence of choices. Once the input is used up, every choice is zero, so
//! every input is valid.

/// The unread part of an input.
pub(crate) struct Choices<'a> {
    pub(crate) bytes: &'a [u8],
}

impl<'a> Choices<'a> {
    /// Reads the next byte.
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((byte, unread)) = self.bytes.split_first() else { return 0 };
        self.bytes = unread;
        *byte
    }

    /// Reads a number below `bound`, which must be from 1 to 256.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    /// Returns whether there are unread bytes.
    pub(crate) fn has_more(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Reads the next `length` bytes, or fewer at the end of the input.
    pub(crate) fn take(&mut self, length: usize) -> &'a [u8] {
        let (bytes, unread) = self.bytes.split_at(length.min(self.bytes.len()));
        self.bytes = unread;
        bytes
    }

    /// Reads a text: a byte with its length, and then its bytes. Invalid UTF-8 is replaced.
    pub(crate) fn text(&mut self) -> String {
        let length = usize::from(self.byte());
        String::from_utf8_lossy(self.take(length)).into_owned()
    }
}
