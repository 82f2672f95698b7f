//! Steps that take replies of certain users alone (key `replyUsers`).

use lapin::types::{AMQPValue, FieldArray, FieldTable};

use crate::amqp::{Broker, Client, REPLY_QUEUE, Vhost, arguments, json_properties, text_argument};
use crate::harness::{Daemon, Setup, eventually, when};

const FOREIGN: &str = r#"workflow_replies_rejected_total{reason="foreign_user"}"#;

/// A user of the broker, gone when this is dropped.
struct User {
    name: String,
    url: String,
}

impl User {
    fn new(vhost: &Vhost) -> User {
        let broker = Broker::shared();
        let name = format!("user-{}", uuid::Uuid::new_v4().simple());
        broker.ctl(&["add_user", &name, "secret"]);
        vhost.ctl("set_permissions", &[&name, ".*", ".*", ".*"]);
        let own = format!("//{}:guest@", broker.user());
        let url = vhost.url.replacen(&own, &format!("//{name}:secret@"), 1);
        assert_ne!(url, vhost.url, "the broker of the tests has the password guest");
        User { name, url }
    }
}

impl Drop for User {
    fn drop(&mut self) {
        Broker::shared().ctl(&["delete_user", &self.name]);
    }
}

fn await_foreign(daemon: &Daemon, count: u64) {
    eventually("replies of others are counted", || {
        let counted = daemon.api.metric(FOREIGN);
        when(counted == count, counted.to_string())
    });
}

/// The header with which brokers say that they have put a message aside.
fn deaths(queue: &str) -> FieldTable {
    let death = arguments([("queue", text_argument(queue)), ("reason", text_argument("rejected"))]);
    arguments([(
        "x-death",
        AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::FieldTable(death)])),
    )])
}

#[test]
fn over_rabbitmq_the_broker_vouches_for_who_replies() {
    let vhost = Vhost::new();
    let (pricing, other) = (User::new(&vhost), User::new(&vhost));
    let workflow = format!(
        "workflows: [ {{ name: w, steps: [ {{ name: price, replyUsers: [ somebody, {} ] }} ] }} ]",
        pricing.name
    );
    let daemon = Setup::new(&vhost.url, &workflow).start();
    let id = daemon.api.create("w", "{}");
    let worker = Client::connect(&pricing.url);
    let message = worker.take("price");
    let named = |user: &User| json_properties().with_user_id(user.name.as_str().into());

    // A reply of another user, one of nobody in particular, and a dead letter that is none.
    let forger = Client::connect(&other.url);
    forger.say(&message, r#"{"price":0}"#, named(&other));
    forger.say(&message, r#"{"price":0}"#, json_properties());
    forger.say(&message, r#"{"error":"no"}"#, named(&other).with_type("error".into()));
    let dead = json_properties().with_headers(deaths("price"));
    forger.say(&message, "{}", dead.clone());
    forger.say(&message, "{}", dead.with_user_id(other.name.as_str().into()));
    await_foreign(&daemon, 5);
    daemon.await_log(&["foreign_user", &other.name, "price"]);
    assert_eq!(daemon.api.job(id).state, "running");

    worker.say(&message, r#"{"price":7}"#, named(&pricing));
    worker.ack(&message);
    assert_eq!(daemon.api.await_result(id), r#"{"price":7}"#);
}

#[test]
fn a_message_that_the_broker_puts_aside_fails_its_attempt_all_the_same() {
    let vhost = Vhost::new();
    let client = vhost.client();
    let letters = [
        ("x-dead-letter-exchange", text_argument("")),
        ("x-dead-letter-routing-key", text_argument(REPLY_QUEUE)),
    ];
    client.declare("price", arguments(letters));
    let workflow = "workflows: [ { name: w, steps: [ { name: price, replyUsers: [ nobody ] } ] } ]";
    let daemon = Setup::new(&vhost.url, workflow).start();
    let id = daemon.api.create("w", "{}");
    let message = client.take("price");
    let user = message.properties.user_id().as_ref().expect("the manager names itself");
    assert_eq!(user.as_str(), Broker::shared().user());
    client.nack(&message);
    assert!(daemon.api.await_state(id, "failed").text.contains("dead-lettered"));
    assert_eq!(daemon.api.metric(FOREIGN), 0);
}

#[test]
fn over_http_the_token_tells_who_replies() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.yaml");
    let tokens = "tokens: { pricing: { token: the-token-of-pricing, queues: [ price ] }, \
                  other: { token: the-token-of-another, queues: [ price ] } }";
    std::fs::write(&file, tokens).unwrap();
    let workflow =
        "workflows: [ { name: w, steps: [ { name: price, replyUsers: [ pricing ] } ] } ]";
    let daemon = Setup::new("", workflow)
        .set("http.token", "the-token-of-all-jobs")
        .set("http.tokens_file", file.to_str().unwrap())
        .start();
    let api = daemon.api.with_token(Some("the-token-of-all-jobs"));
    let id = api.create("w", "{}");
    let [pricing, other] =
        ["the-token-of-pricing", "the-token-of-another"].map(|token| api.with_token(Some(token)));
    let message = other.post("/api/queue/price/receive", "").expect(200);
    let reply = message.header("reply-to").to_owned();
    let refused = other.post(&reply, r#"{"price":0}"#).expect(200).json();
    assert_eq!((&refused["taken"], &refused["reason"]), (&false.into(), &"foreign_user".into()));
    let nack = reply.replace("/reply", "/nack");
    assert_eq!(other.post(&nack, "").expect(200).json()["reason"], "foreign_user");
    // Whoever has all rights is not among these users either.
    assert_eq!(api.post(&reply, "{}").expect(200).json()["reason"], "foreign_user");
    assert_eq!(api.job(id).state, "running");

    let taken = pricing.post(&reply, r#"{"price":7}"#).expect(200).json();
    assert_eq!(taken["taken"], true, "{taken}");
    assert_eq!(api.await_result(id), r#"{"price":7}"#);
}
