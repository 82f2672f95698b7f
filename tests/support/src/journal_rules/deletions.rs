//! What is deleted while the connection to the server breaks, and while other names are at work.

use super::{InDatabase, Live, chain, next_number, three_levels};
use crate::tcp_proxy::{Action, COMMIT_ANSWER, Direction, TcpProxy};
use workflow_manager::engine::{Millis, Timestamp};
use workflow_manager::journal::Remedy;

/// No job was ended later.
const LATEST: Timestamp = Timestamp(i64::MAX);

pub fn a_deletion_whose_answer_is_lost_is_reported_by_the_next(database: &InDatabase) {
    let url = database.url();
    let (before, rest) = url.split_once('@').expect("a user");
    let (server, name) = rest.split_once('/').expect("a database");
    let proxy = TcpProxy::start(server.parse().expect("an address"));
    let through = format!("{before}@127.0.0.1:{}/{name}", proxy.port());
    let mut journal = InDatabase::open_at(&through, "default").expect("opens");
    journal.create_status_tables(&[&chain()]).expect("tables of statuses");
    let number = next_number(&mut *journal);
    let (mut ended, created) = Live::create(number, 1, &chain());
    journal.append(&[&created]).expect("commits");
    journal.append(&[&ended.reply("a", "{}"), &ended.reply("b", "{}")]).expect("commits");
    // Each attempt is committed, and its answer is lost.
    let trap = proxy.trap(Direction::ToClient, COMMIT_ANSWER, Action::Reset, 2);
    let error = journal.delete_expired(LATEST, Millis(0), 9).expect_err("it is unknown");
    assert_eq!((error.remedy(), trap.caught()), (Remedy::WaitForServer, 2));
    drop(trap);
    assert_eq!(database.query("SELECT count(*) FROM jobs").trim(), "0");
    let reported = journal.delete_expired(LATEST, Millis(0), 9).expect("deletes");
    assert_eq!((reported.roots, reported.maybe_active.len()), (1, 1), "its actor is stopped");
    let nothing = journal.delete_expired(LATEST, Millis(0), 9).expect("deletes");
    assert_eq!((nothing.roots, nothing.maybe_active.len()), (0, 0), "once");
}

pub fn a_definition_that_appears_below_others_has_its_retention(database: &InDatabase) {
    let mut journal = database.open_as("default").expect("opens");
    journal.create_status_tables(&[&chain(), &three_levels()]).expect("tables of statuses");
    let number = next_number(&mut *journal);
    let (mut ended, created) = Live::create(number, 1, &chain());
    let family = Live::family(number + 1, &three_levels());
    journal.append(&[&created]).expect("commits");
    journal.append(&[&family[0].1]).expect("commits");
    // Another name's transaction has the lower number, and ends later.
    database.query(
        "CREATE SCHEMA later; CREATE TABLE later.one AS SELECT * FROM definitions WHERE number = 1;
         DELETE FROM definitions WHERE number = 1",
    );
    assert_eq!(journal.delete_expired(LATEST, Millis(0), 9).expect("deletes").roots, 0);
    database.query("INSERT INTO definitions OVERRIDING SYSTEM VALUE SELECT * FROM later.one");
    journal.append(&[&ended.reply("a", "{}"), &ended.reply("b", "{}")]).expect("commits");
    assert_eq!(journal.delete_expired(LATEST, Millis(0), 9).expect("deletes").roots, 1);
}
