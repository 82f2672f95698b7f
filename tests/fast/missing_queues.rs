//! A missing queue is declared only once the journal has all that jobs have decided about the
//! messages that were in it: a crash behind that must not find one of them confirmed.

use crate::alone::alone;
use support::manager::TestManager;
use support::waits::{until_async, within};
use tokio::sync::oneshot;
use workflow_manager::actors::completion_latch::CompletionLatch;
use workflow_manager::actors::inputs::{Inspection, JobInput, RouterInput};
use workflow_manager::actors::routes::Routes;
use workflow_manager::bus::Address;
use workflow_manager::engine::{Input, JobId, Operation, StepIndex};
use workflow_manager::journal::{JobRecords, Reader};

const WORKFLOW: &str = "workflows: [{name: w, steps: [{name: q}]}]";

/// Whether the job has its message as confirmed, committed or not.
async fn is_confirmed(routes: &Routes, id: JobId) -> bool {
    let (answer, seen) = oneshot::channel();
    let see = move |job: &workflow_manager::engine::Job| {
        let _ = answer.send(job.step(StepIndex(0)).confirmed);
    };
    let look = Inspection::new(see, CompletionLatch::new(oneshot::channel().0));
    routes.find(id).expect("it is under way").send(JobInput::Inspect(look));
    seen.await.expect("seen")
}

async fn until_it_is(confirmed: bool, routes: &Routes, id: JobId) {
    until_async("it is so", async || is_confirmed(routes, id).await == confirmed).await;
}

async fn full_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let manager = TestManager::with(WORKFLOW).folder(folder.path()).await;
    let (routes, mailboxes) = (&manager.core().routes, manager.mailboxes());
    let id = manager.create_job("w", "{}").await;
    // The embedded bus confirms nothing: the test does.
    let confirmed = Input::Confirmed { step: StepIndex(0), attempt: 1, dispatch: None };
    mailboxes.router.send(RouterInput::InputForJob(id, confirmed));
    manager.handle().inspect_job(id, |_| ()).await.expect("the confirm is committed");
    until_it_is(true, routes, id).await;

    fail::cfg("journal::write", "return(full)").expect("the disk is full");
    let again = Operation::Redispatch { step: "q".to_owned() };
    let sent_again = actix_rt::spawn(manager.handle().operate(id, again));
    until_it_is(false, routes, id).await;
    let (taken, is_taken) = oneshot::channel();
    let queue = Address { bus: manager.core().buses.resolve(None, ""), queue: "q".into() };
    mailboxes.router.send(RouterInput::QueueMissing { queue, handled: taken });
    let file = folder.path().join("j.db");
    let kept = actix_rt::spawn(async move {
        is_taken.await.expect("taken");
        Reader::new(&file)
            .load_job(id)
            .expect("read")
            .expect("there")
            .job
            .step(StepIndex(0))
            .confirmed
    });
    // Whoever answers before there is room does so by now, or soon.
    manager.handle().wait_for_router().await;
    until_it_is(false, routes, id).await;
    manager.handle().probe_liveness().await;

    fail::remove("journal::write");
    let kept = within("it is declared", kept).await.expect("no panic");
    assert!(!kept, "the queue is declared while the journal has its message as confirmed");
    within("it is sent again", sent_again).await.expect("no panic").expect("ok");
    manager.stop().await;
}

#[test]
fn a_queue_is_declared_after_the_commit_of_what_was_decided_before_it_was_missed() {
    let name = "missing_queues::a_queue_is_declared_after_the_commit_of_what_was_decided_before_\
                it_was_missed";
    alone(name, full_disk());
}
