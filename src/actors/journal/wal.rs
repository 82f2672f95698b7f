//! Decides when the log reports the size of the `-wal`.

/// The size from which the log reports the `-wal`, in bytes: a commit begins to empty it at 4 MiB.
const WAL_TOLD_BYTES: u64 = 64 << 20;

/// The size of the `-wal` that was reported last; `None`: it is small.
#[derive(Default)]
pub(super) struct WalTold(Option<u64>);

/// A change of the size that is to be reported.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    Grown,
    SmallAgain,
}

impl WalTold {
    /// Returns a change at each doubling, and when the `-wal` is small again.
    pub(super) fn look(&mut self, bytes: u64) -> Option<News> {
        match self.0 {
            None if bytes >= WAL_TOLD_BYTES => {
                self.0 = Some(bytes);
                Some(News::Grown)
            }
            Some(told) if bytes >= told.saturating_mul(2) => {
                self.0 = Some(bytes);
                Some(News::Grown)
            }
            Some(_) if bytes < WAL_TOLD_BYTES => {
                self.0 = None;
                Some(News::SmallAgain)
            }
            None | Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wal_is_told_when_it_is_large_at_each_doubling_and_when_it_is_small_again() {
        let mut told = WalTold::default();
        let sizes =
            [1, 63, 64, 100, 127, 128, 300, 70, 63, 63, 65].map(|mebibytes| mebibytes << 20);
        let news = sizes.map(|bytes| told.look(bytes));
        let grown = || Some(News::Grown);
        assert_eq!(
            news,
            [
                None,
                None,
                grown(),
                None,
                None,
                grown(),
                grown(),
                None,
                Some(News::SmallAgain),
                None,
                grown()
            ]
        );
    }
}
