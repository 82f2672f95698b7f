//! Dead letters: what the broker gives up is a failed attempt, with the policy set by the manager
//! or by the documented command.

use lapin::BasicProperties;
use lapin::types::AMQPValue;
use serde_json::Value;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use workflow_manager::actors::manager::{self, Manager};
use workflow_manager::bus::embedded::Workers;
use workflow_manager::engine::{
    Definition, Graph, Job, JobId, JobState, Message, Millis, Retry, Step,
};
use workflow_manager::settings::Settings;

use crate::amqp::{Answer, REPLY_QUEUE, Vhost, Worker, arguments, text_argument};
use crate::harness::{Daemon, Setup, eventually, when};

/// What the manager counts for a dead letter of nobody.
const STRANGERS: &str = r#"workflow_replies_rejected_total{reason="no_correlation_id"}"#;

const POISON: &str = "workflows: [ { name: poison, steps: [ { name: swallow } ] } ]";

/// A manager in this process, with one workflow whose step has three attempts.
async fn start(vhost: &Vhost, folder: &tempfile::TempDir, management: &str) -> Manager {
    let mut settings = Settings::defaults().unwrap();
    settings.journal.file = folder.path().join("journal.db");
    settings.amqp.server = vhost.url.as_str().into();
    settings.amqp.management = management.into();
    let retry = Retry { attempts: 3, backoff: Millis(50), ..Retry::default() };
    let step = Step { retry: Some(retry), ..Step::with_name("swallow") };
    let definition =
        Definition::new("poison", vec![Graph::new("poison".to_owned(), None, vec![step])]);
    manager::start(settings, vec![Arc::new(definition)], Workers::new()).await.unwrap()
}

async fn create(manager: &Manager) -> JobId {
    let answer = manager.handle().create("poison", None, Message::default()).await;
    answer.expect("created").id()
}

fn ended(manager: &Manager, id: JobId) -> Job {
    eventually(&format!("job {id} ends"), || {
        let job = manager.core().reader.load_job(id).unwrap().unwrap().job;
        if job.state() == JobState::Running { Err("it runs") } else { Ok(job) }
    })
}

fn await_policy(vhost: &Vhost, queue: &str, policy: &str) {
    eventually(&format!("the queue {queue} has the policy {policy}"), || {
        let found = vhost.policy_of(queue);
        when(found.as_deref() == Some(policy), format!("{found:?}"))
    });
}

/// The same, and the queue acts on it: it hears of a policy a moment after the broker lists it. A
/// message of nobody is refused until its dead letter has come to the manager.
fn await_dead_letters(vhost: &Vhost, daemon: &Daemon, queue: &str) {
    await_policy(vhost, queue, REPLY_QUEUE);
    let client = vhost.client();
    let strangers = || daemon.api.metric(STRANGERS);
    let before = strangers();
    eventually(&format!("dead letters of {queue} come"), || {
        client.publish(queue, "{}", BasicProperties::default());
        client.nack(&client.take(queue));
        when(strangers() > before, strangers().to_string())
    });
}

async fn a_poison_message_stops(vhost: Vhost, management: &str, policy: &str) {
    let folder = tempfile::tempdir().unwrap();
    let manager = start(&vhost, &folder, management).await;
    let worker = Worker::start(&vhost.url, &["swallow"], |_| Answer::Nack);
    if management.is_empty() {
        // As docs/how-to/dead-letters-and-lost-messages.md has it.
        let definition =
            format!(r#"{{"dead-letter-exchange":"","dead-letter-routing-key":"{REPLY_QUEUE}"}}"#);
        vhost.ctl("set_policy", &[policy, "^(swallow)$", &definition, "--apply-to", "queues"]);
    }
    await_policy(&vhost, "swallow", policy);
    let job = ended(&manager, create(&manager).await);
    assert_eq!(job.state(), JobState::Failed);
    let reason = job.reason().unwrap();
    assert!(
        reason.contains("dead-lettered")
            && reason.contains("swallow")
            && reason.contains("rejected"),
        "{reason}"
    );
    let attempts: Vec<_> = worker
        .seen()
        .iter()
        .map(|message| message.message_id().rsplit_once(':').unwrap().1.to_owned())
        .collect();
    assert_eq!(attempts, ["1", "2", "3"]);
    vhost.await_drained(REPLY_QUEUE);
    manager.stop().await;
}

#[test]
fn a_poison_message_stops_after_its_attempts_by_the_policy_of_the_manager() {
    let vhost = Vhost::new();
    let management = vhost.management_url("guest:guest");
    actix_rt::System::new().block_on(a_poison_message_stops(vhost, &management, REPLY_QUEUE));
}

#[test]
fn a_poison_message_stops_after_its_attempts_by_the_documented_command() {
    actix_rt::System::new().block_on(a_poison_message_stops(Vhost::new(), "", "workflow-steps"));
}

#[test]
fn a_policy_of_the_user_comes_first_and_the_log_says_so() {
    let vhost = Vhost::new();
    vhost.ctl(
        "set_policy",
        &["mine", "^swallow$", r#"{"max-length":1000}"#, "--apply-to", "queues"],
    );
    let daemon = Setup::new(&vhost.url, POISON)
        .set("amqp.management", &vhost.management_url("guest:guest"))
        .start();
    daemon.await_log(&["policies of a higher priority", "swallow"]);
    await_policy(&vhost, "swallow", "mine");
}

#[test]
fn where_no_other_policy_is_the_log_warns_of_none() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, POISON)
        .set("amqp.management", &vhost.management_url("guest:guest"))
        .start();
    daemon.await_log(&["no other policy keeps dead letters"]);
    let log = daemon.log();
    assert!(
        !log.contains("policies of a higher priority") && !log.contains("cannot be seen"),
        "{log}"
    );
    await_policy(&vhost, "swallow", REPLY_QUEUE);
}

