//! A network between a manager and the database that swallows, delays and cuts.

use std::time::Duration;

use support::journal_rules::InDatabase;
use support::tcp_proxy::{Action, COMMIT_ANSWER, COMMIT_REQUEST, Direction, Flow};

use super::load::Load;
use super::{TAKEN_OVER, epoch, manager, proxy_to, query, takeovers};
use crate::harness::{eventually, when};

/// A manager is cut off from the database in these directions for longer than its lease.
fn cut_off(directions: &[Direction]) {
    let database = InDatabase::create();
    let (proxy, url) = proxy_to(&database.url());
    let mut first = manager(&url).start();
    let mut second = manager(&database.url()).spawn();
    let load = Load::start(&[&first, &second]);
    load.await_more(40);
    for direction in directions {
        proxy.set_flow(*direction, Flow::Stops);
    }
    second.await_ready();
    assert_eq!(takeovers(&second), 1);
    load.await_more(40);
    assert!(first.ended().is_none(), "it cannot know");
    proxy.set_flows(Flow::Passes);
    assert_eq!(first.await_end().code(), Some(TAKEN_OVER), "it is started again, and stands by");
    load.settle(&database.url(), &second);
}

#[test]
fn a_manager_that_the_database_does_not_hear_is_replaced_and_ends() {
    cut_off(&[Direction::ToServer]);
}

#[test]
fn a_manager_that_does_not_hear_the_database_is_replaced_and_ends() {
    cut_off(&[Direction::ToClient]);
}

#[test]
fn a_manager_that_is_cut_off_from_the_database_is_replaced_and_ends() {
    cut_off(&[Direction::ToServer, Direction::ToClient]);
}

#[test]
fn a_partition_shorter_than_the_lease_replaces_nobody() {
    let database = InDatabase::create();
    let (proxy, url) = proxy_to(&database.url());
    let first = manager(&url).start();
    let second = manager(&database.url()).spawn();
    second.await_standby();
    let load = Load::start(&[&first, &second]);
    for _ in 0..2 {
        load.await_more(30);
        proxy.set_flows(Flow::Stops);
        // The length of the partition is what is tested.
        std::thread::sleep(Duration::from_secs(4));
        proxy.set_flows(Flow::Passes);
    }
    load.await_more(30);
    load.settle(&database.url(), &first);
    assert_eq!(epoch(&database.url()), 1);
}

#[test]
fn a_commit_that_loses_its_connection_is_sent_again_and_counts_once() {
    let database = InDatabase::create();
    let (proxy, url) = proxy_to(&database.url());
    let manager = manager(&url).start();
    let load = Load::start(&[&manager]);
    load.await_more(20);
    let cuts = [
        // The server has committed, and its answer is lost.
        (Direction::ToClient, COMMIT_ANSWER),
        // The server has everything but the last message, and rolls back.
        (Direction::ToServer, COMMIT_REQUEST),
    ];
    for (direction, message) in cuts {
        let trap = proxy.trap(direction, message, Action::Reset, 15);
        eventually("15 connections are cut", || when(trap.caught() == 15, trap.caught()));
        load.await_more(20);
    }
    for _ in 0..5 {
        // The server has answered everything but the COMMIT, which it never gets.
        let trap = proxy.trap(Direction::ToServer, COMMIT_REQUEST, Action::Hold, 1);
        eventually("the transaction is open", || {
            let sql = "SELECT count(*) FROM pg_stat_activity
                       WHERE datname = current_database() AND state = 'idle in transaction'";
            let count = query(&database.url(), sql);
            when(trap.caught() == 1 && count != "0", count)
        });
        proxy.reset_all();
        load.await_more(5);
    }
    load.settle(&database.url(), &manager);
    assert_eq!(epoch(&database.url()), 1, "nobody has taken over");
}

#[test]
fn a_claim_whose_answer_is_lost_counts() {
    let database = InDatabase::create();
    let (proxy, url) = proxy_to(&database.url());
    let mut first = manager(&database.url()).start();
    let mut second = manager(&url).spawn();
    second.await_standby();
    let load = Load::start(&[&first, &second]);
    load.await_more(20);
    let trap = proxy.trap(Direction::ToClient, COMMIT_ANSWER, Action::Reset, 1);
    assert_eq!(first.stop().code(), Some(0));
    second.await_ready();
    assert_eq!(trap.caught(), 1, "the answer to the claim");
    load.await_more(20);
    load.settle(&database.url(), &second);
    assert_eq!(epoch(&database.url()), 2, "one claim for each manager");
}

#[test]
fn a_takeover_ends_a_manager_that_still_commits_but_does_not_beat() {
    let database = InDatabase::create();
    let (proxy, url) = proxy_to(&database.url());
    let mut first = manager(&url).start();
    let mut second = manager(&database.url()).spawn();
    second.await_standby();
    let load = Load::start(&[&first, &second]);
    load.await_more(20);
    // A beat tells the state of the manager; what a commit sends does not.
    let trap = proxy.trap(Direction::ToServer, b"\0\0\0\x06active", Action::Hold, u32::MAX);
    eventually("the beat is held", || when(trap.caught() > 0, trap.caught()));
    // Until its lease is over it commits, and so it may.
    load.await_more(50);
    assert_eq!(epoch(&database.url()), 1);
    second.await_ready();
    assert_eq!(takeovers(&second), 1);
    load.await_more(20);
    // It cannot know, and accepts nothing.
    assert_eq!(first.api.post("/api/workflow/chain", "{\"n\":1}").status, 503);
    assert!(first.ended().is_none(), "it cannot know");
    drop(trap);
    assert_eq!(first.await_end().code(), Some(TAKEN_OVER), "its next beat tells it");
    load.settle(&database.url(), &second);
}

#[test]
fn a_database_that_does_not_answer_is_told_before_any_commit_fails() {
    let database = InDatabase::create();
    let (proxy, url) = proxy_to(&database.url());
    let manager = manager(&url).start();
    let job = manager.api.create("chain", "{\"n\":1}");
    proxy.set_flows(Flow::Stops);
    let told = std::cell::RefCell::new(Vec::new());
    eventually("it is not ready", || {
        let answer = manager.api.get("/readyz");
        told.borrow_mut().push(answer.text.clone());
        when(answer.status == 503, format!("{answer}"))
    });
    let last = told.borrow().last().cloned().unwrap();
    assert!(last.contains("waits for an answer"), "it is told before the lease is over: {last}");
    let refused = manager.api.post("/api/workflow/chain", "{\"n\":1}");
    assert!(refused.status == 503 && refused.text.contains("database server"), "{refused}");
    assert_eq!(manager.api.get("/livez").status, 200);
    proxy.set_flows(Flow::Passes);
    eventually("it is ready again", || {
        let answer = manager.api.get("/readyz");
        when(answer.status == 200, format!("{answer}"))
    });
    assert_eq!(manager.api.job(job).state, "running");
    assert_eq!(epoch(&database.url()), 1);
}

#[test]
fn a_slow_network_loses_nothing_and_replaces_nobody() {
    let database = InDatabase::create();
    let (proxy, url) = proxy_to(&database.url());
    let first = manager(&url).start();
    let second = manager(&database.url()).spawn();
    second.await_standby();
    let load = Load::start(&[&first, &second]);
    proxy.set_flows(Flow::Late(Duration::from_millis(150)));
    load.await_more(20);
    load.settle(&database.url(), &first);
    assert_eq!(epoch(&database.url()), 1);
    assert_eq!(query(&database.url(), "SELECT count(*) FROM fences WHERE dead"), "0");
}
