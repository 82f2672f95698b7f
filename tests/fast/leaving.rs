//! How a job that has nothing left to do leaves.

use crate::simulation::relays::relay;
use std::cell::Cell;
use std::rc::Rc;
use support::manager::TestManager;
use workflow_manager::actors::inputs::JournalInput;
use workflow_manager::actors::mailboxes::Mailboxes;
use workflow_manager::actors::manager::{Parts, Threads};
use workflow_manager::actors::manager_core::ManagerCore;
use workflow_manager::bus::embedded::Workers;
use workflow_manager::engine::{Operation, Reply};

const JOBS: usize = 5;

/// The job may take input again by the time a second request is heard: then a running job would be
/// let go.
#[test]
fn a_job_that_was_let_go_does_not_ask_to_leave_again() {
    actix_rt::System::new().block_on(async {
        let text = "workflows: [{name: one, steps: [{name: sign, external: true}]}]";
        let asked = Rc::new(Cell::new(0));
        let seen = asked.clone();
        let wiring = move |mailboxes: Mailboxes, core: &ManagerCore| {
            let journal = relay(mailboxes.journal, &core.metrics, move |input| {
                let leaves =
                    matches!(&input, JournalInput::Append(append) if append.stop_after.is_some());
                seen.set(seen.get() + usize::from(leaves));
                Some(input)
            });
            Mailboxes { journal, ..mailboxes }
        };
        let parts = Parts { wiring: Box::new(wiring), ..Parts::standard(Workers::new()) };
        let manager = TestManager::with(text).start_on(Threads::Current, parts);
        for _ in 0..JOBS {
            let id = manager.create_job("one", "{}").await;
            let reply = Reply::Result(b"{}".as_slice().into());
            let signed = Operation::Reply { step: "sign".to_owned(), reply };
            manager.handle().operate(id, signed).await.expect("signed");
            manager.until_closed(id).await;
        }
        manager.stop().await;
        assert_eq!(asked.get(), JOBS, "each asks once");
    });
}
