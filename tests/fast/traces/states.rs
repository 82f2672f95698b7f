//! What other systems of tracing want handed on (`tracestate`): it goes where the trace goes, and
//! never hurts.

use super::*;

const STATE: &str = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE";

/// Answers with the tracestate of the message that it had, if there was one.
fn tell_state(message: &Publication) -> Given {
    let state = Header::find_text(&message.headers, "tracestate").map_or("none", |text| &**text);
    Ok(format!("{{\"state\":\"{state}\"}}").into())
}

#[test]
fn it_goes_on_to_messages_and_spans_of_the_job_its_child_jobs_and_the_workflows_that_it_calls() {
    const WORKFLOWS: &str = "workflows: [
        {name: outer, steps: [{name: call, queue: workflow.inner}]},
        {name: inner, steps: [{name: each, task: piece}],
         tasks: [{name: piece, itemListKey: items, steps: [{name: work, queue: q}]}]}]";
    let receiver = Receiver::start();
    TestManager::with(WORKFLOWS).workers(of_q(tell_state)).set(receiver.settings()).serve(
        |api| async move {
            let headers = [("traceparent", ASKED), ("tracestate", STATE)];
            let path = format!("/api/workflow/outer?id={ID}");
            let created = api.request(Method::POST, &path, &headers, r#"{"items":[1]}"#).await;
            assert!(created.status.is_success());
            let told = spans(&receiver, 8).await;
            assert!(told.iter().all(|span| span.state == STATE), "{told:#?}");
            let job = api.state().reader.load_job(ID.parse().expect("an id")).expect("readable");
            let result = job.expect("it is there").job.result().to_text();
            assert!(result.contains(STATE), "the worker of the child job had it: {result}");
        },
    );
}

#[test]
fn what_comes_in_two_headers_is_one_and_what_cannot_be_read_is_left_out() {
    let long = format!("a={},b={}", "x".repeat(256), "y".repeat(256));
    let many = (0..33).map(|at| format!("k{at}=v")).collect::<Vec<_>>().join(",");
    let (asked, unread) = (("traceparent", ASKED), ("traceparent", "x"));
    let state = |text| ("tracestate", text);
    let cases: [(&[(&str, &str)], &str); 8] = [
        (&[asked, state("rojo=00f067aa0ba902b7"), state("congo=t61rcWkgMzE")], STATE),
        (&[asked], "none"),
        (&[state(STATE)], "none"),
        (&[unread, state(STATE)], "none"),
        (&[asked, state("no state at all")], "none"),
        (&[asked, state("a=1"), state("a=2")], "none"),
        (&[asked, state(&long)], "none"),
        (&[asked, state(&many)], "none"),
    ];
    for (headers, told) in cases {
        TestManager::with(ONE).workers(of_q(tell_state)).serve(|api| async move {
            assert_eq!(run(&api, "one", headers).await["state"], told, "{headers:?}");
        });
    }
}

#[test]
fn a_worker_over_http_has_it_in_a_header_and_in_a_list_of_messages() {
    TestManager::with(ONE).serve(|api| async move {
        let headers = [("traceparent", ASKED), ("tracestate", STATE)];
        for _ in 0..2 {
            api.request(Method::POST, "/api/workflow/one", &headers, "{}").await;
        }
        let path = "/api/queue/q/receive?wait=30s";
        let message = api.post(path, "").await;
        assert_eq!(message.header("tracestate"), STATE);
        let listed = api.post(&format!("{path}&max=2"), "").await.json();
        assert_eq!(listed[0]["tracestate"], STATE, "{listed}");
    });
}

#[test]
fn it_survives_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    actix_rt::System::new().block_on(async {
        let begun = |api: Api| async move {
            let path = format!("/api/workflow/fan?id={ID}");
            let headers = [("traceparent", ASKED), ("tracestate", STATE)];
            api.request(Method::POST, &path, &headers, r#"{"items":[1]}"#).await;
            let children = &api.state().metrics.child_jobs;
            until("the child job runs", || children.get() == 1).await;
        };
        TestManager::with(FAN).folder(folder.path()).serve_here(begun).await;
        let receiver = Receiver::start();
        let seen = Arc::new(Mutex::new(String::new()));
        let of_worker = seen.clone();
        let workers = Workers::new().with_worker("q", 1, move |message: &Publication| {
            let state = Header::find_text(&message.headers, "tracestate").expect("a tracestate");
            *of_worker.lock().expect("a text") = state.to_string();
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
        assert!(told.iter().all(|span| span.state == STATE), "{told:#?}");
        assert_eq!(*seen.lock().expect("a text"), STATE, "of the message");
    });
}
