//! What others do to the database, and clocks.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use support::journal_rules::InDatabase;
use support::tcp_proxy::{Action, Direction};

use super::load::Load;
use super::{epoch, manager, proxy_to, query, takeovers};
use crate::harness::{Running, eventually, when};

/// How many reads the API does at once: `http.reads_max`.
const READERS: u32 = 16;

/// A session that holds a snapshot, as a backup does.
fn hold_snapshot(url: &str) -> Running {
    let psql = Path::new(&std::env::var("POSTGRES_BIN").unwrap()).join("psql");
    let sql = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM jobs; \
               SELECT pg_sleep(600)";
    let child: Child =
        Command::new(psql).args([url, "-c", sql]).stdout(Stdio::null()).spawn().unwrap();
    eventually("the snapshot is held", || {
        let sql = "SELECT count(*) FROM pg_stat_activity
                   WHERE query LIKE '%pg_sleep(600)%' AND wait_event = 'PgSleep'
                     AND datname = current_database()";
        let count = query(url, sql);
        when(count == "1", count)
    });
    Running(child)
}

#[test]
fn a_backup_that_holds_a_snapshot_slows_nothing_that_is_hot() {
    let database = InDatabase::create();
    let manager = manager(&database.url()).start();
    let load = Load::start(&[&manager]);
    load.await_more(20);
    let backup = hold_snapshot(&database.url());
    load.await_more(300);
    // What every commit locks or appends to has no dead rows, which only the end of the backup
    // would let the server remove. The statistics are a moment late.
    eventually("the statistics are there", || {
        let sql = "SELECT coalesce(sum(n_tup_ins), 0) FROM pg_stat_user_tables
                   WHERE relname LIKE 'entries%'";
        let count: u64 = query(&database.url(), sql).parse().unwrap();
        when(count > 300, count)
    });
    let sql = "SELECT relname, n_tup_upd, n_dead_tup FROM pg_stat_user_tables
               WHERE (relname LIKE 'entries%' OR relname = 'fences')
                 AND (n_tup_upd > 0 OR n_dead_tup > 0)";
    assert_eq!(query(&database.url(), sql), "");
    drop(backup);
    load.settle(&database.url(), &manager);
}

#[test]
fn readers_that_hold_all_their_connections_hold_up_no_job_and_no_beat() {
    let database = InDatabase::create();
    let (proxy, url) = proxy_to(&database.url());
    let first = manager(&url).set("http.reads_wait", "60s").start();
    let second = manager(&database.url()).spawn();
    second.await_standby();
    let load = Load::start(&[&first, &second]);
    load.await_more(20);
    // Every search asks so.
    let search = b"FROM jobs j WHERE j.parent IS NULL";
    let trap = proxy.trap(Direction::ToServer, search, Action::Hold, READERS);
    let reads: Vec<_> = (0..READERS)
        .map(|_| {
            let api = first.api.anew();
            thread::spawn(move || {
                api.try_send("GET", "/api/jobs/search?state=completed", &[], None)
            })
        })
        .collect();
    eventually("all readers are held", || when(trap.caught() == READERS, trap.caught()));
    let beat = || -> u64 {
        let sql = "SELECT beat FROM managers WHERE state = 'active'";
        query(&database.url(), sql).parse().unwrap()
    };
    let begun = beat();
    load.await_more(60);
    eventually("it beats", || when(beat() > begun + 2, beat()));
    assert_eq!(trap.caught(), READERS);
    drop(trap);
    for read in reads {
        assert_eq!(read.join().unwrap().unwrap().status, 200);
    }
    load.settle(&database.url(), &first);
    assert_eq!(epoch(&database.url()), 1);
}

#[cfg(feature = "failpoints")]
#[test]
fn clocks_that_differ_by_an_hour_change_no_lease() {
    let database = InDatabase::create();
    let clock = |seconds: i32| format!("clock::now=return({seconds})");
    let mut ahead = manager(&database.url()).faults(&clock(3_600)).start();
    let mut behind = manager(&database.url()).faults(&clock(-3_600)).spawn();
    behind.await_standby();
    let load = Load::start(&[&ahead, &behind]);
    load.await_more(20);
    // Over five beats nobody looks dead.
    let beat = || -> u64 {
        let sql = "SELECT max(beat) FROM managers WHERE state = 'active'";
        query(&database.url(), sql).parse().unwrap()
    };
    let begun = beat();
    eventually("five beats", || when(beat() >= begun + 5, beat()));
    assert_eq!(epoch(&database.url()), 1);
    ahead.kill();
    behind.await_ready();
    assert_eq!(takeovers(&behind), 1, "the lease was waited for");
    load.await_more(20);
    ahead.spawn_again();
    ahead.await_standby();
    assert_eq!(behind.stop().code(), Some(0));
    ahead.await_ready();
    load.await_more(20);
    load.settle(&database.url(), &ahead);
}
