//! The supervisor asks the archive to rebuild each job whose actor panicked, replaces the
//! definitions at a reload, and passes on the liveness probes that show that router and journal
//! handle their inputs.

use super::mail::{
    ArchiveInput, BusInput, Definitions, JobInput, JournalInput, Leave, RouterInput,
    SupervisorInput,
};
use super::mailbox::{Mail, Owner};
use super::transport::{Opening, Transport, queues_by_bus, start_bus};
use super::ways::Ways;
use crate::bus::BusKey;
use crate::engine::JobId;
use crate::journal::JobNumber;
use actix::{Actor, ArbiterHandle, Context, Handler};
use std::collections::HashMap;
use std::sync::Arc;

/// How often a job is rebuilt after a panic before it fails.
const REBUILDS_MAX: u32 = 3;

/// The supervisor of the process. There is one.
pub struct Supervisor {
    ways: Arc<Ways>,
    /// The jobs whose actors panicked, and how often.
    panicked: HashMap<JobNumber, (JobId, u32)>,
    transport: Transport,
    /// Where the buses of a reload run.
    bus_arbiter: ArbiterHandle,
}

impl Supervisor {
    /// Creates the supervisor; `bus_arbiter` is where the buses of a reload run.
    pub fn new(ways: Arc<Ways>, transport: Transport, bus_arbiter: ArbiterHandle) -> Supervisor {
        Supervisor { ways, panicked: HashMap::new(), transport, bus_arbiter }
    }

    fn receive(&mut self, input: SupervisorInput) {
        match input {
            SupervisorInput::Panicked { id, number } => {
                let (_, panics) = self.panicked.entry(number).or_insert((id, 0));
                *panics += 1;
                tracing::error!(
                    job = %id,
                    panics,
                    "the job's actor panicked: it is rebuilt from the journal"
                );
                self.ways.common.metrics.restarts.with_label_values(&["job"]).inc();
                self.ways.mailboxes().archive.post(ArchiveInput::Rebuild(number));
            }
            SupervisorInput::Rebuilt(number, recovered) => {
                let Some((id, panics)) = self.panicked.get(&number).copied() else { return };
                let Some(recovered) = recovered else {
                    // Deleted while it was broken.
                    self.panicked.remove(&number);
                    let leave = Leave { id, number, heard: None };
                    return self.ways.mailboxes().router.post(RouterInput::Leave(vec![leave]));
                };
                let Some(job) = self.ways.routes.find(id).filter(|job| job.number() == number)
                else {
                    return;
                };
                let abandon = (panics > REBUILDS_MAX).then(|| {
                    self.panicked.remove(&number);
                    format!("its actor panicked {panics} times; the log has the panics").into()
                });
                job.post(JobInput::Rebuilt { recovered, abandon });
            }
            SupervisorInput::Redefine(definitions, answer) => {
                // The receiver may have gone; the definitions are in force all the same.
                let _ = answer.send(self.redefine(definitions));
            }
            SupervisorInput::Round(answer) => {
                self.ways.mailboxes().router.post(RouterInput::Round(answer));
            }
        }
    }

    fn redefine(&self, definitions: Definitions) -> Result<(), String> {
        let buses = &self.ways.buses;
        // Jobs under way run the definition that they began with; so does one that is just being
        // created.
        let (before, kept) = (self.ways.common.definitions(), self.ways.routes.definitions());
        let used = definitions.values().chain(before.values()).chain(&kept);
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
            let opening = Opening::of(&self.ways.common, &key, served, true);
            let maker = opening
                .and_then(|opening| (self.transport)(&self.ways.common.settings, &key, opening))
                .map_err(|error| error.to_string())?;
            makers.push((key, maker));
        }
        let mut gates = Vec::new();
        for (key, maker) in makers {
            let (gate, at_gate) = std::sync::mpsc::channel();
            let bus = start_bus(&self.ways, &key, maker, &self.bus_arbiter, Some(at_gate));
            buses.add(key, bus);
            gates.push(gate);
        }
        self.ways
            .mailboxes()
            .journal
            .post(JournalInput::MakeStatusTables(definitions.values().cloned().collect()));
        self.ways.common.set_definitions(definitions);
        // Calls over the new buses find their workflows, and what follows from them finds the bus.
        drop(gates);
        // From now on calls find the workflows.
        for (bus, queues) in serving {
            bus.post(BusInput::Serve(queues));
        }
        Ok(())
    }
}

impl Actor for Supervisor {
    type Context = Context<Self>;
}

impl Owner for Supervisor {
    type Input = SupervisorInput;
    const KIND: &'static str = "supervisor";
}

impl Handler<Mail<SupervisorInput>> for Supervisor {
    type Result = ();

    fn handle(&mut self, mail: Mail<SupervisorInput>, _: &mut Self::Context) {
        mail.handle(|input| self.receive(input));
    }
}
