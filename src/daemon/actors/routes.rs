//! Which jobs take input, by id: the one table that actors share. Only the router writes it,
//! through [`RouteTable`]; all others read it, through [`Routes`].

use super::inputs::JobInput;
use super::mailbox::Mailbox;
use super::passivation::{PassivatedJob, PassivatedTree, PassivatedWait};
use super::steps_done::StepsDone;
use base::clock;
use dashmap::DashMap;
use dashmap::mapref::one::Ref;
use engine::{Definition, JobId, ParentItem};
use journal::JobNumber;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::time::Instant;

/// Creates a route table, and a view of it.
pub fn new_route_table() -> (RouteTable, Routes) {
    let shared = Arc::new(RouteState::default());
    (RouteTable(shared.clone()), Routes(shared))
}

/// Adds routes of jobs, and removes them.
pub struct RouteTable(Arc<RouteState>);

/// A view of the jobs that take input.
#[derive(Clone)]
pub struct Routes(Arc<RouteState>);

#[derive(Default)]
struct RouteState {
    routes: DashMap<JobId, Route>,
    /// Passivated jobs: an input for one activates it.
    passivated: DashMap<JobId, PassivatedRoute>,
    root_count: AtomicUsize,
    /// The definitions that these jobs run, and how many jobs run each.
    definitions: DashMap<DefinitionKey, (Arc<Definition>, usize)>,
}

/// The address of a definition in memory. To compare definitions themselves would cost more for
/// each job.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct DefinitionKey(usize);

impl DefinitionKey {
    fn from_definition(definition: &Arc<Definition>) -> DefinitionKey {
        DefinitionKey(Arc::as_ptr(definition).addr())
    }
}

/// The route of a job that takes input.
pub struct Route {
    /// Its number.
    pub number: JobNumber,
    /// Its parent's number; `None`: it is a root job.
    pub parent: Option<JobNumber>,
    /// The step and item of its parent that it was started for.
    pub parent_item: Option<ParentItem>,
    /// The definition that it runs.
    pub definition: Arc<Definition>,
    /// Its mailbox.
    pub mailbox: Mailbox<JobInput>,
    /// How many of its steps are done.
    pub steps_done: StepsDone,
}

/// A passivated job.
struct PassivatedRoute {
    /// The number of the root job of its tree.
    root: JobNumber,
    is_child: bool,
    steps_done: usize,
    since: Instant,
    definition: Arc<Definition>,
    waits: Arc<[PassivatedWait]>,
}

/// The route of a job that takes input. Nobody can remove it from the table while this is held.
pub struct RouteRef<'a>(Ref<'a, JobId, Route>);

impl RouteRef<'_> {
    /// Sends an input to the job.
    pub fn send(&self, input: JobInput) {
        self.0.mailbox.send(input);
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
    pub fn is_child_of(&self, parent: JobNumber, parent_item: ParentItem) -> bool {
        self.0.parent == Some(parent) && self.0.parent_item == Some(parent_item)
    }
}

impl RouteTable {
    /// Starts a job and adds its route. Whoever looks it up meanwhile waits until the job is in the
    /// table.
    pub fn insert(&self, id: JobId, start: impl FnOnce() -> Route) {
        let entry = self.0.routes.entry(id);
        let route = start();
        if route.parent.is_none() {
            self.0.root_count.fetch_add(1, Ordering::Relaxed);
        }
        self.0.add_definition(&route.definition);
        entry.insert(route);
    }

    /// Removes the job with this number from the table, if exactly `inputs_handled` inputs were
    /// sent to it. `None`: however many were sent.
    pub fn remove_if_idle(
        &self,
        id: JobId,
        number: JobNumber,
        inputs_handled: Option<u64>,
    ) -> Option<Mailbox<JobInput>> {
        // Nobody sends meanwhile: whoever sends holds the entry, or is the router, which alone
        // removes jobs.
        let is_idle = |route: &Route| {
            route.number == number
                && inputs_handled.is_none_or(|count| route.mailbox.sent_count() == count)
        };
        let (_, route) = self.0.routes.remove_if(&id, |_, live| is_idle(live))?;
        if route.parent.is_none() {
            self.0.root_count.fetch_sub(1, Ordering::Relaxed);
        }
        self.0.release_definition(&route.definition);
        Some(route.mailbox)
    }
}

impl RouteState {
    /// Counts one more job that runs this definition.
    fn add_definition(&self, definition: &Arc<Definition>) {
        let entry = self.definitions.entry(DefinitionKey::from_definition(definition));
        entry.or_insert_with(|| (definition.clone(), 0)).1 += 1;
    }

    /// Counts one job fewer, and forgets the definition after the last one.
    fn release_definition(&self, definition: &Arc<Definition>) {
        self.definitions.remove_if_mut(
            &DefinitionKey::from_definition(definition),
            |_, (_, jobs)| {
                *jobs -= 1;
                *jobs == 0
            },
        );
    }
}

impl RouteTable {
    /// Adds the jobs of a tree as passivated ones.
    pub fn passivate(&self, jobs: &PassivatedTree) {
        let root = jobs.number();
        self.0.add_definition(&jobs.definition);
        let since = clock::timer_now();
        for &PassivatedJob { id, is_child, steps_done, ref waits, .. } in &jobs.members {
            let (definition, waits) = (jobs.definition.clone(), waits.clone());
            let route = PassivatedRoute { root, is_child, steps_done, since, definition, waits };
            self.0.passivated.insert(id, route);
            self.0.root_count.fetch_add(usize::from(!is_child), Ordering::Relaxed);
        }
    }

