//! A bus that does not answer: whether it has a message is not known.

use super::{ID, WORKFLOW};
use actix_web::http::StatusCode;
use futures_util::future::LocalBoxFuture;
use std::sync::Arc;
use support::api::Api;
use support::manager::TestManager;
use support::waits::until_async;
use workflow_manager::actors::bus_starter::BusFactory;
use workflow_manager::actors::manager::{Parts, Threads};
use workflow_manager::bus::embedded::Workers;
use workflow_manager::bus::{Bus, Publication, QueueStatus, ServedQueues};

/// The embedded bus, but it neither takes a message nor answers.
struct SilentBus(Box<dyn Bus>);

impl Bus for SilentBus {
    fn publish(&mut self, _: Publication) {}

    fn unconfirmed(&self) -> usize {
        self.0.unconfirmed()
    }

    fn inspect(&mut self, _: Vec<Arc<str>>) -> LocalBoxFuture<'static, Vec<QueueStatus>> {
        Box::pin(std::future::pending())
    }

    fn set_served(&mut self, served: ServedQueues) {
        self.0.set_served(served);
    }

    fn close(&mut self) -> LocalBoxFuture<'static, ()> {
        self.0.close()
    }
}

#[test]
fn a_lease_that_a_silent_bus_may_know_is_not_refused_for_good() {
    actix_rt::System::new().block_on(async {
        let standard = Parts::standard(Workers::new());
        let provide = standard.bus_provider.clone();
        let parts = Parts {
            bus_provider: Arc::new(move |settings, key, options| {
                let make = provide(settings, key, options)?;
                let factory: BusFactory = Box::new(move |sink| Box::new(SilentBus(make(sink))));
                Ok(factory)
            }),
            ..standard
        };
        let manager = TestManager::with(WORKFLOW).start_on(Threads::Own(Vec::new()), parts);
        let api = Api::new(&manager).await;
        until_async("the job is created", async || {
            let created = api.post(&format!("/api/workflow/orders?id={ID}"), "{}").await;
            created.status == StatusCode::CREATED
        })
        .await;
        for asked in ["extend", "nack", "nack?requeue=true"] {
            let path = format!("/api/queue/price/message/{ID}:price:1/1/{asked}");
            let answer = until_async("the bus is started", async || {
                let answer = api.post(&path, "").await;
                (!answer.text().contains("the manager is starting")).then_some(answer)
            })
            .await;
            assert_eq!(
                answer.status,
                StatusCode::SERVICE_UNAVAILABLE,
                "{asked}: {}",
                answer.text()
            );
            assert!(answer.detail().contains("the bus does not answer"), "{}", answer.text());
        }
        manager.stop().await;
    });
}
