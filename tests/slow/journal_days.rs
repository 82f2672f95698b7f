//! The days and names of a journal in PostgreSQL: who sees which jobs, which days are made and
//! dropped, and what commits to a new day cost.

use support::journal_rules::{self, InDatabase};

use crate::harness::{Daemon, Setup, eventually, when};

const WORKFLOWS: &str = "workflows: [{ name: signed, steps: [{ name: sign, external: true }] }]";

const DAY_S: i64 = 24 * 3600;

#[test]
fn names_keep_to_their_own_jobs_and_lists_show_all() {
    journal_rules::names_keep_to_their_own_jobs_and_lists_show_all(&InDatabase::create());
}

#[test]
fn numbers_increase_over_a_takeover_with_a_clock_that_is_behind() {
    let database = InDatabase::create();
    journal_rules::numbers_increase_over_a_takeover_with_a_clock_that_is_behind(&database);
}

#[test]
fn a_commit_makes_the_day_that_it_needs() {
    journal_rules::a_commit_makes_the_day_that_it_needs(&InDatabase::create());
}

#[test]
fn a_commit_costs_the_server_in_proportion_to_its_records() {
    journal_rules::a_commit_costs_the_server_in_proportion_to_its_records(&InDatabase::create());
}

#[test]
fn a_deletion_whose_answer_is_lost_is_reported_by_the_next() {
    journal_rules::a_deletion_whose_answer_is_lost_is_reported_by_the_next(&InDatabase::create());
}

#[test]
fn a_definition_that_appears_below_others_has_its_retention() {
    journal_rules::a_definition_that_appears_below_others_has_its_retention(&InDatabase::create());
}

/// Creates a job with a clock that is behind by so many days, and returns its day.
fn live_in_the_past(
    daemon: &mut Daemon,
    database: &InDatabase,
    days: i64,
    is_ended: bool,
) -> String {
    daemon.stop();
    daemon.set_faults(Some(&format!("clock::now=return({})", -days * DAY_S)));
    // With such a clock it is not ready.
    daemon.spawn_again();
    daemon.await_alive();
    let id = daemon.api.create("signed", "{}");
    if is_ended {
        daemon.api.post(&format!("/api/job/{id}/step/sign"), "{}").expect(200);
        daemon.api.await_state(id, "completed");
    }
    let sql = format!("SELECT tableoid::regclass FROM jobs WHERE id = '{id}'");
    database.query(&sql).trim().trim_start_matches("jobs_").to_owned()
}

#[test]
fn a_day_whose_jobs_are_past_their_retention_is_dropped_as_a_whole() {
    let database = InDatabase::create();
    let setup = Setup::new("", WORKFLOWS).set("journal.url", &database.url());
    let mut daemon =
        setup.set("journal.retention", "1000d").set("journal.retention_interval", "10m").start();
    let past = live_in_the_past(&mut daemon, &database, 40, true);
    let begun = live_in_the_past(&mut daemon, &database, 30, true);
    let kept = live_in_the_past(&mut daemon, &database, 20, false);
    assert!(past.len() == 8 && past < begun && begun < kept, "{past} {begun} {kept}");
    // So many that they are not deleted one by one before the day is looked at.
    for day in [&past, &kept] {
        let many = format!(
            "INSERT INTO jobs SELECT n.number, gen_random_uuid(), j.workflow, j.definition, 0,
               n.number, NULL, NULL, NULL, 0, 1, 'completed', 1, false, 1, 0
             FROM (SELECT * FROM jobs_{day} LIMIT 1) j, generate_series(1, 20000) i,
               LATERAL (SELECT j.number + (i / 4000 << 22) + i % 4000 + 1 AS number) n"
        );
        database.query(&many);
    }
    // A crash has interrupted the drop of the second day.
    database.query(&format!("ALTER TABLE jobs DETACH PARTITION jobs_{begun} CONCURRENTLY"));
    daemon.stop();
    daemon.set_faults(None);
    daemon.start_again();
    // So the clock is not in doubt at the next start.
    let today = daemon.api.create("signed", "{}");
    daemon.stop();
    daemon.set_setting("journal.retention", "1d");
    daemon.set_setting("journal.retention_interval", "20ms");
    daemon.set_faults(Some("postgres::survey=return"));
    daemon.start_again();
    let tables_of = |day: &str| {
        let sql =
            format!("SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname LIKE '%_{day}'");
        database.query(&sql).trim().to_owned()
    };
    for day in [&past, &begun] {
        eventually("the day is dropped", || when(tables_of(day) == "0", tables_of(day)));
    }
    daemon.await_log(&["a day whose jobs are past their retention", "\"jobs\":20001"]);
    let running = format!("SELECT count(*) FROM jobs_{kept} WHERE ended IS NULL");
    assert_eq!(database.query(&running).trim(), "1", "a day with a running job stays");
    eventually("what has ended on it is deleted one by one", || {
        let count = database.query(&format!("SELECT count(*) FROM jobs_{kept}"));
        when(count.trim() == "1", count)
    });
    assert_eq!(tables_of(&kept), "3");
    daemon.api.post(&format!("/api/job/{today}/step/sign"), "{}").expect(200);
    daemon.api.await_state(today, "completed");
}
