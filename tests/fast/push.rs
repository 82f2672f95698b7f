//! Web services that are called: every row of the table of answers, with real servers on this
//! machine.

pub(crate) mod service;
mod settings;

use crate::http::{Answer, Api};
use actix_web::http::Method;
use service::{Act, Called, Service, ok, status};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use workflow_manager::actors::door;
use workflow_manager::actors::manager::{self, Manager};
use workflow_manager::bus::QueueLook;
use workflow_manager::bus::embedded::Workers;
use workflow_manager::engine::{Job, JobId, JobState, Message, StepIndex};
use workflow_manager::load::load_text;
use workflow_manager::settings::{BusSettings, EndpointSettings, PushBus, Secret, Settings, Span};

/// How long a condition is waited for before the test fails.
const DEADLINE: Duration = Duration::from_secs(60);

/// A workflow with one step for the service `price` of the bus `hooks`.
const ONE: &str = "
workflows:
  - name: one
    steps: [ { name: a, bus: hooks, queue: price, timeout: 90s, retry: { attempts: 2, backoff: 1ms } } ]
";

fn settings(folder: &Path, service: &Service) -> Settings {
    let mut settings = Settings::defaults().expect("defaults");
    settings.journal.file = folder.join("j.db");
    settings.shutdown.grace = Span(Duration::from_secs(5));
    settings.push.retry_min = Span(Duration::from_millis(20));
    let endpoints = [("price".to_owned(), EndpointSettings::of_url(&service.url()))];
    let hooks = PushBus { endpoints: endpoints.into() };
    settings.buses.insert("hooks".to_owned(), BusSettings::Push(hooks));
    settings
}

fn endpoint(settings: &mut Settings) -> &mut EndpointSettings {
    match settings.buses.get_mut("hooks") {
        Some(BusSettings::Push(hooks)) => hooks.endpoints.get_mut("price").expect("it is there"),
        other => panic!("{other:?}"),
    }
}

async fn start(settings: Settings, workflow: &str) -> Manager {
    let loaded = load_text("test.yaml", workflow).expect("valid");
    manager::start(settings, loaded.definitions, Workers::new()).await.expect("starts")
}

async fn create(manager: &Manager, text: &str) -> JobId {
    let message = Message::parse(text.as_bytes()).expect("a message");
    manager.create("one", None, message).await.expect("created").id()
}

async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let found = tokio::time::timeout(DEADLINE, async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    found.await.unwrap_or_else(|_| panic!("not within {DEADLINE:?}: {what}"))
}

fn job(manager: &Manager, id: JobId) -> Job {
    manager.common().reader.job(id).expect("readable").expect("it is there").job
}

async fn ended(manager: &Manager, id: JobId) -> Job {
    until("the job ends", || Some(job(manager, id)).filter(|job| job.state() != JobState::Running))
        .await
}

/// One job against a service that answers so: how it ended, its result or reason, and how often the
/// service was called.
fn one(act: impl Fn(&Called) -> Act + Send + Sync + 'static) -> (JobState, String, usize) {
    one_with(|_| {}, act)
}

fn one_with(
    change: impl FnOnce(&mut Settings),
    act: impl Fn(&Called) -> Act + Send + Sync + 'static,
) -> (JobState, String, usize) {
    let service = Service::start(act);
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = settings(folder.path(), &service);
        change(&mut settings);
        let manager = start(settings, ONE).await;
        let id = create(&manager, r#"{"n":1.50}"#).await;
        let job = ended(&manager, id).await;
        manager.stop().await;
        let said = job.reason().map_or_else(|| job.result().to_text(), |why| why.to_string());
        (job.state(), said, service.calls().len())
    })
}

