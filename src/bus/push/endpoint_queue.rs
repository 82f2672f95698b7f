//! Runs the calls of one endpoint, up to its limit of concurrent calls. Other messages wait in the
//! lease queue.

use super::answer::CallResult;
use super::circuit_breaker::{BackoffSettings, CallKind, CircuitBreaker};
use super::endpoint_client::{Endpoint, EndpointClient};
use crate::event::{BusEvent, BusNotice, EventSink};
use crate::lease_queue::{LeaseQueue, LeasedMessage, NotCommitted, ReceiveOptions, WorkerReply};
use crate::publication::Header;
use crate::queue_status::EndpointFailure;
use base::clock;
use engine::Sender;
use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable, Aborted, LocalBoxFuture};
use futures_util::stream::FuturesUnordered;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// The lease of a message during its call: longer than any call.
const LEASE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The delay before a reply that was not committed is sent again.
const COMMIT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// The state that all endpoint queues of a bus share.
pub(super) struct PushState {
    pub(super) lease_queue: Arc<LeaseQueue>,
    pub(super) client: EndpointClient,
    pub(super) sink: EventSink,
    pub(super) backoff: BackoffSettings,
    /// Bounds the concurrent calls of all endpoints.
    pub(super) call_permits: Semaphore,
    /// Changes to true when the bus closes.
    pub(super) closing: watch::Sender<bool>,
}

/// The queue of one endpoint.
pub(super) struct EndpointQueue {
    queue: Arc<str>,
    endpoint: Endpoint,
    breaker: RefCell<CircuitBreaker>,
    /// The handles to abort active calls, by message id.
    calls: RefCell<HashMap<Arc<str>, AbortHandle>>,
}

/// A call that has ended: its message, its kind, and its result, or that it was aborted.
type EndedCall = (LeasedMessage, CallKind, Result<DeliveryResult, Aborted>);

/// Whether a call delivered its message.
enum DeliveryResult {
    /// The service received the message, and the outcome is reported.
    Delivered,
    /// The service did not receive the message, or rejected it for now.
    NotDelivered { reason: String, retry_after: Option<Duration> },
}

impl EndpointQueue {
    /// Creates a queue whose circuit breaker is closed.
    pub(super) fn new(queue: Arc<str>, endpoint: Endpoint) -> EndpointQueue {
        let (breaker, calls) = (RefCell::new(CircuitBreaker::Closed), RefCell::default());
        EndpointQueue { queue, endpoint, breaker, calls }
    }

    /// Returns why no message can be delivered to the service, if its circuit breaker is open.
    pub(super) fn failure(&self) -> Option<EndpointFailure> {
        self.breaker.borrow().failure()
    }

    /// Aborts the call of a message, and returns whether there was one.
    pub(super) fn abort_call(&self, id: &str) -> bool {
        let call = self.calls.borrow_mut().remove(id);
        call.inspect(AbortHandle::abort).is_some()
    }

    /// Calls the service with messages until the bus closes, then waits for active calls.
    pub(super) async fn run(self: Rc<EndpointQueue>, state: Rc<PushState>) {
        let mut calls: FuturesUnordered<LocalBoxFuture<'_, EndedCall>> = FuturesUnordered::new();
        loop {
            let has_capacity = calls.len() < self.endpoint.concurrency;
            tokio::select! {
                Some(ended_call) = calls.next(), if !calls.is_empty() => {
                    self.handle_ended_call(ended_call, &state)
                }
                next_message = self.receive_next(&state), if has_capacity => match next_message {
                    Some(message) => calls.push(self.start_call(message, &state)),
                    None => break,
                },
            }
        }
        while let Some(ended_call) = calls.next().await {
            self.handle_ended_call(ended_call, &state);
        }
    }

