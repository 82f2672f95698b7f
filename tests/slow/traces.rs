//! Traces of the real daemon over RabbitMQ: whole after `kill -9`, and silent about their secrets.

use std::{collections::BTreeSet, time::Duration};

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest, trace::v1::Span,
};
use prost::Message;
use uuid::Uuid;

use support::service::{Act, Service, status};

use crate::{
    amqp::{Vhost, Worker},
    harness::{Daemon, Setup, eventually, when},
    tls::{Authority, serve_with_tls},
};

const WORKFLOWS: &str = r"
workflows:
  - name: two
    steps: [ { name: first }, { name: each, task: piece, depends: [ first ] } ]
    tasks: [ { name: piece, itemListKey: items, steps: [ { name: second } ] } ]
  - name: outer
    steps: [ { name: call, queue: workflow.inner } ]
  - name: inner
    steps: [ { name: first } ]
";

const SECRET: &str = "sesame-4711-open-it";

fn spans(receiver: &Service) -> Vec<Span> {
    let calls = receiver.calls();
    let exports = calls.iter().map(|call| ExportTraceServiceRequest::decode(&*call.body).unwrap());
    let scopes = exports.flat_map(|export| export.resource_spans).flat_map(|of| of.scope_spans);
    scopes.flat_map(|scope| scope.spans).collect()
}

fn setup(vhost: &Vhost, receiver: &Service) -> Setup {
    Setup::new(&vhost.url, WORKFLOWS)
        .set("traces.endpoint", &format!("http://127.0.0.1:{}", receiver.port))
        .set("traces.delay", "50ms")
        .set("traces.interval", "50ms")
}

fn trace_of(id: Uuid) -> Vec<u8> {
    id.as_bytes().to_vec()
}

