//! Failpoints: named points in the code at which tests inject faults. They exist only with the
//! feature `failpoints`; without it, each call does nothing.
//!
//! [`hit`] marks a point at which a fault can be injected. The environment variable `FAILPOINTS`
//! configures the actions in the syntax of the crate `fail`, for example
//! `FAILPOINTS="journal::commit=3*off->1*return(abort)"`:
//!
//! | action | effect at every point |
//! |---|---|
//! | `return(abort)` | the process aborts, as if killed |
//! | `delay(MS)`, `sleep(MS)` | the thread is blocked for `MS` milliseconds |
//! | `panic` | the actor panics |
//! | `return` or `return(KIND)` | the operation at the point fails, as the next table describes |
//!
//! | point | effect of `return(…)` |
//! |---|---|
//! | `journal::write` | a row cannot be written: `full` disk, no `memory`, or I/O error (others) |
//! | `journal::commit` | the commit fails in the same way |
//! | `journal::derive` | the projection of what is committed fails in the same way |
//! | `journal::positions` | storing the offsets of buses fails in the same way |
//! | `journal::ledgers` | storing the ledgers of schedules fails in the same way |
//! | `journal::trends` | storing the buckets of trends fails in the same way |
//! | `journal::limit` | after a write, its limit of pages cannot be set back |
//! | `job::take` | the job's actor panics |
//! | `job::taken` | the same, after it has decided and taken a spare place |
//! | `clock::now` | the wall clock is off by this many seconds |
//! | `amqp::connect` | a connection cannot be opened |
//! | `amqp::publish`, `amqp::confirm`, `amqp::deliver` | the connection breaks |
//! | `amqp::ack`, `amqp::quarantine` | the connection breaks |
//!
//! At the other points only `return(abort)` or a delay makes sense:
//!
//! | point | position |
//! |---|---|
//! | `journal::committed` | between a commit and its effects |
//! | `claim::begun` | in a claim of a manager's name, after its BEGIN |
//! | `claim::declared`, `claim::fenced` | after the old owner is declared dead; after its fence |
//! | `claim::named`, `claim::complete` | after the name is taken; before the COMMIT |
//! | `claim::committed` | after the COMMIT or the ROLLBACK |
//! | `journal::sweep` | before a batch of expired jobs is deleted |
//! | `postgres::survey` | `return` surveys the days of the journal at once |
//! | `archive::read` | before the archive reads the journal |
//! | `outbox::ack`, `outbox::dispatch`, `outbox::answer` | before the effect |
//! | `router::part` | before the router sends a broadcast to the next jobs |
//! | `router::round` | before the router passes on a round of the supervisor |
//! | `manager::stop` | before the manager stops |
//! | `token::written` | after a new tokens file is written, before it is renamed into place |
//!
//! The simulation in `tests/fast` runs all actors on one thread and uses the hooks of that thread
//! ([`Hooks`]). At `job::decided`, `journal::committed` and `outbox::answer` the hooks also observe
//! a value: the job with its number, the numbers of the committed jobs, and the answer to a request
//! that creates a job.

#[cfg(feature = "failpoints")]
mod armed {
    use std::any::Any;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// The hooks of a test: they replace the configured actions at the points that the test's
    /// thread hits.
    pub trait Hooks {
        /// Handles the hit of a point: `Some(kind)` makes the operation fail.
        fn hit(&self, point: &'static str) -> Option<String>;
        /// Observes a value at a point.
        fn observe(&self, point: &'static str, value: &dyn Any);
        /// Returns the simulated time of the wall clock, in nanoseconds since 1970.
        fn now(&self) -> i64;
    }

    thread_local! {
        static HOOKS: RefCell<Option<Rc<dyn Hooks>>> = const { RefCell::new(None) };
    }

    /// Sets the hooks of this thread; `None` removes them.
    pub fn set_hooks(hooks: Option<Rc<dyn Hooks>>) {
        HOOKS.with(|current| *current.borrow_mut() = hooks);
    }

    /// Returns the hooks of this thread; `None` if it has none.
    fn hooks() -> Option<Rc<dyn Hooks>> {
        // An error means that the thread is ending.
        HOOKS.try_with(|current| current.borrow().clone()).ok().flatten()
    }

    /// Marks a point at which a fault can be injected. Returns `Some(kind)` if the operation must
    /// fail. May also block, panic or abort the process.
    pub fn hit(point: &'static str) -> Option<String> {
        let kind = match hooks() {
            Some(hooks) => hooks.hit(point),
            None => configured_action(point),
        };
        if kind.as_deref() == Some("abort") {
            std::process::abort();
        }
        kind
    }

    /// Performs the action that `FAILPOINTS` configures for a point, and returns its kind if it is
    /// `return`.
    fn configured_action(point: &'static str) -> Option<String> {
        fail::fail_point!(point, |kind: Option<String>| Some(kind.unwrap_or_default()));
        None
    }

    /// Lets a test observe a value. It is computed only if the thread has hooks.
    pub fn observe<T: Any>(point: &'static str, value: impl FnOnce() -> T) {
        if let Some(hooks) = hooks() {
            hooks.observe(point, &value());
        }
    }

    /// Returns the simulated time of the thread's hooks, in nanoseconds since 1970; `None`: the
    /// thread has no hooks.
    pub fn now() -> Option<i64> {
        hooks().map(|hooks| hooks.now())
    }
}

#[cfg(feature = "failpoints")]
pub use armed::{Hooks, hit, now, observe, set_hooks};

/// Marks a point at which a fault can be injected; without the feature, none ever is.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn hit(_point: &'static str) -> Option<String> {
    None
}

/// Lets a test observe a value; without the feature, it is never computed.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn observe<T: std::any::Any>(_point: &'static str, _value: impl FnOnce() -> T) {}

/// Returns `None`: without the feature, no clock is simulated.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn now() -> Option<i64> {
    None
}
