//! Passivated jobs: an input for one activates its whole job tree. Until the archive has rebuilt
//! the jobs, all inputs for them are stashed, in order.
//!
//! One batch at a time is activated: first the trees for which an input has come or something is
//! due, then those that wait for room. Of the first kind one is activated even where there is no
//! room, so that replies and operations always pass; but then they come slowly, and release their
//! memory when they wait again. Of the second kind one is activated without room only if no other
//! job is in memory.

use super::Router;
use super::families::{Family, Resting};
use crate::actors::at_rest::AtRest;
use crate::actors::mail::{ArchiveInput, JobInput, Leave, RouterInput};
use crate::clock;
use crate::engine::JobId;
use crate::journal::{JobNumber, Recovered};
use actix::{AsyncContext, Context};
use std::time::Duration;
use tokio::time::Instant;

/// The most job trees that are activated at once.
const FAMILIES_AT_ONCE: usize = 1_000;

/// The pause before the next check whether there is room.
const LOOKED_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// How many bytes a second are activated while there is no room.
const BYTES_A_SECOND: u64 = 256 << 20;

/// The longest pause of the timer. For what is due later, the timer is set again.
const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);

impl Router {
    /// Stashes an input for a passivated job, and requests its activation. Returns an input that is
    /// for no such job.
    pub(super) fn unless_at_rest(&mut self, id: JobId, input: RouterInput) -> Option<RouterInput> {
        let Some(number) = self.ways.routes.family_at_rest(id) else { return Some(input) };
        let Some(family) = self.resting.families.get_mut(&number) else { return Some(input) };
        family.set_aside.push(input);
        self.want(number);
        None
    }

    fn want(&mut self, number: JobNumber) {
        let Some(family) = self.resting.families.get_mut(&number) else { return };
        if !std::mem::replace(&mut family.is_wanted, true) {
            self.resting.wanted.push_back(number);
            self.ways.mailboxes().router.post(RouterInput::BringBack);
        }
    }

    /// Finds a passivated root job that has ended, and can be deleted without being activated.
    pub(super) fn ended_at_rest(&self, id: JobId) -> Option<JobNumber> {
        let number = self.ways.routes.family_at_rest(id)?;
        let jobs = &self.resting.families.get(&number)?.jobs;
        let is_meant = jobs.members.first().is_some_and(|first| first.id == id && !first.is_child);
        (is_meant && jobs.state.is_ended()).then_some(number)
    }

    /// Returns the ids of the passivated jobs whose tree meets the condition.
    pub(super) fn at_rest(&self, is_meant: impl Fn(&AtRest) -> bool) -> Vec<JobId> {
        let meant = self.resting.families.values().filter(|family| is_meant(&family.jobs));
        meant.flat_map(|family| family.jobs.members.iter().map(|member| member.id)).collect()
    }

    /// Adds the job trees for which a start has no room.
    pub(super) fn found_at_rest(&mut self, found: Vec<AtRest>, ctx: &mut Context<Self>) {
        if found.is_empty() {
            return;
        }
        let (families, pending) =
            (found.len(), found.iter().filter(|family| family.is_pending).count());
        tracing::warn!(
            families,
            pending,
            jobs_bytes_max = self.ways.common.memory.max(),
            "not all jobs of the journal have room in memory (setting limits.jobs_bytes_max): \
             they stay in the journal until something comes for them, or there is room"
        );
        found.into_iter().for_each(|family| self.lay_down(family));
        self.bring_back(ctx);
    }

    fn lay_down(&mut self, jobs: AtRest) {
        self.table.lay_down(&jobs);
        self.keep_at_rest(jobs);
    }

    pub(super) fn keep_at_rest(&mut self, jobs: AtRest) {
        let number = jobs.number();
        self.resting.due.extend(jobs.due.map(|due| (due, number)));
        if jobs.is_pending {
            self.resting.pending.insert(number);
        }
        self.count_at_rest(&jobs, 1);
        self.resting.jobs += jobs.members.len();
        let family = Family { jobs, set_aside: Vec::new(), is_wanted: false };
        self.resting.families.insert(number, family);
        self.show_at_rest();
    }

    /// Adjusts the gauges of jobs: passivated jobs are under way, and count with the others.
    fn count_at_rest(&self, jobs: &AtRest, by: i64) {
        let metrics = &self.ways.common.metrics;
        let children = jobs.members.iter().filter(|member| member.is_child).count();
        metrics.child_jobs.add(by * i64::try_from(children).unwrap_or(i64::MAX));
        if !jobs.state.is_ended() {
            let labels = [&*jobs.definition.full_name(), jobs.state.word()];
            metrics.jobs.with_label_values(&labels).add(by);
        }
    }

    fn show_at_rest(&self) {
        let Resting { jobs, pending, .. } = &self.resting;
        self.ways.common.memory.show_at_rest(*jobs, pending.len());
    }