#[test]
fn a_job_that_outlives_kill_9_is_one_whole_trace() {
    let vhost = Vhost::new();
    let receiver = Service::start(|_| status(200));
    let mut daemon = setup(&vhost, &receiver).start();
    let first = Worker::echo(&vhost.url, &["first"]);
    let id = daemon.api.create("two", r#"{"items":[1,2]}"#);
    eventually("the child jobs run", || {
        let text = daemon.api.get("/metrics").expect(200).text;
        when(text.contains("workflow_child_jobs 2"), text)
    });
    drop(first);
    daemon.kill();
    assert_eq!(receiver.calls().len(), 0, "nothing has ended");

    daemon.start_again();
    let _second = Worker::echo(&vhost.url, &["second"]);
    daemon.api.await_state(id, "completed");
    let told = eventually("10 spans", || {
        let told = spans(&receiver);
        if told.len() >= 10 { Ok(told) } else { Err(format!("{} spans", told.len())) }
    });
    assert_eq!(told.len(), 10, "{told:#?}");
    assert!(told.iter().all(|span| span.trace_id == trace_of(id)));
    let ids: BTreeSet<&[u8]> = told.iter().map(|span| &*span.span_id).collect();
    assert_eq!(ids.len(), 10);
    let roots = told.iter().filter(|span| span.parent_span_id.is_empty());
    assert_eq!(roots.map(|span| &*span.name).collect::<Vec<_>>(), ["two"]);
    assert!(
        told.iter()
            .filter(|span| !span.parent_span_id.is_empty())
            .all(|span| ids.contains(&*span.parent_span_id)),
        "each parent is there"
    );
    assert!(told.iter().all(|span| span.start_time_unix_nano <= span.end_time_unix_nano));
}

#[test]
fn a_workflow_that_is_called_over_the_broker_is_in_the_trace_of_its_caller() {
    let vhost = Vhost::new();
    let receiver = Service::start(|_| status(200));
    let daemon = setup(&vhost, &receiver).start();
    let _first = Worker::echo(&vhost.url, &["first"]);
    let id = daemon.api.create("outer", "{}");
    daemon.api.await_state(id, "completed");
    let told = eventually("6 spans", || {
        let told = spans(&receiver);
        if told.len() == 6 { Ok(told) } else { Err(format!("{} spans", told.len())) }
    });
    assert!(told.iter().all(|span| span.trace_id == trace_of(id)), "{told:#?}");
    let named = |name: &str| told.iter().find(|span| span.name == name).unwrap();
    assert_eq!(named("inner").parent_span_id, named("send workflow.inner").span_id);
}

#[test]
fn a_receiver_is_sent_traces_over_https_if_an_authority_of_the_settings_vouches_for_it() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let over_tls = |by: &Authority, host: &str, until: i32| {
        let receiver = Service::start(|_| status(200));
        let identity = by.vouch(&format!("receiver-{host}-{until}"), host, until);
        let port = serve_with_tls(&identity, format!("127.0.0.1:{}", receiver.port));
        let daemon = Setup::new("", WORKFLOWS)
            .set("tls.authorities", authority.file().to_str().unwrap())
            .set("traces.endpoint", &format!("https://localhost:{port}"))
            .set("traces.delay", "50ms")
            .set("traces.interval", "50ms")
            .start();
        let id = daemon.api.create("inner", "{}");
        daemon.api.post(&format!("/api/job/{id}/cancel"), "").expect(200);
        (receiver, daemon, id)
    };
    let (receiver, _daemon, id) = over_tls(&authority, "localhost", 2099);
    let told = eventually("a trace", || {
        let told = spans(&receiver);
        if told.is_empty() { Err("nothing") } else { Ok(told) }
    });
    assert!(told.iter().all(|span| span.trace_id == trace_of(id)), "{told:#?}");

    for (by, host, until, word) in [
        (&authority, "localhost", 2020, "xpired"),
        (&authority, "example.org", 2099, "name"),
        (&stranger, "localhost", 2099, "nknown"),
    ] {
        let (receiver, daemon, id) = over_tls(by, host, until);
        daemon.await_log(&["traces cannot be sent", word]);
        daemon.api.await_state(id, "cancelled");
        assert_eq!(receiver.calls().len(), 0, "nothing is told to {host} until {until}");
    }
}

/// Whatever becomes of the exports.
fn stays_silent(act: impl Fn() -> Act + Send + Sync + 'static, words: &[&str]) {
    let vhost = Vhost::new();
    let receiver = Service::start(move |_| act());
    let key = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(key.path(), format!("x-key={SECRET}\n")).unwrap();
    let daemon: Daemon = setup(&vhost, &receiver)
        .set("traces.timeout", "300ms")
        .variable("WORKFLOW_MANAGER__TRACES__HEADERS_FILE", &key.path().to_string_lossy())
        .start();
    let _worker = Worker::echo(&vhost.url, &["first", "second"]);
    let id = daemon.api.create("two", r#"{"items":[1]}"#);
    daemon.api.await_state(id, "completed");
    eventually("an export", || {
        let calls = receiver.calls();
        when(calls.iter().any(|call| call.header("x-key") == SECRET), calls.len())
    });
    daemon.await_log(words);
    let settings = daemon.api.get("/api/settings").expect(200).text;
    let all = daemon.api.get("/api/settings?sources=true").expect(200).text;
    assert!(settings.contains("\"headers\":\"***\""), "{settings}");
    for text in [settings, all, daemon.log(), daemon.api.get("/metrics").expect(200).text] {
        assert!(!text.contains(SECRET), "{text}");
    }
}

#[test]
fn the_headers_of_exports_are_in_no_log_and_in_no_answer() {
    stays_silent(
        || Act::Answer(403, &[], format!("no access with {SECRET}").into_bytes()),
        &["the receiver of traces refuses spans", "no access with ***"],
    );
    stays_silent(
        || Act::Later(Duration::from_secs(2), Box::new(status(200))),
        &["traces cannot be sent"],
    );
}
