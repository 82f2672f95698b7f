//! The route table: the jobs that take input, and the passivated jobs, by id. All actors share it.
//! The router writes it through [`RouteTable`], and the others read it through [`Routes`].

use super::inputs::JobInput;
use super::listed_state::{ListedState, SharedListedState};
use super::mailbox::Mailbox;
use super::passivation::{PassivatedJob, PassivatedTree, PassivatedWait};
use base::clock;
use dashmap::DashMap;
use dashmap::mapref::one::Ref;
use engine::{Definition, JobId, ParentItem, Timestamp};
use journal::JobNumber;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::time::Instant;

/// Creates a route table, and a reader of it.
pub fn new_route_table() -> (RouteTable, Routes) {
    let shared = Arc::new(RouteState::default());
    (RouteTable(shared.clone()), Routes(shared))
}

/// The router's handle to the route table: it adds and removes routes.
pub struct RouteTable(Arc<RouteState>);

/// A read-only handle to the route table.
#[derive(Clone)]
pub struct Routes(Arc<RouteState>);

#[derive(Default)]
struct RouteState {
    routes: DashMap<JobId, Route>,
    /// The routes of passivated jobs. An input for one activates the job.
    passivated: DashMap<JobId, PassivatedRoute>,
    /// How many root jobs are in both tables.
    root_count: AtomicUsize,
    /// The definitions that the jobs in both tables run, each with the number of jobs that run it.
    /// A passivated tree counts as one job.
    definitions: DashMap<DefinitionKey, (Arc<Definition>, usize)>,
}

/// The address of a definition in memory. It is cheaper to compare than the definition itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct DefinitionKey(usize);

impl DefinitionKey {
    fn from_definition(definition: &Arc<Definition>) -> DefinitionKey {
        DefinitionKey(Arc::as_ptr(definition).addr())
    }
}

/// A job with external steps that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AskedJob {
    /// Since when the first of them waits.
    pub since: Timestamp,
    /// The job's id.
    pub id: JobId,
}

/// Jobs with external steps that run.
pub struct AskedJobs {
    /// A page of the jobs, those that have waited longest first.
    pub jobs: Vec<AskedJob>,
    /// Whether there are more after this page.
    pub has_more: bool,
    /// How many such steps run in the jobs of each workflow, by its full name.
    pub steps: BTreeMap<String, usize>,
}

/// A page of jobs that is filled in any order. The heap has the one on top that goes first when
/// there are too many.
struct AskedPage {
    after: Option<AskedJob>,
    limit: usize,
    heap: BinaryHeap<AskedJob>,
    /// Whether a job after the cursor has no place.
    has_more: bool,
}

impl AskedPage {
    fn add(&mut self, job: AskedJob) {
        if self.after.is_some_and(|after| job <= after) {
            return;
        }
        let is_full = self.heap.len() >= self.limit;
        self.has_more |= is_full;
        if !is_full {
            self.heap.push(job);
        } else if let Some(mut last) = self.heap.peek_mut()
            && job < *last
        {
            *last = job;
        }
    }
}

/// The route of a job that takes input.
pub struct Route {
    /// The job's number.
    pub number: JobNumber,
    /// The number of its parent; `None`: it is a root job.
    pub parent: Option<JobNumber>,
    /// The step and item of its parent that it was started for; `None`: it is a root job.
    pub parent_item: Option<ParentItem>,
    /// The definition that the job runs.
    pub definition: Arc<Definition>,
    /// The mailbox of the job's actor.
    pub mailbox: Mailbox<JobInput>,
    /// What lists show of the job.
    pub listed_state: SharedListedState,
}

/// The route of a passivated job.
struct PassivatedRoute {
    /// The number of the root job of its tree.
    root: JobNumber,
    is_child: bool,
    /// What lists show of the job.
    listed_state: ListedState,
    passivated_at: Instant,
    definition: Arc<Definition>,
    /// The job's steps that wait for replies.
    waits: Arc<[PassivatedWait]>,
}

/// A reference to the route of a job that takes input. It holds a lock, so the route stays in the
/// table while the reference is held.
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

    /// Returns what lists show of the job; `None` before its first commit.
    pub fn listed_state(&self) -> Option<ListedState> {
        self.0.listed_state.get()
    }

    /// Returns whether this is the child job that was started for `parent_item` of the job with the
    /// number `parent`.
    pub fn is_child_of(&self, parent: JobNumber, parent_item: ParentItem) -> bool {
        self.0.parent == Some(parent) && self.0.parent_item == Some(parent_item)
    }
}

