//! Checks at intervals whether the queues on which steps wait still exist.
//!
//! A broker deletes an auto-delete queue with its last consumer, and a queue with `x-expires` after
//! it was unused for that time. The messages in the queue are deleted too, and nothing else would
//! notify the manager: a message that is published to a missing queue is returned, but a step that
//! waits publishes nothing.
//!
//! A queue on which no step waits is not checked. It has lost no message, and its worker may want
//! to declare it again with other properties.

use super::bulk_requests::{JOBS_AT_ONCE, OldestWaits, WaitingStep};
use super::bus_env::BusEnv;
use super::buses::Buses;
use super::completion_latch::CompletionLatch;
use super::inputs::{BusInput, JobInput};
use super::routes::Routes;
use base::clock;
use bus::{Address, BusKey, BusState};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How often queues are checked, if the jobs report their waiting steps quickly.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The interval between checks is also at least this many times as long as the jobs take to report
/// their waiting steps. So jobs spend at most about 5 % of their time on reports.
const INTERVAL_FACTOR: u32 = 20;

/// The timeout for jobs to report their waiting steps.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Checks the queues of an AMQP bus at intervals, until the task is dropped with the bus actor.
pub(super) async fn watch(env: Arc<BusEnv>, bus: BusKey) {
    let mut interval = CHECK_INTERVAL;
    loop {
        tokio::time::sleep(interval).await;
        // Without a connection, queues cannot be checked. Each new connection begins with a check
        // of all queues.
        if matches!(env.health.bus(&bus), None | Some(BusState::Disconnected { .. })) {
            continue;
        }
        let (waits, collection_time) = collect_oldest_waits(&env.routes, &env.buses).await;
        interval = CHECK_INTERVAL.max(INTERVAL_FACTOR * collection_time);
        let queues: Vec<Arc<str>> = waits
            .into_keys()
            .filter(|address| address.bus == bus)
            .map(|address| address.queue)
            .collect();
        if queues.is_empty() {
            continue;
        }
        if let Some(mailbox) = env.buses.find(&bus) {
            mailbox.send(BusInput::DeclareMissing(queues));
        }
    }
}

/// Returns the step that waits longest on each queue, and how long the collection took. Jobs that
/// do not report before the timeout are left out.
pub(super) async fn collect_oldest_waits(
    routes: &Routes,
    buses: &Buses,
) -> (HashMap<Address, WaitingStep>, Duration) {
    let (started, waits) = (clock::timer_now(), Arc::<OldestWaits>::default());
    let collect = async {
        for chunk in routes.ids().chunks(JOBS_AT_ONCE) {
            let (sender, completion) = oneshot::channel();
            let latch = CompletionLatch::new(sender);
            for id in chunk {
                // A job without a route has stopped, or was passivated.
                if let Some(job) = routes.find(*id) {
                    job.send(JobInput::ReportWaits { waits: waits.clone(), latch: latch.clone() });
                }
            }
            drop(latch);
            // This cannot fail: the latch sends when it is dropped.
            let _ = completion.await;
        }
    };
    // After a timeout, the steps that were reported so far are used.
    let _ = tokio::time::timeout(REPORT_TIMEOUT, collect).await;
    routes.for_each_passivated_wait(|job, _, definition, wait| {
        let Some(since) = wait.since else { return };
        let bus = buses.resolve(wait.bus.as_ref(), &definition.vhost);
        let address = Address { bus, queue: wait.queue.clone() };
        waits.record(address, WaitingStep { since, job, step: wait.step.clone() });
    });
    (waits.take(), started.elapsed())
}
