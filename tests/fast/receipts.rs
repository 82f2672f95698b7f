//! What the broker tells of a message is for the job that sent it, not for one that got its id
//! later.

use futures_util::future::LocalBoxFuture;
use std::sync::{Arc, Mutex, MutexGuard};
use support::manager::TestManager;
use support::waits::until;
use workflow_manager::actors::bus_starter::BusFactory;
use workflow_manager::actors::manager::{Manager, Parts, Threads};
use workflow_manager::bus::embedded::Workers;
use workflow_manager::bus::{Bus, BusEvent, EventSink, Publication, QueueStatus, ServedQueues};
use workflow_manager::engine::{Job, JobId, Message};

/// A bus whose broker takes nothing until the test says so.
#[derive(Clone, Default)]
struct Held(Arc<Mutex<(Vec<Publication>, Option<EventSink>)>>);

impl Held {
    fn parts(&self) -> MutexGuard<'_, (Vec<Publication>, Option<EventSink>)> {
        self.0.lock().expect("no test panics while it looks")
    }

    async fn until_published(&self, count: usize) {
        until("they are published", || self.parts().0.len() >= count).await;
    }

    /// The broker takes the oldest message.
    fn take(&self) {
        let (message, sink) = {
            let mut parts = self.parts();
            (parts.0.remove(0), parts.1.clone().expect("the bus is open"))
        };
        sink(BusEvent::Confirmed(message.confirm_token));
    }
}

impl Bus for Held {
    fn publish(&mut self, message: Publication) {
        self.parts().0.push(message);
    }

    fn unconfirmed(&self) -> usize {
        self.parts().0.len()
    }

    fn inspect(&mut self, queues: Vec<Arc<str>>) -> LocalBoxFuture<'static, Vec<QueueStatus>> {
        Box::pin(std::future::ready(vec![
            QueueStatus::Unknown("nobody asks".to_owned());
            queues.len()
        ]))
    }

    fn set_served(&mut self, _: ServedQueues) {}

    fn close(&mut self) -> LocalBoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

async fn create(manager: &Manager, id: JobId) {
    manager.handle().create("one", Some(id), Message::default()).await.expect("created");
}

/// Whether the job's step counts as confirmed, once all that it has heard is committed.
async fn is_confirmed(manager: &Manager, id: JobId) -> bool {
    let step = |job: &Job| job.steps().all(|(_, run)| run.confirmed);
    manager.handle().inspect_job(id, step).await.expect("it is under way")
}

#[test]
fn a_late_confirm_is_not_for_a_job_that_got_the_id_of_the_one_before() {
    actix_rt::System::new().block_on(async {
        let text = "workflows: [{name: one, steps: [{name: work}]}]";
        let held = Held::default();
        let bus = held.clone();
        let parts = Parts {
            bus_provider: Arc::new(move |_, _, _| {
                let bus = bus.clone();
                let factory: BusFactory = Box::new(move |sink| {
                    bus.parts().1 = Some(sink);
                    Box::new(bus.clone())
                });
                Ok(factory)
            }),
            ..Parts::standard(Workers::new())
        };
        let manager = TestManager::with(text).start_on(Threads::Current, parts);
        let id = JobId(uuid::Uuid::from_u128(7));
        create(&manager, id).await;
        held.until_published(1).await;
        manager.handle().cancel(id, None).await.expect("cancelled");
        manager.handle().erase(id).await.expect("erased");
        create(&manager, id).await;
        held.until_published(2).await;
        held.take();
        assert!(!is_confirmed(&manager, id).await, "the broker has not its message");
        held.take();
        assert!(is_confirmed(&manager, id).await, "now it has");
        manager.stop().await;
    });
}
