//! Several managers of one name on a journal in PostgreSQL, and what goes wrong with them: each
//! test is a line of the list of faults in docs/why/how-guarantees-are-attacked.md. Each plays
//! under a load, and ends with the same questions to the journal: see `load`.

mod broker;
mod deaths;
mod injection;
mod load;
mod name_load;
mod name_soak;
mod network;
mod outages;
mod servers;
mod soak;
mod takeovers;

use std::time::Duration;

use support::tcp_proxy::TcpProxy;

use crate::harness::Setup;
use crate::postgres::server::{Server, query};
use crate::postgres::{signal, takeovers};

/// How long the beat of an active manager may stand still before another one takes over.
const LEASE: Duration = Duration::from_secs(10);

/// The exit code of a manager whose name another one has taken.
const TAKEN_OVER: i32 = 75;

/// How a manager of the name `default` is started on a database.
fn manager(url: &str) -> Setup {
    manager_over("", url)
}

/// The same, over a broker.
fn manager_over(broker: &str, url: &str) -> Setup {
    let setup = Setup::new(broker, load::WORKFLOWS).set("journal.url", url);
    // A message whose reply was lost with its manager is lent again after this.
    setup.set("journal.full_retry", "100ms").set("embedded.lease", "2s")
}

/// A proxy to the server of a database, and the address of the database through it.
fn proxy_to(url: &str) -> (TcpProxy, String) {
    let (before, rest) = url.split_once("@").unwrap();
    let (server, database) = rest.split_once('/').unwrap();
    let proxy = TcpProxy::start(server.parse().unwrap());
    let through = format!("{before}@127.0.0.1:{}/{database}", proxy.port());
    (proxy, through)
}

/// Who is active, as the database says it: how often the name was taken.
fn epoch(url: &str) -> u64 {
    query(url, "SELECT epoch FROM names WHERE name = 'default'").parse().unwrap()
}
