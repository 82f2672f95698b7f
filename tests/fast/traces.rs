//! Traces: what a receiver of OTLP is sent of jobs, and what jobs notice of a receiver that fails:
//! nothing.

mod bounds;
mod receiver;
mod states;

use actix_web::http::Method;
use receiver::{Receiver, Told, read, resource};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::api::Api;
use support::manager::TestManager;
use support::service::{Act, Service, ok, status};
use support::waits::until;
use workflow_manager::api::state::ApiState;
use workflow_manager::bus::embedded::{WorkerError, Workers};
use workflow_manager::bus::{Header, Publication};
use workflow_manager::engine::{Entry, JobEntry, JobId, StepEntry};
use workflow_manager::settings::{DurationSetting, Secret, Settings};

const ID: &str = "765ac055-14c8-4229-940c-cf821f652b64";
const TRACE: &str = "765ac05514c84229940ccf821f652b64";

const ONE: &str = "workflows: [{name: one, steps: [{name: a, queue: q}]}]";

type Given = Result<bytes::Bytes, WorkerError>;

fn echo(message: &Publication) -> Given {
    Ok(message.body.to_bytes())
}

/// Answers with the traceparent of the message that it had.
fn tell_trace(message: &Publication) -> Given {
    let trace = Header::find_text(&message.headers, "traceparent").expect("a traceparent");
    Ok(format!("{{\"trace\":\"{trace}\"}}").into())
}

fn fail(_: &Publication) -> Given {
    Err("no\tstock of 4711".into())
}

fn of_q(work: fn(&Publication) -> Given) -> Workers {
    Workers::new().with_worker("q", 1, work)
}

/// So many spans, once they are there.
async fn spans(receiver: &Receiver, count: usize) -> Vec<Told> {
    let look = || Some(receiver.spans()).filter(|spans| spans.len() >= count);
    let seen = until(&format!("{count} spans"), look).await;
    assert_eq!(seen.len(), count, "{seen:#?}");
    seen
}

async fn post(api: &Api, path: &str, body: &str) -> Value {
    let answer = api.post(path, body).await;
    assert!(answer.status.is_success(), "{path}: {}", String::from_utf8_lossy(&answer.body));
    answer.json()
}

async fn create(api: &Api, workflow: &str, message: &str) {
    post(api, &format!("/api/workflow/{workflow}?id={ID}"), message).await;
}

async fn operate(api: &Api, operation: &str) {
    post(api, &format!("/api/job/{ID}/{operation}"), "").await;
}

async fn state_is(api: &Api, state: &str) {
    api.until(&format!("/api/job/{ID}?view=light"), |job| job["state"] == state).await;
}

/// Creates a job, and gives its result.
async fn run(api: &Api, workflow: &str, headers: &[(&str, &str)]) -> Value {
    let path = format!("/api/workflow/{workflow}?id={ID}");
    let created = api.request(Method::POST, &path, headers, "{}").await;
    assert!(created.status.is_success());
    state_is(api, "completed").await;
    let job = api.state().reader.load_job(ID.parse().expect("an id")).expect("readable");
    let result = job.expect("it is there").job.result().to_text();
    serde_json::from_str(&result).expect("JSON")
}

/// The only span of this name.
fn one<'s>(spans: &'s [Told], name: &str) -> &'s Told {
    let found: Vec<&Told> = spans.iter().filter(|span| span.name == name).collect();
    assert_eq!(found.len(), 1, "{name}: {spans:#?}");
    found[0]
}

/// When the entries that fit were recorded, in nanoseconds.
fn times(state: &ApiState, fits: impl Fn(&Entry) -> bool) -> Vec<u64> {
    let (mut at, id) = (Vec::new(), ID.parse::<JobId>().expect("an id"));
    let each = &mut |row: workflow_manager::engine::Recorded| {
        let fitting = row.entries.iter().filter(|entry| fits(entry));
        at.extend(fitting.map(|_| u64::try_from(row.at.0).expect("after 1970")));
    };
    state.reader.for_each_row(id, each).expect("readable").expect("it is there");
    at
}

