//! The number of connections that the manager allows: as many as there are file descriptors left by
//! everything else.

use crate::settings::{GrpcSettings, Settings};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// File descriptors that are not for connections: those of the broker, the journal's writer, the
/// webhook, the runtime and the log.
const OTHER_DESCRIPTORS: u64 = 256;

/// File descriptors of one reader of the journal: its file, its WAL and the WAL's index.
const READER_DESCRIPTORS: u64 = 3;

/// Readers of the journal that are kept open, besides those at work.
const IDLE_READERS: u64 = 8;

/// Raises the limit of file descriptors as far as possible. Returns how many connections to the
/// HTTP API it leaves room for, at most as many as the settings allow.
pub(super) fn http_connections_max(settings: &Settings) -> usize {
    let http = &settings.http;
    let available = available(settings);
    let left = available.map(|left| left - grpc_share(&settings.grpc, left));
    limit_to_available(left, http.connections_max, "http.connections_max")
}

/// Returns how many gRPC connections the limit of file descriptors leaves room for, at most as many
/// as the settings allow.
pub fn grpc_connections_max(settings: &Settings) -> usize {
    let available = available(settings).map(|left| grpc_share(&settings.grpc, left));
    limit_to_available(available, settings.grpc.connections_max, "grpc.connections_max")
}

/// Returns how many connections there can be in all. `None`: there is no limit.
fn available(settings: &Settings) -> Option<u64> {
    let reads = u64::try_from(settings.http.reads_max).unwrap_or(u64::MAX);
    raise_descriptor_limit().map(|descriptors| connections_left(descriptors, reads))
}

/// Returns how many of the available connections are for gRPC: a quarter at most.
fn grpc_share(grpc: &GrpcSettings, available: u64) -> u64 {
    match grpc.listen {
        Some(_) => {
            u64::try_from(grpc.connections_max).unwrap_or(u64::MAX).min((available / 4).max(1))
        }
        None => 0,
    }
}

fn limit_to_available(available: Option<u64>, asked: usize, setting: &str) -> usize {
    let Some(left) = available else { return asked };
    let allowed = usize::try_from(left).unwrap_or(usize::MAX).min(asked).max(1);
    if allowed < asked {
        tracing::warn!(
            asked,
            allowed,
            "fewer connections than {setting}: raise the limit of open files (ulimit -n)"
        );
    }
    allowed
}

/// Returns how many descriptors are left for connections. At least a quarter is, however few there
/// are: everything else must make do with the rest.
fn connections_left(descriptors: u64, reads: u64) -> u64 {
    let others = OTHER_DESCRIPTORS
        .saturating_add(READER_DESCRIPTORS.saturating_mul(reads.saturating_add(IDLE_READERS)));
    descriptors.saturating_sub(others).max(descriptors / 4).max(1)
}

/// Raises the limit of file descriptors to the hard limit if possible, and returns it. `None`:
/// there is no limit.
fn raise_descriptor_limit() -> Option<u64> {
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
        assert_eq!(connections_left(4096, 16), 4096 - 256 - 72);
        assert_eq!(connections_left(256, 16), 64);
        assert_eq!(connections_left(2, 16), 1);
    }

    #[test]
    fn grpc_has_a_quarter_of_the_connections_at_most_and_none_if_it_is_off() {
        let mut grpc = Settings::defaults().expect("defaults").grpc;
        assert_eq!(grpc_share(&grpc, 4000), 0);
        grpc.listen = Some(([127, 0, 0, 1], 0).into());
        grpc.connections_max = 900;
        assert_eq!(
            (grpc_share(&grpc, 4000), grpc_share(&grpc, 400), grpc_share(&grpc, 1)),
            (900, 100, 1)
        );
    }
}
