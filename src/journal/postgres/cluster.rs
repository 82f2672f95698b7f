//! Reads which processes share the database.

use super::connection::params;
use super::reader::Reader;
use crate::cluster::{ActiveProcess, ClusterName, ClusterProcess, ClusterStatus};
use crate::error::JournalError;
use crate::traits::ClusterRecords;
use engine::{Millis, Timestamp};
use std::time::Duration;
use tokio_postgres::Row;
use uuid::Uuid;

/// Selects the names, each with its active process.
const SELECT_NAMES: &str = "
SELECT name, epoch, owner, api_address,
       coalesce((extract(epoch FROM since) * 1000000)::bigint, 0) * 1000
FROM names ORDER BY name";

/// Selects the processes.
const SELECT_PROCESSES: &str = "
SELECT id, name, version, state, api_address,
       greatest((extract(epoch FROM now() - seen) * 1000)::bigint, 0)
FROM managers ORDER BY name, state <> 'active', seen DESC, id";

impl ClusterRecords for Reader {
    fn load_cluster(&self) -> Result<Option<ClusterStatus>, JournalError> {
        let session = self.pool.begin()?;
        let names = session.query(SELECT_NAMES, params![])?.iter().map(to_name).collect();
        let processes = session.query(SELECT_PROCESSES, params![])?;
        let processes = processes.iter().map(to_process).collect();
        Ok(Some(ClusterStatus { names, processes }))
    }

    fn beat_age(&self) -> Option<Duration> {
        self.pool.last_beat.age()
    }
}

fn to_name(row: &Row) -> ClusterName {
    let to_active = |owner: Uuid| ActiveProcess {
        manager: owner.to_string(),
        address: row.get(3),
        since: Timestamp(row.get(4)),
    };
    ClusterName {
        name: row.get(0),
        epoch: row.get(1),
        active: row.get::<_, Option<Uuid>>(2).map(to_active),
    }
}

fn to_process(row: &Row) -> ClusterProcess {
    ClusterProcess {
        manager: row.get::<_, Uuid>(0).to_string(),
        name: row.get(1),
        version: row.get(2),
        state: row.get(3),
        address: row.get(4),
        seen_ago: Millis(u64::try_from(row.get::<_, i64>(5)).unwrap_or(0)),
    }
}
