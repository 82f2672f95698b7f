//! The bus over AMQP against a real broker, below the daemon: what it reports, what it sends, what
//! it acknowledges.
//!
//! A relay between bus and broker plays the network that breaks.

mod late;
mod rig;

use futures_util::StreamExt;
use lapin::BasicProperties;
use lapin::options::{BasicConsumeOptions, BasicGetOptions, QueuePurgeOptions};
use lapin::types::{AMQPValue, FieldTable};
use std::rc::Rc;
use std::sync::Arc;
use support::waits::{until, until_async};
use workflow_manager::amqp::AmqpSettings;
use workflow_manager::bus::{Bus, BusNotice, BusState, Delivery, ServedQueues};
use workflow_manager::engine::JobId;
use workflow_manager::settings::ReplyQueueType;

use late::LateConfirm;
use rig::{
    Client, Observed, Relay, Seen, arguments, on_an_arbiter, server, settings, text, unique,
};

// ---- publishing

#[test]
fn queues_are_declared_and_every_message_is_confirmed_once() {
    on_an_arbiter(async {
        let queues: Vec<String> = (0..3).map(|_| unique("publish")).collect();
        let mut observed = Observed::connect(settings(&server(), "publish"));
        let mut jobs = Vec::new();
        for _ in 0..700 {
            queues.iter().for_each(|queue| jobs.extend(observed.publish(queue, 1)));
        }
        observed.until_confirmed(&jobs).await;
        let (mut missing, mut expected) = (observed.seen().missing.clone(), queues.clone());
        missing.sort();
        expected.sort();
        assert_eq!(missing, expected);
        let client = Client::connect().await;
        for queue in &queues {
            assert_eq!(client.ready(queue).await, Some(700));
            client.delete(queue).await;
        }
        observed.bus.close().await;
    });
}