#[test]
fn an_answer_with_an_object_or_without_a_body_is_the_result() {
    let (state, result, calls) = one(|called| ok([b"{\"got\":", &*called.body, b"}"].concat()));
    assert_eq!((state, &*result, calls), (JobState::Completed, r#"{"got":{"n":1.50}}"#, 1));
    for empty in [200, 204, 201] {
        let (state, result, calls) = one(move |_| status(empty));
        assert_eq!((state, &*result, calls), (JobState::Completed, "{}", 1), "{empty}");
    }
}

#[test]
fn an_answer_that_is_no_object_is_a_failed_attempt() {
    for body in ["[1]", "garbage", "{\"a\":"] {
        let (state, reason, _) = one(move |_| ok(body));
        assert_eq!(state, JobState::Failed, "{body}: {reason}");
        assert!(reason.contains("JSON"), "{body}: {reason}");
    }
}

#[test]
fn a_failure_is_told_by_the_service_or_follows_from_its_status() {
    let error = |status: u16, body: &'static str| {
        one(move |_| Act::Answer(status, &[("Content-Type", "application/json")], body.into()))
    };
    for (status, body, said, calls) in [
        (400, r#"{"error":"no such product","retryable":false}"#, "no such product", 1),
        (400, r#"{"error":"try again","retryable":true}"#, "try again", 2),
        (503, r#"{"error":"for good","retryable":false}"#, "for good", 1),
        (404, r#"{"title":"Not found","detail":"no order 7"}"#, "404 Not Found: no order 7", 1),
        (422, "", "422 Unprocessable Entity", 1),
        (500, r#"{"detail":"oops"}"#, "500 Internal Server Error: oops", 2),
        (502, "", "502 Bad Gateway", 2),
        (504, "", "504 Gateway Timeout", 2),
    ] {
        let (state, reason, seen) = error(status, body);
        assert_eq!((state, seen), (JobState::Failed, calls), "{status} {body}: {reason}");
        assert!(reason.contains(said), "{status} {body}: {reason}");
    }
}

#[test]
fn a_connection_that_is_lost_after_the_request_is_a_failed_attempt() {
    for bytes in ["", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "no HTTP at all\r\n\r\n"] {
        let (state, reason, calls) = one(move |_| Act::Raw(bytes.into()));
        assert_eq!((state, calls), (JobState::Failed, 2), "{bytes:?}: {reason}");
        assert!(reason.contains("was lost"), "{bytes:?}: {reason}");
    }
}

#[test]
fn a_call_that_takes_too_long_is_broken_off_and_is_a_failed_attempt() {
    let short = |settings: &mut Settings| {
        endpoint(settings).timeout = Some(Span(Duration::from_millis(100)));
    };
    let (state, reason, calls) = one_with(short, |_| Act::Never);
    assert_eq!((state, calls), (JobState::Failed, 2), "{reason}");
    assert!(reason.contains("did not answer within 100ms"), "{reason}");
}

#[test]
fn what_was_not_delivered_is_sent_again_and_no_attempt_is_used() {
    for busy in [429, 503] {
        let (state, result, calls) = one(move |called| match called.number {
            ..5 => status(busy),
            _ => ok(called.header("attempt").replace('1', r#"{"attempt":1}"#)),
        });
        assert_eq!((state, &*result, calls), (JobState::Completed, r#"{"attempt":1}"#, 5));
    }
}

#[test]
fn nobody_there_is_waited_for() {
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let mut settings = settings(folder.path(), &Service::start(|_| Act::Never));
        endpoint(&mut settings).url.0 = format!("http://127.0.0.1:{port}/step");
        let manager = start(settings, ONE).await;
        let id = create(&manager, "{}").await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(job(&manager, id).state(), JobState::Running);
        let listener = std::net::TcpListener::bind(("127.0.0.1", port)).expect("the port");
        let service = Service::on(listener, |_| status(204));
        let job = ended(&manager, id).await;
        assert_eq!(job.state(), JobState::Completed);
        assert_eq!(service.calls()[0].header("attempt"), "1");
        manager.stop().await;
    });
}

#[test]
fn a_service_that_is_busy_is_left_alone_as_long_as_it_asks_for() {
    let began = workflow_manager::clock::instant();
    let (state, _, calls) = one(|called| match called.number {
        1 => Act::Answer(429, &[("Retry-After", "1")], Vec::new()),
        _ => status(204),
    });
    assert_eq!((state, calls), (JobState::Completed, 2));
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
}

#[test]
fn a_redirect_is_a_failed_attempt_and_is_not_followed() {
    let other = Service::start(|_| status(204));
    let to: &'static str = Box::leak(other.url().into_boxed_str());
    for code in [301, 302, 303, 307, 308] {
        let headers: &'static [(&str, &str)] = Box::leak(Box::new([("Location", to)]));
        let (state, reason, calls) = one(move |_| Act::Answer(code, headers, Vec::new()));
        assert_eq!((state, calls), (JobState::Failed, 1), "{reason}");
        assert!(reason.contains("redirects are never followed"), "{reason}");
    }
    assert_eq!(other.connections(), 0);
}

#[test]
fn an_answer_without_end_is_read_up_to_the_largest_reply() {
    let small = |settings: &mut Settings| settings.limits.reply_bytes_max = 100_000;
    let (state, reason, calls) = one_with(small, |_| Act::Endless);
    assert_eq!((state, calls), (JobState::Failed, 1), "{reason}");
    assert!(reason.contains("more than 100000 bytes"), "{reason}");
}

#[test]
fn a_call_carries_the_message_and_is_signed() {
    let service = Service::start(|_| status(204));
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = settings(folder.path(), &service);
        let price = endpoint(&mut settings);
        price.secret = Secret("key".to_owned());
        price.headers = [("Authorization".to_owned(), Secret("Bearer hunter2".to_owned()))].into();
        settings.http.public_url = "https://manager.example/base/".to_owned();
        let manager = start(settings, ONE).await;
        let id = create(&manager, r#"{"z":12345678901234567890123,"a":0.10}"#).await;
        ended(&manager, id).await;
        manager.stop().await;
        let calls = service.calls();
        let [called] = calls.as_slice() else { panic!("{calls:?}") };
        assert_eq!(called.path, "/step");
        assert_eq!(called.body, br#"{"z":12345678901234567890123,"a":0.10}"#);
        let encoded = id.to_string().replace('-', "%2D");
        for (name, value) in [
            ("content-type", "application/json".to_owned()),
            ("correlation-id", format!("{id}:a")),
            ("message-id", format!("{id}:a:1")),
            ("idempotency-key", format!("{id}:a:1")),
            ("workflow", "one".to_owned()),
            ("job", id.to_string()),
            ("attempt", "1".to_owned()),
            ("delivery", "1".to_owned()),
            ("authorization", "Bearer hunter2".to_owned()),
            (
                "reply-to",
                format!(
                    "https://manager.example/base/api/queue/price/message/{encoded}%3Aa%3A1/1/reply\
                     ?bus=hooks"
                ),
            ),
        ] {
            assert_eq!(called.header(name), value, "{name}");
        }
        assert!(called.header("traceparent").starts_with("00-"));
        let signed = workflow_manager::signature::signature(
            "key",
            called.header("x-signature-timestamp"),
            &called.body,
        );
        assert_eq!(called.header("x-signature-256"), signed);
    });
}

/// The path in the `Reply-To` of a call, without the address of the API.
fn reply_to(called: &Called) -> String {
    let address = called.header("reply-to");
    address.strip_prefix("http://manager.example").expect("the public address").to_owned()
}

fn with_way_back(settings: &mut Settings) {
    settings.http.public_url = "http://manager.example".to_owned();
}

#[test]
fn a_service_that_takes_over_replies_later_and_is_not_called_again_after_a_restart() {
    let service = Service::start(|called| match called.header("attempt") {
        "1" => status(202),
        _ => status(500),
    });
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let begin = || async {
            let mut settings = settings(folder.path(), &service);
            with_way_back(&mut settings);
            start(settings, ONE).await
        };
        let manager = begin().await;
        let id = create(&manager, "{}").await;
        until("the service has taken it over", || {
            job(&manager, id).step(StepIndex(0)).confirmed.then_some(())
        })
        .await;
        let why = ask_why(&manager, id).await;
        assert!(why.contains("took the message of step \"a\" over (202)"), "{why}");
        manager.stop().await;

        let manager = begin().await;
        let api = Api::new(&manager).await;
        let path = reply_to(&service.calls()[0]);
        let is_ready = || manager.common().health.checks().iter().all(|(_, good, _)| *good);
        until("the manager is ready", || is_ready().then_some(())).await;
        let progress = post(&api, &format!("{path}&type=progress"), r#"{"percent":50}"#).await;
        assert_eq!(progress.json()["taken"], true, "{}", progress.json());
        let taken = post(&api, &path, r#"{"price":0.10}"#).await;
        assert_eq!((taken.status.as_u16(), taken.json()["taken"].clone()), (200, true.into()));
        let job = ended(&manager, id).await;
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
            assert_eq!(refused.status.as_u16(), 400, "{other}");
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
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = settings(folder.path(), &service);
        with_way_back(&mut settings);
        let manager = start(settings, &ONE.replace("90s", "300ms")).await;
        let id = create(&manager, "{}").await;
        let job = ended(&manager, id).await;
        assert_eq!((job.state(), service.calls().len()), (JobState::Failed, 2));
        assert!(job.reason_text().contains("no reply within"), "{}", job.reason_text());
        manager.stop().await;
    });
}

#[test]
fn a_cancelled_or_timed_out_attempt_breaks_the_call_off() {
    let service = Service::start(|_| Act::Never);
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let manager = start(settings(folder.path(), &service), ONE).await;
        let id = create(&manager, "{}").await;
        until("the service is called", || (service.calls().len() == 1).then_some(())).await;
        manager.cancel(id).await.expect("cancelled");
        until("the call is broken off", || (service.gone() == 1).then_some(())).await;
        manager.stop().await;

        let manager = start(settings(folder.path(), &service), &ONE.replace("90s", "50ms")).await;
        let id = create(&manager, "{}").await;
        ended(&manager, id).await;
        until("two attempts are broken off", || (service.gone() == 3).then_some(())).await;
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
        let folder = tempfile::tempdir().expect("a folder");
        let manager = start(settings(folder.path(), &service), ONE).await;
        let cancelled = create(&manager, "{}").await;
        let queue: Arc<str> = "price".into();
        let bus = manager.ways().buses.named(Some(&"hooks".into()), "");
        let waiting = |count: usize| {
            let (queue, bus, manager) = (queue.clone(), bus.clone(), &manager);
            async move {
                let begun = workflow_manager::clock::instant();
                loop {
                    let look = door::inspect(manager.ways(), &bus, vec![queue.clone()]).await;
                    if let Some(QueueLook::Service { waiting, calls: 0, trouble: Some(trouble) }) =
                        look.first()
                        && *waiting == count
                    {
                        return trouble.clone();
                    }
                    assert!(begun.elapsed() < DEADLINE, "{look:?}");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        };
        assert!(waiting(1).await.why.contains("503 Service Unavailable"));
        let by_hand = create(&manager, "{}").await;
        waiting(2).await;
        let why = ask_why(&manager, by_hand).await;
        assert!(why.starts_with("not delivered: the web service of queue \"price\""), "{why}");
        assert!(why.contains("503") && why.contains("it is called again at"), "{why}");
        manager.cancel(cancelled).await.expect("cancelled");
        waiting(1).await;
        // Somebody replies in place of the service: it must not do the work once more.
        let api = Api::new(&manager).await;
        let said = post(&api, &format!("/api/job/{by_hand}/step/a"), r#"{"by":"hand"}"#).await;
        assert_eq!(said.status.as_u16(), 200);
        assert_eq!(ended(&manager, by_hand).await.state(), JobState::Completed);
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
            let folder = tempfile::tempdir().expect("a folder");
            let mut settings = settings(folder.path(), &service);
            endpoint(&mut settings).concurrency = Some(concurrency);
            settings.push.calls_max = calls_max;
            let manager = start(settings, ONE).await;
            let mut jobs = Vec::new();
            for _ in 0..20 {
                jobs.push(create(&manager, "{}").await);
            }
            for id in jobs {
                assert_eq!(ended(&manager, id).await.state(), JobState::Completed);
            }
            manager.stop().await;
        });
        assert_eq!(service.forget_most(), most);
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
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = settings(folder.path(), &service);
        endpoint(&mut settings).concurrency = Some(1);
        let manager = start(settings, ONE).await;
        let mut jobs = vec![create(&manager, "{}").await];
        until("the first is refused", || (service.calls().len() == 1).then_some(())).await;
        for _ in 0..10 {
            jobs.push(create(&manager, "{}").await);
        }
        for id in jobs {
            let job = ended(&manager, id).await;
            assert_eq!((job.state(), job.step(StepIndex(0)).attempt), (JobState::Completed, 1));
        }
        assert_eq!(service.forget_most(), 1);
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
            let folder = tempfile::tempdir().expect("a folder");
            let mut settings = settings(folder.path(), &service);
            change(&mut settings);
            let manager = start(settings, ONE).await;
            let id = create(&manager, "{}").await;
            let job = ended(&manager, id).await;
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
        "workflows: [ {{ name: one, vhosts: [ v ], steps: [ {{ name: a, queue: \"{}?x=%20y\", timeout: 1m }} ] }} ]",
        service.url()
    );
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = settings(folder.path(), &service);
        with_way_back(&mut settings);
        let manager = start(settings, &workflow).await;
        let message = Message::parse(br#"{"n":1.50}"#).expect("a message");
        let id = manager.create("v/one", None, message).await.expect("created").id();
        let job = ended(&manager, id).await;
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

async fn ask_why(manager: &Manager, id: JobId) -> String {
    let api = Api::new(manager).await;
    let why = api.get(&format!("/api/job/{id}/why"), &[]).await.json();
    why["why"].as_str().expect("a text").to_owned()
}

async fn post(api: &Api, path: &str, body: &str) -> Answer {
    api.ask(Method::POST, path, &[("content-type", "application/json")], body).await
}
