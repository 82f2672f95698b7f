//! Services that reply later, that are busy or away, and jobs that end while they are called.

use super::{ONE, ask_why, endpoint, one, post, setup, with_service};
use std::sync::Arc;
use std::time::Duration;
use support::api::Api;
use support::service::{Act, Call, Service, ok, status};
use support::waits::{until, until_async};
use workflow_manager::actors::bus_starter::{BusOptions, settings_bus_provider};
use workflow_manager::actors::manager::Manager;
use workflow_manager::bus::embedded::Workers;
use workflow_manager::bus::{
    Address, Addressee, Bus, BusEvent, BusKey, ConfirmPayload, ConfirmToken, EndpointFailure,
    EventSink, Lifetime, Publication, QueueStatus,
};
use workflow_manager::engine::{JobState, StepIndex};
use workflow_manager::settings::{DurationSetting, Settings};

/// The path in the `Reply-To` of a call, without the address of the API.
fn reply_to(called: &Call) -> String {
    let address = called.header("reply-to");
    address.strip_prefix("http://manager.example").expect("the public address").to_owned()
}

fn with_way_back(settings: &mut Settings) {
    settings.http.public_url = "http://manager.example".to_owned();
}

/// Nobody asks for it back.
struct Kept;

impl ConfirmPayload for Kept {
    fn try_clone(&self) -> Option<ConfirmToken> {
        None
    }
}