#[test]
fn a_step_message_has_the_properties_of_the_protocol() {
    on_an_arbiter(async {
        let queue = unique("properties");
        let settings = settings(&server(), "properties");
        let reply_queue = settings.reply_queue.clone();
        let mut observed = Observed::connect(settings);
        let job = observed.publish(&queue, 1)[0];
        observed.until_confirmed(&[job]).await;
        let client = Client::connect().await;
        let got = client
            .channel
            .basic_get(queue.as_str().into(), BasicGetOptions { no_ack: true })
            .await
            .expect("an answer")
            .expect("a message");
        let properties = &got.delivery.properties;
        let shown = |value: &Option<lapin::types::ShortString>| {
            value.as_ref().map(ToString::to_string).unwrap_or_default()
        };
        assert_eq!(got.delivery.data, br#"{"filename":"alice.txt"}"#);
        assert_eq!(shown(properties.content_type()), "application/json");
        assert_eq!(shown(properties.correlation_id()), format!("{job}:split"));
        assert_eq!(shown(properties.message_id()), format!("{job}:split:2"));
        assert_eq!(shown(properties.reply_to()), reply_queue);
        assert_eq!(shown(properties.app_id()), "workflow-manager");
        assert_eq!(
            (*properties.delivery_mode(), *properties.priority(), *properties.timestamp()),
            (Some(2), Some(4), Some(1_700_000_000))
        );
        let headers = properties.headers().clone().unwrap_or_default();
        let expected = arguments(&[
            ("workflow", text("book-word-counts")),
            ("job", text(&job.to_string())),
            ("attempt", AMQPValue::LongLongInt(2)),
            ("traceparent", text("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")),
        ]);
        assert_eq!(headers, expected);
        client.delete(&queue).await;
        observed.bus.close().await;
    });
}

#[test]
fn a_missing_queue_waits_for_the_manager_and_blocks_no_other() {
    on_an_arbiter(async {
        let (missing, there) = (unique("waits"), unique("goes-on"));
        let client = Client::connect().await;
        client.declare(&there, arguments(&[("x-max-priority", AMQPValue::LongInt(9))])).await;
        let mut observed = Observed::start(settings(&server(), "waits"), true);
        let waiting = observed.publish(&missing, 1);
        observed.until("the missing queue is reported", |seen| seen.held.len() == 1).await;
        let going = observed.publish(&there, 10);
        observed.until("the others are confirmed", |seen| seen.confirmed.len() == 10).await;
        assert_eq!(
            client.ready(&missing).await,
            None,
            "declared before the manager has taken note"
        );
        observed.seen().held.drain(..).for_each(|taken| taken.send(()).expect("waited for"));
        observed.until_confirmed(&[waiting, going].concat()).await;
        assert_eq!(observed.seen().missing, std::slice::from_ref(&missing));
        client.delete(&missing).await;
        client.delete(&there).await;
        observed.bus.close().await;
    });
}

#[test]
fn a_queue_deleted_under_way_is_reported_declared_and_filled_again() {
    on_an_arbiter(async {
        let queue = unique("deleted");
        let mut observed = Observed::connect(settings(&server(), "deleted"));
        let mut jobs = observed.publish(&queue, 100);
        observed.until_confirmed(&jobs).await;
        let client = Client::connect().await;
        client.delete(&queue).await;
        jobs.extend(observed.publish(&queue, 2000));
        observed.until_confirmed(&jobs).await;
        assert_eq!(observed.seen().missing, [queue.clone(), queue.clone()]);
        assert!(observed.seen().count(BusNotice::Returned) > 0);
        // A confirm that comes beside returned messages may be worth nothing: such a message goes
        // out once more.
        let ready = client.ready(&queue).await;
        assert!(ready >= Some(2000), "{ready:?} of 2000 are there");
        client.delete(&queue).await;
        observed.bus.close().await;
    });
}

#[test]
fn a_queue_replaced_behind_the_managers_back_is_reported_as_well() {
    on_an_arbiter(async {
        let queue = unique("replaced");
        let client = Rc::new(Client::connect().await);
        client.declare(&queue, FieldTable::default()).await;
        let mut observed = Observed::connect(settings(&server(), "replaced"));
        let mut jobs = Vec::new();
        // Whether a message falls into the gap is a matter of luck; if one does, the manager must
        // hear of it.
        for _ in 0..200 {
            jobs.extend(observed.publish(&queue, 50));
            client.delete(&queue).await;
            client.declare(&queue, FieldTable::default()).await;
            if observed.seen().count(BusNotice::Returned) > 0 {
                break;
            }
        }
        observed.until_confirmed(&jobs).await;
        {
            let seen = observed.seen();
            let (returned, missing) = (seen.count(BusNotice::Returned), seen.missing.len());
            assert_eq!(returned > 0, missing > 0, "{returned} returned, {missing} times reported");
        }
        client.delete(&queue).await;
        observed.bus.close().await;
    });
}

/// The confirm is the old queue's, so the message goes out again: at once, whatever else happens.
#[test]
fn a_confirm_that_comes_after_its_queue_was_replaced_is_worth_nothing() {
    on_an_arbiter(async {
        let queue = unique("late");
        let client = Client::connect().await;
        client.declare(&queue, FieldTable::default()).await;
        let late = LateConfirm::open().await;
        let mut observed = Observed::connect(settings(&late.server(), "late"));
        let first = observed.publish(&queue, 1);
        until("the confirm is on its way", || late.is_held()).await;
        client.delete(&queue).await;
        let second = observed.publish(&queue, 1);
        observed.until("the second is confirmed", |seen| seen.confirmed == second).await;
        assert_eq!(client.ready(&queue).await, Some(1));
        late.release();
        observed.until_confirmed(&[first, second].concat()).await;
        assert_eq!(client.ready(&queue).await, Some(2));
        assert_eq!(observed.seen().missing, std::slice::from_ref(&queue));
        client.delete(&queue).await;
        observed.bus.close().await;
    });
}

#[test]
fn what_a_full_queue_refuses_is_sent_again() {
    on_an_arbiter(async {
        let queue = unique("full");
        let client = Client::connect().await;
        client
            .declare(
                &queue,
                arguments(&[
                    ("x-max-length", AMQPValue::LongInt(5)),
                    ("x-overflow", text("reject-publish")),
                ]),
            )
            .await;
        let mut observed = Observed::connect(settings(&server(), "full"));
        let jobs = observed.publish(&queue, 20);
        observed.until("some are refused", |seen| seen.count(BusNotice::Nacked) > 0).await;
        until_async("all are confirmed while the queue is emptied", async || {
            client
                .channel
                .queue_purge(queue.as_str().into(), QueuePurgeOptions::default())
                .await
                .expect("purged");
            observed.bus.unconfirmed() == 0
        })
        .await;
        observed.until_confirmed(&jobs).await;
        client.delete(&queue).await;
        observed.bus.close().await;
    });
}

#[test]
fn many_queues_are_looked_at_quickly() {
    on_an_arbiter(async {
        let prefix = unique("many");
        let queues: Vec<Arc<str>> = (0..100).map(|i| format!("{prefix}-{i}").into()).collect();
        let mut observed = Observed::connect(AmqpSettings {
            served: ServedQueues { worker_queues: queues.clone(), ..ServedQueues::default() },
            ..settings(&server(), "many")
        });
        observed.until("all are reported", |seen| seen.missing.len() == queues.len()).await;
        let jobs: Vec<JobId> = queues.iter().flat_map(|queue| observed.publish(queue, 1)).collect();
        observed.until_confirmed(&jobs).await;
        let client = Client::connect().await;
        for queue in &queues {
            client.delete(queue).await;
        }
        observed.bus.close().await;
    });
}

// ---- connections

#[test]
fn nothing_is_lost_over_cut_connections() {
    on_an_arbiter(async {
        let queue = unique("cut");
        let relay = Relay::open().await;
        let mut observed = Observed::connect(settings(&relay.server(), "cut"));
        observed.until("connected", Seen::is_connected).await;
        let mut jobs = Vec::new();
        for round in 1..=5 {
            jobs.extend(observed.publish(&queue, 2000));
            observed
                .until("some more are confirmed", |seen| {
                    seen.confirmed.len() > (round - 1) * 2000 + 100
                })
                .await;
            relay.cut();
            observed
                .until("connected again", |seen| {
                    seen.states.iter().filter(|state| **state == BusState::CONNECTED).count()
                        > round
                })
                .await;
        }
        observed.until_confirmed(&jobs).await;
        assert!(observed.seen().count(BusNotice::Resent) > 0);
        let client = Client::connect().await;
        assert!(
            client.ready(&queue).await >= Some(10_000),
            "a message may come twice, but not go missing"
        );
        client.delete(&queue).await;
        observed.bus.close().await;
    });
}

#[test]
fn a_broker_that_comes_late_is_found() {
    on_an_arbiter(async {
        let queue = unique("late");
        let mut relay = Relay::open().await;
        relay.close().await;
        let mut observed = Observed::connect(settings(&relay.server(), "late"));
        let jobs = observed.publish(&queue, 10);
        let says_why = |seen: &Seen| {
            seen.states
                .iter()
                .any(|state| state.to_string().contains("no broker listens at 127.0.0.1"))
        };
        observed.until("it says why it is not connected", says_why).await;
        relay.open_again().await;
        observed.until("connected", Seen::is_connected).await;
        observed.until_confirmed(&jobs).await;
        Client::connect().await.delete(&queue).await;
        observed.bus.close().await;
    });
}

#[test]
fn wrong_credentials_and_virtual_hosts_are_named() {
    on_an_arbiter(async {
        let server = server();
        let (_, rest) = server.rsplit_once('@').expect("AMQP_SERVER has credentials");
        let with = |changed: AmqpSettings| Observed::connect(changed);
        let wrong_user = with(settings(&format!("amqp://nobody:wrong-password@{rest}"), "user"));
        let wrong_vhost = with(AmqpSettings {
            vhost: Some("no-such-vhost".to_owned()),
            ..settings(&server, "vhost")
        });
        let says = |observed: Rc<Observed>, words: &'static str| async move {
            observed
                .until(words, |seen| {
                    seen.states.iter().any(|state| state.to_string().contains(words))
                })
                .await;
            assert!(
                observed
                    .seen()
                    .states
                    .iter()
                    .all(|state| !state.to_string().contains("wrong-password"))
            );
        };
        says(
            Rc::new(wrong_user),
            "the broker refused the user name or password for user \"nobody\"",
        )
        .await;
        says(Rc::new(wrong_vhost), "the broker has no virtual host \"no-such-vhost\"").await;
    });
}

