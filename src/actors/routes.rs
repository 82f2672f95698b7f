//! Which jobs take input, by id: the one table that actors share. Only the router writes it,
//! through [`RouteTable`]; all others read it, through [`Routes`].

use super::at_rest::{AtRest, Member, RestingWait};
use super::mail::JobInput;
use super::mailbox::Mailbox;
use super::steps_done::StepsDone;
use crate::clock;
use crate::engine::{Definition, JobId, Parent};
use crate::journal::JobNumber;
use dashmap::DashMap;
use dashmap::mapref::one::Ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::time::Instant;

/// Creates a route table, and a view of it.
pub fn table() -> (Table, Routes) {
    let shared = Arc::new(Shared::default());
    (Table(shared.clone()), Routes(shared))
}

/// Adds routes of jobs, and removes them.
pub struct Table(Arc<Shared>);

/// A view of the jobs that take input.
pub struct Routes(Arc<Shared>);

#[derive(Default)]
struct Shared {
    table: DashMap<JobId, Live>,
    /// Passivated jobs: an input for one activates it.
    at_rest: DashMap<JobId, Rests>,
    roots: AtomicUsize,
    /// The definitions that these jobs run, and how many jobs run each.
    definitions: DashMap<Place, (Arc<Definition>, usize)>,
}

/// The address of a definition in memory. To compare definitions themselves would cost more for
/// each job.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Place(usize);

impl Place {
    fn of(definition: &Arc<Definition>) -> Place {
        Place(Arc::as_ptr(definition).addr())
    }
}

/// The route of a job that takes input.
pub struct Live {
    /// Its number.
    pub number: JobNumber,
    /// Its parent's number; `None`: it is a root job.
    pub parent: Option<JobNumber>,
    /// The step and item of its parent that it was started for.
    pub place: Option<Parent>,
    /// The definition that it runs.
    pub definition: Arc<Definition>,
    /// Its mailbox.
    pub mailbox: Mailbox<JobInput>,
    /// How many of its steps are done.
    pub steps_done: StepsDone,
}

/// A passivated job.
struct Rests {
    /// The number of the root job of its tree.
    family: JobNumber,
    is_child: bool,
    steps_done: usize,
    since: Instant,
    definition: Arc<Definition>,
    waits: Arc<[RestingWait]>,
}

/// The route of a job that takes input. Nobody can remove it from the table while this is held.
pub struct LiveJob<'a>(Ref<'a, JobId, Live>);

impl LiveJob<'_> {
    /// Sends an input to the job.
    pub fn post(&self, input: JobInput) {
        self.0.mailbox.post(input);
    }

    /// Returns the job's number.
    pub fn number(&self) -> JobNumber {
        self.0.number
    }

    /// Returns how many steps are done, once that is committed.
    pub fn steps_done(&self) -> Option<usize> {
        self.0.steps_done.get()
    }

    /// Returns whether it is the child job that was started for this step and item of the job with
    /// this number.
    pub fn is_child_of(&self, parent: JobNumber, place: Parent) -> bool {
        self.0.parent == Some(parent) && self.0.place == Some(place)
    }
}

impl Table {
    /// Starts a job and adds its route. Whoever looks it up meanwhile waits until the job is in the
    /// table.
    pub fn insert(&self, id: JobId, start: impl FnOnce() -> Live) {
        let entry = self.0.table.entry(id);
        let live = start();
        if live.parent.is_none() {
            self.0.roots.fetch_add(1, Ordering::Relaxed);
        }
        self.0.keep(&live.definition);
        entry.insert(live);
    }

    /// Removes the job with this number from the table, if exactly `inputs_handled` inputs were
    /// sent to it. `None`: however many were sent.
    pub fn take_out(
        &self,
        id: JobId,
        number: JobNumber,
        heard: Option<u64>,
    ) -> Option<Mailbox<JobInput>> {
        // Nobody sends meanwhile: whoever sends holds the entry, or is the router, which alone
        // removes jobs.
        let leaves = |live: &Live| {
            live.number == number && heard.is_none_or(|heard| live.mailbox.posted() == heard)
        };
        let (_, live) = self.0.table.remove_if(&id, |_, live| leaves(live))?;
        if live.parent.is_none() {
            self.0.roots.fetch_sub(1, Ordering::Relaxed);
        }
        self.0.no_longer_keep(&live.definition);
        Some(live.mailbox)
    }
}

impl Shared {
    /// Counts one more job that runs this definition.
    fn keep(&self, definition: &Arc<Definition>) {
        let kept = self.definitions.entry(Place::of(definition));
        kept.or_insert_with(|| (definition.clone(), 0)).1 += 1;
    }

    /// Counts one job fewer, and forgets the definition after the last one.
    fn no_longer_keep(&self, definition: &Arc<Definition>) {
        self.definitions.remove_if_mut(&Place::of(definition), |_, (_, jobs)| {
            *jobs -= 1;
            *jobs == 0
        });
    }
}

impl Table {
    /// Adds the jobs of a tree as passivated ones.
    pub fn lay_down(&self, jobs: &AtRest) {
        let family = jobs.number();
        self.0.keep(&jobs.definition);
        let since = clock::ticks();
        for &Member { id, is_child, steps_done, ref waits, .. } in &jobs.members {
            let (definition, waits) = (jobs.definition.clone(), waits.clone());
            let rests = Rests { family, is_child, steps_done, since, definition, waits };
            self.0.at_rest.insert(id, rests);
            self.0.roots.fetch_add(usize::from(!is_child), Ordering::Relaxed);
        }
    }