#[test]
fn the_span_of_a_job_has_its_label_and_its_columns() {
    const WORKFLOW: &str = "workflows: [{name: two, label: job.title,
        columns: {order: job.order, absent: job.absent}, steps: [{name: a, queue: q}]}]";
    let receiver = Receiver::start();
    let setup = TestManager::with(WORKFLOW).workers(of_q(echo)).set(receiver.settings());
    setup.serve(|api| async move {
        create(&api, "two", r#"{"title":"Order 4711","order":4711}"#).await;
        let told = spans(&receiver, 3).await;
        let (job, step) = (one(&told, "two"), one(&told, "a"));
        assert_eq!(job.get("workflow.label"), "Order 4711");
        assert_eq!(job.get("workflow.column.order"), "4711");
        for (span, key) in [(job, "workflow.column.absent"), (step, "workflow.label")] {
            assert!(!span.attributes.contains_key(key), "{key}");
        }
    });
}

#[test]
fn a_job_is_a_trace_of_itself_its_steps_and_their_attempts_at_their_times() {
    const WORKFLOW: &str = "workflows: [{name: two, steps: [
        {name: b, when: \"false\"},
        {name: a, depends: [b], queue: q, retry: {attempts: 3, backoff: 1ms}}]}]";
    let receiver = Receiver::start();
    let failures = Arc::new(Mutex::new(2));
    let workers = Workers::new().with_worker("q", 1, move |message: &Publication| {
        let mut left = failures.lock().expect("a count");
        if *left > 0 {
            *left -= 1;
            return Err("not yet".into());
        }
        tell_trace(message)
    });
    TestManager::with(WORKFLOW).workers(workers).set(receiver.settings()).serve(|api| async move {
        let common = api.state();
        let result = run(&api, "two", &[]).await;
        let told = spans(&receiver, 6).await;
        assert!(told.iter().all(|span| span.trace == TRACE && span.flags & 1 == 1), "{told:#?}");
        let ids: BTreeSet<&str> = told.iter().map(|span| &*span.id).collect();
        assert_eq!(ids.len(), 6, "each has an id of its own");

        let (job, a, b) = (one(&told, "two"), one(&told, "a"), one(&told, "b"));
        assert_eq!((&*job.parent, job.kind, &job.error), ("", 1, &None));
        assert_eq!((job.get("workflow.job.id"), job.get("workflow.job.state")), (ID, "completed"));
        let ended = times(common, |entry| matches!(entry, Entry::Job(JobEntry::Completed)));
        assert_eq!(vec![job.ended], ended);
        assert_eq!((&a.parent, a.kind, a.get("workflow.step.state")), (&job.id, 1, "completed"));
        assert_eq!((&b.parent, b.get("workflow.step.state")), (&job.id, "skipped"));
        assert_eq!(b.started, b.ended);

        let attempts = receiver.named("send q");
        let started = times(common, |e| matches!(e, Entry::Step(_, StepEntry::Started { .. })));
        let mut over =
            times(common, |e| matches!(e, Entry::Step(_, StepEntry::AttemptFailed { .. })));
        over.extend(times(common, |e| matches!(e, Entry::Step(_, StepEntry::Completed(_)))));
        assert_eq!(attempts.iter().map(|span| span.started).collect::<Vec<_>>(), started);
        assert_eq!(attempts.iter().map(|span| span.ended).collect::<Vec<_>>(), over);
        assert_eq!((a.started, a.ended), (started[0], over[2]));
        assert!(job.started <= a.started);
        for (number, attempt) in (1..).zip(&attempts) {
            assert_eq!((&attempt.parent, attempt.kind), (&a.id, 4));
            assert_eq!(attempt.get("workflow.attempt"), number.to_string());
            assert_eq!(attempt.get("messaging.system"), "workflow_manager");
            assert_eq!(attempt.get("messaging.destination.name"), "q");
            assert_eq!(attempt.get("messaging.message.conversation_id"), format!("{ID}:a"));
            assert_eq!(attempt.get("messaging.message.id"), format!("{ID}:a:{number}"));
        }
        let errors: Vec<_> = attempts.iter().map(|span| span.error.as_deref()).collect();
        let error = Some("the worker reported an error: not yet");
        assert_eq!(errors, [error, error, None]);
        let own = format!("00-{TRACE}-{}-01", attempts[2].id);
        assert_eq!(result["trace"], own, "the worker's span is inside the attempt's");
    });
}

