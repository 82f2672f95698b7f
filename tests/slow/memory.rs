//! What jobs hold in memory is bounded, under a real limit of the process: it never ends for want
//! of memory, and a start needs no more than before.

use crate::{
    harness::{Answer, Daemon, Setup, when, within},
    load::LONG,
};
use uuid::Uuid;

const WORKFLOWS: &str = "workflows: [ { name: work, steps: [ { name: work } ] }, \
                         { name: sign, steps: [ { name: sign, external: true } ] } ]";

const MEBIBYTE: u64 = 1024 * 1024;

/// The address space of the process. The threads and the allocators take a part of it that they
/// never use, half of it at once.
const ADDRESS_SPACE: u64 = 2048 * MEBIBYTE;

/// All together are larger than the address space.
const OFFERED: usize = 161;
const BYTES: usize = 15_000_000;

fn large() -> String {
    format!("{{\"text\":\"{}\"}}", "x".repeat(BYTES))
}

fn offer(daemon: &Daemon, workflow: &str, body: &str) -> Answer {
    daemon.api.post(&format!("/api/workflow/{workflow}"), body)
}

#[track_caller]
fn assert_lives(daemon: &mut Daemon) {
    assert!(daemon.ended().is_none(), "it has ended:\n{}", daemon.log());
    daemon.api.get("/livez").expect(200);
}

fn state(daemon: &Daemon, id: Uuid) -> String {
    let job = daemon.api.get(&format!("/api/job/{id}?view=light")).expect(200).json();
    job["state"].as_str().unwrap().to_owned()
}

/// How much of the memory of jobs is held, and how many are at rest.
/// A worker takes one message, and answers it.
fn work(daemon: &Daemon) -> bool {
    let message = daemon.api.post("/api/queue/work/receive?wait=1s", "");
    if message.status == 204 {
        return false;
    }
    let reply_to = message.expect(200).header("reply-to").to_owned();
    daemon.api.post(&reply_to, "{}").expect(200);
    true
}

#[test]
fn messages_that_wait_for_workers_are_bounded_and_a_start_needs_no_more() {
    let mut daemon = Setup::new("", WORKFLOWS).address_space(ADDRESS_SPACE).start();
    let body = large();
    let mut accepted = Vec::new();
    for _ in 0..OFFERED {
        let answer = offer(&daemon, "work", &body);
        if answer.status == 201 {
            accepted.push(answer.id());
        } else {
            let refused = answer.expect_problem(503, &["limits.jobs_bytes_max"]);
            assert!(refused.header("retry-after").parse::<u32>().is_ok(), "{refused}");
        }
    }
    let most = daemon.api.metric("workflow_jobs_bytes_max");
    assert_eq!(most, ADDRESS_SPACE / 4, "a quarter of what the process may have");
    let fit = usize::try_from(most).unwrap() / BYTES;
    assert!((fit - 2..=fit).contains(&accepted.len()), "{} of {fit}", accepted.len());
    eprintln!(
        "{OFFERED} of 15 MB offered, {} accepted: at most {} MiB resident",
        accepted.len(),
        daemon.memory_peak() / MEBIBYTE
    );
    assert_lives(&mut daemon);

    // With room for a few of them it starts as well. What waits can be read and cancelled.
    daemon.kill();
    daemon.set_setting("limits.jobs_bytes_max", &(64 * MEBIBYTE).to_string());
    daemon.start_again();
    let ready = daemon.api.get("/readyz?verbose").expect(200).text;
    assert!(ready.contains("still to be taken up"), "{ready}");
    let pending = daemon.api.metric("workflow_jobs_pending");
    assert!(pending as usize >= accepted.len() - 5, "{pending} of {}", accepted.len());
    offer(&daemon, "work", "{}").expect_problem(503, &["limits.jobs_bytes_max"]);
    let last = accepted.pop().unwrap();
    assert_eq!(state(&daemon, last), "running");
    daemon.api.delete(&format!("/api/job/{last}")).expect(200);
    assert_eq!(state(&daemon, last), "cancelled");

    // All of them come to their end, as there is room.
    within(LONG, "all jobs end", || {
        while work(&daemon) {}
        let running = daemon.api.metric("workflow_jobs_at_rest");
        when(
            running == 0 && daemon.api.get("/api/jobs").expect(200).ids("jobs").is_empty(),
            running,
        )
    });
    for id in accepted {
        assert_eq!(state(&daemon, id), "completed");
    }
    assert_lives(&mut daemon);
}

#[test]
fn jobs_that_wait_for_a_person_rest_and_all_come_to_their_end() {
    let mut daemon = Setup::new("", WORKFLOWS).address_space(ADDRESS_SPACE).start();
    let body = large();
    let accepted: Vec<Uuid> = (0..OFFERED)
        .map(|_| {
            // The others may just be on their way to rest.
            within(LONG, "there is room", || {
                let answer = offer(&daemon, "sign", &body);
                if answer.status == 201 { Ok(answer.id()) } else { Err(answer.text) }
            })
        })
        .collect();
    eprintln!(
        "{OFFERED} of 15 MB accepted: at most {} MiB resident",
        daemon.memory_peak() / MEBIBYTE
    );
    assert!(daemon.api.metric("workflow_jobs_at_rest") > 100);
    daemon.kill();
    daemon.start_again();
    assert_lives(&mut daemon);
    for (n, id) in accepted.iter().enumerate() {
        if n % 10 == 0 {
            daemon.api.delete(&format!("/api/job/{id}")).expect(200);
            assert_eq!(state(&daemon, *id), "cancelled");
        } else {
            daemon.api.post(&format!("/api/job/{id}/step/sign"), "{\"signed\":true}").expect(200);
            assert_eq!(state(&daemon, *id), "completed");
        }
    }
    eprintln!("completed: at most {} MiB resident", daemon.memory_peak() / MEBIBYTE);
    assert_lives(&mut daemon);
}
