//! While the journal waits it is not known what of a job is committed. No worker loses a message by
//! that, and no token is good for another queue than its own.

use super::{ID, receive, reply, tell};
use crate::alone::alone;
use actix_web::http::{Method, StatusCode};
use serde_json::json;
use std::time::Duration;
use support::api::{Answer, Api, Headers};
use support::manager::TestManager;
use support::waits::{until, until_async, within};
use tokio::sync::oneshot;
use workflow_manager::actors::completion_latch::CompletionLatch;
use workflow_manager::actors::inputs::{Inspection, JobInput};
use workflow_manager::engine::{Job, Message, StepIndex, StepState};
use workflow_manager::settings::{DurationSetting, Names, Secret, Settings, WorkerToken};

const WORKFLOW: &str = "
workflows:
  - name: orders
    steps: [ { name: price }, { name: stock } ]
  - name: other
    steps: [ { name: sign, external: true } ]";

/// Fills the disk, and returns once the journal waits.
async fn fill_disk(api: &Api) {
    fail::cfg("journal::write", "return(full)").expect("set");
    let manager = api.state().active().expect("it is active").clone();
    actix_rt::spawn(async move { manager.create("other", None, Message::default()).await });
    until("the journal waits", || api.state().health.is_journal_waiting()).await;
}

/// Makes room on the disk, and returns once the journal is written again.
async fn free_disk(api: &Api) {
    fail::remove("journal::write");
    until("there is room", || !api.state().health.is_journal_waiting()).await;
}

/// Settles all messages of the job, which completes by that.
async fn complete(api: &Api, messages: [&Answer; 2]) {
    for message in messages {
        assert_eq!(reply(api, message, "", "{}").await, json!({ "taken": true }));
    }
    api.until(&format!("/api/job/{ID}"), |job| job["state"] == "completed").await;
}

/// The state of the first step, committed or not.
async fn first_step(api: &Api) -> StepState {
    let (answer, seen) = oneshot::channel();
    let see = move |job: &Job| {
        let _ = answer.send(job.step_state(StepIndex(0)));
    };
    let look = Inspection::new(see, CompletionLatch::new(oneshot::channel().0));
    let id = ID.parse().expect("an id");
    api.state().routes.find(id).expect("it is active").send(JobInput::Inspect(look));
    seen.await.expect("seen")
}

async fn a_lease() {
    let serve = TestManager::with(WORKFLOW).serve_here(|api| async move {
        api.create_job(&format!("orders?id={ID}"), "{}").await;
        let price = receive(&api, "price/receive").await;
        let stock = receive(&api, "stock/receive").await;
        fill_disk(&api).await;
        let extended = tell(&api, &price, "extend?lease=10m").await;
        assert_eq!(extended.status, StatusCode::OK, "{}", extended.text());
        free_disk(&api).await;
        complete(&api, [&price, &stock]).await;
    });
    serve.await;
}

#[test]
fn a_lease_is_extended_while_the_journal_waits() {
    alone("worker::journal_waits::a_lease_is_extended_while_the_journal_waits", a_lease());
}

async fn a_message() {
    let serve = TestManager::with(WORKFLOW).serve_here(|api| async move {
        api.create_job(&format!("orders?id={ID}"), "{}").await;
        let price = receive(&api, "price/receive").await;
        let stock = receive(&api, "stock/receive").await;
        assert_eq!(tell(&api, &stock, "nack?requeue=true").await.status, StatusCode::OK);
        fill_disk(&api).await;
        // Whether the attempt of a message that was leased before has ended is looked at.
        let again = receive(&api, "stock/receive?wait=0s").await;
        assert_eq!(again.header("delivery"), "2");
        free_disk(&api).await;
        complete(&api, [&price, &again]).await;
    });
    serve.await;
}

#[test]
fn a_message_is_leased_again_while_the_journal_waits() {
    let test = "worker::journal_waits::a_message_is_leased_again_while_the_journal_waits";
    alone(test, a_message());
}

fn wait_shortly_for_reads(settings: &mut Settings) {
    settings.http.reads_wait = DurationSetting(Duration::from_millis(20));
}

