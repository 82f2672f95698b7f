//! The maximum numbers of connections. They follow from the settings, and from the file descriptors
//! that are left after everything else has its share.

use crate::settings::{GrpcSettings, Settings};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// File descriptors reserved for the brokers, the writer of the journal, the webhook, the runtime
/// and the log.
const OTHER_DESCRIPTORS: u64 = 256;

/// File descriptors of one reader of the journal: its file, its WAL and the WAL's index.
const READER_DESCRIPTORS: u64 = 3;

/// The most readers of the journal that are kept open while they are idle.
const IDLE_READERS: u64 = 8;

/// Raises the limit of file descriptors as far as possible. Returns the most connections to the
/// HTTP API: those that the limit permits, but not more than the settings allow.
pub(super) fn http_connections_max(settings: &Settings) -> usize {
    let http = &settings.http;
    let available = available_connections(settings)
        .map(|available| available - grpc_share(&settings.grpc, available));
    limit_to_available(available, http.connections_max, "http.connections_max")
}

/// Raises the limit of file descriptors as far as possible. Returns the most gRPC connections:
/// those that the limit permits, but not more than the settings allow.
pub fn grpc_connections_max(settings: &Settings) -> usize {
    let available =
        available_connections(settings).map(|available| grpc_share(&settings.grpc, available));
    limit_to_available(available, settings.grpc.connections_max, "grpc.connections_max")
}

/// Returns the most connections to all ports together. `None`: there is no limit.
fn available_connections(settings: &Settings) -> Option<u64> {
    let reads = u64::try_from(settings.http.reads_max).unwrap_or(u64::MAX);
    raise_descriptor_limit().map(|descriptors| descriptors_for_connections(descriptors, reads))
}

/// Returns how many of the available connections are for gRPC: at most a quarter.
fn grpc_share(grpc: &GrpcSettings, available: u64) -> u64 {
    match grpc.listen {
        Some(_) => {
            u64::try_from(grpc.connections_max).unwrap_or(u64::MAX).min((available / 4).max(1))
        }
        None => 0,
    }
}

/// Limits a configured number of connections to those that are available. Warns if that is fewer.
fn limit_to_available(available: Option<u64>, configured: usize, setting: &str) -> usize {
    let Some(available) = available else { return configured };
    let connections_max = usize::try_from(available).unwrap_or(usize::MAX).min(configured).max(1);
    if connections_max < configured {
        tracing::warn!(
            configured,
            allowed = connections_max,
            "fewer connections than {setting}: raise the limit of open files (ulimit -n)"
        );
    }
    connections_max
}

/// Returns how many of the file descriptors are for connections: those that nothing else needs, but
/// at least a quarter of all descriptors. `reads` is how many reads of the journal may run at once.
fn descriptors_for_connections(descriptors: u64, reads: u64) -> u64 {
    let others = OTHER_DESCRIPTORS
        .saturating_add(READER_DESCRIPTORS.saturating_mul(reads.saturating_add(IDLE_READERS)));
    descriptors.saturating_sub(others).max(descriptors / 4).max(1)
}

/// Raises the soft limit of file descriptors to the hard limit if possible. Returns the limit then
/// in force. `None`: there is no limit.
fn raise_descriptor_limit() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let soft_limit = current?;
    if maximum == Some(soft_limit) {
        return Some(soft_limit);
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum,
        Err(error) => {
            tracing::warn!(%error, soft_limit, "the limit of open files was not raised");
            Some(soft_limit)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_reserved_for_brokers_and_the_journal() {
        assert_eq!(descriptors_for_connections(4096, 16), 4096 - 256 - 72);
        assert_eq!(descriptors_for_connections(256, 16), 64);
        assert_eq!(descriptors_for_connections(2, 16), 1);
    }

    #[test]
    fn grpc_gets_at_most_a_quarter_of_the_connections_and_none_if_it_is_off() {
        let mut grpc = Settings::defaults().expect("the defaults are valid").grpc;
        assert_eq!(grpc_share(&grpc, 4000), 0);
        grpc.listen = Some(([127, 0, 0, 1], 0).into());
        grpc.connections_max = 900;
        assert_eq!(
            (grpc_share(&grpc, 4000), grpc_share(&grpc, 400), grpc_share(&grpc, 1)),
            (900, 100, 1)
        );
    }
}