#[test]
fn a_retried_job_whose_definition_was_replaced_has_its_dead_letters_too() {
    let vhost = Vhost::new();
    let workflow = |queue: &str| {
        format!("workflows: [ {{ name: poison, steps: [ {{ name: swallow, queue: {queue} }} ] }} ]")
    };
    let mut daemon = Setup::new(&vhost.url, &workflow("earlier"))
        .set("amqp.management", &vhost.management_url("guest:guest"))
        .start();
    let client = vhost.client();
    await_dead_letters(&vhost, &daemon, "earlier");
    let id = daemon.api.create("poison", "{}");
    client.nack(&client.take("earlier"));
    daemon.api.await_state(id, "failed");
    daemon.stop();
    vhost.ctl("clear_policy", &[REPLY_QUEUE]);
    daemon.write_workflows(&workflow("later"));
    daemon.start_again();
    await_policy(&vhost, "later", REPLY_QUEUE);
    daemon.api.post(&format!("/api/job/{id}/retry"), "").expect(200);
    let message = client.take("earlier");
    await_dead_letters(&vhost, &daemon, "earlier");
    client.nack(&message);
    assert!(daemon.api.await_state(id, "failed").text.contains("dead-lettered"));
}

/// A queue that the broker makes while the policy is being set may not hear of it.
#[test]
fn every_queue_that_the_manager_declares_sends_its_dead_letters() {
    const QUEUES: u64 = 200;
    let vhost = Vhost::new();
    let names: Vec<String> = (0..QUEUES).map(|n| format!("step-{n}")).collect();
    let steps: Vec<String> = names.iter().map(|name| format!("{{ name: {name} }}")).collect();
    let workflow = format!("workflows: [ {{ name: poison, steps: [ {} ] }} ]", steps.join(", "));
    let daemon = Setup::new(&vhost.url, &workflow)
        .set("amqp.management", &vhost.management_url("guest:guest"))
        .start();
    daemon.await_log(&["the dead-letter policy is set"]);
    let client = vhost.client();
    names.iter().for_each(|name| await_policy(&vhost, name, REPLY_QUEUE));
    let strangers = || daemon.api.metric(STRANGERS);
    // A queue hears of its policy a moment after it is listed with it.
    eventually("each queue sends the dead letter of a round", || {
        let before = strangers();
        for name in &names {
            client.publish(name, "{}", BasicProperties::default());
            client.nack(&client.take(name));
        }
        let (came, round) = (|| strangers() - before, Instant::now());
        while came() < QUEUES && round.elapsed() < Duration::from_secs(2) {
            thread::sleep(Duration::from_millis(10));
        }
        when(came() == QUEUES, came().to_string())
    });
}

#[test]
fn a_management_api_that_refuses_stops_nothing_and_its_password_is_never_shown() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, POISON)
        .set("amqp.management", &vhost.management_url("guest:wrong-password"))
        .start();
    daemon.await_log(&["the dead-letter policy cannot be set", "401"]);
    let _worker = Worker::echo(&vhost.url, &["swallow"]);
    let id = daemon.api.create("poison", r#"{"k":1}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"k":1}"#);
    assert!(!daemon.log().contains("wrong-password"));
}

#[test]
fn the_reason_of_a_dead_letter_is_told() {
    let vhost = Vhost::new();
    let client = vhost.client();
    let letters = [
        ("x-dead-letter-exchange", text_argument("")),
        ("x-dead-letter-routing-key", text_argument(REPLY_QUEUE)),
    ];
    let [exchange, key] = letters;
    client.declare("rejects", arguments([exchange.clone(), key.clone()]));
    client.declare(
        "expires",
        arguments([exchange.clone(), key.clone(), ("x-message-ttl", AMQPValue::LongInt(1))]),
    );
    let limited = [
        exchange,
        key,
        ("x-queue-type", text_argument("quorum")),
        ("x-delivery-limit", AMQPValue::LongInt(1)),
    ];
    client.declare("limits", arguments(limited));
    let workflows = "workflows: [ { name: rejects, steps: [ { name: rejects } ] }, \
                     { name: expires, steps: [ { name: expires } ] }, \
                     { name: limits, steps: [ { name: limits } ] } ]";
    let daemon = Setup::new(&vhost.url, workflows).start();
    let ids = ["rejects", "expires", "limits"].map(|name| daemon.api.create(name, "{}"));
    client.nack(&client.take("rejects"));
    client.requeue(&client.take("limits"));
    client.requeue(&client.take("limits"));
    for (id, reason) in ids.into_iter().zip(["rejected", "expired", "delivery_limit"]) {
        let job = daemon.api.await_state(id, "failed");
        let json: Value = serde_json::from_str(&job.text).unwrap();
        assert!(json["reason"].as_str().unwrap_or_default().ends_with(reason), "{}", job.text);
    }
}
