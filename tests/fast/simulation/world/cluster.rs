//! Several processes of one world: each has its connection, its workers over HTTP and what it has
//! decided; everything else they share.

use super::{Attempt, Link, Turn, World};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use workflow_manager::bus::lease_queue::LeaseQueue;
use workflow_manager::engine::{Job, JobId, Operation};
use workflow_manager::journal::JobNumber;

/// What belongs to one process.
pub(crate) struct ProcessState {
    crashed: bool,
    crash_in: u64,
    link: Option<Link>,
    lease_queue: Option<Arc<LeaseQueue>>,
    started: Instant,
    live: BTreeMap<JobNumber, VecDeque<(i64, Job)>>,
    uncompared: BTreeMap<JobNumber, Job>,
    confirmed: BTreeMap<Attempt, i64>,
    was_full: bool,
}

impl World {
    /// Whether managers may still be killed, stopped and cut off.
    pub(crate) fn has_cluster_faults(&self) -> bool {
        self.is_cluster && self.faults_left > 0 && !self.is_zombie && !self.disk_is_full()
    }

    /// The time of the wall clock.
    pub(crate) fn wall_ns(&self) -> i64 {
        self.now_ns
    }

    /// Puts another process in the place of the one that runs. Returns that one's part.
    pub(crate) fn exchange_process(&mut self, other: ProcessState) -> ProcessState {
        ProcessState {
            crashed: std::mem::replace(&mut self.crashed, other.crashed),
            crash_in: std::mem::replace(&mut self.crash_in, other.crash_in),
            link: std::mem::replace(&mut self.link, other.link),
            lease_queue: std::mem::replace(&mut self.lease_queue, other.lease_queue),
            started: std::mem::replace(&mut self.started, other.started),
            live: std::mem::replace(&mut self.live, other.live),
            uncompared: std::mem::replace(&mut self.uncompared, other.uncompared),
            confirmed: std::mem::replace(&mut self.confirmed, other.confirmed),
            was_full: std::mem::replace(&mut self.was_full, other.was_full),
        }
    }

    /// The process that runs stands still from now on: for everybody else it is gone.
    pub(crate) fn suspend(&mut self) -> ProcessState {
        let mut link = self.link.take();
        if let Some(link) = &mut link {
            // Its events reach nobody: the process does not run.
            drop(link.disconnect(&mut self.broker));
        }
        // If it is replaced, nobody tells of its commits.
        self.untold.extend(self.live.clone());
        let state = ProcessState {
            crashed: self.crashed,
            crash_in: u64::MAX,
            link,
            lease_queue: self.lease_queue.take(),
            started: self.started,
            live: std::mem::take(&mut self.live),
            uncompared: std::mem::take(&mut self.uncompared),
            confirmed: BTreeMap::new(),
            was_full: self.was_full,
        };
        self.crashed_ns = self.ran_ns;
        self.keep_position();
        self.end();
        state
    }

    /// A process goes on that was not replaced. Its workers over HTTP come back to it.
    pub(crate) fn resume(&mut self, state: ProcessState) {
        // It tells of its commits itself.
        self.untold.clear();
        drop(self.exchange_process(state));
    }

    /// The broker takes back what a replaced process had.
    pub(crate) fn disconnect_zombie(&mut self) {
        if let Some(link) = &mut self.link {
            drop(link.disconnect(&mut self.broker));
        }
    }

    /// What a process does that was replaced: it connects again, sends what it still had to send,
    /// takes replies, and is asked for things by clients that do not know yet.
    pub(super) fn zombie_turn(&mut self) -> Turn {
        self.handle_dispositions();
        self.pass(Duration::from_millis(1));
        if let Some(link) = &mut self.link {
            let declared = link.declare(&mut self.broker);
            declared.iter().for_each(|queue| self.check_declared(queue));
        }
        let Some(link) = &mut self.link else { return Turn::Wait(Duration::from_millis(1)) };
        if !link.is_connected {
            return Turn::Report(link.connect(&self.broker));
        }
        match self.rng.u32(0..6) {
            0 | 1 if !link.outbox.is_empty() => Turn::Report(link.send(&mut self.broker)),
            0..=3 => match self.broker.replies.pop_front() {
                Some(reply) => Turn::Report(vec![link.deliver(reply)]),
                None => Turn::Wait(Duration::from_millis(1)),
            },
            4 => {
                let known: Vec<JobId> = self.requests.keys().copied().collect();
                let id = known[self.rng.usize(0..known.len())];
                Turn::Operate(id, Operation::Resume)
            }
            _ => Turn::Wait(Duration::from_millis(self.rng.u64(0..=2_000))),
        }
    }
}