#[test]
fn a_service_that_takes_over_replies_later_and_is_not_called_again_after_a_restart() {
    let service = Service::start(|called| match called.header("attempt") {
        "1" => status(202),
        _ => status(500),
    });
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let setup = || setup(ONE, &service).folder(folder.path()).set(with_way_back);
        let manager = setup().await;
        let id = manager.create_job("one", "{}").await;
        manager.until(id, |job| job.step(StepIndex(0)).confirmed).await;
        let why = ask_why(&manager, id).await;
        assert!(why.contains("took the message of step \"a\" over (202)"), "{why}");
        manager.stop().await;

        let manager = setup().await;
        let api = Api::new(&manager).await;
        let path = reply_to(&service.calls()[0]);
        manager.core().health.wait_until_ready().await;
        let progress = post(&api, &format!("{path}&type=progress"), r#"{"percent":50}"#).await;
        assert_eq!(progress.json()["taken"], true, "{}", progress.json());
        let taken = post(&api, &path, r#"{"price":0.10}"#).await;
        assert_eq!((taken.status.as_u16(), taken.json()["taken"].clone()), (200, true.into()));
        let job = manager.until_ended(id).await;
        assert_eq!(
            (job.state(), &*job.result().to_text()),
            (JobState::Completed, r#"{"price":0.10}"#)
        );
        let again = post(&api, &path, "{}").await.json();
        assert_eq!(again["taken"], false, "{again}");
        assert_eq!(service.calls().len(), 1);
        for other in ["amqp", "embedded", "hook"] {
            let refused =
                post(&api, &path.replace("bus=hooks", &format!("bus={other}")), "{}").await;
            assert_eq!(refused.status.as_u16(), 404, "{other}");
        }
        manager.stop().await;
    });
}

#[test]
fn who_was_not_told_where_cannot_reply_later() {
    let (state, reason, calls) = one(|_| status(202));
    assert_eq!((state, calls), (JobState::Failed, 1), "{reason}");
    assert!(reason.contains("set http.public_url"), "{reason}");
}

#[test]
fn a_service_that_never_replies_has_the_timeout_of_the_step() {
    let service = Service::start(|_| status(202));
    actix_rt::System::new().block_on(async {
        let workflow = ONE.replace("90s", "300ms");
        let manager = setup(&workflow, &service).set(with_way_back).await;
        let id = manager.create_job("one", "{}").await;
        let job = manager.until_ended(id).await;
        assert_eq!((job.state(), service.calls().len()), (JobState::Failed, 2));
        assert!(job.reason_text().contains("no reply within"), "{}", job.reason_text());
        manager.stop().await;
    });
}

#[test]
fn a_cancelled_or_timed_out_attempt_breaks_the_call_off() {
    let service = Service::start(|_| Act::Never);
    actix_rt::System::new().block_on(async {
        let patient = |settings: &mut Settings| {
            endpoint(settings).timeout = Some(DurationSetting(Duration::from_secs(600)));
        };
        let manager = setup(ONE, &service).set(patient).await;
        let id = manager.create_job("one", "{}").await;
        until("the service is called", || service.calls().len() == 1).await;
        manager.handle().cancel(id, None).await.expect("cancelled");
        until("the call is broken off", || service.abandoned_calls() == 1).await;
        manager.stop().await;

        let manager = setup(&ONE.replace("90s", "50ms"), &service).set(patient).await;
        let id = manager.create_job("one", "{}").await;
        manager.until_ended(id).await;
        until("two attempts are broken off", || service.abandoned_calls() == 3).await;
        assert_eq!(service.calls().len(), 3);
        manager.stop().await;
    });
}

#[test]
fn what_waits_for_a_service_leaves_the_queue_with_its_job() {
    let service = Service::start(|called| match called.number {
        1 => Act::Answer(503, &[("Retry-After", "600")], Vec::new()),
        _ => status(204),
    });
    actix_rt::System::new().block_on(async {
        let manager = setup(ONE, &service).await;
        let cancelled = manager.create_job("one", "{}").await;
        let queue: Arc<str> = "price".into();
        let bus = manager.core().buses.resolve(Some(&"hooks".into()), "");
        let waiting = async |count: usize| {
            until_async("so many calls wait", async || {
                let queues = vec![queue.clone()];
                let look = manager.handle().inspect_queues(&bus, queues).await;
                match &look[..] {
                    [QueueStatus::Endpoint { waiting, calls: 0, failure }] if *waiting == count => {
                        failure.clone()
                    }
                    _ => None,
                }
            })
            .await
        };
        assert!(waiting(1).await.reason.contains("503 Service Unavailable"));
        let by_hand = manager.create_job("one", "{}").await;
        waiting(2).await;
        let why = ask_why(&manager, by_hand).await;
        assert!(why.starts_with("not delivered: the web service of queue \"price\""), "{why}");
        assert!(why.contains("503") && why.contains("it is called again at"), "{why}");
        manager.handle().cancel(cancelled, None).await.expect("cancelled");
        waiting(1).await;
        // Somebody replies in place of the service: it must not do the work once more.
        let api = Api::new(&manager).await;
        let said = post(&api, &format!("/api/job/{by_hand}/step/a"), r#"{"by":"hand"}"#).await;
        assert_eq!(said.status.as_u16(), 200);
        assert_eq!(manager.until_ended(by_hand).await.state(), JobState::Completed);
        waiting(0).await;
        assert_eq!(service.calls().len(), 1);
        manager.stop().await;
    });
}

#[test]
fn a_service_has_no_more_calls_at_once_than_it_may() {
    let service = Service::start(|_| Act::Later(Duration::from_millis(30), Box::new(status(204))));
    for (concurrency, calls_max, most) in [(3, 256, 3), (8, 2, 2)] {
        actix_rt::System::new().block_on(async {
            let narrow = |settings: &mut Settings| {
                endpoint(settings).concurrency = Some(concurrency);
                settings.push.calls_max = calls_max;
            };
            let manager = setup(ONE, &service).set(narrow).await;
            let mut jobs = Vec::new();
            for _ in 0..20 {
                jobs.push(manager.create_job("one", "{}").await);
            }
            for id in jobs {
                assert_eq!(manager.until_ended(id).await.state(), JobState::Completed);
            }
            manager.stop().await;
        });
        assert_eq!(service.take_peak_concurrency(), most);
    }
}

#[test]
fn while_nothing_is_delivered_one_call_at_a_time_finds_out() {
    let service = Service::start(|called| match called.number {
        1 => Act::Answer(429, &[("Retry-After", "1")], Vec::new()),
        2..=6 => Act::Later(Duration::from_millis(30), Box::new(status(503))),
        _ => status(204),
    });
    actix_rt::System::new().block_on(async {
        let manager = setup(ONE, &service).await;
        let mut jobs = vec![manager.create_job("one", "{}").await];
        until("the first is refused", || service.calls().len() == 1).await;
        for _ in 0..10 {
            jobs.push(manager.create_job("one", "{}").await);
        }
        for id in jobs {
            let job = manager.until_ended(id).await;
            assert_eq!((job.state(), job.step(StepIndex(0)).attempt), (JobState::Completed, 1));
        }
        let alone = |called: &Call| called.concurrency == 1;
        assert!(service.calls()[..6].iter().all(alone), "{:?}", service.calls());
        manager.stop().await;
    });
}

#[test]
fn nothing_is_sent_to_a_refused_address_whatever_names_it() {
    let service = Service::start(|_| status(204));
    let deny = |settings: &mut Settings| {
        settings.push.networks.deny.0 = vec!["127.0.0.0/8".to_owned(), "::1".to_owned()];
    };
    let named = |settings: &mut Settings| {
        let url = endpoint(settings).url.0.replace("127.0.0.1", "localhost");
        endpoint(settings).url.0 = url;
        deny(settings);
    };
    let always = |settings: &mut Settings| {
        endpoint(settings).url.0 = "http://169.254.169.254/latest/meta-data".to_owned();
    };
    let mapped = |settings: &mut Settings| {
        endpoint(settings).url.0 = "http://[::ffff:a9fe:a9fe]/".to_owned();
    };
    let decimal = |settings: &mut Settings| {
        endpoint(settings).url.0 = "http://2852039166/latest".to_owned();
    };
    let changes: [&dyn Fn(&mut Settings); 5] = [&deny, &named, &always, &mapped, &decimal];
    for (number, change) in changes.into_iter().enumerate() {
        let (state, reason) = actix_rt::System::new().block_on(async {
            let manager = setup(ONE, &service).set(change).await;
            let id = manager.create_job("one", "{}").await;
            let job = manager.until_ended(id).await;
            manager.stop().await;
            (job.state(), job.reason_text().to_string())
        });
        assert_eq!(state, JobState::Failed, "{number}");
        assert!(reason.contains("is refused"), "{number}: {reason}");
    }
    assert_eq!(service.connections(), 0);
}

#[test]
fn a_step_names_the_address_itself_in_a_virtual_host_too() {
    let service = Service::start(|called| ok(called.body.clone()));
    let workflow = format!(
        "workflows: [ {{ name: one, vhosts: [ v ], steps: [ {{ name: a, queue: \"{}?x=%20y\", \
         timeout: 1m }} ] }} ]",
        service.url()
    );
    actix_rt::System::new().block_on(async {
        let manager = setup(&workflow, &service).set(with_way_back).await;
        let id = manager.create_job("v/one", r#"{"n":1.50}"#).await;
        let job = manager.until_ended(id).await;
        assert_eq!((job.state(), &*job.result().to_text()), (JobState::Completed, r#"{"n":1.50}"#));
        let called = service.calls()[0].clone();
        assert_eq!(called.path, "/step?x=%20y");
        // Its Reply-To leads back, though the name of the queue is an address.
        let api = Api::new(&manager).await;
        let late = post(&api, &reply_to(&called), "{}").await;
        assert_eq!((late.status.as_u16(), late.json()["taken"].clone()), (200, false.into()));
        let queues = api.get("/api/queues", &[]).await.json();
        assert_eq!(queues["queues"][0]["bus"], "push", "{queues}");
        assert_eq!(queues["queues"][0]["messages"], 0, "{queues}");
        manager.stop().await;
    });
}

/// What is wrong with the service, as soon as something is.
async fn trouble(manager: &Manager) -> EndpointFailure {
    let bus = manager.core().buses.resolve(Some(&"hooks".into()), "");
    until_async("something is wrong", async || {
        let queues = vec!["price".into()];
        match &manager.handle().inspect_queues(&bus, queues).await[..] {
            [QueueStatus::Endpoint { failure, .. }] => failure.clone(),
            _ => None,
        }
    })
    .await
}

#[test]
fn without_a_connection_a_name_or_tls_nothing_is_delivered_and_no_attempt_is_used() {
    let plain = Service::start(|_| status(204));
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = closed.local_addr().expect("an address").port();
    drop(closed);
    for (url, said) in [
        (format!("http://127.0.0.1:{port}/"), "no connection: Connection refused"),
        ("http://nowhere.invalid/".to_owned(), "no connection: "),
        (format!("https://127.0.0.1:{}/", plain.port), "no connection: "),
    ] {
        actix_rt::System::new().block_on(async {
            let setup = setup(ONE, &plain);
            let manager = setup.set(|settings| endpoint(settings).url.0 = url.clone()).await;
            let id = manager.create_job("one", "{}").await;
            let EndpointFailure { reason: why, retry_at: next } = trouble(&manager).await;
            assert!(why.starts_with(said) && next.is_some(), "{url}: {why}");
            tokio::time::sleep(Duration::from_millis(100)).await;
            let job = manager.job(id);
            assert_eq!((job.state(), job.step(StepIndex(0)).attempt), (JobState::Running, 1));
            manager.handle().cancel(id, None).await.expect("cancelled");
            manager.stop().await;
        });
    }
    assert!(plain.calls().is_empty());
}

#[test]
fn a_call_under_way_at_a_stop_is_waited_for() {
    let service = Service::start(|called| {
        Act::Later(Duration::from_millis(300), Box::new(ok(called.body.clone())))
    });
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let manager = setup(ONE, &service).folder(folder.path()).await;
        let id = manager.create_job("one", "{}").await;
        until("the service is called", || service.calls().len() == 1).await;
        manager.stop().await;
        let manager = setup(ONE, &service).folder(folder.path()).await;
        assert_eq!(manager.until_ended(id).await.state(), JobState::Completed);
        assert_eq!(service.calls().len(), 1);
        manager.stop().await;
    });
}

#[test]
fn a_message_that_is_under_way_is_not_sent_beside_itself() {
    let service = Service::start(|_| Act::Later(Duration::from_millis(100), Box::new(status(204))));
    actix_rt::System::new().block_on(async {
        let mut settings = Settings::defaults().expect("defaults");
        with_service(&mut settings, &service);
        let key = BusKey { name: "hooks".into(), vhost: "".into() };
        let (sink, replies) = replies();
        let made = settings_bus_provider(Workers::new(), Arc::default());
        let made =
            made(&settings, &key, BusOptions::default()).unwrap_or_else(|why| panic!("{why}"));
        let mut bus: Box<dyn Bus> = made(sink);
        let message = |id: &str| Publication {
            address: Address { bus: key.clone(), queue: "price".into() },
            addressee: Addressee::Worker,
            id: id.to_owned(),
            correlation_id: Some(id.into()),
            kind: None,
            priority: None,
            timestamp_s: 0,
            headers: Vec::new(),
            body: bytes::Bytes::from_static(b"{}").into(),
            lease: None,
            sets_user_id: false,
            lifetime: Lifetime::default(),
            confirm_token: ConfirmToken::new(Kept),
        };
        bus.publish(message("one"));
        bus.publish(message("one"));
        until("it is called", || service.calls().len() == 1).await;
        bus.publish(message("one"));
        bus.publish(message("two"));
        until("both are answered", || replies.lock().expect("no panic").len() == 2).await;
        assert_eq!(service.calls().len(), 2);
        bus.close().await;
    });
}

/// A sink that acknowledges replies, and notes their correlation ids.
fn replies() -> (EventSink, Arc<std::sync::Mutex<Vec<String>>>) {
    let replies: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
    let heard = replies.clone();
    let sink: EventSink = Arc::new(move |event| {
        if let BusEvent::Reply(delivery) = event {
            let id = delivery.correlation_id.clone().unwrap_or_default();
            heard.lock().expect("no panic").push(id);
            delivery.ack();
        }
    });
    (sink, replies)
}
