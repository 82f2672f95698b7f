//! The bus over Kafka, on a real broker, which `KAFKA_BROKER` names (`tests/kafka` fetches one).

mod broker;
mod mock;
mod positions;
mod renames;
mod steps;
mod topics;
mod worker;

pub(crate) use broker::{Broker, Brokers};
pub(crate) use worker::{Places, Seen, Worker};

use crate::harness::{Daemon, Setup};
use rusqlite::Connection;

/// A daemon whose workflows run over these brokers.
fn setup(brokers: &impl Brokers, workflows: &str) -> Setup {
    Setup::new("", workflows)
        .set("bus", "kafka")
        .set("kafka.servers", &brokers.servers())
        .set("kafka.reconnect_min", "50ms")
        .set("kafka.reconnect_max", "500ms")
        .set("kafka.checked_every", "500ms")
        // This broker tells the first record of the last batch for the end of a topic.
        .set("kafka.properties.batch_num_messages", "1")
}

/// The sum of a metric, over all its labels.
fn metric(daemon: &Daemon, name: &str) -> u64 {
    let text = daemon.api.get("/metrics").text;
    let of_name = text.lines().filter(|line| line.split([' ', '{']).next() == Some(name));
    let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
    of_name.filter_map(value).sum::<f64>() as u64
}

/// The position of the reply topic in the journal.
fn position(daemon: &Daemon) -> i64 {
    let journal = Connection::open(daemon.database()).expect("opens");
    let sql =
        "SELECT coalesce(max(position), 0) FROM bus_positions WHERE topic = 'workflow-manager'";
    journal.query_row(sql, [], |row| row.get(0)).expect("reads")
}
