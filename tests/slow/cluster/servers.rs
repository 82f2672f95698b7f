//! The primary server fails, and its standby is promoted.

use std::time::Duration;

use support::tcp_proxy::Flow;

use super::load::Load;
use super::{Server, epoch, manager, proxy_to, query, takeovers};
use crate::harness::{eventually, when};

const EXIT_IO_ERROR: i32 = 74;

/// The address of a database on two servers.
fn both(primary: &Server, standby: &Server) -> String {
    format!("postgres://workflow@{},{}/postgres", primary.host(), standby.host())
}

/// Makes a server wait for its standby at each commit.
fn make_synchronous(primary: &Server) {
    query(&primary.url, "ALTER SYSTEM SET synchronous_standby_names = '*'");
    query(&primary.url, "SELECT pg_reload_conf()");
    eventually("the standby is synchronous", || {
        let state = query(&primary.url, "SELECT sync_state FROM pg_stat_replication");
        when(state == "sync", state)
    });
}

#[test]
fn after_the_primary_a_synchronous_standby_has_everything_and_the_old_one_answers_nothing() {
    let primary = Server::start();
    let standby = primary.start_standby();
    make_synchronous(&primary);
    let url = both(&primary, &standby);
    let mut first = manager(&url).start();
    let mut second = manager(&url).spawn();
    second.await_standby();
    let load = Load::start(&[&first, &second]);
    load.await_more(40);
    primary.kill();
    standby.promote();
    load.await_more(40);
    assert_eq!(takeovers(&first) + takeovers(&second), 0, "nobody is declared dead");
    assert_eq!(epoch(&standby.url), 1);

    // The old primary comes back alone. It takes writes too, and its commits wait for a standby.
    primary.start_again();
    load.await_more(20);
    query(
        &standby.url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE application_name = 'workflow-manager'",
    );
    // Whoever is led to it finds commits missing, or gets no commit answered.
    let before = query(&primary.url, "SELECT count(*) FROM jobs");
    assert_eq!(first.await_end().code(), Some(EXIT_IO_ERROR));
    first.await_log(&["has lost a commit"]);
    primary.kill();
    second.kill_if_alive();
    primary.start_again();
    assert_eq!(query(&primary.url, "SELECT count(*) FROM jobs"), before, "nothing was committed");
    primary.kill();
    first.spawn_again();
    first.await_ready();
    load.await_more(20);
    load.settle(&standby.url, &first);
}

#[test]
fn an_old_primary_that_is_alone_answers_nothing_until_its_standby_is_back() {
    let primary = Server::start();
    let standby = primary.start_standby();
    make_synchronous(&primary);
    let manager = manager(&primary.url).start();
    let load = Load::start(&[&manager]);
    load.await_more(40);
    standby.kill();
    eventually("it is not ready", || {
        let answer = manager.api.get("/readyz");
        when(answer.status == 503, answer)
    });
    let answered = load.answered_count();
    eventually("a commit waits for the standby", || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        let count: u64 = query(&primary.url, sql).parse().unwrap();
        when(count > 0, count)
    });
    assert_eq!(load.answered_count(), answered, "nothing is answered");
    standby.start_again();
    load.await_more(40);
    load.settle(&primary.url, &manager);
    assert_eq!(epoch(&primary.url), 1);
}

#[test]
fn an_asynchronous_standby_that_lacks_commits_is_told_aloud() {
    let primary = Server::start();
    let standby = primary.start_standby();
    let url = both(&primary, &standby);
    let mut manager = manager(&url).start();
    let mut jobs = vec![manager.api.create("chain", "{\"n\":1}")];
    eventually("the standby has it", || {
        let count = query(&standby.url, "SELECT count(*) FROM jobs");
        when(count == "1", count)
    });
    // The standby is behind when the primary fails.
    standby.kill();
    jobs.push(manager.api.create("chain", "{\"n\":2}"));
    primary.kill();
    standby.start_again();
    standby.promote();
    assert_eq!(manager.await_end().code(), Some(EXIT_IO_ERROR));
    manager.await_log(&["has lost a commit", "asynchronous standby"]);
    manager.start_again();
    assert_eq!(manager.api.job(jobs[0]).state, "running");
    manager.api.get(&format!("/api/job/{}", jobs[1])).expect(404);
}

#[test]
fn a_database_that_is_away_for_longer_than_the_lease_buries_nobody() {
    let server = Server::start();
    let (proxy, url) = proxy_to(&server.url);
    let first = manager(&url).start();
    let second = manager(&server.url).spawn();
    second.await_standby();
    let load = Load::start(&[&first, &second]);
    load.await_more(40);
    server.kill();
    // The length of the outage is what is tested.
    std::thread::sleep(super::LEASE + Duration::from_secs(4));
    // The standby reaches the server again before the active one does.
    proxy.set_flows(Flow::Stops);
    let looks = || -> u64 {
        let sql = "SELECT beat FROM managers WHERE state = 'standby'";
        query(&server.url, sql).parse().unwrap()
    };
    server.start_again();
    let begun = looks();
    eventually("the standby looks", || when(looks() > begun + 2, looks()));
    proxy.set_flows(Flow::Passes);
    load.await_more(40);
    assert_eq!(takeovers(&first) + takeovers(&second), 0);
    assert_eq!(epoch(&server.url), 1);
    load.settle(&server.url, &first);
}