impl RouteTable {
    /// Starts a job and adds its route. A concurrent lookup of the id blocks until the route is
    /// added.
    pub fn insert(&self, id: JobId, start: impl FnOnce() -> Route) {
        let entry = self.0.routes.entry(id);
        let route = start();
        if route.parent.is_none() {
            self.0.root_count.fetch_add(1, Ordering::Relaxed);
        }
        self.0.add_definition(&route.definition);
        entry.insert(route);
    }

    /// Removes the route of the job with this number, if exactly `inputs_handled` inputs were sent
    /// to the job. If `inputs_handled` is `None`, the number of inputs does not matter. Returns the
    /// job's mailbox if the route was removed.
    pub fn remove_if_idle(
        &self,
        id: JobId,
        number: JobNumber,
        inputs_handled: Option<u64>,
    ) -> Option<Mailbox<JobInput>> {
        // No input is sent concurrently: a sender holds a reference to the entry, which locks it,
        // or is the router, which runs this code.
        let is_idle = |route: &Route| {
            route.number == number
                && inputs_handled.is_none_or(|count| route.mailbox.sent_count() == count)
        };
        let (_, route) = self.0.routes.remove_if(&id, |_, route| is_idle(route))?;
        if route.parent.is_none() {
            self.0.root_count.fetch_sub(1, Ordering::Relaxed);
        }
        self.0.release_definition(&route.definition);
        Some(route.mailbox)
    }

    /// Adds the routes of the jobs of a passivated tree.
    pub fn add_passivated(&self, tree: &PassivatedTree) {
        self.0.add_definition(&tree.definition);
        let passivated_at = clock::timer_now();
        for &PassivatedJob { id, is_child, listed_state, ref waits, .. } in &tree.members {
            let route = PassivatedRoute {
                root: tree.root_number(),
                is_child,
                listed_state,
                passivated_at,
                definition: tree.definition.clone(),
                waits: waits.clone(),
            };
            self.0.passivated.insert(id, route);
            self.0.root_count.fetch_add(usize::from(!is_child), Ordering::Relaxed);
        }
    }

    /// Removes the routes of the jobs of a passivated tree: it was activated or deleted.
    pub fn remove_passivated(&self, tree: &PassivatedTree) {
        self.0.release_definition(&tree.definition);
        let is_in_tree = |_: &JobId, route: &PassivatedRoute| route.root == tree.root_number();
        for member in &tree.members {
            if let Some((_, route)) = self.0.passivated.remove_if(&member.id, is_in_tree) {
                self.0.root_count.fetch_sub(usize::from(!route.is_child), Ordering::Relaxed);
            }
        }
    }
}

impl RouteState {
    /// Increments the number of jobs that run this definition.
    fn add_definition(&self, definition: &Arc<Definition>) {
        let entry = self.definitions.entry(DefinitionKey::from_definition(definition));
        entry.or_insert_with(|| (definition.clone(), 0)).1 += 1;
    }

    /// Decrements the number of jobs that run this definition, and removes it after the last one.
    fn release_definition(&self, definition: &Arc<Definition>) {
        self.definitions.remove_if_mut(
            &DefinitionKey::from_definition(definition),
            |_, (_, job_count)| {
                *job_count -= 1;
                *job_count == 0
            },
        );
    }
}