    /// Removes the jobs of a tree from the passivated ones.
    pub fn wake(&self, jobs: &AtRest) {
        self.0.no_longer_keep(&jobs.definition);
        let is_of_family = |_: &JobId, rests: &Rests| rests.family == jobs.number();
        for member in &jobs.members {
            if let Some((_, rests)) = self.0.at_rest.remove_if(&member.id, is_of_family) {
                self.0.roots.fetch_sub(usize::from(!rests.is_child), Ordering::Relaxed);
            }
        }
    }
}

impl Routes {
    /// Finds the job that takes input under this id. It stays in the table while the result is
    /// held; do not look up anything else meanwhile.
    pub fn find(&self, id: JobId) -> Option<LiveJob<'_>> {
        self.0.table.get(&id).map(LiveJob)
    }

    /// Returns whether a job takes input under this id, or is passivated.
    pub fn is_live(&self, id: JobId) -> bool {
        // A third look for one that was activated between the first two.
        self.find(id).is_some() || self.is_at_rest(id) || self.find(id).is_some()
    }

    /// Returns whether a job with this id is passivated.
    pub fn is_at_rest(&self, id: JobId) -> bool {
        self.0.at_rest.contains_key(&id)
    }

    /// Returns the number of the root job in the tree of a passivated job.
    pub(super) fn family_at_rest(&self, id: JobId) -> Option<JobNumber> {
        self.0.at_rest.get(&id).map(|rests| rests.family)
    }

    /// Shows the steps of all jobs at rest that wait for replies: their job, since when that rests,
    /// what it goes by, and the step. Do not look up anything else meanwhile.
    pub(super) fn waits_at_rest(
        &self,
        mut see: impl FnMut(JobId, Instant, &Definition, &RestingWait),
    ) {
        for rests in &self.0.at_rest {
            let see = |wait| see(*rests.key(), rests.since, &rests.definition, wait);
            rests.waits.iter().for_each(see);
        }
    }

    /// How many steps of a job are done, once that is committed.
    pub fn steps_done(&self, id: JobId) -> Option<usize> {
        let at_rest = || self.0.at_rest.get(&id).map(|rests| rests.steps_done);
        self.find(id).map_or_else(at_rest, |live| live.steps_done())
    }

    /// Returns whether no job takes input or is passivated.
    pub fn is_empty(&self) -> bool {
        self.0.table.is_empty() && self.0.at_rest.is_empty()
    }

    /// Returns how many root jobs take input or are passivated.
    pub fn roots(&self) -> usize {
        self.0.roots.load(Ordering::Relaxed)
    }

    /// Returns the definitions that these jobs run, in no order. Jobs that were rebuilt have copies
    /// of their own.
    pub(super) fn definitions(&self) -> Vec<Arc<Definition>> {
        self.0.definitions.iter().map(|kept| kept.0.clone()).collect()
    }

    /// Returns the ids of all jobs that take input, in no order.
    pub(super) fn ids(&self) -> Vec<JobId> {
        self.0.table.iter().map(|live| *live.key()).collect()
    }

    /// Returns the ids of all jobs that take input, in the order of their creation.
    pub(super) fn all_live(&self) -> Vec<JobId> {
        let mut live: Vec<_> = self.0.table.iter().map(|live| (live.number, *live.key())).collect();
        live.sort_unstable_by_key(|(number, _)| *number);
        live.into_iter().map(|(_, id)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actors::mailbox::{Kind, Mail, Owner};
    use crate::telemetry::Metrics;
    use actix::{Actor, Context, Handler};

    struct Deaf;

    impl Actor for Deaf {
        type Context = Context<Self>;
    }

    impl Owner for Deaf {
        type Input = JobInput;
        const KIND: &'static str = "job";
    }

    impl Handler<Mail<JobInput>> for Deaf {
        type Result = ();

        fn handle(&mut self, _: Mail<JobInput>, _: &mut Self::Context) {}
    }

    #[test]
    fn a_job_is_taken_out_only_when_it_has_heard_all_that_was_sent_to_it() {
        actix::System::new().block_on(async {
            let kind = Kind::new(&Metrics::new(), "job");
            let ((table, routes), id) = (table(), JobId(uuid::Uuid::nil()));
            let definition = Arc::new(Definition::new("w", Vec::new()));
            table.insert(id, || Live {
                number: 7,
                parent: None,
                place: None,
                definition: definition.clone(),
                mailbox: Mailbox::new(Deaf.start(), usize::MAX, kind),
                steps_done: StepsDone::default(),
            });
            routes.find(id).expect("it lives").post(JobInput::Close);
            assert!(table.take_out(id, 7, Some(0)).is_none(), "one input is on its way");
            assert!(table.take_out(id, 8, Some(1)).is_none(), "another job's");
            assert!(table.take_out(id, 8, None).is_none(), "another job's");
            assert!(routes.is_live(id) && routes.roots() == 1);
            assert_eq!(routes.definitions(), [definition]);
            assert!(table.take_out(id, 7, Some(1)).is_some());
            assert!(routes.is_empty() && routes.roots() == 0);
            assert!(routes.definitions().is_empty(), "no job goes by it any more");
        });
    }
}
