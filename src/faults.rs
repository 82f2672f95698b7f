//! Where tests break the daemon. All of this exists only with the feature `failpoints`; without it
//! each call does nothing.
//!
//! [`hit`] marks a point at which something can go wrong. A process is told by the environment
//! variable `FAILPOINTS` (syntax of the crate `fail`), for example
//! `FAILPOINTS="journal::commit=3*off->1*return(abort)"`:
//!
//! | action | at every point |
//! |---|---|
//! | `return(abort)` | the process ends at once, as if killed |
//! | `delay(MS)`, `sleep(MS)` | the thread stops for a while |
//! | `panic` | the actor panics |
//! | `return` or `return(KIND)` | what the point stands for fails: the points' callers say how |
//!
//! | point | fails with `return(…)` as |
//! |---|---|
//! | `journal::write` | a row is not written: `full` as by a full disk, else as by an I/O error |
//! | `journal::commit` | the commit does not come to pass, as above |
//! | `journal::derive` | what is committed is not derived, as above |
//! | `journal::positions` | positions of buses are not written, as above |
//! | `journal::committed` | between the commit and what follows from it |
//! | `journal::sweep` | before a part of what is past its retention is deleted: |
//! | | a delay makes sense here |
//! | `archive::read` | before the archive reads the journal: a delay makes sense here |
//! | `outbox::ack`, `outbox::dispatch`, `outbox::answer` | lost on its way out: |
//! | | `abort` or a delay make sense here |
//! | `job::take` | the job's actor panics |
//! | `router::part` | before the router tells the next jobs of what all are told: |
//! | | a delay makes sense here |
//! | `router::round` | before the router passes a round of the supervisor on: |
//! | | a delay makes sense here |
//! | `manager::stop` | before a stop: a delay makes sense here |
//! | `clock::now` | the wall clock is off by so many seconds |
//! | `token::written` | a new file of tokens is written and has not its name yet: |
//! | | `abort` or a delay make sense here |
//! | `amqp::connect` | a connection cannot be opened |
//! | `amqp::publish`, `amqp::confirm`, `amqp::deliver` | the connection breaks there |
//! | `amqp::ack`, `amqp::aside` | the connection breaks there |
//!
//! The simulation in `tests/fast` runs all actors on one thread and uses the hooks of that thread
//! ([`Hooks`]). At `job::decided`, `journal::committed` and `outbox::answer` these also see what
//! happens: the job, the numbers of the committed jobs, what a client is told.

#[cfg(feature = "failpoints")]
mod armed {
    use std::any::Any;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// What a test does at the points that its own thread hits.
    pub trait Hooks {
        /// A point is hit: `Some(kind)` makes it fail.
        fn hit(&self, point: &'static str) -> Option<String>;
        /// Something to look at.
        fn observe(&self, point: &'static str, what: &dyn Any);
        /// The wall clock, in nanoseconds since 1970.
        fn now(&self) -> i64;
    }

    thread_local! {
        static HOOKS: RefCell<Option<Rc<dyn Hooks>>> = const { RefCell::new(None) };
    }

    /// Sets the hooks of this thread, or removes them.
    pub fn set_hooks(hooks: Option<Rc<dyn Hooks>>) {
        HOOKS.with(|place| *place.borrow_mut() = hooks);
    }

    fn hooks() -> Option<Rc<dyn Hooks>> {
        // None while the thread ends.
        HOOKS.try_with(|place| place.borrow().clone()).ok().flatten()
    }

    /// A point at which something can go wrong: `Some(kind)` when it does.
    pub fn hit(point: &'static str) -> Option<String> {
        let kind = match hooks() {
            Some(hooks) => hooks.hit(point),
            None => configured(point),
        };
        if kind.as_deref() == Some("abort") {
            std::process::abort();
        }
        kind
    }

    fn configured(point: &'static str) -> Option<String> {
        fail::fail_point!(point, |kind: Option<String>| Some(kind.unwrap_or_default()));
        None
    }

    /// Shows a test what happened.
    pub fn observe<T: Any>(point: &'static str, what: impl FnOnce() -> T) {
        if let Some(hooks) = hooks() {
            hooks.observe(point, &what());
        }
    }

    /// The wall clock of a test.
    pub fn now() -> Option<i64> {
        hooks().map(|hooks| hooks.now())
    }
}

#[cfg(feature = "failpoints")]
pub use armed::{Hooks, hit, now, observe, set_hooks};

/// A point at which something can go wrong: `Some(kind)` when it does.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn hit(_point: &'static str) -> Option<String> {
    None
}

/// Shows a test what happened.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn observe<T: std::any::Any>(_point: &'static str, _what: impl FnOnce() -> T) {}

/// The wall clock of a test.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn now() -> Option<i64> {
    None
}
