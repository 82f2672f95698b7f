//! The broker of the tests, a plain AMQP client, and workers that know nothing but the worker
//! protocol.

mod broker;
mod client;
mod message;
mod node;
mod worker;

use crate::harness::eventually;
use lapin::types::FieldTable;
use std::{future::Future, sync::LazyLock};
use support::waits::within;
use tokio::runtime::Runtime;

pub(crate) use broker::{Broker, Vhost};
pub(crate) use client::Client;
pub(crate) use message::{StepMessage, arguments, json_properties, text_argument};
pub(crate) use node::{PrivateCluster, PrivateNode};
pub(crate) use worker::{Answer, Worker};

/// The name of the reply queue unless a test sets another.
pub(crate) const REPLY_QUEUE: &str = "workflow-manager";

pub(crate) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
});

#[track_caller]
fn block_on<T>(what: &str, future: impl Future<Output = T>) -> T {
    RUNTIME.block_on(within(what, future))
}

/// The suite's own tools, without a daemon: what fails here fails everywhere.
#[test]
fn a_worker_of_this_suite_replies_to_whoever_asks() {
    let vhost = Vhost::new();
    let client = vhost.client();
    client.declare("answers", FieldTable::default());
    let worker = Worker::echo(&vhost.url, &["questions"]);
    let asked = json_properties().with_reply_to("answers".into());
    client.publish("questions", r#"{"k":1}"#, asked.clone().with_correlation_id("one:step".into()));
    let answer = client.take("answers");
    assert_eq!((answer.text(), answer.step().as_str()), (r#"{"k":1}"#, "step"));
    client.ack(&answer);

    // A worker outlives its connection.
    vhost.close_connections();
    let client = vhost.client();
    eventually("the worker is back", || {
        client.count("questions").filter(|count| count.1 == 1).ok_or("no consumer")
    });
    client.publish("questions", r#"{"k":2}"#, asked.with_correlation_id("two:step".into()));
    assert_eq!(client.take("answers").text(), r#"{"k":2}"#);
    assert_eq!(worker.seen_count(), 2);
    assert_eq!(client.count("no such queue"), None);
    drop(client);
    vhost.await_drained("questions");
}
