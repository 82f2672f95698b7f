//! Checks at intervals whether the queues on which steps wait are still there. Nothing else would
//! notify the manager that one is gone: an auto-delete queue goes with its last consumer, one with
//! `x-expires` after a while, and the messages in it go too. A message that is published to such a
//! queue comes back, but steps that wait publish nothing.
//!
//! Queues on which nothing waits are left alone: whoever deleted one has no loss by it, and its
//! worker declares it as it likes.

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

/// How often queues are checked.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Queues are checked more rarely where the jobs take long to report which queues they wait on: the
/// pause is at least this many times as long.
const PAUSE_FACTOR: u32 = 20;

/// How long the jobs may take to report what they wait on.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Checks the queues of a bus over AMQP at intervals.
pub(super) async fn watch(env: Arc<BusEnv>, bus: BusKey) {
    let mut pause = CHECK_INTERVAL;
    loop {
        tokio::time::sleep(pause).await;
        // Without a connection nothing is seen, and the next connection begins with a check of all
        // queues.
        if matches!(env.health.bus(&bus), None | Some(BusState::Disconnected { .. })) {
            continue;
        }
        let (waits, collected_in) = collect_oldest_waits(&env.routes, &env.buses).await;
        pause = CHECK_INTERVAL.max(PAUSE_FACTOR * collected_in);
        let queues: Vec<Arc<str>> =
            waits.into_keys().filter(|queue| queue.bus == bus).map(|queue| queue.queue).collect();
        if let (false, Some(bus)) = (queues.is_empty(), env.buses.find(&bus)) {
            bus.send(BusInput::DeclareMissing(queues));
        }
    }
}

/// Returns the step of each queue that waits longest, of the jobs that have answered in time; and
/// how long that took.
pub(super) async fn collect_oldest_waits(
    routes: &Routes,
    buses: &Buses,
) -> (HashMap<Address, WaitingStep>, Duration) {
    let (began, waits) = (clock::timer_now(), Arc::<OldestWaits>::default());
    let collected = async {
        for chunk in routes.ids().chunks(JOBS_AT_ONCE) {
            let (answer, answered) = oneshot::channel();
            let done = CompletionLatch::new(answer);
            for id in chunk {
                // A job that has stopped meanwhile waits for nothing.
                if let Some(job) = routes.find(*id) {
                    job.send(JobInput::ReportWaits { waits: waits.clone(), done: done.clone() });
                }
            }
            drop(done);
            // An error cannot come: the latch sends when it is dropped.
            let _ = answered.await;
        }
    };
    // Jobs that have not answered by then are left out.
    let _ = tokio::time::timeout(REPORT_TIMEOUT, collected).await;
    routes.for_each_passivated_wait(|job, _, definition, wait| {
        let Some(since) = wait.since else { return };
        let bus = buses.resolve(wait.bus.as_ref(), &definition.vhost);
        let queue = Address { bus, queue: wait.queue.clone() };
        waits.record(queue, WaitingStep { since, job, step: wait.step.clone() });
    });
    (waits.take(), began.elapsed())
}
