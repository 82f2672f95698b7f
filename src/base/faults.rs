//! Failpoints, where tests make the daemon fail. They exist only with the feature `failpoints`;
//! without it each call does nothing.
//!
//! [`hit`] marks a point at which something can go wrong. The environment variable `FAILPOINTS`
//! says what happens there (syntax of the crate `fail`), for example
//! `FAILPOINTS="journal::commit=3*off->1*return(abort)"`:
//!
//! | action | effect at every point |
//! |---|---|
//! | `return(abort)` | the process ends at once, as if killed |
//! | `delay(MS)`, `sleep(MS)` | the thread stops for a while |
//! | `panic` | the actor panics |
//! | `return` or `return(KIND)` | the operation at the point fails, as the next table says |
//!
//! | point | effect of `return(…)` |
//! |---|---|
//! | `journal::write` | a row is not written: `full`: the disk is full; else: an I/O error |
//! | `journal::commit` | the commit fails in the same way |
//! | `journal::derive` | the projection of what is committed fails in the same way |
//! | `journal::positions` | storing the offsets of buses fails in the same way |
//! | `journal::committed` | between the commit and its effects |
//! | `journal::sweep` | before a part of the expired jobs is deleted: |
//! | | a delay makes sense here |
//! | `archive::read` | before the archive reads the journal: a delay makes sense here |
//! | `outbox::ack`, `outbox::dispatch`, `outbox::answer` | the effect is lost: |
//! | | `abort` or a delay make sense here |
//! | `job::take` | the job's actor panics |
//! | `router::part` | before the router sends a broadcast to the next jobs: |
//! | | a delay makes sense here |
//! | `router::round` | before the router passes on a round of the supervisor: |
//! | | a delay makes sense here |
//! | `manager::stop` | before a stop: a delay makes sense here |
//! | `clock::now` | the wall clock is off by this many seconds |
//! | `token::written` | a new tokens file is written, but does not have its name yet: |
//! | | `abort` or a delay make sense here |
//! | `amqp::connect` | a connection cannot be opened |
//! | `amqp::publish`, `amqp::confirm`, `amqp::deliver` | the connection breaks there |
//! | `amqp::ack`, `amqp::aside` | the connection breaks there |
//!
//! The simulation in `tests/fast` runs all actors on one thread and uses the hooks of that thread
//! ([`Hooks`]). At `job::decided`, `journal::committed` and `outbox::answer` the hooks also observe
//! what happens: the job, the numbers of the committed jobs, the answer to a client.

#[cfg(feature = "failpoints")]
mod armed {
    use std::any::Any;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// The hooks of a test for the points that its own thread hits.
    pub trait Hooks {
        /// Called when a point is hit: `Some(kind)` makes it fail.
        fn hit(&self, point: &'static str) -> Option<String>;
        /// Called with something that happened at a point.
        fn observe(&self, point: &'static str, what: &dyn Any);
        /// Returns the wall clock, in nanoseconds since 1970.
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
        // `None` while the thread ends.
        HOOKS.try_with(|place| place.borrow().clone()).ok().flatten()
    }

    /// Marks a point at which something can go wrong: returns `Some(kind)` if it does.
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

    fn configured_action(point: &'static str) -> Option<String> {
        fail::fail_point!(point, |kind: Option<String>| Some(kind.unwrap_or_default()));
        None
    }

    /// Lets a test observe what happened.
    pub fn observe<T: Any>(point: &'static str, what: impl FnOnce() -> T) {
        if let Some(hooks) = hooks() {
            hooks.observe(point, &what());
        }
    }

    /// Returns the wall clock of a test, in nanoseconds since 1970.
    pub fn now() -> Option<i64> {
        hooks().map(|hooks| hooks.now())
    }
}

#[cfg(feature = "failpoints")]
pub use armed::{Hooks, hit, now, observe, set_hooks};

/// Marks a point at which something can go wrong: returns `Some(kind)` if it does.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn hit(_point: &'static str) -> Option<String> {
    None
}

/// Lets a test observe what happened.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn observe<T: std::any::Any>(_point: &'static str, _what: impl FnOnce() -> T) {}

/// Returns the wall clock of a test, in nanoseconds since 1970.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn now() -> Option<i64> {
    None
}
