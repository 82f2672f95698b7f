//! The supervisor. It has jobs rebuilt after a panic of their actors, replaces the definitions at a
//! reload, and forwards liveness probes, which show that the router and the journal handle their
//! inputs. It also ticks the watch of the ownership of this process.

use super::broker_probe::BrokerProbe;
use super::bus_starter::{BusStarter, queues_by_bus};
use super::buses::Buses;
use super::inputs::{
    ArchiveInput, BusInput, Definitions, JobInput, JournalInput, RouterInput, SchedulerInput,
    StopRequest, SupervisorInput,
};
use super::loaded_definitions::LoadedDefinitions;
use super::mailbox::{Envelope, Mailbox, MailboxActor};
use super::mailboxes::Mailboxes;
use super::manager_core::ManagerCore;
use super::ownership_watch::{OwnershipWatch, TICK_INTERVAL, spawn_probe};
use super::routes::Routes;
use crate::telemetry::Metrics;
use actix::{Actor, ArbiterHandle, AsyncContext, Context, Handler};
use base::clock;
use bus::BusKey;
use engine::JobId;
use journal::{JobNumber, Ownership};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How often a job is rebuilt to continue after panics that are near to each other. After one more
/// panic it is rebuilt to fail.
const REBUILDS_MAX: u32 = 3;

/// How long a job must run without a panic until its earlier ones no longer count. An input that
/// makes it panic again and again comes back within seconds.
const CALM_MIN: Duration = Duration::from_secs(600);

/// The environment of the supervisor.
pub(super) struct SupervisorEnv {
    scheduler: Mailbox<SchedulerInput>,
    router: Mailbox<RouterInput>,
    journal: Mailbox<JournalInput>,
    archive: Mailbox<ArchiveInput>,
    routes: Routes,
    buses: Arc<Buses>,
    definitions: Arc<LoadedDefinitions>,
    metrics: Metrics,
    bus_starter: Arc<BusStarter>,
    /// The thread for buses that a reload adds.
    bus_arbiter: ArbiterHandle,
    /// `None` if no other process can take the journal over.
    ownership: Option<(OwnershipWatch, Arc<BrokerProbe>)>,
}

impl SupervisorEnv {
    pub(super) fn new(
        core: &ManagerCore,
        mailboxes: &Mailboxes,
        bus_starter: Arc<BusStarter>,
        bus_arbiter: ArbiterHandle,
        ownership: Option<(Arc<Ownership>, Arc<BrokerProbe>)>,
    ) -> SupervisorEnv {
        let watch = |(ownership, probe)| (OwnershipWatch::new(ownership, core, mailboxes), probe);
        SupervisorEnv {
            ownership: ownership.map(watch),
            router: mailboxes.router.clone(),
            scheduler: mailboxes.scheduler.clone(),
            journal: mailboxes.journal.clone(),
            archive: mailboxes.archive.clone(),
            routes: core.routes.clone(),
            buses: core.buses.clone(),
            definitions: core.definitions.clone(),
            metrics: core.metrics.clone(),
            bus_starter,
            bus_arbiter,
        }
    }
}

/// The supervisor. A manager has one.
pub struct Supervisor {
    env: SupervisorEnv,
    panicked: PanickedJobs,
}

/// The jobs whose actors have panicked, and that have not run for [`CALM_MIN`] since. The jobs that
/// have are removed at the next panic of any job, so this grows no further than by the panics of
/// such a time.
#[derive(Default)]
struct PanickedJobs(HashMap<JobNumber, JobPanics>);

/// The panics of one job that are near to each other.
struct JobPanics {
    /// The job's id.
    id: JobId,
    /// How often its actor has panicked.
    count: u32,
    /// When it was last rebuilt; `None`: it is being rebuilt.
    rebuilt: Option<Instant>,
}

impl PanickedJobs {
    /// Counts a panic of a job. Returns how many there were near to each other.
    fn count_panic(&mut self, id: JobId, number: JobNumber, now: Instant) -> u32 {
        self.0.retain(|_, panics| {
            panics.rebuilt.is_none_or(|rebuilt| now.saturating_duration_since(rebuilt) < CALM_MIN)
        });
        let panics = self.0.entry(number).or_insert(JobPanics { id, count: 0, rebuilt: None });
        panics.count += 1;
        panics.rebuilt = None;
        panics.count
    }

    /// Marks a job as rebuilt. Returns its id and how often it has panicked; `None`: it has not. A
    /// job that has panicked too often is removed, because it fails now.
    fn mark_rebuilt(&mut self, number: JobNumber, now: Instant) -> Option<(JobId, u32)> {
        let panics = self.0.get_mut(&number)?;
        panics.rebuilt = Some(now);
        let (id, count) = (panics.id, panics.count);
        if count > REBUILDS_MAX {
            self.0.remove(&number);
        }
        Some((id, count))
    }

    /// Removes a job that was deleted.
    fn remove(&mut self, number: JobNumber) {
        self.0.remove(&number);
    }
}

impl Supervisor {
    pub(super) fn new(env: SupervisorEnv) -> Supervisor {
        Supervisor { env, panicked: PanickedJobs::default() }
    }

