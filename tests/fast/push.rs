//! Web services that are called: every row of the table of answers, with real servers on this
//! machine.

mod lives;
mod settings;

use actix_web::http::Method;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::api::{Answer, Api};
use support::manager::{Setup, TestManager};
use support::service::{Act, Call, Service, ok, status};
use workflow_manager::actors::manager::Manager;
use workflow_manager::clock;
use workflow_manager::engine::{JobId, JobState};
use workflow_manager::settings::{
    BusSettings, DurationSetting, EndpointSettings, PushBusSection, Secret, Settings,
};

/// A workflow with one step for the service `price` of the bus `hooks`.
const ONE: &str = "
workflows:
  - name: one
    steps: [ { name: a, bus: hooks, queue: price, timeout: 90s, \
        retry: { attempts: 2, backoff: 1ms } } ]
";

/// Has the steps of the bus `hooks` call this service.
fn with_service(settings: &mut Settings, service: &Service) {
    settings.shutdown.grace = DurationSetting(Duration::from_secs(5));
    settings.push.retry_min = DurationSetting(Duration::from_millis(20));
    let endpoints = [("price".to_owned(), EndpointSettings::from_url(&service.url()))];
    let hooks = PushBusSection { endpoints: endpoints.into() };
    settings.buses.insert("hooks".to_owned(), BusSettings::Push(hooks));
}

/// Prepares a manager whose steps call this service.
fn setup(workflows: &str, service: &Service) -> Setup {
    TestManager::with(workflows).set(|settings| with_service(settings, service))
}

fn endpoint(settings: &mut Settings) -> &mut EndpointSettings {
    match settings.buses.get_mut("hooks") {
        Some(BusSettings::Push(hooks)) => hooks.endpoints.get_mut("price").expect("it is there"),
        other => panic!("{other:?}"),
    }
}

/// One job against a service that answers so: how it ended, its result or reason, and how often the
/// service was called.
fn one(act: impl Fn(&Call) -> Act + Send + Sync + 'static) -> (JobState, String, usize) {
    one_with(|_| {}, act)
}

fn one_with(
    change: impl FnOnce(&mut Settings),
    act: impl Fn(&Call) -> Act + Send + Sync + 'static,
) -> (JobState, String, usize) {
    let service = Service::start(act);
    actix_rt::System::new().block_on(async {
        let manager = setup(ONE, &service).set(change).await;
        let id = manager.create_job("one", r#"{"n":1.50}"#).await;
        let job = manager.until_ended(id).await;
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
        endpoint(settings).timeout = Some(DurationSetting(Duration::from_millis(100)));
    };
    // Interim responses are no answer, however many come.
    for silent in [|| Act::Never, || Act::Interim] {
        let (state, reason, calls) = one_with(short, move |_| silent());
        assert_eq!((state, calls), (JobState::Failed, 2), "{reason}");
        assert!(reason.contains("did not answer within 100ms"), "{reason}");
    }
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
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let url = format!("http://127.0.0.1:{port}/step");
        let setup = setup(ONE, &Service::start(|_| Act::Never));
        let manager = setup.set(|settings| endpoint(settings).url.0 = url).await;
        let id = manager.create_job("one", "{}").await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(manager.job(id).state(), JobState::Running);
        let listener = std::net::TcpListener::bind(("127.0.0.1", port)).expect("the port");
        let service = Service::on(listener, |_| status(204));
        let job = manager.until_ended(id).await;
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
fn an_answer_that_says_it_is_too_large_is_not_waited_for() {
    let small = |settings: &mut Settings| settings.limits.reply_bytes_max = 100_000;
    for length in ["20000000000", "100001"] {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n {{");
        let begun = clock::instant();
        let (state, reason, calls) = one_with(small, move |_| Act::Stalls(head.clone().into()));
        assert_eq!((state, calls), (JobState::Failed, 1), "{reason}");
        assert!(reason.contains("more than 100000 bytes"), "{reason}");
        assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{length}");
    }
}

#[test]
fn a_call_carries_the_message_and_is_signed() {
    let service = Service::start(|_| status(204));
    actix_rt::System::new().block_on(async {
        let change = |settings: &mut Settings| {
            let price = endpoint(settings);
            price.secret = Secret("key".to_owned());
            price.headers =
                [("Authorization".to_owned(), Secret("Bearer hunter2".to_owned()))].into();
            settings.http.public_url = "https://manager.example/base/".to_owned();
        };
        let manager = setup(ONE, &service).set(change).await;
        let id = manager.create_job("one", r#"{"z":12345678901234567890123,"a":0.10}"#).await;
        manager.until_ended(id).await;
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
        let signed = workflow_manager::signature::sign(
            "key",
            called.header("x-signature-timestamp"),
            &called.body,
        );
        assert_eq!(called.header("x-signature-256"), signed);
    });
}

async fn ask_why(manager: &Manager, id: JobId) -> String {
    let api = Api::new(manager).await;
    let why = api.get(&format!("/api/job/{id}/why"), &[]).await.json();
    why["why"].as_str().expect("a text").to_owned()
}

async fn post(api: &Api, path: &str, body: &str) -> Answer {
    api.request(Method::POST, path, &[("content-type", "application/json")], body).await
}

#[test]
fn the_time_of_each_call_is_measured_by_service_and_outcome() {
    let answers = AtomicUsize::new(0);
    let service = Service::start(move |_| match answers.fetch_add(1, Ordering::SeqCst) {
        0 => status(503),
        _ => ok("{}"),
    });
    // A step whose queue is the address itself, in which there may be a secret.
    let own = Service::start(|_| ok("{}"));
    let direct = format!(
        "{ONE}  - {{ name: direct, steps: [ {{ name: b, queue: '{}', timeout: 90s }} ] }}\n",
        own.url()
    );
    actix_rt::System::new().block_on(async {
        let manager = setup(&direct, &service).await;
        let id = manager.create_job("one", "{}").await;
        manager.until_ended(id).await;
        let id = manager.create_job("direct", "{}").await;
        manager.until_ended(id).await;
        let text = manager.core().metrics.render();
        manager.stop().await;
        for (bus, service, outcome) in [
            ("hooks", "price", "not_delivered"),
            ("hooks", "price", "result"),
            ("push", "address", "result"),
        ] {
            let labels = format!("bus=\"{bus}\",outcome=\"{outcome}\",service=\"{service}\"");
            let count = format!("workflow_service_call_seconds_count{{{labels}}} ");
            let counted = text.lines().find_map(|line| line.strip_prefix(&count));
            assert!(counted.is_some_and(|count| count != "0"), "{labels}\n{text}");
        }
        assert!(!text.contains(own.url().as_str()), "{text}");
    });
}