#[test]
fn a_bus_without_a_broker_closes_at_once() {
    on_an_arbiter(async {
        let mut relay = Relay::open().await;
        relay.close().await;
        let mut observed = Observed::connect(settings(&relay.server(), "closed"));
        observed.publish("bus-never-declared", 1);
        observed.bus.close().await;
        assert_eq!(observed.bus.unconfirmed(), 1);
    });
}

// ---- consuming

fn second_process_is_refused(kind: ReplyQueueType) {
    on_an_arbiter(async move {
        let settings = AmqpSettings { reply_queue_type: kind, ..settings(&server(), "second") };
        let mut first = Observed::connect(settings.clone());
        first.until("the first consumes", Seen::is_connected).await;
        let second = Observed::connect(settings.clone());
        second.until("the second is refused", |seen| seen.refused.is_some()).await;
        let reason = second.seen().refused.clone().unwrap_or_default();
        assert!(
            reason.contains("another process consumes the reply queue")
                && reason.contains(&settings.reply_queue),
            "{reason}"
        );
        assert!(!second.seen().is_connected());
        let client = Client::connect().await;
        client.reply(&settings.reply_queue, "{}", BasicProperties::default()).await;
        first.until("the first still gets replies", |seen| seen.deliveries.len() == 1).await;
        first.bus.close().await;
        client.delete(&settings.reply_queue).await;
    });
}