#[test]
fn an_export_says_who_sends_it_and_with_which_headers() {
    let receiver = Receiver::start();
    let of_test = receiver.clone();
    let change = |settings: &mut Settings| {
        of_test.listen(settings);
        settings.traces.headers = Secret("x-key=open%20sesame".to_owned());
        settings.traces.resource = "host.name=here,service.version=other".to_owned();
    };
    TestManager::with(ONE).workers(of_q(echo)).set(change).serve(|api| async move {
        create(&api, "one", r#"{"secret":"a value of the message"}"#).await;
        spans(&receiver, 3).await;
        let call = &receiver.0.calls()[0];
        assert_eq!(call.path, "/v1/traces");
        assert_eq!(call.header("content-type"), "application/x-protobuf");
        assert_eq!(call.header("x-key"), "open sesame");
        let export = read(call);
        let resource = resource(&export);
        assert_eq!(resource["service.name"], "workflow-manager");
        assert_eq!((&*resource["service.version"], &*resource["host.name"]), ("other", "here"));
        assert_eq!(resource["service.instance.id"].len(), 36);
        let scope = export.resource_spans[0].scope_spans[0].scope.as_ref().expect("a scope");
        assert_eq!(scope.name, "workflow-manager");
        let text = format!("{:?}", receiver.spans());
        assert!(!text.contains("a value of the message"), "{text}");
    });
}

#[test]
fn failed_and_cancelled_jobs_tell_how_they_ended() {
    let receiver = Receiver::start();
    TestManager::with(ONE).workers(of_q(fail)).set(receiver.settings()).serve(|api| async move {
        create(&api, "one", "{}").await;
        let told = spans(&receiver, 3).await;
        for name in ["one", "a", "send q"] {
            let error = one(&told, name).error.as_deref().unwrap_or_default();
            assert!(error.contains("no\tstock of 4711"), "{name}: {error}");
        }
    });
    let receiver = Receiver::start();
    TestManager::with(ONE).set(receiver.settings()).serve(|api| async move {
        create(&api, "one", "{}").await;
        operate(&api, "pause").await;
        operate(&api, "cancel").await;
        let told = spans(&receiver, 3).await;
        let (job, a, attempt) = (one(&told, "one"), one(&told, "a"), one(&told, "send q"));
        assert_eq!((job.get("workflow.job.state"), &job.error), ("cancelled", &None));
        assert!(!job.get("workflow.reason").is_empty());
        assert_eq!(job.events, ["paused"]);
        // What was cut off ends with the job.
        assert_eq!((a.ended, attempt.ended), (job.ended, job.ended));
        assert_eq!(a.get("workflow.step.state"), "running");
    });
}

#[test]
fn a_job_that_goes_on_after_its_end_is_told_once_more_for_what_is_new() {
    let receiver = Receiver::start();
    let is_well = Arc::new(AtomicBool::new(false));
    let of_worker = is_well.clone();
    let workers = Workers::new().with_worker("q", 1, move |message: &Publication| {
        if of_worker.load(Ordering::SeqCst) { echo(message) } else { fail(message) }
    });
    TestManager::with(ONE).workers(workers).set(receiver.settings()).serve(|api| async move {
        create(&api, "one", "{}").await;
        let first = spans(&receiver, 3).await;
        is_well.store(true, Ordering::SeqCst);
        operate(&api, "retry").await;
        let all = spans(&receiver, 6).await;
        let ids: BTreeSet<&str> = all.iter().map(|span| &*span.id).collect();
        assert_eq!(ids.len(), 6, "no span is told twice");
        let again = &all[3..];
        assert_eq!(one(again, "one").parent, one(&first, "one").id);
        assert_eq!(one(again, "one").get("workflow.job.state"), "completed");
        assert_eq!(one(again, "a").parent, one(again, "one").id);
        assert_eq!(one(again, "send q").get("workflow.attempt"), "2");
    });
}

const FAN: &str = "workflows: [{name: fan, steps: [{name: each, task: piece}],
    tasks: [{name: piece, itemListKey: items, tolerate: 1, steps: [{name: work, queue: q}]}]}]";