    /// Removes the jobs of a tree from the passivated ones.
    pub fn activate(&self, jobs: &PassivatedTree) {
        self.0.release_definition(&jobs.definition);
        let is_of_tree = |_: &JobId, route: &PassivatedRoute| route.root == jobs.number();
        for member in &jobs.members {
            if let Some((_, route)) = self.0.passivated.remove_if(&member.id, is_of_tree) {
                self.0.root_count.fetch_sub(usize::from(!route.is_child), Ordering::Relaxed);
            }
        }
    }
}

impl Routes {
    /// Finds the job that takes input under this id. It stays in the table while the result is
    /// held; do not look up anything else meanwhile.
    pub fn find(&self, id: JobId) -> Option<RouteRef<'_>> {
        self.0.routes.get(&id).map(RouteRef)
    }

    /// Returns whether a job takes input under this id, or is passivated.
    pub fn is_under_way(&self, id: JobId) -> bool {
        // A third look for one that was activated between the first two.
        self.find(id).is_some() || self.is_passivated(id) || self.find(id).is_some()
    }

    /// Returns whether a job with this id is passivated.
    pub fn is_passivated(&self, id: JobId) -> bool {
        self.0.passivated.contains_key(&id)
    }

    /// Returns the number of the root job in the tree of a passivated job.
    pub(super) fn passivated_root(&self, id: JobId) -> Option<JobNumber> {
        self.0.passivated.get(&id).map(|route| route.root)
    }

    /// Shows the steps of all jobs at rest that wait for replies: their job, since when that rests,
    /// what it goes by, and the step. Do not look up anything else meanwhile.
    pub(super) fn for_each_passivated_wait(
        &self,
        mut visit: impl FnMut(JobId, Instant, &Definition, &PassivatedWait),
    ) {
        for route in &self.0.passivated {
            let visit_wait = |wait| visit(*route.key(), route.since, &route.definition, wait);
            route.waits.iter().for_each(visit_wait);
        }
    }

    /// How many steps of a job are done, once that is committed.
    pub fn steps_done(&self, id: JobId) -> Option<usize> {
        let passivated_steps_done = || self.0.passivated.get(&id).map(|rests| rests.steps_done);
        self.find(id).map_or_else(passivated_steps_done, |route| route.steps_done())
    }

    /// Returns whether no job takes input or is passivated.
    pub fn is_empty(&self) -> bool {
        self.0.routes.is_empty() && self.0.passivated.is_empty()
    }

    /// Returns how many root jobs take input or are passivated.
    pub fn root_count(&self) -> usize {
        self.0.root_count.load(Ordering::Relaxed)
    }

    /// Returns the definitions that these jobs run, in no order. Jobs that were rebuilt have copies
    /// of their own.
    pub(super) fn definitions(&self) -> Vec<Arc<Definition>> {
        self.0.definitions.iter().map(|entry| entry.0.clone()).collect()
    }

    /// Returns the ids of all jobs that take input, in no order.
    pub(super) fn ids(&self) -> Vec<JobId> {
        self.0.routes.iter().map(|route| *route.key()).collect()
    }

    /// Returns the ids of all jobs that take input, in the order of their creation.
    pub(super) fn ids_by_creation(&self) -> Vec<JobId> {
        let mut numbered: Vec<_> =
            self.0.routes.iter().map(|route| (route.number, *route.key())).collect();
        numbered.sort_unstable_by_key(|(number, _)| *number);
        numbered.into_iter().map(|(_, id)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actors::mailbox::{ActorMetrics, Envelope, MailboxActor, new_mailbox};
    use crate::telemetry::Metrics;
    use actix::{Actor, Context, Handler};

    struct IgnoringActor;

    impl Actor for IgnoringActor {
        type Context = Context<Self>;
    }

    impl MailboxActor for IgnoringActor {
        type Input = JobInput;
        const KIND: &'static str = "job";
    }

    impl Handler<Envelope<JobInput>> for IgnoringActor {
        type Result = ();

        fn handle(&mut self, _: Envelope<JobInput>, _: &mut Self::Context) {}
    }

    #[test]
    fn a_route_is_removed_only_when_the_job_has_handled_all_inputs_sent_to_it() {
        actix::System::new().block_on(async {
            let kind = ActorMetrics::new(&Metrics::new(), "job");
            let (mailbox, inbox) = new_mailbox(usize::MAX, kind);
            inbox.start_here(IgnoringActor);
            let ((table, routes), id) = (new_route_table(), JobId(uuid::Uuid::nil()));
            let definition = Arc::new(Definition::new("w", Vec::new()));
            table.insert(id, || Route {
                number: 7,
                parent: None,
                parent_item: None,
                definition: definition.clone(),
                mailbox,
                steps_done: StepsDone::default(),
            });
            routes.find(id).expect("it lives").send(JobInput::Close);
            assert!(table.remove_if_idle(id, 7, Some(0)).is_none(), "one input is on its way");
            assert!(table.remove_if_idle(id, 8, Some(1)).is_none(), "another job's");
            assert!(table.remove_if_idle(id, 8, None).is_none(), "another job's");
            assert!(routes.is_under_way(id) && routes.root_count() == 1);
            assert_eq!(routes.definitions(), [definition]);
            assert!(table.remove_if_idle(id, 7, Some(1)).is_some());
            assert!(routes.is_empty() && routes.root_count() == 0);
            assert!(routes.definitions().is_empty(), "no job goes by it any more");
        });
    }
}