impl Routes {
    /// Finds the job that takes input under this id. The result locks a part of the table: a caller
    /// that holds it must not look up anything else, which could be a deadlock.
    pub fn find(&self, id: JobId) -> Option<RouteRef<'_>> {
        self.0.routes.get(&id).map(RouteRef)
    }

    /// Returns whether a job with this id is active: it takes input, or is passivated.
    pub fn is_active(&self, id: JobId) -> bool {
        // The second lookup of the route finds a job that was activated after the first lookup.
        self.find(id).is_some() || self.is_passivated(id) || self.find(id).is_some()
    }

    /// Returns whether a job with this id is passivated.
    pub fn is_passivated(&self, id: JobId) -> bool {
        self.0.passivated.contains_key(&id)
    }

    /// Finds the number of the root job in the tree of a passivated job.
    pub(super) fn passivated_root(&self, id: JobId) -> Option<JobNumber> {
        self.0.passivated.get(&id).map(|route| route.root)
    }

    /// Calls `visit` for each step of a passivated job that waits for a reply, with the job, the
    /// time of its passivation, its definition, and the step. A part of the table is locked during
    /// each call, so `visit` must not look up anything in it.
    pub(super) fn for_each_passivated_wait(
        &self,
        mut visit: impl FnMut(JobId, Instant, &Definition, &PassivatedWait),
    ) {
        for route in &self.0.passivated {
            for wait in route.waits.iter() {
                visit(*route.key(), route.passivated_at, &route.definition, wait);
            }
        }
    }

    /// Returns what lists show of a job; `None` before its first commit, and if no job with the id
    /// takes input or is passivated.
    pub fn listed_state(&self, id: JobId) -> Option<ListedState> {
        let of_passivated = || self.0.passivated.get(&id).map(|route| route.listed_state);
        self.find(id).map_or_else(of_passivated, |route| route.listed_state())
    }

    /// Returns the jobs with external steps that run, those that have waited longest first: at most
    /// `limit` of them, of one workflow if one is given, after the cursor `after`.
    pub fn asked_jobs(
        &self,
        workflow: Option<&str>,
        after: Option<AskedJob>,
        limit: usize,
    ) -> AskedJobs {
        let mut page = AskedPage { after, limit, heap: BinaryHeap::new(), has_more: false };
        let mut workflows: HashMap<DefinitionKey, (Arc<Definition>, usize, bool)> = HashMap::new();
        let mut visit = |id: JobId, definition: &Arc<Definition>, state: ListedState| {
            let Some(since) = state.asked_since else { return };
            let key = DefinitionKey::from_definition(definition);
            let (_, steps, is_wanted) = workflows.entry(key).or_insert_with(|| {
                let is_wanted = workflow.is_none_or(|name| definition.full_name() == name);
                (definition.clone(), 0, is_wanted)
            });
            *steps += state.asked_steps;
            if *is_wanted {
                page.add(AskedJob { since, id });
            }
        };
        // A job that is being passivated or activated may be in both tables. It counts once.
        let mut seen = HashSet::new();
        for route in &self.0.routes {
            if let Some(state) = route.listed_state.get() {
                if state.asked_since.is_some() {
                    seen.insert(*route.key());
                }
                visit(*route.key(), &route.definition, state);
            }
        }
        for route in &self.0.passivated {
            if !seen.contains(route.key()) {
                visit(*route.key(), &route.definition, route.listed_state);
            }
        }
        let mut steps = BTreeMap::new();
        for (definition, count, _) in workflows.into_values() {
            *steps.entry(definition.full_name()).or_default() += count;
        }
        AskedJobs { jobs: page.heap.into_sorted_vec(), has_more: page.has_more, steps }
    }

    /// Returns whether no job takes input or is passivated.
    pub fn is_empty(&self) -> bool {
        self.0.routes.is_empty() && self.0.passivated.is_empty()
    }

    /// Returns how many root jobs take input or are passivated.
    pub fn root_count(&self) -> usize {
        self.0.root_count.load(Ordering::Relaxed)
    }

    /// Returns the definitions of the jobs that take input or are passivated, in no particular
    /// order. Some can be equal, because each rebuilt job has a copy of its own.
    pub(super) fn definitions(&self) -> Vec<Arc<Definition>> {
        self.0.definitions.iter().map(|entry| entry.0.clone()).collect()
    }

    /// Returns the ids of all jobs that take input, in no particular order.
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

    /// Adds the route of a job with the number 7, whose actor ignores its inputs.
    fn add_route(
        table: &RouteTable,
        id: JobId,
        definition: &Arc<Definition>,
        listed_state: SharedListedState,
    ) {
        let metrics = ActorMetrics::new(&Metrics::new(), "job");
        let (mailbox, inbox) = new_mailbox(usize::MAX, metrics);
        inbox.start_here(IgnoringActor);
        table.insert(id, || Route {
            number: 7,
            parent: None,
            parent_item: None,
            definition: definition.clone(),
            mailbox,
            listed_state,
        });
    }

    #[test]
    fn a_route_is_removed_only_when_the_job_has_handled_all_inputs_sent_to_it() {
        actix::System::new().block_on(async {
            let ((table, routes), id) = (new_route_table(), JobId(uuid::Uuid::nil()));
            let definition = Arc::new(Definition::new("w", Vec::new()));
            add_route(&table, id, &definition, SharedListedState::default());
            routes.find(id).expect("the job has a route").send(JobInput::Close);
            assert!(table.remove_if_idle(id, 7, Some(0)).is_none(), "one input is in the mailbox");
            assert!(table.remove_if_idle(id, 8, Some(1)).is_none(), "the number of another job");
            assert!(table.remove_if_idle(id, 8, None).is_none(), "the number of another job");
            assert!(routes.is_active(id) && routes.root_count() == 1);
            assert_eq!(routes.definitions(), [definition]);
            assert!(table.remove_if_idle(id, 7, Some(1)).is_some());
            assert!(routes.is_empty() && routes.root_count() == 0);
            assert!(routes.definitions().is_empty(), "no job runs the definition any more");
        });
    }

    /// Adds a passivated job of a workflow, whose external steps have waited since a time.
    fn add_asked(table: &RouteTable, workflow: &str, number: i64, asked_since: Option<i64>) {
        let listed_state = ListedState {
            steps_done: 0,
            begins_at: None,
            asked_since: asked_since.map(Timestamp),
            asked_steps: if asked_since.is_some() { 2 } else { 0 },
        };
        let member = PassivatedJob {
            id: JobId(uuid::Uuid::from_u128(number.unsigned_abs().into())),
            number,
            is_child: false,
            listed_state,
            waits: Arc::new([]),
            graph: 0,
            demands: Vec::new(),
        };
        table.add_passivated(&PassivatedTree {
            members: vec![member],
            definition: Arc::new(Definition::new(workflow, Vec::new())),
            state: engine::JobState::Running,
            bytes: 0,
            due: None,
            is_pending: false,
        });
    }

    #[test]
    fn jobs_that_ask_are_paged_from_the_one_that_has_waited_longest() {
        let (table, routes) = new_route_table();
        for number in 1..=50 {
            // Two have waited for the same time, and one in five does not wait.
            let since = (number % 5 > 0).then_some(1_000 - number / 2);
            add_asked(&table, if number % 2 == 0 { "even" } else { "odd" }, number, since);
        }
        let all = routes.asked_jobs(None, None, 100);
        assert_eq!(all.jobs.len(), 40);
        assert!(all.jobs.is_sorted() && all.jobs[0].since == Timestamp(1_000 - 24));
        let expected = [("even".to_owned(), 40), ("odd".to_owned(), 40)].into();
        assert_eq!(all.steps, expected, "each has two steps");
        let (mut paged, mut after) = (Vec::new(), None);
        loop {
            let page = routes.asked_jobs(None, after, 8);
            after = page.jobs.last().copied();
            paged.extend_from_slice(&page.jobs);
            if !page.has_more {
                break;
            }
            assert_eq!(page.jobs.len(), 8);
        }
        assert_eq!(paged, all.jobs);
        let odd = routes.asked_jobs(Some("odd"), None, 100);
        assert_eq!((odd.jobs.len(), odd.steps), (20, expected), "all workflows are counted");
        assert!(odd.jobs.iter().all(|job| job.id.0.as_u128() % 2 == 1));
    }

    #[test]
    fn a_job_in_both_tables_is_on_one_page_and_counts_once() {
        actix::System::new().block_on(async {
            let (table, routes) = new_route_table();
            let since = [1_001, 1_002, 1_003].map(|time| Some(Timestamp(time)));
            for number in 1..=3 {
                add_asked(&table, "w", number, Some(1_000 + number));
            }
            let (first, shared) = (JobId(uuid::Uuid::from_u128(1)), SharedListedState::default());
            shared.set(routes.listed_state(first).expect("it is passivated"));
            add_route(&table, first, &Arc::new(Definition::new("w", Vec::new())), shared);
            let times = |page: &AskedJobs| -> Vec<Option<Timestamp>> {
                page.jobs.iter().map(|job| Some(job.since)).collect()
            };
            let page = routes.asked_jobs(None, None, 2);
            assert_eq!((times(&page), page.has_more), (since[..2].to_vec(), true));
            assert_eq!(page.steps, [("w".to_owned(), 6)].into());
            let rest = routes.asked_jobs(None, page.jobs.last().copied(), 2);
            assert_eq!((times(&rest), rest.has_more), (since[2..].to_vec(), false));
        });
    }
}
