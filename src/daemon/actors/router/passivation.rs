//! The router's side of passivation: it stores passivated job trees, activates a tree on demand,
//! and stashes the inputs for its jobs until the archive has rebuilt them.
//!
//! Trees are activated in batches, one batch at a time. A batch begins with the requested trees,
//! for which an input has arrived or a timer is due. The pending trees, which wait only for memory,
//! follow. At the memory limit a batch still has one requested tree, so that replies and operations
//! always get through. A pause after each such tree limits the rate. A pending tree is activated
//! beyond the limit only if no other job is in memory.

use super::Router;
use super::passivated_trees::{PassivatedTrees, TreeEntry};
use crate::actors::inputs::{ArchiveInput, JobInput, RouterInput, StopRequest, TreeNumbers};
use crate::actors::passivation::PassivatedTree;
use actix::{AsyncContext, Context};
use base::clock;
use engine::JobId;
use journal::{JobNumber, RecoveredJob};
use std::time::Duration;
use tokio::time::Instant;

/// The most job trees in a batch.
const TREES_PER_BATCH: usize = 1_000;

/// The delay before pending trees are checked again for free memory.
const RECHECK_DELAY: Duration = Duration::from_millis(250);

/// The rate of activation while the memory limit is exceeded, in bytes of jobs per second.
const ACTIVATION_BYTES_PER_SECOND: u64 = 256 << 20;

/// The longest delay of the timer. For what is due later, the timer is set again when it fires.
const TIMER_DELAY_MAX: Duration = Duration::from_secs(24 * 3600);

impl Router {
    /// Stashes the input if the job is passivated, and requests its activation. Otherwise returns
    /// the input.
    pub(super) fn stash_if_passivated(
        &mut self,
        id: JobId,
        input: RouterInput,
    ) -> Option<RouterInput> {
        let Some(root_number) = self.env.routes.passivated_root(id) else { return Some(input) };
        let Some(entry) = self.passivated.trees.get_mut(&root_number) else { return Some(input) };
        entry.stash.push(input);
        self.request_activation(root_number);
        None
    }

    /// Adds a tree to the requested ones, unless it is one of them or the archive rebuilds it.
    fn request_activation(&mut self, root_number: JobNumber) {
        let Some(entry) = self.passivated.trees.get_mut(&root_number) else { return };
        if !std::mem::replace(&mut entry.is_activating, true) {
            self.passivated.requested.push_back(root_number);
            self.env.router.send(RouterInput::ActivateNext);
        }
    }

    /// Finds the number of a passivated root job that has ended, by its id. Such a job can be
    /// deleted without being activated.
    pub(super) fn find_ended_passivated(&self, id: JobId) -> Option<JobNumber> {
        let root_number = self.env.routes.passivated_root(id)?;
        let tree = &self.passivated.trees.get(&root_number)?.tree;
        let is_root = tree.members.first().is_some_and(|root| root.id == id && !root.is_child);
        (is_root && tree.state.is_ended()).then_some(root_number)
    }

    /// Returns the ids of the passivated jobs whose tree meets the condition.
    pub(super) fn passivated_ids(&self, condition: impl Fn(&PassivatedTree) -> bool) -> Vec<JobId> {
        let entries = self.passivated.trees.values().filter(|entry| condition(&entry.tree));
        entries.flat_map(|entry| entry.tree.members.iter().map(|member| member.id)).collect()
    }

    /// Adds the job trees that did not fit in memory at the start.
    pub(super) fn add_passivated_at_start(
        &mut self,
        passivated: Vec<PassivatedTree>,
        ctx: &mut Context<Self>,
    ) {
        if passivated.is_empty() {
            return;
        }
        let (trees, pending) =
            (passivated.len(), passivated.iter().filter(|tree| tree.is_pending).count());
        tracing::warn!(
            trees,
            pending,
            jobs_bytes_max = self.env.memory.limit_bytes(),
            "not all jobs of the journal fit in memory (setting limits.jobs_bytes_max): these job \
             trees stay in the journal until an input for them arrives or memory is free"
        );
        for tree in passivated {
            self.route_table.add_passivated(&tree);
            self.store_passivated(tree);
        }
        self.activate_next(ctx);
    }

