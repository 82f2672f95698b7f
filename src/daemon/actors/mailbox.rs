//! The mailboxes of actors. A mailbox limits the inputs from outside, counts all inputs, and
//! measures how long the actor takes to handle each.
//!
//! `send` is for inputs whose number is bounded by their cause: deliveries by the prefetch, child
//! jobs by the window, inspections and operations of clients by the concurrent requests of the API
//! (`http.connections_max`), and forwarded inputs by the mailbox from which they come. `try_send`
//! is for all others: it applies back-pressure, and returns the input if the mailbox is full.

use crate::telemetry::Metrics;
use actix::dev::channel::{AddressReceiver, channel};
use actix::{Actor, Addr, ArbiterHandle, Context, Handler, Message, Recipient};
use base::clock;
use prometheus::{Histogram, IntCounter, IntGauge};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An actor that is reached through a [`Mailbox`].
pub trait MailboxActor: Actor<Context = Context<Self>> + Handler<Envelope<Self::Input>> {
    /// All inputs that the actor handles.
    type Input: Send + 'static;
    /// The kind of the actor, as the metric label.
    const KIND: &'static str;
}

/// An input in a mailbox. The depth metric counts it until the actor begins to handle it, or it is
/// dropped.
pub struct Envelope<I> {
    input: I,
    depth_guard: DepthGuard,
}

impl<I> Message for Envelope<I> {
    type Result = ();
}

impl<I> Envelope<I> {
    /// Passes the input to `handler` and measures how long that takes.
    pub fn handle(self, handler: impl FnOnce(I)) {
        let metrics = self.depth_guard.metrics.clone();
        drop(self.depth_guard);
        let started = clock::instant();
        handler(self.input);
        metrics.handling.observe(started.elapsed().as_secs_f64());
        metrics.handled.inc();
    }
}

/// The metrics of one kind of actor.
pub struct ActorMetrics {
    depth: IntGauge,
    high_water: IntGauge,
    handled: IntCounter,
    handling: Histogram,
}

impl ActorMetrics {
    /// Registers the metrics of a kind of actor.
    pub fn new(metrics: &Metrics, kind: &str) -> Arc<ActorMetrics> {
        Arc::new(ActorMetrics {
            depth: metrics.mailbox_depth.with_label_values(&[kind]),
            high_water: metrics.mailbox_high_water.with_label_values(&[kind]),
            handled: metrics.messages.with_label_values(&[kind]),
            handling: metrics.handling.with_label_values(&[kind]),
        })
    }
}

/// How many inputs were sent to a mailbox and removed from it, over all of its clones.
#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    removed: AtomicU64,
}

/// Counts an input as waiting in its mailbox until this is dropped.
struct DepthGuard {
    counts: Arc<Counts>,
    metrics: Arc<ActorMetrics>,
}

impl DepthGuard {
    fn new(counts: &Arc<Counts>, metrics: &Arc<ActorMetrics>) -> DepthGuard {
        let sent = counts.sent.fetch_add(1, Ordering::Relaxed) + 1;
        let waiting_count = sent.saturating_sub(counts.removed.load(Ordering::Relaxed));
        metrics.depth.inc();
        let waiting_count = i64::try_from(waiting_count).unwrap_or(i64::MAX);
        // A concurrent sender may overwrite a slightly higher mark, which does not matter for a
        // metric.
        if waiting_count > metrics.high_water.get() {
            metrics.high_water.set(waiting_count);
        }
        DepthGuard { counts: counts.clone(), metrics: metrics.clone() }
    }
}

impl Drop for DepthGuard {
    fn drop(&mut self) {
        self.counts.removed.fetch_add(1, Ordering::Relaxed);
        self.metrics.depth.dec();
    }
}

/// A mailbox of an actor that handles `I`, with metrics of its depth, its high-water mark and the
/// handling time.
pub struct Mailbox<I: Send + 'static>(Arc<MailboxParts<I>>);

/// What the clones of a mailbox share. A clone of a recipient would take several allocations.
struct MailboxParts<I: Send + 'static> {
    recipient: Recipient<Envelope<I>>,
    counts: Arc<Counts>,
    capacity: u64,
    metrics: Arc<ActorMetrics>,
}

impl<I: Send + 'static> Clone for Mailbox<I> {
    fn clone(&self) -> Self {
        Mailbox(self.0.clone())
    }
}

/// The receiving end of a mailbox, with which its actor is started.
pub struct Inbox<A: MailboxActor>(AddressReceiver<A>);

/// Creates a mailbox, and the inbox of its actor. The mailbox refuses a `try_send` while at least
/// `capacity` inputs wait.
pub fn new_mailbox<A: MailboxActor>(
    capacity: usize,
    metrics: Arc<ActorMetrics>,
) -> (Mailbox<A::Input>, Inbox<A>) {
    // The mailbox sends with `do_send`, which ignores the capacity of the actix channel. `try_send`
    // checks that of the mailbox instead.
    let (sender, receiver) = channel(0);
    let parts = MailboxParts {
        recipient: Addr::new(sender).recipient(),
        counts: Arc::default(),
        capacity: u64::try_from(capacity).unwrap_or(u64::MAX),
        metrics,
    };
    (Mailbox(Arc::new(parts)), Inbox(receiver))
}

impl<A: MailboxActor> Inbox<A> {
    /// Starts an actor with this inbox on the thread of `arbiter`.
    pub fn start_in(self, arbiter: &ArbiterHandle, create: impl FnOnce() -> A + Send + 'static) {
        // An arbiter whose thread has ended returns false: the manager is stopping.
        let _ = arbiter.spawn_fn(move || self.start_here(create()));
    }

    /// Starts an actor with this inbox on the current thread.
    pub fn start_here(self, actor: A) {
        Context::with_receiver(self.0).run(actor);
    }
}

impl<I: Send + 'static> Mailbox<I> {
    /// Sends an input whose number is bounded by its cause, whatever the depth of the mailbox. If
    /// the actor has stopped, the input is dropped, which requeues a delivery.
    #[allow(
        clippy::disallowed_methods,
        reason = "only a mailbox calls do_send: it counts the inputs, which do_send does not limit"
    )]
    pub fn send(&self, input: I) {
        let MailboxParts { recipient, counts, metrics, .. } = &*self.0;
        recipient.do_send(Envelope { input, depth_guard: DepthGuard::new(counts, metrics) });
    }

    /// Sends an input from outside.
    ///
    /// # Errors
    ///
    /// Returns the input if the mailbox is full.
    pub fn try_send(&self, input: I) -> Result<(), I> {
        let Counts { sent, removed } = &*self.0.counts;
        let waiting_count =
            sent.load(Ordering::Relaxed).saturating_sub(removed.load(Ordering::Relaxed));
        if waiting_count >= self.0.capacity {
            return Err(input);
        }
        self.send(input);
        Ok(())
    }

    /// Returns how many inputs were sent through this mailbox and its clones.
    pub fn sent_count(&self) -> u64 {
        self.0.counts.sent.load(Ordering::Relaxed)
    }
}
