//! Passivated jobs: an input for one activates its whole job tree. Until the archive has rebuilt
//! the jobs, all inputs for them are stashed, in order.
//!
//! One batch at a time is activated: first the trees for which an input has come or something is
//! due, then those that wait for room. Of the first kind one is activated even where there is no
//! room, so that replies and operations always pass; but then they come slowly, and release their
//! memory when they wait again. Of the second kind one is activated without room only if no other
//! job is in memory.

use super::Router;
use super::passivated_trees::{PassivatedTrees, TreeEntry};
use crate::actors::inputs::{ArchiveInput, JobInput, RouterInput, StopRequest};
use crate::actors::passivation::PassivatedTree;
use actix::{AsyncContext, Context};
use base::clock;
use engine::JobId;
use journal::{JobNumber, RecoveredJob};
use std::time::Duration;
use tokio::time::Instant;

/// The most job trees that are activated at once.
const TREES_PER_BATCH: usize = 1_000;

/// The pause before the next check whether there is room.
const RECHECK_DELAY: Duration = Duration::from_millis(250);

/// How many bytes a second are activated while there is no room.
const BYTES_PER_SECOND: u64 = 256 << 20;

/// The longest pause of the timer. For what is due later, the timer is set again.
const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);

impl Router {
    /// Stashes an input for a passivated job, and requests its activation. Returns an input that is
    /// for no such job.
    pub(super) fn stash_if_passivated(
        &mut self,
        id: JobId,
        input: RouterInput,
    ) -> Option<RouterInput> {
        let Some(number) = self.env.routes.passivated_root(id) else { return Some(input) };
        let Some(entry) = self.passivated.trees.get_mut(&number) else { return Some(input) };
        entry.stash.push(input);
        self.request_activation(number);
        None
    }

    fn request_activation(&mut self, number: JobNumber) {
        let Some(entry) = self.passivated.trees.get_mut(&number) else { return };
        if !std::mem::replace(&mut entry.is_requested, true) {
            self.passivated.requested.push_back(number);
            self.env.router.send(RouterInput::ActivateNext);
        }
    }

    /// Finds a passivated root job that has ended, and can be deleted without being activated.
    pub(super) fn find_ended_passivated(&self, id: JobId) -> Option<JobNumber> {
        let number = self.env.routes.passivated_root(id)?;
        let jobs = &self.passivated.trees.get(&number)?.tree;
        let is_root = jobs.members.first().is_some_and(|first| first.id == id && !first.is_child);
        (is_root && jobs.state.is_ended()).then_some(number)
    }

    /// Returns the ids of the passivated jobs whose tree meets the condition.
    pub(super) fn passivated_ids(&self, condition: impl Fn(&PassivatedTree) -> bool) -> Vec<JobId> {
        let selected = self.passivated.trees.values().filter(|entry| condition(&entry.tree));
        selected.flat_map(|entry| entry.tree.members.iter().map(|member| member.id)).collect()
    }

    /// Adds the job trees for which a start has no room.
    pub(super) fn add_found_at_start(
        &mut self,
        found: Vec<PassivatedTree>,
        ctx: &mut Context<Self>,
    ) {
        if found.is_empty() {
            return;
        }
        let (families, pending) =
            (found.len(), found.iter().filter(|tree| tree.is_pending).count());
        tracing::warn!(
            families,
            pending,
            jobs_bytes_max = self.env.memory.max(),
            "not all jobs of the journal have room in memory (setting limits.jobs_bytes_max): \
             they stay in the journal until something comes for them, or there is room"
        );
        found.into_iter().for_each(|tree| self.add_passivated(tree));
        self.activate_next(ctx);
    }

    fn add_passivated(&mut self, jobs: PassivatedTree) {
        self.route_table.passivate(&jobs);
        self.store_passivated(jobs);
    }

    pub(super) fn store_passivated(&mut self, jobs: PassivatedTree) {
        let number = jobs.number();
        self.passivated.due.extend(jobs.due.map(|due| (due, number)));
        if jobs.is_pending {
            self.passivated.pending.insert(number);
        }
        self.adjust_job_gauges(&jobs, 1);
        self.passivated.job_count += jobs.members.len();
        let entry = TreeEntry { tree: jobs, stash: Vec::new(), is_requested: false };
        self.passivated.trees.insert(number, entry);
        self.update_passivated_count();
    }

    /// Adjusts the gauges of jobs: passivated jobs are under way, and count with the others.
    fn adjust_job_gauges(&self, jobs: &PassivatedTree, by: i64) {
        let metrics = &self.env.metrics;
        let children = jobs.members.iter().filter(|member| member.is_child).count();
        metrics.child_jobs.add(by * i64::try_from(children).unwrap_or(i64::MAX));
        if !jobs.state.is_ended() {
            let labels = [&*jobs.definition.full_name(), jobs.state.as_str()];
            metrics.jobs.with_label_values(&labels).add(by);
        }
    }

    fn update_passivated_count(&self) {
        let PassivatedTrees { job_count, pending, .. } = &self.passivated;
        self.env.memory.set_passivated(*job_count, pending.len());
    }