    /// Stores a passivated tree, whose routes were added before.
    pub(super) fn store_passivated(&mut self, tree: PassivatedTree) {
        let root_number = tree.root_number();
        self.passivated.due.extend(tree.due.map(|due| (due, root_number)));
        if tree.is_pending {
            self.passivated.pending.insert(root_number);
        }
        self.adjust_job_gauges(&tree, 1);
        self.passivated.job_count += tree.members.len();
        let entry = TreeEntry { tree, stash: Vec::new(), is_activating: false };
        self.passivated.trees.insert(root_number, entry);
        self.update_passivated_count();
    }

    /// Adds the jobs of a tree to the gauges of active jobs, which count passivated jobs too, or
    /// removes them: `sign` is 1 or -1.
    fn adjust_job_gauges(&self, tree: &PassivatedTree, sign: i64) {
        let metrics = &self.env.metrics;
        let children = tree.members.iter().filter(|member| member.is_child).count();
        metrics.child_jobs.add(sign * i64::try_from(children).unwrap_or(i64::MAX));
        if !tree.state.is_ended() {
            let labels = [&*tree.definition.full_name(), tree.state.as_str()];
            metrics.jobs.with_label_values(&labels).add(sign);
        }
    }

    fn update_passivated_count(&self) {
        let PassivatedTrees { job_count, pending, .. } = &self.passivated;
        self.env.memory.set_passivated(*job_count, pending.len());
    }

    /// Requests the next batch of trees from the archive, unless it still rebuilds the last batch
    /// or the pause after that has not ended.
    pub(super) fn activate_next(&mut self, ctx: &mut Context<Self>) {
        self.activate_due(ctx);
        if self.passivated.activating_count > 0 || self.passivated.is_pausing {
            return;
        }
        let memory = self.env.memory.clone();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let mut admit_tree = |entry: &TreeEntry, is_requested: bool, is_first: bool| {
            let is_admitted = memory.fits(bytes + entry.tree.bytes) || (is_requested && is_first);
            if is_admitted {
                bytes += entry.tree.bytes;
                memory.note_admitted();
            } else if is_first {
                memory.note_rejected(entry.tree.bytes);
            }
            is_admitted
        };
        while batch.len() < TREES_PER_BATCH {
            let Some(root_number) = self.passivated.requested.front().copied() else { break };
            if let Some(entry) = self.passivated.trees.get(&root_number) {
                if !admit_tree(entry, true, batch.is_empty()) {
                    break;
                }
                batch.push(root_number);
            }
            self.passivated.requested.pop_front();
        }
        for root_number in &self.passivated.pending {
            let Some(entry) = self.passivated.trees.get(root_number) else { continue };
            if batch.len() == TREES_PER_BATCH {
                break;
            }
            if !entry.is_activating {
                if !admit_tree(entry, false, batch.is_empty()) {
                    break;
                }
                batch.push(*root_number);
            }
        }
        let trees = batch.into_iter().filter_map(|root_number| {
            let entry = self.passivated.trees.get_mut(&root_number)?;
            entry.is_activating = true;
            let members = entry.tree.members.iter().map(|member| member.number).collect();
            Some(TreeNumbers { root: root_number, members })
        });
        let trees: Vec<TreeNumbers> = trees.collect();
        if trees.is_empty() {
            if !self.passivated.pending.is_empty() {
                self.notify_if_memory_short();
                self.pause_activation(RECHECK_DELAY, ctx);
            }
            return;
        }
        self.passivated.activating_count = trees.len();
        self.env.archive.send(ArchiveInput::Activate(trees));
    }

    /// Delays the next batch, and then requests it.
    fn pause_activation(&mut self, delay: Duration, ctx: &mut Context<Self>) {
        self.passivated.is_pausing = true;
        ctx.run_later(delay, |router, ctx| {
            router.passivated.is_pausing = false;
            router.activate_next(ctx);
        });
    }

