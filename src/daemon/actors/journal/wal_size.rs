//! Decides when the log reports the size of the `-wal`.

/// The size from which the log reports the `-wal`, in bytes. It is far above the size at which
/// SQLite starts a checkpoint, which is 4 MiB at most.
const WAL_REPORTED_BYTES: u64 = 64 << 20;

/// Reports the growth of the `-wal`. It stores the size that was reported last, in bytes; `None`:
/// the `-wal` is small.
#[derive(Default)]
pub(super) struct WalSizeReporter(Option<u64>);

/// A change of the size that the log must report.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WalSizeChange {
    /// The `-wal` has become large, or has doubled since the last report.
    Grown,
    /// The `-wal` is small again.
    Shrunk,
}

impl WalSizeReporter {
    /// Records the size. Returns the change to report, if any.
    pub(super) fn record(&mut self, bytes: u64) -> Option<WalSizeChange> {
        match self.0 {
            None if bytes >= WAL_REPORTED_BYTES => {
                self.0 = Some(bytes);
                Some(WalSizeChange::Grown)
            }
            Some(reported) if bytes >= reported.saturating_mul(2) => {
                self.0 = Some(bytes);
                Some(WalSizeChange::Grown)
            }
            Some(_) if bytes < WAL_REPORTED_BYTES => {
                self.0 = None;
                Some(WalSizeChange::Shrunk)
            }
            None | Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_the_wal_is_reported_when_large_at_each_doubling_and_when_small_again() {
        let mut reporter = WalSizeReporter::default();
        let sizes =
            [1, 63, 64, 100, 127, 128, 300, 70, 63, 63, 65].map(|mebibytes| mebibytes << 20);
        let changes = sizes.map(|bytes| reporter.record(bytes));
        let grown = || Some(WalSizeChange::Grown);
        assert_eq!(
            changes,
            [
                None,
                None,
                grown(),
                None,
                None,
                grown(),
                grown(),
                None,
                Some(WalSizeChange::Shrunk),
                None,
                grown()
            ]
        );
    }
}