    /// Requests the next trees from the archive, unless it is at work.
    pub(super) fn activate_next(&mut self, ctx: &mut Context<Self>) {
        self.set_due_timer(ctx);
        if self.passivated.activating_count > 0 || self.passivated.is_pausing {
            return;
        }
        let memory = self.env.memory.clone();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let mut admit_tree = |entry: &TreeEntry, is_due: bool, is_first: bool| {
            let fits = memory.fits(bytes + entry.tree.bytes) || is_due && is_first;
            if fits {
                bytes += entry.tree.bytes;
                memory.note_admitted();
            } else if is_first {
                memory.note_rejected(entry.tree.bytes);
            }
            fits
        };
        while batch.len() < TREES_PER_BATCH {
            let Some(number) = self.passivated.requested.front().copied() else { break };
            if let Some(entry) = self.passivated.trees.get(&number) {
                if !admit_tree(entry, true, batch.is_empty()) {
                    break;
                }
                batch.push(number);
            }
            self.passivated.requested.pop_front();
        }
        for number in &self.passivated.pending {
            let Some(entry) = self.passivated.trees.get(number) else { continue };
            if batch.len() == TREES_PER_BATCH {
                break;
            }
            if !entry.is_requested {
                if !admit_tree(entry, false, batch.is_empty()) {
                    break;
                }
                batch.push(*number);
            }
        }
        let trees = batch.into_iter().filter_map(|number| {
            let entry = self.passivated.trees.get_mut(&number)?;
            entry.is_requested = true;
            Some((number, entry.tree.members.iter().map(|member| member.number).collect()))
        });
        let trees: Vec<(JobNumber, Vec<JobNumber>)> = trees.collect();
        if trees.is_empty() {
            if !self.passivated.pending.is_empty() {
                self.check_memory_shortage();
                self.pause(RECHECK_DELAY, ctx);
            }
            return;
        }
        self.passivated.activating_count = trees.len();
        self.env.archive.send(ArchiveInput::Activate(trees));
    }

    fn pause(&mut self, pause: Duration, ctx: &mut Context<Self>) {
        self.passivated.is_pausing = true;
        ctx.run_later(pause, |router, ctx| {
            router.passivated.is_pausing = false;
            router.activate_next(ctx);
        });
    }

    /// Starts the jobs of a tree that the archive has rebuilt, and hands them what was stashed.
    pub(super) fn handle_activated(
        &mut self,
        number: JobNumber,
        found: Vec<RecoveredJob>,
        ctx: &mut Context<Self>,
    ) {
        self.passivated.activating_count = self.passivated.activating_count.saturating_sub(1);
        // `None`: the tree was deleted meanwhile.
        if let Some(entry) = self.remove_tree(number) {
            self.env.metrics.jobs_activated.inc();
            found.into_iter().for_each(|found| self.start_recovered(found));
            self.route_table.activate(&entry.tree);
            self.restore_waiting_since(&entry.tree);
            let bytes = u64::try_from(entry.tree.bytes).unwrap_or(u64::MAX);
            let pause = Duration::from_millis(bytes.saturating_mul(1_000) / BYTES_PER_SECOND);
            if !pause.is_zero() && !self.passivated.is_pausing && self.env.memory.is_exceeded() {
                self.pause(pause, ctx);
            }
            entry.stash.into_iter().for_each(|input| self.handle_input(input, ctx));
        }
        self.check_memory_shortage();
        self.activate_next(ctx);
    }

    /// Jobs that are back go on with since when their steps were seen waiting: whether messages
    /// are lost does not begin anew.
    fn restore_waiting_since(&self, jobs: &PassivatedTree) {
        for member in &jobs.members {
            let seen = member.waits.iter().filter_map(|wait| Some((wait.dispatch, wait.seen?)));
            let seen: Vec<(u64, Instant)> = seen.collect();
            if let (false, Some(job)) = (seen.is_empty(), self.env.routes.find(member.id)) {
                job.send(JobInput::SeenWaiting(seen));
            }
        }
    }

    /// A family is no longer at rest.
    fn remove_tree(&mut self, number: JobNumber) -> Option<TreeEntry> {
        let entry = self.passivated.trees.remove(&number)?;
        self.passivated.pending.remove(&number);
        if let Some(due) = entry.tree.due {
            self.passivated.due.remove(&(due, number));
        }
        self.passivated.job_count -= entry.tree.members.len();
        self.adjust_job_gauges(&entry.tree, -1);
        self.update_passivated_count();
        Some(entry)
    }

    /// Removes a deleted job. If it was passivated, no route to it remains, and its stashed inputs
    /// are handled as those of an unknown job.
    pub(super) fn remove_deleted(&mut self, request: StopRequest, ctx: &mut Context<Self>) {
        let number = self.env.routes.passivated_root(request.id);
        if number != Some(request.number) {
            return;
        }
        if let Some(entry) = self.remove_tree(request.number) {
            self.route_table.activate(&entry.tree);
            entry.stash.into_iter().for_each(|input| self.handle_input(input, ctx));
        }
    }

    /// Asks all jobs that only wait to be passivated, if memory has become short. The others check
    /// it themselves once they only wait.
    pub(super) fn check_memory_shortage(&self) {
        if self.env.memory.take_became_short() {
            let routes = &self.env.routes;
            let request_passivation = |id: JobId| {
                routes.find(id).iter().for_each(|job| job.send(JobInput::PassivateIfWaiting))
            };
            routes.ids().into_iter().for_each(request_passivation);
        }
    }

    /// Sets the timer for what is due next in a passivated job.
    pub(super) fn set_due_timer(&mut self, ctx: &mut Context<Self>) {
        let now = clock::now();
        while let Some((due, number)) = self.passivated.due.first().copied() {
            if due > now {
                break;
            }
            self.passivated.due.remove(&(due, number));
            self.request_activation(number);
        }
        let next = self.passivated.due.first().map(|(due, _)| *due);
        let Some(due) = self.passivated.timer.adjust(next, ctx) else { return };
        let wait = ctx.run_later(now.duration_until(due).min(WAIT_MAX), |router, ctx| {
            router.passivated.timer.clear();
            router.activate_next(ctx);
        });
        self.passivated.timer.set(due, wait);
    }
}
