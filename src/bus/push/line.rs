//! The queue of one endpoint: as many concurrent calls as it allows, while the other messages wait
//! in the lease queue.

use super::answer::Outcome;
use super::gate::{Gate, Pass, Pauses};
use super::service_client::{Endpoint, ServiceClient};
use crate::bus::desk::{Borrower, Desk, Loan, NotCommitted, Said};
use crate::bus::{BusEvent, BusNotice, EventSink, Header, Trouble};
use crate::clock;
use crate::engine::Sender;
use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable, Aborted, LocalBoxFuture};
use futures_util::stream::FuturesUnordered;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// The lease of a message: until its call has ended, however long that takes.
const LEASE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The delay before a reply that was not committed is sent again.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// The state that the endpoint queues of a bus share.
pub(super) struct Shared {
    pub(super) desk: Arc<Desk>,
    pub(super) client: ServiceClient,
    pub(super) sink: EventSink,
    pub(super) pauses: Pauses,
    /// Bounds the concurrent calls of all endpoints.
    pub(super) places: Semaphore,
    pub(super) closing: watch::Sender<bool>,
}

/// The queue of one endpoint.
pub(super) struct Line {
    queue: Arc<str>,
    endpoint: Endpoint,
    gate: RefCell<Gate>,
    /// The open calls, by message id.
    calls: RefCell<HashMap<Arc<str>, AbortHandle>>,
}

/// A call that has ended: its message, and its result unless it was aborted.
type Ended = (Loan, Pass, Result<Arrival, Aborted>);

/// Whether the message was delivered.
enum Arrival {
    Arrived,
    NotDelivered { why: String, pause: Option<Duration> },
}

impl Line {
    pub(super) fn new(queue: Arc<str>, endpoint: Endpoint) -> Line {
        let (gate, calls) = (RefCell::new(Gate::Open), RefCell::default());
        Line { queue, endpoint, gate, calls }
    }

    /// Returns why nothing is delivered to the service, if that is so.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        self.gate.borrow().trouble()
    }

    /// Aborts the call of a message, and returns whether there was one.
    pub(super) fn break_off(&self, id: &str) -> bool {
        let call = self.calls.borrow_mut().remove(id);
        call.inspect(AbortHandle::abort).is_some()
    }

    /// Calls the service for one message after another until the bus closes, then waits for the
    /// open calls.
    pub(super) async fn serve(self: Rc<Line>, shared: Rc<Shared>) {
        let mut calls: FuturesUnordered<LocalBoxFuture<'_, Ended>> = FuturesUnordered::new();
        loop {
            let has_room = calls.len() < self.endpoint.concurrency;
            tokio::select! {
                Some(ended) = calls.next(), if !calls.is_empty() => self.settle(ended, &shared),
                next = self.next(&shared), if has_room => match next {
                    Some(loan) => calls.push(self.begin(loan, &shared)),
                    None => break,
                },
            }
        }
        while let Some(ended) = calls.next().await {
            self.settle(ended, &shared);
        }
    }

    /// Receives the next message as soon as the service may be called; `None`: the bus closes.
    async fn next(&self, shared: &Shared) -> Option<Loan> {
        let opens = self.gate.borrow().opens();
        let mut closing = shared.closing.subscribe();
        let pause = async {
            match opens {
                Some(at) => tokio::time::sleep_until(at).await,
                // The probe ends first, and then this is called again.
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // An error means that the bus is gone.
            _ = closing.wait_for(|is_closing| *is_closing) => return None,
            () = pause => {}
        }
        let borrower = Borrower { lease: Some(LEASE), ..Borrower::default() };
        shared.desk.receive(&self.queue, &borrower, clock::ticks() + LEASE).await
    }

    fn begin<'l>(&'l self, loan: Loan, shared: &'l Shared) -> LocalBoxFuture<'l, Ended> {
        let pass = self.gate.borrow_mut().pass();
        let (handle, registration) = AbortHandle::new_pair();
        self.calls.borrow_mut().insert(loan.id.clone(), handle);
        Box::pin(async move {
            let call = Abortable::new(self.call(&loan, shared), registration);
            let ended = call.await;
            (loan, pass, ended)
        })
    }

    async fn call(&self, loan: &Loan, shared: &Shared) -> Arrival {
        let (outcome, took) = {
            // An error means that the bus is gone.
            let _place = shared.places.acquire().await;
            let begun = clock::ticks();
            shared.desk.begun(&loan.id, loan.delivery);
            let outcome = shared.client.call(&self.endpoint, &self.queue, loan).await;
            (outcome, begun.elapsed())
        };
        let (queue, came) = (self.queue.clone(), outcome.came());
        (shared.sink)(BusEvent::ServiceCalled { queue, came, took });
        // The call can no longer be aborted.
        self.calls.borrow_mut().remove(&loan.id);
        match outcome {
            Outcome::NotDelivered { why, pause } => return Arrival::NotDelivered { why, pause },
            Outcome::TakenOver => {
                // A reply may have arrived before the answer. Nothing is left to confirm then.
                if let Some(message) = shared.desk.take_over(&loan.id, loan.delivery) {
                    (shared.sink)(BusEvent::Taken(message.receipt));
                }
            }
            Outcome::Reply { kind, body } => {
                let said = || Said {
                    queue: self.queue.clone(),
                    id: loan.id.to_string(),
                    delivery: loan.delivery,
                    correlation_id: loan.correlation_id.as_deref().unwrap_or_default().to_owned(),
                    attempt: Header::number_in(&loan.headers, "attempt"),
                    kind,
                    from: Sender::Manager,
                    body: body.clone(),
                    line: None,
                };
                while let Err(NotCommitted) = shared.desk.reply(said()).await {
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
            }
        }
        Arrival::Arrived
    }

    fn settle(&self, (loan, pass, ended): Ended, shared: &Shared) {
        match ended {
            // Whoever aborted the call has removed it. A call with the same id may be open again.
            Err(Aborted) => self.gate.borrow_mut().broken_off(pass),
            Ok(Arrival::Arrived) => {
                if self.gate.borrow_mut().arrived(pass) {
                    tracing::info!(queue = &*self.queue, "messages are delivered again");
                }
            }
            Ok(Arrival::NotDelivered { why, pause }) => {
                (shared.sink)(BusEvent::Noted(BusNotice::NotDelivered));
                let shown = why.clone();
                if self.gate.borrow_mut().failed(pass, why, pause, &shared.pauses) {
                    tracing::warn!(
                        queue = &*self.queue,
                        why = shown,
                        "nothing can be delivered: messages wait"
                    );
                }
                // An error means that the message was withdrawn, or answered in another way.
                let _ = shared.desk.give_back(&loan.id, loan.delivery, Duration::ZERO, None);
            }
        }
    }
}
