//! Managers that are killed, stopped or asked to end.

use std::thread;

use serde_json::json;
use support::journal_rules::InDatabase;
use support::tcp_proxy::{Action, COMMIT_REQUEST, Direction};
use uuid::Uuid;

use super::load::Load;
use super::{TAKEN_OVER, epoch, manager, proxy_to, query, signal, takeovers};
use crate::harness::{eventually, when};

#[test]
fn a_killed_active_manager_is_replaced_under_load() {
    let database = InDatabase::create();
    let mut first = manager(&database.url()).start();
    let mut second = manager(&database.url()).spawn();
    let load = Load::start(&[&first, &second]);
    second.await_standby();
    load.await_more(60);
    first.kill();
    second.await_ready();
    load.await_more(60);
    assert_eq!(takeovers(&second), 1, "the lease was waited for");
    load.settle(&database.url(), &second);
}

#[test]
fn a_rolling_upgrade_under_load_loses_nothing_and_waits_for_no_lease() {
    let database = InDatabase::create();
    let mut managers = [(); 3].map(|()| manager(&database.url()).spawn());
    let load = Load::start(&managers.each_ref());
    let mut stops = 0;
    for round in 0..2 {
        for manager in &mut managers {
            load.await_more(20);
            let was = epoch(&database.url());
            let is_active = manager.api.answers("/readyz", 200);
            assert_eq!(manager.stop().code(), Some(0), "round {round}");
            if is_active {
                stops += 1;
                eventually("another one is active", || {
                    let now = epoch(&database.url());
                    when(now == was + 1, format!("epoch {now} after {was}"))
                });
            }
            manager.spawn_again();
        }
    }
    assert!(stops > 0, "an active manager was stopped");
    load.await_more(20);
    let active = managers.iter().position(|manager| manager.api.answers("/readyz", 200)).unwrap();
    load.settle(&database.url(), &managers[active]);
    for manager in &managers {
        assert_eq!(takeovers(manager), 0, "every name was given back");
    }
}

#[test]
fn a_manager_stopped_for_longer_than_the_lease_ends_and_answers_nothing() {
    let database = InDatabase::create();
    let mut first = manager(&database.url()).start();
    let mut second = manager(&database.url()).spawn();
    let load = Load::start(&[&first, &second]);
    load.await_more(60);
    signal("STOP", &first);
    // What arrives at it while it is stopped lies in its sockets until it goes on.
    let waiting: Vec<_> = (0..8)
        .map(|_| {
            let (api, id) = (first.api.anew(), Uuid::new_v4());
            let path = format!("/api/workflow/chain?id={id}");
            let body = json!({ "n": 0 }).to_string();
            (id, thread::spawn(move || api.try_send("POST", &path, &[], Some(body.as_bytes()))))
        })
        .collect();
    second.await_ready();
    load.await_more(60);
    signal("CONT", &first);
    assert_eq!(first.await_end().code(), Some(TAKEN_OVER), "it is started again, and stands by");
    for (id, answer) in waiting {
        let status = answer.join().unwrap().map(|answer| answer.status);
        assert_ne!(status.ok(), Some(201), "job {id} was not committed");
        let count = query(&database.url(), &format!("SELECT count(*) FROM jobs WHERE id = '{id}'"));
        assert_eq!(count, "0");
    }
    load.settle(&database.url(), &second);
}

#[test]
fn a_manager_stopped_inside_a_commit_keeps_no_lock_and_commits_nothing() {
    let database = InDatabase::create();
    let (proxy, url) = proxy_to(&database.url());
    let mut first = manager(&url).start();
    let mut second = manager(&database.url()).spawn();
    let load = Load::start(&[&first, &second]);
    load.await_more(40);
    // The server has all of the transaction but its last message.
    let trap = proxy.trap(Direction::ToServer, COMMIT_REQUEST, Action::Hold, 1);
    eventually("a commit is held", || when(trap.caught() == 1, trap.caught()));
    signal("STOP", &first);
    second.await_ready();
    load.await_more(40);
    drop(trap);
    signal("CONT", &first);
    assert_eq!(first.await_end().code(), Some(TAKEN_OVER));
    load.settle(&database.url(), &second);
}

#[test]
fn workers_reply_to_the_new_manager_with_what_they_had_in_hand_from_the_old_one() {
    let database = InDatabase::create();
    let setup = || manager(&database.url()).set("embedded.lease", "5min");
    let mut first = setup().start();
    let mut second = setup().spawn();
    second.await_standby();
    let jobs: Vec<Uuid> =
        (0..5).map(|index| first.api.create("chain", &json!({ "n": index }).to_string())).collect();
    let receive = "/api/queue/work/receive?wait=0s";
    let in_hand: Vec<_> = jobs
        .iter()
        .map(|_| first.api.send("POST", receive, &[], None).expect(200))
        .map(|message| format!("{}?type=result", message.header("reply-to")))
        .collect();
    // Leases are journaled a moment later.
    eventually("the leases are in the journal", || {
        let sql = "SELECT count(*) FROM entries WHERE body LIKE '%lease%' OR body LIKE '%sent%'";
        let count = query(&database.url(), sql);
        when(count.parse::<usize>().unwrap() >= jobs.len(), count)
    });
    first.kill();
    second.await_ready();
    let none = second.api.send("POST", receive, &[], None);
    assert_eq!(none.status, 204, "what is in hand is lent to nobody else: {none}");
    for (index, reply_to) in in_hand.iter().enumerate() {
        let reply = json!({ "n": index + 1, "status": format!("s{index}") }).to_string();
        let answer = second.api.post(reply_to, &reply).expect(200);
        assert_eq!(answer.json()["taken"], json!(true), "{answer}");
    }
    let mut done = 0;
    while done < jobs.len() {
        let message = second.api.send("POST", "/api/queue/work/receive?wait=10s", &[], None);
        let reply_to = format!("{}?type=result", message.expect(200).header("reply-to"));
        second.api.post(&reply_to, "{\"status\":\"end\"}").expect(200);
        done += 1;
    }
    for job in &jobs {
        second.api.await_state(*job, "completed");
    }
}
