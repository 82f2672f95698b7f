//! Managers of one name over RabbitMQ: the replies of all of them are in one queue.

use support::journal_rules::InDatabase;

use super::load::Load;
use super::{TAKEN_OVER, epoch, manager_over, signal, takeovers};
use crate::amqp::Vhost;
use crate::harness::{Daemon, eventually, when};

/// An active manager and a standby, under load.
fn start_both(database: &InDatabase, vhost: &Vhost) -> (Daemon, Daemon, Load) {
    let first = manager_over(&vhost.url, &database.url()).start();
    let second = manager_over(&vhost.url, &database.url()).spawn();
    second.await_standby();
    let load = Load::start_over_amqp(&[&first, &second], vhost);
    load.await_more(60);
    (first, second, load)
}

#[test]
fn a_killed_manager_over_rabbitmq_leaves_its_replies_to_the_next_one() {
    let (database, vhost) = (InDatabase::create(), Vhost::new());
    let (mut first, mut second, load) = start_both(&database, &vhost);
    first.kill();
    second.await_ready();
    assert_eq!(takeovers(&second), 1);
    load.await_more(60);
    first.spawn_again();
    first.await_standby();
    assert_eq!(second.stop().code(), Some(0));
    first.await_ready();
    load.await_more(60);
    assert_eq!((takeovers(&first), epoch(&database.url())), (0, 3));
    load.settle_over_amqp(&database.url(), &vhost);
}

#[test]
fn a_manager_stopped_over_rabbitmq_acknowledges_none_of_the_replies_that_it_has() {
    let (database, vhost) = (InDatabase::create(), Vhost::new());
    let (mut first, mut second, load) = start_both(&database, &vhost);
    signal("STOP", &first);
    // The broker still gives replies to the stopped one, which is connected. The next one waits.
    eventually("the next one waits for the reply queue", || {
        let answer = second.api.try_send("GET", "/readyz", &[], None);
        let text = answer.map_or_else(|error| error.to_string(), |answer| answer.text);
        when(text.contains("another process consumes the reply queue"), text)
    });
    assert_eq!((takeovers(&second), epoch(&database.url())), (1, 2));
    signal("CONT", &first);
    assert_eq!(first.await_end().code(), Some(TAKEN_OVER));
    second.await_ready();
    load.await_more(60);
    load.settle_over_amqp(&database.url(), &vhost);
}
