//! The supervisor asks the archive to rebuild each job whose actor panicked, replaces the
//! definitions at a reload, and passes on the liveness probes that show that router and journal
//! handle their inputs.

use super::buses::Buses;
use super::inputs::{
    ArchiveInput, BusInput, Definitions, JobInput, JournalInput, RouterInput, StopRequest,
    SupervisorInput,
};
use super::loaded_definitions::LoadedDefinitions;
use super::mailbox::{Envelope, Mailbox, MailboxActor};
use super::mailboxes::Mailboxes;
use super::manager_core::ManagerCore;
use super::routes::Routes;
use super::transport::{BusStarter, queues_by_bus};
use crate::telemetry::Metrics;
use actix::{Actor, ArbiterHandle, Context, Handler};
use bus::BusKey;
use engine::JobId;
use journal::JobNumber;
use std::collections::HashMap;
use std::sync::Arc;

/// How often a job is rebuilt after a panic before it fails.
const REBUILDS_MAX: u32 = 3;

/// What the supervisor uses.
pub(super) struct SupervisorEnv {
    router: Mailbox<RouterInput>,
    journal: Mailbox<JournalInput>,
    archive: Mailbox<ArchiveInput>,
    routes: Routes,
    buses: Arc<Buses>,
    definitions: Arc<LoadedDefinitions>,
    metrics: Metrics,
    bus_starter: BusStarter,
    /// Where the buses of a reload run.
    bus_arbiter: ArbiterHandle,
}

impl SupervisorEnv {
    pub(super) fn new(
        core: &ManagerCore,
        mailboxes: &Mailboxes,
        bus_starter: BusStarter,
        bus_arbiter: ArbiterHandle,
    ) -> SupervisorEnv {
        SupervisorEnv {
            router: mailboxes.router.clone(),
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

/// The supervisor of the process. There is one.
pub struct Supervisor {
    env: SupervisorEnv,
    /// The jobs whose actors panicked, and how often.
    panicked: HashMap<JobNumber, (JobId, u32)>,
}

impl Supervisor {
    /// Creates the supervisor.
    pub(super) fn new(env: SupervisorEnv) -> Supervisor {
        Supervisor { env, panicked: HashMap::new() }
    }

    fn handle_input(&mut self, input: SupervisorInput) {
        match input {
            SupervisorInput::Panicked { id, number } => {
                let (_, panics) = self.panicked.entry(number).or_insert((id, 0));
                *panics += 1;
                tracing::error!(
                    job = %id,
                    panics,
                    "the job's actor panicked: it is rebuilt from the journal"
                );
                self.env.metrics.restarts.with_label_values(&["job"]).inc();
                self.env.archive.send(ArchiveInput::Rebuild(number));
            }
            SupervisorInput::Rebuilt(number, recovered) => {
                let Some((id, panics)) = self.panicked.get(&number).copied() else { return };
                let Some(recovered) = recovered else {
                    // Deleted while it was broken.
                    self.panicked.remove(&number);
                    let request = StopRequest { id, number, inputs_handled: None };
                    return self.env.router.send(RouterInput::StopJobs(vec![request]));
                };
                let Some(job) = self.env.routes.find(id).filter(|job| job.number() == number)
                else {
                    return;
                };
                let abandon = (panics > REBUILDS_MAX).then(|| {
                    self.panicked.remove(&number);
                    format!("its actor panicked {panics} times; the log has the panics").into()
                });
                job.send(JobInput::Rebuilt { recovered, abandon });
            }
            SupervisorInput::Redefine(definitions, answer) => {
                // The receiver may have gone; the definitions are in force all the same.
                let _ = answer.send(self.replace_definitions(definitions));
            }
            SupervisorInput::LivenessProbe(answer) => {
                self.env.router.send(RouterInput::LivenessProbe(answer));
            }
        }
    }

    fn replace_definitions(&self, definitions: Definitions) -> Result<(), String> {
        let buses = &self.env.buses;
        // Jobs under way run the definition that they began with; so does one that is just being
        // created.
        let (before, in_use) = (self.env.definitions.current(), self.env.routes.definitions());
        let used = definitions.values().chain(before.values()).chain(&in_use);
        let mut by_bus = queues_by_bus(buses, &definitions, used);
        let serving: Vec<_> = buses
            .all()
            .into_iter()
            .map(|(key, bus)| (bus, by_bus.remove(&key).unwrap_or_default()))
            .collect();
        let mut makers = Vec::new();
        // The start has reported a bus that only kept definitions name.
        let is_known = |key: &BusKey| buses.kind(key).is_some();
        for (key, served) in by_bus.into_iter().filter(|(key, _)| is_known(key)) {
            let maker = self.env.bus_starter.load(&key, served, true);
            makers.push((key, maker.map_err(|error| error.to_string())?));
        }
        let mut gates = Vec::new();
        for (key, maker) in makers {
            let (gate, at_gate) = std::sync::mpsc::channel();
            self.env.bus_starter.start(key, maker, &self.env.bus_arbiter, Some(at_gate));
            gates.push(gate);
        }
        self.env
            .journal
            .send(JournalInput::CreateStatusTables(definitions.values().cloned().collect()));
        self.env.definitions.replace(definitions);
        // Calls over the new buses find their workflows, and what follows from them finds the bus.
        drop(gates);
        // From now on calls find the workflows.
        for (bus, queues) in serving {
            bus.send(BusInput::Serve(queues));
        }
        Ok(())
    }
}

impl Actor for Supervisor {
    type Context = Context<Self>;
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
