//! How a job that has nothing left to do leaves.

use crate::simulation::relays::relay;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use support::waits::DEADLINE;
use workflow_manager::actors::handles::{ActorHandles, Mailboxes};
use workflow_manager::actors::inputs::JournalInput;
use workflow_manager::actors::manager::{self, Parts, Threads};
use workflow_manager::bus::embedded::Workers;
use workflow_manager::engine::{Message, Operation, Reply};
use workflow_manager::load::load_text;
use workflow_manager::settings::Settings;

const JOBS: usize = 5;

/// The job may take input again by the time a second request is heard: then a running job would be
/// let go.
#[test]
fn a_job_that_was_let_go_does_not_ask_to_leave_again() {
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = Settings::defaults().expect("defaults");
        settings.journal.file = folder.path().join("j.db");
        let text = "workflows: [{name: one, steps: [{name: sign, external: true}]}]";
        let definitions = load_text("one.yaml", text).expect("valid").definitions;
        let asked = Rc::new(Cell::new(0));
        let seen = asked.clone();
        let wiring = move |mailboxes: Mailboxes, ways: &Arc<ActorHandles>| {
            let journal = relay(mailboxes.journal, ways, move |input| {
                let leaves =
                    matches!(&input, JournalInput::Append(append) if append.stop_after.is_some());
                seen.set(seen.get() + usize::from(leaves));
                Some(input)
            });
            Mailboxes { journal, ..mailboxes }
        };
        let parts = Parts { wiring: Box::new(wiring), ..Parts::standard(Workers::new()) };
        let manager = manager::start_on(Threads::Current, settings, definitions, parts);
        let manager = manager.expect("starts");
        for _ in 0..JOBS {
            let message = Message::parse(b"{}").expect("a message");
            let id = manager.create("one", None, message).await.expect("created").id();
            let reply = Reply::Result(b"{}".as_slice().into());
            let signed = Operation::Reply { step: "sign".to_owned(), reply };
            manager.operate(id, signed).await.expect("signed");
            let closed = async {
                while manager.handles().routes.is_under_way(id) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(DEADLINE, closed).await.expect("the job is closed");
        }
        manager.stop().await;
        assert_eq!(asked.get(), JOBS, "each asks once");
    });
}