    /// Starts the jobs of a tree that the archive has rebuilt, and sends them the stashed inputs.
    pub(super) fn handle_activated(
        &mut self,
        root_number: JobNumber,
        recovered_jobs: Vec<RecoveredJob>,
        ctx: &mut Context<Self>,
    ) {
        self.passivated.activating_count = self.passivated.activating_count.saturating_sub(1);
        // `None`: the tree was deleted meanwhile.
        if let Some(entry) = self.remove_tree(root_number) {
            self.env.metrics.jobs_activated.inc();
            recovered_jobs.into_iter().for_each(|recovered| self.start_recovered(recovered));
            self.route_table.remove_passivated(&entry.tree);
            self.restore_waiting_since(&entry.tree);
            let bytes = u64::try_from(entry.tree.bytes).unwrap_or(u64::MAX);
            let delay =
                Duration::from_millis(bytes.saturating_mul(1_000) / ACTIVATION_BYTES_PER_SECOND);
            if !delay.is_zero() && !self.passivated.is_pausing && self.env.memory.is_exceeded() {
                self.pause_activation(delay, ctx);
            }
            entry.stash.into_iter().for_each(|input| self.handle_input(input, ctx));
        }
        self.notify_if_memory_short();
        self.activate_next(ctx);
    }

    /// Sends activated jobs the times at which their steps were first seen waiting, so that the
    /// detection of lost messages does not start over.
    fn restore_waiting_since(&self, tree: &PassivatedTree) {
        for member in &tree.members {
            let waiting_since: Vec<(u64, Instant)> = member
                .waits
                .iter()
                .filter_map(|wait| Some((wait.dispatch, wait.waiting_since?)))
                .collect();
            if waiting_since.is_empty() {
                continue;
            }
            if let Some(job) = self.env.routes.find(member.id) {
                job.send(JobInput::RestoreWaitingSince(waiting_since));
            }
        }
    }

    /// Removes a passivated tree. Its routes remain. If it is requested, its number also remains in
    /// that queue, where `activate_next` skips it.
    fn remove_tree(&mut self, root_number: JobNumber) -> Option<TreeEntry> {
        let entry = self.passivated.trees.remove(&root_number)?;
        self.passivated.pending.remove(&root_number);
        if let Some(due) = entry.tree.due {
            self.passivated.due.remove(&(due, root_number));
        }
        self.passivated.job_count -= entry.tree.members.len();
        self.adjust_job_gauges(&entry.tree, -1);
        self.update_passivated_count();
        Some(entry)
    }

    /// Removes a deleted job if it is passivated. Its stashed inputs are handled again, now as
    /// inputs for an unknown job.
    pub(super) fn remove_deleted(&mut self, request: StopRequest, ctx: &mut Context<Self>) {
        let root_number = self.env.routes.passivated_root(request.id);
        if root_number != Some(request.number) {
            return;
        }
        if let Some(entry) = self.remove_tree(request.number) {
            self.route_table.remove_passivated(&entry.tree);
            entry.stash.into_iter().for_each(|input| self.handle_input(input, ctx));
        }
    }

    /// Notifies all jobs in memory if memory has become short. Those that only wait ask to be
    /// passivated. The others check for the shortage on their own once they only wait.
    pub(super) fn notify_if_memory_short(&self) {
        if self.env.memory.take_notification() {
            let routes = &self.env.routes;
            let request_passivation = |id: JobId| {
                routes.find(id).iter().for_each(|job| job.send(JobInput::PassivateIfWaiting))
            };
            routes.ids().into_iter().for_each(request_passivation);
        }
    }

    /// Requests the activation of the trees in which something is due, and sets the timer for what
    /// is due next.
    pub(super) fn activate_due(&mut self, ctx: &mut Context<Self>) {
        let now = clock::now();
        while let Some((due, root_number)) = self.passivated.due.first().copied() {
            if due > now {
                break;
            }
            self.passivated.due.remove(&(due, root_number));
            self.request_activation(root_number);
        }
        let next_due = self.passivated.due.first().map(|(due, _)| *due);
        let Some(due) = self.passivated.timer.adjust(next_due, ctx) else { return };
        let delay = now.duration_until(due).min(TIMER_DELAY_MAX);
        let handle = ctx.run_later(delay, |router, ctx| {
            router.passivated.timer.clear();
            router.activate_next(ctx);
        });
        self.passivated.timer.set(due, handle);
    }
}
