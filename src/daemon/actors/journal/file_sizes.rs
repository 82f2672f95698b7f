//! Reports how much disk space the journal's files take. The `-wal` file grows while another
//! program keeps a read transaction open. Only its size shows that.

use super::JournalActor;
use super::wal_size::WalSizeChange;
use base::clock;

impl JournalActor {
    /// Updates the metrics of the file sizes and of the clock's adjustments, and logs changes in
    /// the size of the `-wal`.
    pub(super) fn report_file_sizes(&mut self) {
        // Reading the clock detects an adjustment.
        clock::now();
        let metrics = &self.env.metrics;
        metrics.clock_set_by.set(clock::total_adjustment_s());
        self.env.health.set_clock_ahead_ms(self.store.clock_ahead_ms().unwrap_or(0));
        let Some(sizes) = self.store.disk_usage() else { return };
        let to_gauge = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        metrics.journal_bytes.with_label_values(&["main"]).set(to_gauge(sizes.main));
        metrics.journal_bytes.with_label_values(&["wal"]).set(to_gauge(sizes.wal));
        metrics.journal_free_bytes.set(to_gauge(sizes.free));
        let mebibytes = sizes.wal >> 20;
        match self.wal_reporter.record(sizes.wal) {
            Some(WalSizeChange::Grown) => tracing::warn!(
                mebibytes,
                "the journal's -wal grows: it cannot be emptied while a program reads the file \
                 without an end, or a backup is under way (fuser or lsof on the file tells which)"
            ),
            Some(WalSizeChange::Shrunk) => {
                tracing::info!(mebibytes, "the journal's -wal is small again")
            }
            None => {}
        }
    }
}