#[test]
fn a_second_process_on_a_classic_reply_queue_is_refused() {
    second_process_is_refused(ReplyQueueType::Classic);
}

#[test]
fn a_second_process_on_a_quorum_reply_queue_is_refused() {
    second_process_is_refused(ReplyQueueType::Quorum);
}

#[test]
fn a_successor_waits_for_its_predecessor_to_go() {
    on_an_arbiter(async {
        let settings = settings(&server(), "successor");
        let mut first = Observed::connect(settings.clone());
        first.until("the first consumes", Seen::is_connected).await;
        let mut second = Observed::connect(settings.clone());
        let waits = |seen: &Seen| seen.states.is_empty() || !seen.is_connected();
        assert!(waits(&second.seen()));
        first.bus.close().await;
        second.until("the second consumes", Seen::is_connected).await;
        assert_eq!(second.seen().refused, None);
        second.bus.close().await;
        Client::connect().await.delete(&settings.reply_queue).await;
    });
}

#[test]
fn a_delivery_tells_what_came() {
    on_an_arbiter(async {
        let settings = settings(&server(), "delivery");
        let mut observed = Observed::connect(settings.clone());
        observed.until("connected", Seen::is_connected).await;
        let client = Client::connect().await;
        let properties = BasicProperties::default()
            .with_correlation_id("some:step".into())
            .with_type("progress".into());
        let properties = properties.with_headers(arguments(&[("attempt", text("3"))]));
        client.reply(&settings.reply_queue, r#"{"progress":0.5}"#, properties).await;
        client.reply(&settings.reply_queue, "", BasicProperties::default()).await;
        // A step's queue with a dead-letter policy, as an argument.
        let queue = unique("dead");
        let dead_letters = arguments(&[
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text(&settings.reply_queue)),
            ("x-message-ttl", AMQPValue::LongInt(1)),
        ]);
        client.declare(&queue, dead_letters).await;
        let job = observed.publish(&queue, 1)[0];
        observed.until("all three came", |seen| seen.deliveries.len() == 3).await;
        let deliveries = std::mem::take(&mut observed.seen().deliveries);
        let find = |id: Option<&str>| {
            deliveries
                .iter()
                .find(|delivery| delivery.correlation_id.as_deref() == id)
                .expect("delivered")
        };
        let (progress, empty, dead) =
            (find(Some("some:step")), find(None), find(Some(&format!("{job}:split"))));
        assert_eq!(
            (progress.kind.as_deref(), &*progress.body, progress.redelivered),
            (Some("progress"), &br#"{"progress":0.5}"#[..], false)
        );
        assert_eq!((empty.kind.as_deref(), empty.body.len(), &empty.dead_letter), (None, 0, &None));
        assert_eq!(
            (progress.attempt, empty.attempt, dead.attempt),
            (Some(3), None, Some(2)),
            "a dead letter tells its attempt by itself"
        );
        let death = dead.dead_letter.as_ref().expect("a dead letter");
        assert_eq!((death.queue.as_str(), death.reason.as_str()), (queue.as_str(), "expired"));
        deliveries.into_iter().for_each(Delivery::ack);
        observed.bus.close().await;
        assert_eq!(client.ready(&settings.reply_queue).await, Some(0));
        client.delete(&queue).await;
        client.delete(&settings.reply_queue).await;
    });
}

#[test]
fn acknowledged_deliveries_are_gone_and_dropped_ones_come_back() {
    on_an_arbiter(async {
        let settings = settings(&server(), "acks");
        let client = Client::connect().await;
        let mut observed = Observed::connect(settings.clone());
        observed.until("connected", Seen::is_connected).await;
        for i in 0..60 {
            client.reply(&settings.reply_queue, &i.to_string(), BasicProperties::default()).await;
        }
        observed.until("all came", |seen| seen.deliveries.len() == 60).await;
        let deliveries = std::mem::take(&mut observed.seen().deliveries);
        // In any order, every tenth without a verdict of its own.
        for (i, delivery) in deliveries.into_iter().enumerate().rev() {
            if i % 10 == 3 { drop(delivery) } else { delivery.ack() }
        }
        observed.until("the dropped ones came back", |seen| seen.deliveries.len() == 6).await;
        let again = std::mem::take(&mut observed.seen().deliveries);
        assert!(again.iter().all(|delivery| delivery.redelivered && delivery.body.ends_with(b"3")));
        again.into_iter().for_each(Delivery::ack);
        observed.bus.close().await;
        assert_eq!(
            client.ready(&settings.reply_queue).await,
            Some(0),
            "the closing flushes the acks"
        );
        client.delete(&settings.reply_queue).await;
    });
}

#[test]
fn verdicts_from_before_a_cut_are_void() {
    on_an_arbiter(async {
        let relay = Relay::open().await;
        let settings = settings(&relay.server(), "void");
        let client = Client::connect().await;
        let mut observed = Observed::connect(settings.clone());
        observed.until("connected", Seen::is_connected).await;
        for i in 0..20 {
            client.reply(&settings.reply_queue, &i.to_string(), BasicProperties::default()).await;
        }
        observed.until("all came", |seen| seen.deliveries.len() == 20).await;
        let before = std::mem::take(&mut observed.seen().deliveries);
        relay.cut();
        observed.until("all came again", |seen| seen.deliveries.len() == 20).await;
        before.into_iter().for_each(Delivery::ack);
        let after = std::mem::take(&mut observed.seen().deliveries);
        assert!(after.iter().all(|delivery| delivery.redelivered));
        after.into_iter().for_each(Delivery::ack);
        client.reply(&settings.reply_queue, "last", BasicProperties::default()).await;
        observed.until("it still consumes", |seen| seen.deliveries.len() == 1).await;
        std::mem::take(&mut observed.seen().deliveries).into_iter().for_each(Delivery::ack);
        observed.bus.close().await;
        assert_eq!(client.ready(&settings.reply_queue).await, Some(0));
        client.delete(&settings.reply_queue).await;
    });
}

#[test]
fn a_deleted_reply_queue_is_declared_again() {
    on_an_arbiter(async {
        let settings = settings(&server(), "gone");
        let client = Client::connect().await;
        let mut observed = Observed::connect(settings.clone());
        observed.until("connected", Seen::is_connected).await;
        client.delete(&settings.reply_queue).await;
        observed
            .until("it says why", |seen| {
                seen.states
                    .iter()
                    .any(|state| state.to_string().contains("reply queue was deleted"))
            })
            .await;
        observed.until("connected again", Seen::is_connected).await;
        client.reply(&settings.reply_queue, "{}", BasicProperties::default()).await;
        observed.until("replies come", |seen| seen.deliveries.len() == 1).await;
        std::mem::take(&mut observed.seen().deliveries).into_iter().for_each(Delivery::ack);
        observed.bus.close().await;
        client.delete(&settings.reply_queue).await;
    });
}

#[test]
fn the_reply_queue_outlives_the_bus() {
    on_an_arbiter(async {
        let settings = settings(&server(), "outlives");
        let client = Client::connect().await;
        let mut first = Observed::connect(settings.clone());
        first.until("connected", Seen::is_connected).await;
        first.bus.close().await;
        client.reply(&settings.reply_queue, "{}", BasicProperties::default()).await;
        let mut second = Observed::connect(settings.clone());
        second.until("the reply waited", |seen| seen.deliveries.len() == 1).await;
        // It is unsettled when the bus is closed, and closing waits only a little for it.
        second.bus.close().await;
        let mut consumer = client
            .channel
            .basic_consume(
                settings.reply_queue.as_str().into(),
                "".into(),
                BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() },
                FieldTable::default(),
            )
            .await
            .expect("consuming");
        let delivery = consumer.next().await.expect("a delivery").expect("a delivery");
        assert!(delivery.redelivered);
        client.delete(&settings.reply_queue).await;
    });
}
