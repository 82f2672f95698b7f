//! Mailboxes lead to actors. Each bounds what comes from outside, counts its inputs, and times how
//! long they take to handle.
//!
//! `send` is for inputs whose number is bounded by their cause: deliveries by the prefetch, child
//! jobs by the window, inspections and operations of clients by the calls that the API takes at a
//! time (`http.connections_max`), or by the mailbox that they came through. `try_send` returns the
//! input once the mailbox is full.

use crate::clock;
use crate::telemetry::Metrics;
use actix::{Actor, Addr, Context, Handler, Message, Recipient};
use prometheus::{Histogram, IntCounter, IntGauge};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An actor that is reached through a [`Mailbox`].
pub trait Owner: Actor<Context = Context<Self>> + Handler<Mail<Self::Input>> {
    /// All inputs that the actor handles.
    type Input: Send + 'static;
    /// The kind of the actor, as the label of its metrics.
    const KIND: &'static str;
}

/// One input on its way; it is counted until it is handled or dropped.
pub struct Mail<I> {
    input: I,
    counted: Counted,
}

impl<I> Message for Mail<I> {
    type Result = ();
}

impl<I> Mail<I> {
    /// Passes the input to `receive` and measures how long that takes.
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
    /// Registers the metrics of the kind called `name`.
    pub fn new(metrics: &Metrics, name: &str) -> Arc<Kind> {
        Arc::new(Kind {
            depth: metrics.mailbox_depth.with_label_values(&[name]),
            high_water: metrics.mailbox_high_water.with_label_values(&[name]),
            handled: metrics.messages.with_label_values(&[name]),
            handling: metrics.handling.with_label_values(&[name]),
        })
    }
}

/// How many inputs were sent to one mailbox and left it, over all of its clones.
#[derive(Default)]
struct Counts {
    posted: AtomicU64,
    taken: AtomicU64,
}

struct Counted {
    counts: Arc<Counts>,
    kind: Arc<Kind>,
}

impl Counted {
    fn new(counts: &Arc<Counts>, kind: &Arc<Kind>) -> Counted {
        let posted = counts.posted.fetch_add(1, Ordering::Relaxed) + 1;
        let waiting = posted.saturating_sub(counts.taken.load(Ordering::Relaxed));
        kind.depth.inc();
        let waiting = i64::try_from(waiting).unwrap_or(i64::MAX);
        if waiting > kind.high_water.get() {
            kind.high_water.set(waiting);
        }
        Counted { counts: counts.clone(), kind: kind.clone() }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.counts.taken.fetch_add(1, Ordering::Relaxed);
        self.kind.depth.dec();
    }
}

/// A mailbox of an actor that handles `I`: bounded, with metrics of depth, high-water mark and
/// handling time.
pub struct Mailbox<I: Send + 'static> {
    recipient: Recipient<Mail<I>>,
    counts: Arc<Counts>,
    capacity: u64,
    kind: Arc<Kind>,
}

impl<I: Send + 'static> Clone for Mailbox<I> {
    fn clone(&self) -> Self {
        Mailbox {
            recipient: self.recipient.clone(),
            counts: self.counts.clone(),
            capacity: self.capacity,
            kind: self.kind.clone(),
        }
    }
}

impl<I: Send + 'static> Mailbox<I> {
    /// Creates a mailbox in front of `address` that refuses a `try_send` while `capacity` inputs
    /// wait.
    pub fn new<A: Owner<Input = I>>(
        address: Addr<A>,
        capacity: usize,
        kind: Arc<Kind>,
    ) -> Mailbox<I> {
        Mailbox {
            recipient: address.recipient(),
            counts: Arc::default(),
            capacity: u64::try_from(capacity).unwrap_or(u64::MAX),
            kind,
        }
    }

    /// Sends an input whose number is bounded by its cause. If the actor has stopped, the input is
    /// dropped: a delivery then goes back to its queue.
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place: a mailbox counts what do_send does not bound"
    )]
    pub fn post(&self, input: I) {
        self.recipient.do_send(Mail { input, counted: Counted::new(&self.counts, &self.kind) });
    }

    /// Sends an input from outside, or returns it if the mailbox is full.
    pub fn offer(&self, input: I) -> Result<(), I> {
        let Counts { posted, taken } = &*self.counts;
        let waiting = posted.load(Ordering::Relaxed).saturating_sub(taken.load(Ordering::Relaxed));
        if waiting >= self.capacity {
            return Err(input);
        }
        self.post(input);
        Ok(())
    }

    /// Returns how many inputs were sent through this mailbox and its clones.
    pub fn posted(&self) -> u64 {
        self.counts.posted.load(Ordering::Relaxed)
    }
}
