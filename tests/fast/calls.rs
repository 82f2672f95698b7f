//! Workflows that ask workflows, on the embedded bus: what a call may do, and what it may not.

use bytes::Bytes;
use support::manager::TestManager;
use support::waits::until;
use tokio::sync::{mpsc, oneshot};
use workflow_manager::actors::client_response::RequestError;
use workflow_manager::actors::completion_latch::CompletionLatch;
use workflow_manager::actors::inputs::{JobInput, RouterInput};
use workflow_manager::bus::EMBEDDED_REPLY_QUEUE as REPLIES;
use workflow_manager::bus::{Delivery, Disposition, SettleCommand, Settlement};
use workflow_manager::engine::{JobId, JobState, Message};

const INNER: &str = "workflows: [ { name: inner, steps: [ { name: work } ] } ]";

/// A message on the queue of `workflow`, and where its verdict comes.
fn call(
    manager: &TestManager,
    workflow: &str,
    change: impl FnOnce(&mut Delivery),
) -> mpsc::UnboundedReceiver<SettleCommand> {
    let (settle, settled) = mpsc::unbounded_channel();
    let mut delivery =
        Delivery::new(None, Bytes::from_static(b"{}"), Settlement::new(1, 0, settle));
    change(&mut delivery);
    manager.mailboxes().router.send(RouterInput::CallDelivered {
        workflow: workflow.into(),
        bus: "embedded".into(),
        delivery,
    });
    settled
}

/// Waits until the router has done what it was told before, and a job that it then asked has
/// answered.
async fn settled(manager: &TestManager, asked: JobId) {
    for _ in 0..2 {
        let (done, is_done) = oneshot::channel();
        if let Some(job) = manager.core().routes.find(asked) {
            job.send(JobInput::AwaitCommit(CompletionLatch::new(done)));
        }
        is_done.await.expect("committed");
        // This lies behind it in the router's mailbox.
        assert_eq!(
            manager.handle().create("no such workflow", None, Message::default()).await,
            Err(RequestError::NotFound)
        );
        let nobody = manager.handle().cancel(JobId(uuid::Uuid::nil()), None);
        assert_eq!(nobody.await, Err(RequestError::NotFound));
    }
}

#[test]
fn a_call_passes_the_limit_of_jobs_for_the_step_alone_that_has_sent_it() {
    let workflows = "
workflows:
  - { name: outer, steps: [ { name: ask, queue: workflow.inner }, { name: plain }, \
      { name: next, queue: workflow.inner, depends: [ plain ] } ] }
  - { name: inner, steps: [ { name: work } ] }
";
    actix_rt::System::new().block_on(async {
        let setup = TestManager::with(workflows);
        let manager = setup.set(|settings| settings.limits.jobs_running_max = 1).await;
        let outer = manager.create_job("outer", "{}").await;
        until("its own call is taken", || manager.core().routes.root_count() == 2).await;
        let forged = |step: &str, message_id: &str, reply_to: &str| {
            let (correlation_id, reply_to) = (format!("{outer}:{step}"), reply_to.to_owned());
            let message_id = message_id.replace("OUTER", &outer.to_string());
            call(&manager, "inner", |delivery| {
                delivery.correlation_id = Some(correlation_id);
                delivery.message_id = Some(message_id);
                delivery.reply_to = Some(reply_to);
            })
        };
        let mut refused = [
            // Another id for the message of a step that runs.
            forged("ask", "11111111-1111-4111-8111-111111111111", REPLIES),
            forged("ask", "OUTER:ask:2", REPLIES),
            forged("ask", "OUTER:ask:01", REPLIES),
            // Steps that run elsewhere, wait, or are none.
            forged("plain", "OUTER:plain:1", REPLIES),
            forged("next", "OUTER:next:1", REPLIES),
            forged("none", "OUTER:none:1", REPLIES),
        ];
        // Another reply queue.
        let mut waits = forged("ask", "OUTER:ask:1", "elsewhere");
        settled(&manager, outer).await;
        assert_eq!(manager.core().routes.root_count(), 2, "none of them has a job");
        for verdict in &mut refused {
            // Only such a step may be answered into the manager's own reply queue.
            assert_eq!(
                verdict.recv().await.map(|settled| settled.disposition),
                Some(Disposition::Ack)
            );
        }
        assert_eq!(
            manager
                .core()
                .metrics
                .calls_refused
                .with_label_values(&["inner", "own_reply_queue"])
                .get(),
            6
        );
        assert!(waits.try_recv().is_err(), "it waits");
        manager.stop().await;
    });
}

#[test]
fn workflows_that_call_each_other_without_end_come_to_the_limit_of_depth() {
    let workflows = "
workflows:
  - { name: ping, steps: [ { name: ask, queue: workflow.pong } ] }
  - { name: pong, steps: [ { name: ask, queue: workflow.ping } ] }
";
    actix_rt::System::new().block_on(async {
        let setup = TestManager::with(workflows);
        let manager = setup.set(|settings| settings.limits.depth_max = 5).await;
        let id = manager.create_job("ping", "{}").await;
        let job = manager.until_ended(id).await;
        assert_eq!(job.state(), JobState::Failed);
        let reason = job.reason_text();
        assert!(
            reason.contains("deeper than 5 levels") && reason.contains("limits.depth_max"),
            "{reason}"
        );
        let created = |workflow: &str| {
            manager.core().metrics.jobs_created.with_label_values(&[workflow]).get()
        };
        assert_eq!((created("ping"), created("pong")), (3, 3), "six levels, the first of them 0");
        manager.stop().await;
    });
}

#[test]
fn a_forged_depth_costs_its_own_call_alone() {
    actix_rt::System::new().block_on(async {
        let manager = TestManager::with(INNER).await;
        for depth in [32, u16::MAX] {
            let mut refused = call(&manager, "inner", |delivery| delivery.depth = Some(depth));
            assert_eq!(
                refused.recv().await.map(|settled| settled.disposition),
                Some(Disposition::Ack)
            );
        }
        assert!(manager.core().routes.is_empty());
        for depth in [None, Some(0), Some(31)] {
            let mut taken = call(&manager, "inner", |delivery| delivery.depth = depth);
            assert_eq!(
                taken.recv().await.map(|settled| settled.disposition),
                Some(Disposition::Ack)
            );
        }
        assert_eq!(manager.core().routes.root_count(), 3);
        manager.stop().await;
    });
}

#[test]
fn more_callers_of_one_job_than_may_be_are_refused() {
    actix_rt::System::new().block_on(async {
        let setup = TestManager::with(INNER);
        let manager = setup.set(|settings| settings.limits.callers_max = 2).await;
        let refused =
            manager.core().metrics.calls_refused.with_label_values(&["inner", "too_many_callers"]);
        for (number, refusals) in [(1, 0), (2, 0), (3, 1), (2, 1), (4, 2)] {
            let mut taken = call(&manager, "inner", |delivery| {
                delivery.message_id = Some("11111111-1111-4111-8111-111111111111".to_owned());
                delivery.correlation_id = Some(format!("caller {number}"));
                delivery.reply_to = Some("elsewhere".to_owned());
            });
            assert_eq!(
                taken.recv().await.map(|settled| settled.disposition),
                Some(Disposition::Ack)
            );
            assert_eq!(refused.get(), refusals, "caller {number}");
        }
        manager.stop().await;
    });
}
