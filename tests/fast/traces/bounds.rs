//! What a trace may take, however much a job has done: spans, bytes, attempts, and requests.

use super::*;

/// A reason as long as one that is told, of characters of several bytes.
const REASON_CHARS: usize = 1_000;

/// How many items there are, more than fit.
const ITEMS: usize = 900;

/// What a request has besides spans, and what frames each of them.
const FRAME_BYTES: usize = 4_096;

/// The most bytes of a request, as docs/how-to/get-traces.md says.
const EXPORT_BYTES_MAX: usize = 1 << 20;

/// The most bytes of the spans of a job, as docs/how-to/get-traces.md says.
const TRACE_BYTES_MAX: usize = 16 << 20;

fn fail_at_length(_: &Publication) -> Given {
    Err("\u{1f40c}".repeat(2 * REASON_CHARS).into())
}

#[test]
fn of_many_attempts_the_first_ones_and_the_last_one_are_told() {
    let receiver = Receiver::start();
    let of_test = receiver.clone();
    let change = |settings: &mut Settings| {
        of_test.listen(settings);
        settings.traces.job_spans_max = 12;
    };
    const FAILING: &str = "workflows: [{name: one, steps: [
        {name: a, queue: q, retry: {attempts: 40, backoff: 1ms, factor: 1}}]}]";
    TestManager::with(FAILING).workers(of_q(fail)).set(change).serve(|api| async move {
        create(&api, "one", "{}").await;
        let told = spans(&receiver, 12).await;
        let numbers: Vec<&str> = told
            .iter()
            .filter(|span| span.name == "send q")
            .map(|span| span.get("workflow.attempt"))
            .collect();
        assert_eq!(numbers, ["1", "2", "3", "4", "5", "6", "7", "8", "9", "40"]);
        assert_eq!(one(&told, "one").get("workflow.spans.omitted"), "30");
    });
}

const ALL_MAY_FAIL: &str = "workflows: [{name: fan, steps: [{name: each, task: piece}],
    tasks: [{name: piece, itemListKey: items, tolerate: 100%, steps: [{name: work, queue: q}]}]}]";

#[test]
fn an_export_and_a_trace_have_their_bytes_bounded() {
    let receiver = Receiver::start();
    let of_test = receiver.clone();
    let change = |settings: &mut Settings| {
        of_test.listen(settings);
        (settings.traces.job_spans_max, settings.traces.batch_spans_max) = (10_000, 10_000);
    };
    TestManager::with(ALL_MAY_FAIL).workers(of_q(fail_at_length)).set(change).serve(
        |api| async move {
            let common = api.state();
            let items: Vec<String> = (0..ITEMS).map(|item| item.to_string()).collect();
            create(&api, "fan", &format!(r#"{{"items":[{}]}}"#, items.join(","))).await;
            let job = until("the job's span", || receiver.named("fan").pop()).await;
            let omitted = |of: &str| job.get(of).parse::<usize>().unwrap_or_default();
            let children = omitted("workflow.children.omitted");
            assert!(children > 0, "the spans of {ITEMS} items are too large");
            // The job, its step, and three of each child job.
            let count = 2 + 3 * (ITEMS - children) - omitted("workflow.spans.omitted");
            let told = spans(&receiver, count).await;
            let reasons: Vec<usize> =
                told.iter().filter_map(|span| Some(span.error.as_ref()?.chars().count())).collect();
            assert!(reasons.iter().all(|chars| *chars <= REASON_CHARS));
            assert!(reasons.iter().filter(|chars| **chars == REASON_CHARS).count() > ITEMS / 2);
            let sizes: Vec<usize> = receiver.0.calls().iter().map(|call| call.body.len()).collect();
            let (most, sum) = (sizes.iter().max().expect("one"), sizes.iter().sum::<usize>());
            // The resource and the frame of each request come on top.
            assert!(*most <= EXPORT_BYTES_MAX + FRAME_BYTES, "{sizes:?}");
            assert!(sum <= TRACE_BYTES_MAX + sizes.len() * FRAME_BYTES + 10_000, "{sizes:?}");
            assert!(sum > TRACE_BYTES_MAX / 2, "{sizes:?}");
            let sent = || {
                Some(common.metrics.traces_spans_sent.get()).filter(|sent| *sent == count as u64)
            };
            until("all are counted", sent).await;
        },
    );
}