async fn an_end() {
    let setup = TestManager::with(WORKFLOW).set(wait_shortly_for_reads);
    let serve = setup.serve_here(|api| async move {
        api.create_job(&format!("orders?id={ID}"), "{}").await;
        let price = receive(&api, "price/receive").await;
        let stock = receive(&api, "stock/receive").await;
        fill_disk(&api).await;
        let (caller, path) = (api.clone(), price.header("reply-to").to_owned());
        let replied = actix_rt::spawn(async move { caller.post(&path, "{}").await });
        until_async("the reply is decided", async || {
            first_step(&api).await == StepState::Completed
        })
        .await;
        let places = api.state().budgets.reads.try_acquire(usize::MAX).expect("free");
        let unread = tell(&api, &price, "extend").await;
        assert_eq!(unread.status, StatusCode::OK, "no read is free: {}", unread.text());
        drop(places);
        let read = tell(&api, &price, "extend").await;
        assert_eq!(read.status, StatusCode::OK, "the journal has no end: {}", read.text());
        free_disk(&api).await;
        assert_eq!(replied.await.expect("no panic").json(), json!({ "taken": true }));
        let gone = tell(&api, &price, "extend").await;
        assert_eq!(gone.status, StatusCode::GONE);
        assert_eq!(gone.json()["reason"], "settled");
        assert_eq!(reply(&api, &stock, "", "{}").await, json!({ "taken": true }));
    });
    serve.await;
}

#[test]
fn an_end_that_is_not_committed_ends_no_lease() {
    alone("worker::journal_waits::an_end_that_is_not_committed_ends_no_lease", an_end());
}

const ALL: Headers<'static> = &[("authorization", "Bearer all")];
const PRICING: Headers<'static> = &[("authorization", "Bearer pricing")];

/// A token for everything, and one for the queue `price`.
fn tokens(settings: &mut Settings) {
    wait_shortly_for_reads(settings);
    settings.http.token = Secret("all".to_owned());
    let worker = WorkerToken {
        token: Secret("pricing".to_owned()),
        queues: Names(vec!["price".to_owned()]),
        vhost: String::new(),
    };
    settings.http.workers = [("pricing".to_owned(), worker)].into();
}

async fn post(api: &Api, path: &str, headers: Headers<'_>) -> Answer {
    within(path, api.request(Method::POST, path, headers, "{}")).await
}

/// The paths of the job's messages: its own of the token for `price`, and one of `stock` that
/// pretends to be of `price`.
fn paths() -> [String; 2] {
    ["price", "stock"].map(|step| format!("/api/queue/price/message/{ID}:{step}:1/1"))
}

async fn a_token() {
    let serve = TestManager::with(WORKFLOW).set(tokens).serve_here(|api| async move {
        post(&api, &format!("/api/workflow/orders?id={ID}"), ALL).await;
        for queue in ["price", "stock"] {
            let leased = post(&api, &format!("/api/queue/{queue}/receive"), ALL).await;
            assert_eq!(leased.status, StatusCode::OK);
        }
        fill_disk(&api).await;
        let [own, disguised] = paths();
        for word in ["extend", "nack?requeue=true", "reply"] {
            let answer = post(&api, &format!("{disguised}/{word}"), PRICING).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{word}");
        }
        assert_eq!(post(&api, &format!("{own}/extend"), PRICING).await.status, StatusCode::OK);
        free_disk(&api).await;
        let stock = format!("/api/queue/stock/message/{ID}:stock:1/1/reply");
        for (path, headers) in [(format!("{own}/reply"), PRICING), (stock, ALL)] {
            let replied = post(&api, &path, headers).await;
            assert_eq!(replied.json(), json!({ "taken": true }));
        }
    });
    serve.await;
}

#[test]
fn a_token_is_for_its_queues_alone_while_the_journal_waits() {
    let test = "worker::journal_waits::a_token_is_for_its_queues_alone_while_the_journal_waits";
    alone(test, a_token());
}

#[test]
fn a_message_whose_queue_cannot_be_looked_up_is_not_settled() {
    TestManager::with(WORKFLOW).set(tokens).serve(|api| async move {
        post(&api, &format!("/api/workflow/orders?id={ID}"), ALL).await;
        for queue in ["price", "stock"] {
            let leased = post(&api, &format!("/api/queue/{queue}/receive"), ALL).await;
            let replied = post(&api, leased.header("reply-to"), ALL).await;
            assert_eq!(replied.json(), json!({ "taken": true }));
        }
        let id = ID.parse().expect("an id");
        until("it has ended", || !api.state().routes.is_active(id)).await;
        let [own, disguised] = paths().map(|path| format!("{path}/reply"));
        let places = api.state().budgets.reads.try_acquire(usize::MAX).expect("free");
        for path in [&own, &disguised] {
            let answer = post(&api, path, PRICING).await;
            assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
        }
        drop(places);
        assert_eq!(post(&api, &own, PRICING).await.json()["taken"], false);
        assert_eq!(post(&api, &disguised, PRICING).await.status, StatusCode::FORBIDDEN);
        // To settle what nobody knows changes nothing.
        let unknown = own.replace(ID, "f557697b-f911-401c-86b7-000000000000");
        assert_eq!(post(&api, &unknown, PRICING).await.json()["taken"], false);
    });
}