    /// Requests the next trees from the archive, unless it is at work.
    pub(super) fn bring_back(&mut self, ctx: &mut Context<Self>) {
        self.set_due_timer(ctx);
        if self.resting.coming > 0 || self.resting.is_pausing {
            return;
        }
        let memory = self.ways.common.memory.clone();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let mut has_room = |family: &Family, is_due: bool, is_first: bool| {
            let fits = memory.fits(bytes + family.jobs.bytes) || is_due && is_first;
            if fits {
                bytes += family.jobs.bytes;
                memory.let_in();
            } else if is_first {
                memory.want(family.jobs.bytes);
            }
            fits
        };
        while batch.len() < FAMILIES_AT_ONCE {
            let Some(number) = self.resting.wanted.front().copied() else { break };
            if let Some(family) = self.resting.families.get(&number) {
                if !has_room(family, true, batch.is_empty()) {
                    break;
                }
                batch.push(number);
            }
            self.resting.wanted.pop_front();
        }
        for number in &self.resting.pending {
            let Some(family) = self.resting.families.get(number) else { continue };
            if batch.len() == FAMILIES_AT_ONCE {
                break;
            }
            if !family.is_wanted {
                if !has_room(family, false, batch.is_empty()) {
                    break;
                }
                batch.push(*number);
            }
        }
        let families = batch.into_iter().filter_map(|number| {
            let family = self.resting.families.get_mut(&number)?;
            family.is_wanted = true;
            Some((number, family.jobs.members.iter().map(|member| member.number).collect()))
        });
        let families: Vec<(JobNumber, Vec<JobNumber>)> = families.collect();
        if families.is_empty() {
            if !self.resting.pending.is_empty() {
                self.look_for_short_memory();
                self.pause(LOOKED_AGAIN_AFTER, ctx);
            }
            return;
        }
        self.resting.coming = families.len();
        self.ways.mailboxes().archive.post(ArchiveInput::BringBack(families));
    }

    fn pause(&mut self, pause: Duration, ctx: &mut Context<Self>) {
        self.resting.is_pausing = true;
        ctx.run_later(pause, |router, ctx| {
            router.resting.is_pausing = false;
            router.bring_back(ctx);
        });
    }

    /// Starts the jobs of a tree that the archive has rebuilt, and hands them what was stashed.
    pub(super) fn brought_back(
        &mut self,
        number: JobNumber,
        found: Vec<Recovered>,
        ctx: &mut Context<Self>,
    ) {
        self.resting.coming = self.resting.coming.saturating_sub(1);
        // `None`: the tree was deleted meanwhile.
        if let Some(family) = self.forget(number) {
            self.ways.common.metrics.jobs_brought_back.inc();
            found.into_iter().for_each(|found| self.go_on(found));
            self.table.wake(&family.jobs);
            self.tell_seen(&family.jobs);
            let bytes = u64::try_from(family.jobs.bytes).unwrap_or(u64::MAX);
            let pause = Duration::from_millis(bytes.saturating_mul(1_000) / BYTES_A_SECOND);
            if !pause.is_zero() && !self.resting.is_pausing && self.ways.common.memory.is_over() {
                self.pause(pause, ctx);
            }
            family.set_aside.into_iter().for_each(|input| self.receive(input, ctx));
        }
        self.look_for_short_memory();
        self.bring_back(ctx);
    }

    /// Jobs that are back go on with since when their steps were seen waiting: whether messages
    /// are lost does not begin anew.
    fn tell_seen(&self, jobs: &AtRest) {
        for member in &jobs.members {
            let seen = member.waits.iter().filter_map(|wait| Some((wait.dispatch, wait.seen?)));
            let seen: Vec<(u64, Instant)> = seen.collect();
            if let (false, Some(job)) = (seen.is_empty(), self.ways.routes.find(member.id)) {
                job.post(JobInput::SeenWaiting(seen));
            }
        }
    }

    /// A family is no longer at rest.
    fn forget(&mut self, number: JobNumber) -> Option<Family> {
        let family = self.resting.families.remove(&number)?;
        self.resting.pending.remove(&number);
        if let Some(due) = family.jobs.due {
            self.resting.due.remove(&(due, number));
        }
        self.resting.jobs -= family.jobs.members.len();
        self.count_at_rest(&family.jobs, -1);
        self.show_at_rest();
        Some(family)
    }

    /// Removes a deleted job. If it was passivated, no route to it remains, and its stashed inputs
    /// are handled as those of an unknown job.
    pub(super) fn delete_at_rest(&mut self, leave: Leave, ctx: &mut Context<Self>) {
        let number = self.ways.routes.family_at_rest(leave.id);
        if number != Some(leave.number) {
            return;
        }
        if let Some(family) = self.forget(leave.number) {
            self.table.wake(&family.jobs);
            family.set_aside.into_iter().for_each(|input| self.receive(input, ctx));
        }
    }

    /// Asks all jobs that only wait to be passivated, if memory has become short. The others check
    /// it themselves once they only wait.
    pub(super) fn look_for_short_memory(&self) {
        if self.ways.common.memory.has_become_short() {
            let routes = &self.ways.routes;
            let tell = |id: JobId| routes.find(id).iter().for_each(|job| job.post(JobInput::Rest));
            routes.ids().into_iter().for_each(tell);
        }
    }

    /// Sets the timer for what is due next in a passivated job.
    pub(super) fn set_due_timer(&mut self, ctx: &mut Context<Self>) {
        let now = clock::now();
        while let Some((due, number)) = self.resting.due.first().copied() {
            if due > now {
                break;
            }
            self.resting.due.remove(&(due, number));
            self.want(number);
        }
        let next = self.resting.due.first().map(|(due, _)| *due);
        if next == self.resting.timer.as_ref().map(|(due, _)| *due) {
            return;
        }
        if let Some((_, wait)) = self.resting.timer.take() {
            ctx.cancel_future(wait);
        }
        let Some(due) = next else { return };
        let left = u64::try_from(due.0.saturating_sub(now.0)).unwrap_or_default();
        let wait = ctx.run_later(Duration::from_nanos(left).min(WAIT_MAX), |router, ctx| {
            router.resting.timer = None;
            router.bring_back(ctx);
        });
        self.resting.timer = Some((due, wait));
    }
}
