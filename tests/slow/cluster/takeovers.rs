//! Who takes over, and what goes wrong while it does.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use support::journal_rules::InDatabase;
use workflow_manager::journal::{JournalError, PostgresJournal, PostgresOptions, PostgresStandby};
use workflow_manager::trust::Authorities;

use super::load::Load;
use super::{LEASE, TAKEN_OVER, epoch, manager, query, takeovers};
use crate::harness::{Daemon, eventually, when};

const STANDBYS: usize = 50;

fn standby(url: &str) -> PostgresStandby {
    PostgresStandby::register(PostgresOptions {
        server: url.parse().unwrap(),
        authorities: Authorities::load_system(),
        name: "default".to_owned(),
        api_address: None,
        require_synchronous: false,
    })
    .unwrap()
}

/// All standbys look at once, again and again, until one of them has the name and has had it for a
/// round of looks. Returns those that took it, and those that still wait.
fn race(standbys: Vec<PostgresStandby>) -> (Vec<PostgresJournal>, Vec<PostgresStandby>) {
    let start = Barrier::new(standbys.len());
    let deadline = Instant::now() + LEASE * 3;
    let looks = standbys.into_iter().map(|mut standby| {
        let start = &start;
        move || {
            start.wait();
            loop {
                match standby.try_activate() {
                    Ok(journal) => return Ok(journal),
                    Err((JournalError::ActiveElsewhere { manager, .. }, waiting)) => {
                        standby = waiting;
                        if manager != DEAD {
                            return Err(standby);
                        }
                    }
                    // Many claims at once: one waited for too long, and looks again.
                    Err((_, waiting)) => standby = waiting,
                }
                assert!(Instant::now() < deadline, "nobody has taken the name");
                thread::sleep(Duration::from_millis(200));
            }
        }
    });
    let results: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = looks.map(|look| scope.spawn(look)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (mut active, mut waiting) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(journal) => active.push(journal),
            Err(standby) => waiting.push(standby),
        }
    }
    (active, waiting)
}

/// The id of a manager that never beats.
const DEAD: &str = "00000000-0000-0000-0000-00000000dead";

#[test]
fn of_fifty_standbys_that_take_over_at_once_one_does() {
    let database = InDatabase::create();
    let standbys: Vec<_> = (0..STANDBYS).map(|_| standby(&database.url())).collect();
    // A name that is free.
    let (active, standbys) = race(standbys);
    assert_eq!(active.len(), 1);
    assert_eq!(epoch(&database.url()), 1);
    // It says goodbye.
    drop(active);
    let (active, standbys) = race(standbys);
    assert_eq!((active.len(), epoch(&database.url())), (1, 2));
    drop(active);
    // The name of one that has died.
    database.query(&format!(
        "INSERT INTO managers(id, name, version, beat, state)
         VALUES ('{DEAD}', 'default', '', 7, 'active');
         INSERT INTO fences(manager, dead) VALUES ('{DEAD}', false);
         UPDATE names SET owner = '{DEAD}', epoch = 3"
    ));
    let (active, standbys) = race(standbys);
    assert_eq!((active.len(), epoch(&database.url())), (1, 4));
    assert_eq!(standbys.len(), STANDBYS - 3);
    assert_eq!(query(&database.url(), "SELECT manager FROM fences WHERE dead"), DEAD);
}

#[cfg(feature = "failpoints")]
#[test]
fn a_taker_that_dies_at_any_statement_is_replaced_in_its_turn() {
    let points = [
        "claim::begun",
        "claim::declared",
        "claim::fenced",
        "claim::named",
        "claim::complete",
        "claim::committed",
    ];
    thread::scope(|scope| {
        for point in points {
            scope.spawn(move || die_while_taking(point));
        }
    });
}

fn die_while_taking(point: &str) {
    let database = InDatabase::create();
    let mut first = manager(&database.url()).start();
    let faults = format!("{point}=return(abort)");
    let mut second = manager(&database.url()).faults(&faults).spawn();
    second.await_standby();
    let load = Load::start(&[&first, &second]);
    load.await_more(6);
    first.kill();
    let ended = second.await_end();
    assert!(!ended.success() && ended.code().is_none(), "{point}: it dies: {ended}");
    second.set_faults(None);
    // Only what was committed counts: then its lease is waited for too.
    let is_taken = epoch(&database.url()) == 2;
    assert_eq!(is_taken, point == "claim::committed", "{point}");
    second.start_again();
    load.await_more(1);
    load.settle(&database.url(), &second);
}

#[cfg(feature = "failpoints")]
#[test]
fn a_namesake_that_starts_while_the_old_one_drains_stands_by_until_the_goodbye() {
    let database = InDatabase::create();
    let mut first = manager(&database.url()).faults("manager::stop=delay(4000)").start();
    let load = Load::start(&[&first]);
    load.await_more(20);
    first.ask_to_stop();
    let mut second = manager(&database.url()).spawn();
    second.await_standby();
    assert!(first.ended().is_none(), "it still drains");
    assert_eq!(epoch(&database.url()), 1);
    assert_eq!(first.await_end().code(), Some(0));
    second.await_ready();
    assert_eq!((takeovers(&second), epoch(&database.url())), (0, 2));
    drop(load);
    let load = Load::start(&[&second]);
    load.await_more(20);
    assert_eq!(query(&database.url(), "SELECT count(*) FROM fences WHERE dead"), "0");
}

/// A manager lives, and a part of it hangs.
#[cfg(feature = "failpoints")]
#[track_caller]
fn replaced_while_it_hangs(faults: &str) {
    let database = InDatabase::create();
    let mut first = manager(&database.url()).faults(faults).start();
    let mut second = manager(&database.url()).spawn();
    second.await_standby();
    let load = Load::start(&[&first, &second]);
    second.await_ready();
    assert_eq!(takeovers(&second), 1);
    load.await_more(20);
    eventually("the manager that hangs ends by itself", || {
        when(first.ended().is_some(), "it still runs")
    });
    assert_eq!(first.await_end().code(), Some(TAKEN_OVER));
    load.settle(&database.url(), &second);
}

#[cfg(feature = "failpoints")]
#[test]
fn a_manager_whose_journal_hangs_is_replaced_while_it_lives() {
    replaced_while_it_hangs("journal::committed=400*off->1*delay(45000)");
}

#[test]
fn an_old_program_does_not_take_a_name_from_a_newer_one() {
    let database = InDatabase::create();
    let first = manager(&database.url()).start();
    let mut old: Vec<Daemon> = (0..2).map(|_| manager(&database.url()).spawn()).collect();
    for standby in &old {
        standby.await_standby();
    }
    // What a newer program does at its start.
    database.query("UPDATE cluster SET format = format + 1");
    let job = first.api.create("chain", "{\"n\":1}");
    assert_eq!(first.api.job(job).state, "running", "who is active goes on beside it");
    drop(first);
    for standby in &mut old {
        assert_eq!(standby.await_end().code(), Some(1));
        standby.await_log(&["newer version"]);
    }
    assert_eq!(epoch(&database.url()), 1, "nobody has taken the name");
}