    /// Waits until the service may be called, and receives the next message; `None`: the bus
    /// closes.
    async fn receive_next(&self, state: &PushState) -> Option<LeasedMessage> {
        let next_call_at = self.breaker.borrow().next_call_at();
        let mut closing = state.closing.subscribe();
        let wait_for_breaker = async {
            match next_call_at {
                Some(instant) => tokio::time::sleep_until(instant).await,
                // When the probe ends, this future is dropped, and `run` calls the function again.
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // An error means that the bus was dropped.
            _ = closing.wait_for(|is_closing| *is_closing) => return None,
            () = wait_for_breaker => {}
        }
        let options = ReceiveOptions { lease: Some(LEASE), ..ReceiveOptions::default() };
        state.lease_queue.receive(&self.queue, &options, clock::timer_now() + LEASE).await
    }

    /// Starts the call of a message, so that it can be aborted.
    fn start_call<'l>(
        &'l self,
        message: LeasedMessage,
        state: &'l PushState,
    ) -> LocalBoxFuture<'l, EndedCall> {
        let kind = self.breaker.borrow_mut().begin_call();
        let (handle, registration) = AbortHandle::new_pair();
        self.calls.borrow_mut().insert(message.id.clone(), handle);
        Box::pin(async move {
            let result = Abortable::new(self.call(&message, state), registration).await;
            (message, kind, result)
        })
    }

    /// Calls the service with a message, and reports the outcome.
    async fn call(&self, message: &LeasedMessage, state: &PushState) -> DeliveryResult {
        let (result, duration) = {
            // The semaphore is never closed, so this does not fail.
            let _permit = state.call_permits.acquire().await;
            let started = clock::timer_now();
            state.lease_queue.report_handed_over(&message.id, message.delivery);
            let result = state.client.call(&self.endpoint, &self.queue, message).await;
            (result, started.elapsed())
        };
        let (queue, outcome) = (self.queue.clone(), result.outcome());
        (state.sink)(BusEvent::EndpointCalled { queue, outcome, duration });
        // The call can no longer be aborted.
        self.calls.borrow_mut().remove(&message.id);
        match result {
            CallResult::NotDelivered { reason, retry_after } => {
                return DeliveryResult::NotDelivered { reason, retry_after };
            }
            CallResult::Deferred => {
                // The message is not in flight any more if the later reply came before this answer.
                if let Some(message) =
                    state.lease_queue.take_in_flight(&message.id, message.delivery)
                {
                    (state.sink)(BusEvent::Confirmed(message.confirm_token));
                }
            }
            CallResult::Reply { kind, body } => {
                let reply = || WorkerReply {
                    queue: self.queue.clone(),
                    id: message.id.to_string(),
                    delivery: message.delivery,
                    correlation_id: message.correlation_id.as_deref().map(str::to_owned),
                    attempt: Header::find_number(&message.headers, "attempt"),
                    kind,
                    sender: Sender::Manager,
                    body: body.clone(),
                    revocations: None,
                };
                while let Err(NotCommitted) = state.lease_queue.reply(reply()).await {
                    tokio::time::sleep(COMMIT_RETRY_DELAY).await;
                }
            }
        }
        DeliveryResult::Delivered
    }

    /// Updates the circuit breaker, and requeues a message that was not delivered.
    fn handle_ended_call(&self, (message, kind, result): EndedCall, state: &PushState) {
        match result {
            // `abort_call` has removed the handle. The id may already have the handle of a new
            // call.
            Err(Aborted) => self.breaker.borrow_mut().record_abort(kind),
            Ok(DeliveryResult::Delivered) => {
                if self.breaker.borrow_mut().record_delivery(kind) {
                    tracing::info!(queue = &*self.queue, "messages are delivered again");
                }
            }
            Ok(DeliveryResult::NotDelivered { reason, retry_after }) => {
                (state.sink)(BusEvent::Notice(BusNotice::NotDelivered));
                let mut breaker = self.breaker.borrow_mut();
                if breaker.record_failure(kind, reason.clone(), retry_after, &state.backoff) {
                    tracing::warn!(
                        queue = &*self.queue,
                        why = reason,
                        "nothing can be delivered: messages wait"
                    );
                }
                // An error means that the message was withdrawn meanwhile.
                let _ = state.lease_queue.requeue_after(
                    &message.id,
                    message.delivery,
                    Duration::ZERO,
                    None,
                );
            }
        }
    }
}
