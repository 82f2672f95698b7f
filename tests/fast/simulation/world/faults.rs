//! What goes wrong: the connection, the disk, the clock, queues, workers and clients.

use super::odd::call_message;
use super::{SECOND_NS, Turn, World};
use crate::simulation::broker::{CALLERS, CallProperties};
use std::sync::Arc;
use workflow_manager::bus::{BusEvent, BusState};
use workflow_manager::engine::Definition;

impl World {
    #[allow(clippy::too_many_lines, reason = "one match over the faults")]
    pub(super) fn inject_fault(&mut self) -> Option<Turn> {
        let Some(link) = &mut self.link else { return None };
        match self.rng.u32(0..15) {
            0 if link.is_connected => {
                self.counts.disconnects += 1;
                let events = link.disconnect(&mut self.broker);
                self.note(|| "the connection breaks".to_owned());
                Some(Turn::Report(events))
            }
            0 | 1 if !link.is_connected => Some(Turn::Report(link.connect(&self.broker))),
            2 if link.is_connected => {
                link.is_blocked = !link.is_blocked;
                let state = if link.is_blocked {
                    BusState::Blocked { reason: "simulated".to_owned() }
                } else {
                    BusState::CONNECTED
                };
                Some(Turn::Report(vec![BusEvent::State(state)]))
            }
            3 => self.odd_worker(),
            4 => {
                let reply = self.odd_reply();
                self.broker.take(reply);
                None
            }
            5 if self.rng.u32(0..4) == 0 => {
                let names: Vec<Arc<str>> = self.broker.queues.keys().cloned().collect();
                let name = names.get(self.rng.usize(0..names.len().max(1)))?.clone();
                self.note(|| format!("queue {name} is deleted"));
                self.broker.queues.remove(&name);
                self.lost_queues.insert(name);
                None
            }
            6 if self.rng.u32(0..3) == 0 => {
                self.disk_full = !self.disk_full;
                self.disk_full_until = self.ran_ns;
                let is_full = self.disk_full;
                self.note(|| format!("the disk is full: {is_full}"));
                None
            }
            7 => {
                let jump = self.rng.i64(-400..=400);
                self.note(|| format!("the clock jumps by {jump} s"));
                self.now_ns += jump * SECOND_NS;
                self.jumps += 1;
                self.limits.forget_times(self.ran_ns);
                None
            }
            8 if self.rng.u32(0..6) == 0 => {
                let id = self.pick_request()?;
                let request = self.requests.get_mut(&id)?;
                request.ended_by_client = true;
                self.note(|| format!("a client ends {id}"));
                Some(Turn::End(id))
            }
            9 => {
                let id = self.pick_request()?;
                let same = self.rng.bool();
                Some(Turn::CreateAgain(id, same))
            }
            11 => self.act_as_client(),
            13 => self.redispatch(),
            12 => {
                let caller = format!("odd caller {}", self.odd_calls.len());
                let definition = &self.requests.values().next()?.definition;
                let call = CallProperties {
                    queue: Definition::workflow_queue(&definition.name).into(),
                    message_id: caller.clone(),
                    reply_to: Some(CALLERS.to_owned()),
                };
                self.broker.replies.push_back(call_message(caller.clone(), b"[1]".to_vec(), call));
                self.odd_calls.push(caller);
                None
            }
            14 => {
                self.lose_worker();
                None
            }
            10 => {
                let time = self.rng.u64(0..3_000);
                Some(self.wait(time))
            }
            _ => None,
        }
    }
}