    fn handle_input(&mut self, input: SupervisorInput) {
        match input {
            SupervisorInput::Panicked { id, number } => {
                let panics = self.panicked.count_panic(id, number, clock::timer_now());
                tracing::error!(
                    job = %id,
                    panics,
                    "the job's actor panicked: it is rebuilt from the journal"
                );
                self.env.metrics.restarts.with_label_values(&["job"]).inc();
                self.env.archive.send(ArchiveInput::Rebuild(number));
            }
            SupervisorInput::Rebuilt(number, recovered) => {
                let now = clock::timer_now();
                let Some((id, count)) = self.panicked.mark_rebuilt(number, now) else { return };
                let Some(recovered) = recovered else {
                    // The job was deleted before it was rebuilt.
                    self.panicked.remove(number);
                    let request = StopRequest { id, number, inputs_handled: None };
                    return self.env.router.send(RouterInput::StopJobs(vec![request]));
                };
                let Some(job) = self.env.routes.find(id).filter(|job| job.number() == number)
                else {
                    return;
                };
                let abandon = (count > REBUILDS_MAX).then(|| {
                    format!("its actor panicked {count} times; the log has the panics").into()
                });
                job.send(JobInput::Rebuilt { recovered, abandon });
            }
            SupervisorInput::Redefine(definitions, answer) => {
                // An error means that the receiver was dropped. The definitions are replaced all
                // the same.
                let _ = answer.send(self.replace_definitions(definitions));
            }
            SupervisorInput::LivenessProbe(answer) => {
                self.env.router.send(RouterInput::LivenessProbe(answer));
            }
        }
    }

    /// Replaces the definitions for new jobs, and starts the buses that they need in addition.
    ///
    /// # Errors
    ///
    /// Returns the reason if a new bus cannot be created. Then nothing has changed.
    fn replace_definitions(&self, definitions: Definitions) -> Result<(), String> {
        let buses = &self.env.buses;
        // Active jobs keep the definitions that they began with. A job that is being created may
        // still begin with a definition that is loaded now.
        let loaded_definitions = self.env.definitions.current();
        let active_definitions = self.env.routes.definitions();
        let used_definitions =
            definitions.values().chain(loaded_definitions.values()).chain(&active_definitions);
        let mut served_by_bus = queues_by_bus(buses, &definitions, used_definitions);
        let started_buses: Vec<_> = buses
            .all()
            .into_iter()
            .map(|(key, mailbox)| (mailbox, served_by_bus.remove(&key).unwrap_or_default()))
            .collect();
        let mut factories = Vec::new();
        // Only an active job can need a bus that the settings do not have. The start has reported
        // it.
        let is_known = |key: &BusKey| buses.kind(key).is_some();
        for (key, served) in served_by_bus.into_iter().filter(|(key, _)| is_known(key)) {
            let factory = self.env.bus_starter.load_factory(&key, served, true);
            factories.push((key, factory.map_err(|error| error.to_string())?));
        }
        let mut gates = Vec::new();
        for (key, factory) in factories {
            let (gate, receiver) = std::sync::mpsc::channel();
            self.env.bus_starter.start(key, factory, &self.env.bus_arbiter, Some(receiver));
            gates.push(gate);
        }
        self.env
            .journal
            .send(JournalInput::CreateStatusTables(definitions.values().cloned().collect()));
        self.env.definitions.replace(definitions);
        self.env.router.send(RouterInput::LimitsChanged);
        self.env.scheduler.send(SchedulerInput::Load(self.env.definitions.current()));
        // The gates open only now, because a call may be delivered only after its workflow is
        // loaded and its bus is registered.
        drop(gates);
        for (mailbox, served) in started_buses {
            mailbox.send(BusInput::Serve(served));
        }
        Ok(())
    }
}

impl Actor for Supervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let Some((mut watch, probe)) = self.env.ownership.take() else { return };
        ctx.run_interval(TICK_INTERVAL, move |_, _| {
            watch.tick(|answer| spawn_probe(probe.clone(), answer));
        });
    }
}

impl MailboxActor for Supervisor {
    type Input = SupervisorInput;
    const KIND: &'static str = "supervisor";
}

impl Handler<Envelope<SupervisorInput>> for Supervisor {
    type Result = ();

    fn handle(&mut self, envelope: Envelope<SupervisorInput>, _: &mut Self::Context) {
        envelope.handle(|input| self.handle_input(input));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> JobId {
        JobId::from_call(&[])
    }

    fn panic_and_rebuild(jobs: &mut PanickedJobs, number: JobNumber, at: Instant) -> u32 {
        let count = jobs.count_panic(id(), number, at);
        assert_eq!(jobs.mark_rebuilt(number, at).map(|(_, count)| count), Some(count));
        count
    }

    #[test]
    fn only_panics_that_are_near_to_each_other_count() {
        let mut jobs = PanickedJobs::default();
        let start = clock::timer_now();
        let near = |n: u32| start + Duration::from_secs(1) * n;
        let counts: Vec<u32> = (0..4).map(|n| panic_and_rebuild(&mut jobs, 1, near(n))).collect();
        assert_eq!(counts, [1, 2, 3, REBUILDS_MAX + 1], "then it fails");
        assert!(jobs.0.is_empty(), "a job that fails is forgotten");
        for n in 0..10 {
            assert_eq!(panic_and_rebuild(&mut jobs, 2, start + CALM_MIN * n), 1);
        }
    }

    #[test]
    fn jobs_that_panicked_long_ago_are_forgotten_but_not_while_they_are_rebuilt() {
        let mut jobs = PanickedJobs::default();
        let start = clock::timer_now();
        for n in 0..100 {
            panic_and_rebuild(&mut jobs, n.into(), start + CALM_MIN * n);
        }
        assert_eq!(jobs.0.len(), 1);
        jobs.count_panic(id(), 100, start);
        panic_and_rebuild(&mut jobs, 101, start + CALM_MIN * 1_000);
        assert!(jobs.mark_rebuilt(100, start).is_some(), "otherwise it would never go on");
    }
}
