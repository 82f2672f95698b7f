//! How many connections there may be: as many as the file descriptors allow once the others have
//! theirs.

use crate::settings::HttpSettings;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// File descriptors that are not for connections: those of the broker, the journal's writer, the
/// webhook, the runtime and the log.
const OTHER_DESCRIPTORS: u64 = 256;

/// File descriptors of one reader of the journal: its file, its log and the log's index.
const READER_DESCRIPTORS: u64 = 3;

/// Readers of the journal that are kept open, besides those at work.
const IDLE_READERS: u64 = 8;

/// Raises the limit of file descriptors as far as possible. Returns how many connections it leaves
/// room for, at most as many as the settings allow.
pub(super) fn connections_max(http: &HttpSettings) -> usize {
    let asked = http.connections_max;
    let Some(descriptors) = raised() else { return asked };
    let possible =
        left_for_connections(descriptors, u64::try_from(http.reads_max).unwrap_or(u64::MAX));
    let allowed = usize::try_from(possible).unwrap_or(usize::MAX).min(asked);
    if allowed < asked {
        tracing::warn!(
            descriptors,
            asked,
            allowed,
            "fewer connections than http.connections_max: raise the limit of open files (ulimit -n)"
        );
    }
    if allowed <= http.event_streams_max {
        tracing::warn!(
            allowed,
            streams = http.event_streams_max,
            "streams of events (http.event_streams_max) can take all connections"
        );
    }
    allowed
}

/// At least a quarter is for connections, however few descriptors there are: the others must make
/// do with the rest.
fn left_for_connections(descriptors: u64, reads: u64) -> u64 {
    let others = OTHER_DESCRIPTORS
        .saturating_add(READER_DESCRIPTORS.saturating_mul(reads.saturating_add(IDLE_READERS)));
    descriptors.saturating_sub(others).max(descriptors / 4).max(1)
}

/// The limit of file descriptors, raised to the hard limit if possible; none: there is no limit.
fn raised() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let before = current?;
    if maximum == Some(before) {
        return Some(before);
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum,
        Err(error) => {
            tracing::warn!(%error, before, "the limit of open files was not raised");
            Some(before)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_broker_and_the_journal_keep_their_descriptors() {
        assert_eq!(left_for_connections(4096, 16), 4096 - 256 - 72);
        assert_eq!(left_for_connections(256, 16), 64);
        assert_eq!(left_for_connections(2, 16), 1);
    }
}
