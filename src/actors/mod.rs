//! The shell: actors that own the engine's jobs, the journal's writer and the buses, and nothing
//! else.
//!
//! Every actor has one input enum, sent through a [`Mailbox`], which bounds, counts and times.
//! `post` is for inputs whose number is bounded by what caused them (deliveries by the prefetch,
//! children by the window); `offer`, for those that come from outside, refuses beyond the mailbox's
//! capacity.

pub mod announcer;
pub mod archive;
pub mod bus;
pub mod call;
pub mod clock;
pub mod events;
pub mod feeds;
pub mod job;
pub mod journal;
pub mod lost;
mod messages;
mod observe;
pub mod outbox;
pub mod redispatch;
pub mod reload;
pub mod room;
pub mod router;
pub mod routes;
pub mod shared;
pub mod supervisor;
pub mod webhook;

use crate::telemetry::Metrics;
use actix::{Actor, Addr, Context, Handler, Message};
use prometheus::{Histogram, IntCounter, IntGauge};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// An actor that is reached through a [`Mailbox`].
pub trait Owner: Actor<Context = Context<Self>> + Handler<Mail<Self::Input>> {
    /// All that it can be told.
    type Input: Send + 'static;
    /// Its kind, the label of its metrics.
    const KIND: &'static str;
}

/// One input on its way, counted until it was handled or dropped.
pub struct Mail<I> {
    input: I,
    counted: Counted,
}

impl<I> Message for Mail<I> {
    type Result = ();
}

impl<I> Mail<I> {
    /// Hands the input to `receive`, timed.
    pub fn handle(self, receive: impl FnOnce(I)) {
        let kind = self.counted.kind.clone();
        drop(self.counted);
        let started = clock::instant();
        receive(self.input);
        kind.handling.observe(started.elapsed().as_secs_f64());
        kind.handled.inc();
    }
}

/// The metrics of one kind of actor.
pub struct Kind {
    depth: IntGauge,
    high_water: IntGauge,
    handled: IntCounter,
    handling: Histogram,
}

impl Kind {
    /// The metrics of the kind called `name`.
    pub fn new(metrics: &Metrics, name: &str) -> Arc<Kind> {
        Arc::new(Kind {
            depth: metrics.mailbox_depth.with_label_values(&[name]),
            high_water: metrics.mailbox_high_water.with_label_values(&[name]),
            handled: metrics.messages.with_label_values(&[name]),
            handling: metrics.handling.with_label_values(&[name]),
        })
    }
}

struct Counted {
    depth: Arc<AtomicI64>,
    kind: Arc<Kind>,
}

impl Counted {
    fn new(depth: &Arc<AtomicI64>, kind: &Arc<Kind>) -> Counted {
        let now = depth.fetch_add(1, Ordering::Relaxed) + 1;
        kind.depth.inc();
        if now > kind.high_water.get() {
            kind.high_water.set(now);
        }
        Counted { depth: depth.clone(), kind: kind.clone() }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.depth.fetch_sub(1, Ordering::Relaxed);
        self.kind.depth.dec();
    }
}

/// The way to an actor: bounded, with depth, high-water mark and handling time.
pub struct Mailbox<A: Owner> {
    address: Addr<A>,
    depth: Arc<AtomicI64>,
    capacity: i64,
    kind: Arc<Kind>,
}

impl<A: Owner> Clone for Mailbox<A> {
    fn clone(&self) -> Self {
        Mailbox {
            address: self.address.clone(),
            depth: self.depth.clone(),
            capacity: self.capacity,
            kind: self.kind.clone(),
        }
    }
}

impl<A: Owner> Mailbox<A> {
    /// A mailbox before `address` that refuses offers while `capacity` inputs wait.
    pub fn new(address: Addr<A>, capacity: usize, kind: Arc<Kind>) -> Mailbox<A> {
        Mailbox {
            address,
            depth: Arc::default(),
            capacity: i64::try_from(capacity).unwrap_or(i64::MAX),
            kind,
        }
    }

    /// Sends an input whose number is bounded by what caused it. To an actor that has stopped it is
    /// dropped: a delivery then goes back to its queue.
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place: a mailbox counts what do_send does not bound"
    )]
    pub fn post(&self, input: A::Input) {
        self.address.do_send(Mail { input, counted: Counted::new(&self.depth, &self.kind) });
    }

    /// Whether it is the mailbox of this actor.
    pub fn leads_to(&self, actor: &Addr<A>) -> bool {
        self.address == *actor
    }

    /// Sends an input from outside, unless the mailbox is full; then gives it back.
    pub fn offer(&self, input: A::Input) -> Result<(), A::Input> {
        if self.depth.load(Ordering::Relaxed) >= self.capacity {
            return Err(input);
        }
        self.post(input);
        Ok(())
    }
}
