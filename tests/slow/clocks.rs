//! A wall clock that is wrong when the manager starts.

use crate::harness::{Setup, eventually, when};
use uuid::Uuid;

const WORKFLOWS: &str = r"
workflows:
  - name: signed
    steps: [ { name: sign, external: true } ]
";

const DAY_S: i64 = 24 * 3600;

/// The clock is wrong by so many seconds.
fn wrong_by(seconds: i64) -> String {
    format!("clock::now=return({seconds})")
}

#[test]
fn a_start_with_a_wrong_clock_deletes_nothing_and_says_what_it_would() {
    let setup = Setup::new("", WORKFLOWS)
        .set("journal.retention", "1d")
        .set("journal.retention_interval", "20ms");
    let mut daemon = setup.start();
    let done = |daemon: &crate::harness::Daemon| -> Uuid {
        let id = daemon.api.create("signed", "{}");
        daemon.api.post(&format!("/api/job/{id}/step/sign"), "{}").expect(200);
        daemon.api.await_state(id, "completed");
        id
    };
    let old: Vec<Uuid> = (0..3).map(|_| done(&daemon)).collect();
    let are_kept = |daemon: &crate::harness::Daemon| {
        for id in &old {
            assert_eq!(daemon.api.job(*id).state, "completed");
        }
    };
    let restart = |daemon: &mut crate::harness::Daemon, seconds: i64| {
        daemon.stop();
        daemon.set_faults(Some(&wrong_by(seconds)));
        daemon.start_again();
    };

    // Ten days ahead: retention would delete all of them at once.
    restart(&mut daemon, 10 * DAY_S);
    daemon.await_log(&["would delete this many jobs now"]);
    let log = daemon.log();
    assert!(["jobs=3", "\"jobs\":3"].iter().any(|told| log.contains(told)), "{log}");
    let id = done(&daemon);
    are_kept(&daemon);

    // Back again: behind the record of the job that was done meanwhile.
    restart(&mut daemon, 0);
    daemon.await_log(&["the clock is behind the newest record of the journal"]);
    are_kept(&daemon);

    // A clock that is right deletes: for a day the records are young, then one job is.
    daemon.api.delete(&format!("/api/job/{id}?erase=true")).expect(200);
    done(&daemon);
    daemon.set_setting("journal.retention", "1ms");
    restart(&mut daemon, 0);
    eventually("retention deletes", || {
        let answer = daemon.api.get(&format!("/api/job/{}", old[0]));
        when(answer.status == 404, answer.text)
    });
}