#[test]
fn child_jobs_are_in_the_trace_of_their_root_below_their_step() {
    let receiver = Receiver::start();
    TestManager::with(FAN).workers(of_q(tell_trace)).set(receiver.settings()).serve(
        |api| async move {
            create(&api, "fan", r#"{"items":[1,2]}"#).await;
            let told = spans(&receiver, 8).await;
            let (job, each) = (one(&told, "fan"), one(&told, "each"));
            assert_eq!((&each.parent, each.get("workflow.items")), (&job.id, "2"));
            let pieces: Vec<&Told> = told.iter().filter(|span| span.name == "piece").collect();
            for (item, piece) in pieces.iter().enumerate() {
                assert_eq!((&*piece.trace, &piece.parent), (TRACE, &each.id));
                assert_eq!(piece.get("workflow.item.index"), item.to_string());
                assert_eq!(piece.get("workflow.root.id"), ID);
                let work: Vec<&Told> = told.iter().filter(|span| span.parent == piece.id).collect();
                assert_eq!((work.len(), &*work[0].name), (1, "work"));
                assert_eq!(told.iter().filter(|span| span.parent == work[0].id).count(), 1);
            }
            assert_eq!(pieces.len(), 2);
        },
    );
}

#[test]
fn of_a_large_job_as_many_spans_are_sent_as_the_limit_says_failures_first() {
    let receiver = Receiver::start();
    let of_test = receiver.clone();
    let change = |settings: &mut Settings| {
        of_test.listen(settings);
        settings.traces.job_spans_max = 10;
        settings.traces.batch_spans_max = 4;
    };
    let workers = Workers::new().with_worker("q", 1, |message: &Publication| {
        let is_last = String::from_utf8_lossy(&message.body.to_bytes()).contains("\"last\"");
        if is_last { fail(message) } else { echo(message) }
    });
    TestManager::with(FAN).workers(workers).set(change).serve(|api| async move {
        let common = api.state();
        let items: Vec<String> = (1..50).map(|item| item.to_string()).collect();
        let message = format!(r#"{{"items":[{},"last"]}}"#, items.join(","));
        create(&api, "fan", &message).await;
        let told = spans(&receiver, 10).await;
        let sizes = receiver.0.calls();
        let sizes =
            sizes.iter().map(|call| read(call).resource_spans[0].scope_spans[0].spans.len());
        assert_eq!(sizes.collect::<Vec<_>>(), [4, 4, 2]);
        assert_eq!(one(&told, "fan").get("workflow.children.omitted"), "47");
        assert_eq!(one(&told, "fan").get("workflow.spans.omitted"), "1");
        let pieces: Vec<&Told> = told.iter().filter(|span| span.name == "piece").collect();
        assert_eq!(pieces[0].get("workflow.item.index"), "49");
        assert!(pieces[0].error.is_some() && pieces[1].error.is_none());
        let dropped = &common.metrics.traces_spans_dropped;
        assert_eq!(dropped.with_label_values(&["limit"]).get(), 1);
        let sent = || Some(common.metrics.traces_spans_sent.get()).filter(|sent| *sent == 10);
        until("all are counted", sent).await;
    });
}

const ASKED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const NOT_SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

#[test]
fn a_trace_that_comes_with_a_job_goes_on_in_it_and_in_the_workflows_that_it_calls() {
    const WORKFLOWS: &str = "workflows: [
        {name: outer, steps: [{name: call, queue: workflow.inner}]},
        {name: inner, steps: [{name: each, task: piece}],
         tasks: [{name: piece, itemListKey: items, tolerate: 1, steps: [{name: work, \
             queue: q}]}]}]";
    let receiver = Receiver::start();
    TestManager::with(WORKFLOWS).workers(of_q(echo)).set(receiver.settings()).serve(
        |api| async move {
            let path = format!("/api/workflow/outer?id={ID}");
            let headers = [("traceparent", ASKED)];
            api.request(Method::POST, &path, &headers, r#"{"items":[1]}"#).await;
            let told = spans(&receiver, 8).await;
            assert!(told.iter().all(|span| span.trace == ASKED[3..35]), "{told:#?}");
            let outer = one(&told, "outer");
            assert_eq!((&*outer.parent, outer.flags), (&ASKED[36..52], 0x301));
            let call = one(&told, "send workflow.inner");
            let inner = one(&told, "inner");
            assert_eq!((&inner.parent, inner.flags), (&call.id, 0x301));
            let (each, piece) = (one(&told, "each"), one(&told, "piece"));
            assert_eq!((&each.parent, &piece.parent), (&inner.id, &each.id));
        },
    );
}

#[test]
fn what_is_not_sampled_is_not_sent_and_workers_are_told_so() {
    let receiver = Receiver::start();
    let of_test = receiver.clone();
    let change = |settings: &mut Settings| {
        of_test.listen(settings);
        settings.traces.sampled = 0.0;
    };
    TestManager::with(ONE).workers(of_q(tell_trace)).set(change).serve(|api| async move {
        let common = api.state();
        let result = run(&api, "one", &[]).await;
        assert!(result["trace"].as_str().expect("a text").ends_with("-00"), "{result}");
        assert_eq!(common.metrics.traces_jobs_waiting.get(), 0);
    });
    let of_test = receiver.clone();
    TestManager::with(ONE).workers(of_q(tell_trace)).set(of_test.settings()).serve(
        |api| async move {
            let common = api.state();
            let result = run(&api, "one", &[("traceparent", NOT_SAMPLED)]).await;
            let told = result["trace"].as_str().expect("a text");
            assert!(told.starts_with(&ASKED[..35]) && told.ends_with("-00"), "{told}");
            assert_eq!(common.metrics.traces_jobs_waiting.get(), 0);
        },
    );
    assert_eq!(receiver.0.connections(), 0);
}

#[test]
fn without_a_receiver_the_callers_span_is_handed_on_as_it_is() {
    TestManager::with(ONE).workers(of_q(tell_trace)).serve(|api| async move {
        assert_eq!(run(&api, "one", &[("traceparent", ASKED)]).await["trace"], ASKED);
    });
    for headers in
        [&[][..], &[("traceparent", ASKED), ("traceparent", ASKED)], &[("traceparent", "x")]]
    {
        TestManager::with(ONE).workers(of_q(tell_trace)).serve(|api| async move {
            let result = run(&api, "one", headers).await;
            let told = result["trace"].as_str().expect("a text");
            assert!(told.starts_with(&format!("00-{TRACE}-")) && told.ends_with("-01"), "{told}");
        });
    }
}

#[test]
fn a_call_of_a_web_service_is_a_clients_span_and_keeps_its_path() {
    let service = Service::start(|_| ok("{}"));
    let workflow = format!(
        "workflows: [{{name: one, steps: [{{name: a, timeout: 1m, queue: \"{}\"}}]}}]",
        service.url().replace("127.0.0.1", "localhost")
    );
    let receiver = Receiver::start();
    TestManager::with(&workflow).set(receiver.settings()).serve(|api| async move {
        run(&api, "one", &[]).await;
        let told = spans(&receiver, 3).await;
        let call = one(&told, "POST localhost");
        assert_eq!((call.kind, call.get("server.address")), (3, "localhost"));
        assert!(service.calls()[0].header("traceparent").contains(&call.id));
        assert!(!format!("{told:?}").contains("/step"));
    });
}

fn counted(state: &ApiState, outcome: &str) -> u64 {
    state.metrics.traces_exports.with_label_values(&[outcome]).get()
}

#[test]
fn what_is_refused_for_good_is_dropped_and_what_is_not_taken_now_is_sent_again() {
    let receiver = Receiver::with(|call| match call.number {
        1 => Act::Answer(429, &[("Retry-After", "1")], Vec::new()),
        2 => Act::Answer(503, &[], Vec::new()),
        3 => Act::Raw(Vec::new()),
        4 => status(200),
        5 => Act::Answer(400, &[], b"no such key: open sesame".to_vec()),
        // One of the spans is rejected: field 1 of a message in field 1.
        _ => Act::Answer(200, &[], vec![0x0a, 0x02, 0x08, 0x01]),
    });
    let of_test = receiver.clone();
    let change = |settings: &mut Settings| {
        of_test.listen(settings);
        settings.traces.headers = Secret("x-key=open%20sesame".to_owned());
    };
    TestManager::with(ONE).workers(of_q(echo)).set(change).serve(|api| async move {
        let common = api.state();
        let begun = workflow_manager::clock::instant();
        create(&api, "one", "{}").await;
        until("it is taken", || Some(()).filter(|()| counted(common, "taken") == 1)).await;
        assert!(begun.elapsed() > Duration::from_secs(1), "Retry-After was not waited for");
        assert_eq!(counted(common, "failed"), 3);
        let bodies: BTreeSet<Vec<u8>> =
            receiver.0.calls().into_iter().map(|call| call.body).collect();
        assert_eq!(bodies.len(), 1, "the same is sent again");
        assert_eq!(common.metrics.traces_spans_sent.get(), 3);

        post(&api, "/api/workflow/one", "{}").await;
        until("it is refused", || Some(()).filter(|()| counted(common, "refused") == 1)).await;
        let dropped =
            |reason: &str| common.metrics.traces_spans_dropped.with_label_values(&[reason]).get();
        assert_eq!(dropped("refused"), 3);
        post(&api, "/api/workflow/one", "{}").await;
        until("it is taken in part", || Some(()).filter(|()| dropped("rejected") == 1)).await;
        assert_eq!(common.metrics.traces_spans_sent.get(), 5);
    });
}

#[test]
fn a_receiver_that_hangs_holds_up_no_job_and_what_does_not_fit_is_dropped() {
    let receiver = Receiver::with(|_| Act::Never);
    let of_test = receiver.clone();
    let change = |settings: &mut Settings| {
        of_test.listen(settings);
        settings.traces.jobs_waiting_max = 5;
        settings.traces.batch_spans_max = 3;
        settings.traces.timeout = DurationSetting(Duration::from_secs(30));
    };
    TestManager::with(ONE).workers(of_q(echo)).set(change).serve(|api| async move {
        let common = api.state();
        run(&api, "one", &[]).await;
        until("the first export", || receiver.0.calls().pop()).await;
        for _ in 0..20 {
            post(&api, "/api/workflow/one", "{}").await;
        }
        let ended = || common.metrics.jobs_ended.with_label_values(&["one", "completed"]).get();
        until("all have ended", || Some(()).filter(|()| ended() == 21)).await;
        let dropped = common.metrics.traces_jobs_dropped.with_label_values(&["full"]);
        until("15 are dropped", || Some(()).filter(|()| dropped.get() == 15)).await;
        assert_eq!(common.metrics.traces_jobs_waiting.get(), 5);
        assert_eq!(receiver.0.calls().len(), 1);
    });
}

#[test]
fn what_is_not_taken_for_too_long_is_dropped() {
    let receiver = Receiver::with(|_| status(503));
    let of_test = receiver.clone();
    let change = |settings: &mut Settings| {
        of_test.listen(settings);
        settings.traces.age_max = DurationSetting(Duration::from_millis(100));
    };
    TestManager::with(ONE).workers(of_q(echo)).set(change).serve(|api| async move {
        let common = api.state();
        run(&api, "one", &[]).await;
        let dropped = common.metrics.traces_spans_dropped.with_label_values(&["expired"]);
        until("they are dropped", || Some(()).filter(|()| dropped.get() == 3)).await;
        assert!(receiver.0.calls().len() > 1);
    });
}

#[test]
fn a_stop_sends_what_is_left() {
    let receiver = Receiver::start();
    let of_test = receiver.clone();
    let change = |settings: &mut Settings| {
        of_test.listen(settings);
        settings.traces.delay = DurationSetting(Duration::from_secs(3600));
        settings.traces.interval = DurationSetting(Duration::from_secs(3600));
    };
    TestManager::with(ONE).workers(of_q(echo)).set(change).serve(|api| async move {
        let common = api.state();
        run(&api, "one", &[]).await;
        assert_eq!(common.metrics.traces_jobs_waiting.get(), 1);
    });
    assert_eq!(receiver.spans().len(), 3);
}

#[test]
fn after_a_restart_a_job_and_its_child_jobs_are_in_the_trace_that_they_came_with() {
    let folder = tempfile::tempdir().expect("a folder");
    let receiver = Receiver::start();
    actix_rt::System::new().block_on(async {
        let begun = |api: Api| async move {
            let path = format!("/api/workflow/fan?id={ID}");
            let headers = [("traceparent", ASKED)];
            api.request(Method::POST, &path, &headers, r#"{"items":[1]}"#).await;
            let children = &api.state().metrics.child_jobs;
            until("the child job runs", || children.get() == 1).await;
        };
        TestManager::with(FAN)
            .folder(folder.path())
            .set(receiver.settings())
            .serve_here(begun)
            .await;
        let seen = Arc::new(Mutex::new(String::new()));
        let of_worker = seen.clone();
        let workers = Workers::new().with_worker("q", 1, move |message: &Publication| {
            let trace = Header::find_text(&message.headers, "traceparent").expect("a traceparent");
            *of_worker.lock().expect("a text") = trace.to_string();
            echo(message)
        });
        let of_test = receiver.clone();
        let ended = |_| async move { spans(&of_test, 5).await };
        let told = TestManager::with(FAN)
            .folder(folder.path())
            .workers(workers)
            .set(receiver.settings())
            .serve_here(ended)
            .await;
        assert!(told.iter().all(|span| span.trace == ASKED[3..35]), "{told:#?}");
        assert_eq!(one(&told, "fan").parent, ASKED[36..52]);
        let attempt = format!("00-{}-{}-01", &ASKED[3..35], one(&told, "send q").id);
        assert_eq!(*seen.lock().expect("a text"), attempt);
    });
}
