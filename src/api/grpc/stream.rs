//! The stream of a worker: one stream is one session. Credit, messages, replies and revocations go
//! over the stream; its end ends all of it.

mod backlog;
mod says;

use super::super::lending::{Receipt, desk_of, next, over};
use super::super::token::Caller;
use super::answer::{Answer, closed};
use super::arriving::{Arrivals, Other};
use super::connection::Peer;
use super::hands::{Hands, Held};
use super::phase::Phase;
use super::said::message;
use super::seat::{Seat, greeting};
use super::sending::{Departure, Sending};
use super::status::status;
use super::wire::to_worker::Say as Tell;
use super::wire::{Drain, FromWorker, Gone, ToWorker};
use crate::actors::ways::Ways;
use crate::bus::Over;
use crate::bus::desk::{Ended, Loan, Why};
use crate::clock;
use backlog::{Backlog, LentAhead, ToSend};
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, FuturesUnordered};
use futures_util::{FutureExt, StreamExt};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::Instant;
use tonic::{Status, Streaming};

/// How long leased messages may take to be sent before the stream stops receiving more.
const STALLED: Duration = Duration::from_millis(50);

/// How long one wait for a message lasts before it is renewed.
const WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// What a stream starts with.
pub(super) struct Opening {
    pub(super) ways: Arc<Ways>,
    pub(super) caller: Caller,
    pub(super) arrivals: Arrivals,
    pub(super) phases: watch::Receiver<Phase>,
    /// Its permit among the streams.
    pub(super) place: OwnedSemaphorePermit,
    /// Tracks what is sent to the worker.
    pub(super) sending: Sending,
    /// The connection of the worker.
    pub(super) peer: Option<Peer>,
}

/// A message to the worker, with the permit of a step message; or the status that ends the stream.
type Told = Result<(ToWorker, Option<Departure>), Status>;
type Out = mpsc::Sender<Told>;

/// Starts a stream, and returns the messages to its worker.
pub(super) fn open(
    opening: Opening,
    from: Streaming<FromWorker>,
) -> BoxStream<'static, Result<ToWorker, Status>> {
    // With one place, what leaves the stream's own queue is sent at once.
    let (out, told) = mpsc::channel::<Told>(1);
    let sending = opening.sending.clone();
    tokio::spawn(attend(opening, from, out));
    let told = futures_util::stream::unfold((told, sending), |(mut told, sending)| async move {
        let said = told.recv().await?;
        let said = said.map(|(say, departure)| {
            if let Some(departure) = departure {
                sending.written(departure);
            }
            say
        });
        Some((said, (told, sending)))
    });
    told.boxed()
}

/// How a stream ends.
enum End {
    /// The worker has closed its half and everything is answered, or nothing is left at a shutdown.
    Done,
    /// The worker has disconnected.
    Gone,
    /// The stream ends with this status.
    Told(Status),
}

async fn attend(opening: Opening, mut from: Streaming<FromWorker>, out: Out) {
    let Opening { ways, caller, mut arrivals, phases, place, sending, peer } = opening;
    let patience = ways.common.settings.grpc.handshake_timeout;
    let answer_timeout = ways.common.settings.http.answer_timeout;
    let greeted = async {
        match tokio::time::timeout(patience.0, from.message()).await {
            Ok(Ok(said)) => greeting(said).map_err(|problem| status(&problem)),
            Ok(Err(broken)) => Err(broken),
            Err(_) => Err(Status::deadline_exceeded(format!(
                "no Hello came within {patience} (setting grpc.handshake_timeout)"
            ))),
        }
    };
    let seated = match greeted.await {
        Ok(hello) => Seat::of(&ways, &caller, hello).await.map_err(|problem| status(&problem)),
        Err(refused) => Err(refused),
    };
    // The permit of the Hello is released.
    drop(arrivals.rooms.try_recv());
    let (seat, line) = match seated {
        Ok(seated) => seated,
        Err(refused) => {
            // An error means that the worker has disconnected.
            let _ = out.send(Err(refused)).await;
            return;
        }
    };
    let worker = seat.borrower.worker.as_deref().unwrap_or_default().to_owned();
    let stream = Stream::new(ways, caller, seat, out.clone(), sending.clone());
    let end = stream.run(from, arrivals, line, phases).await;
    tracing::debug!(worker, how = end.word(), "a worker's stream has ended");
    drop(place);
    if let End::Told(status) = end {
        // Errors mean that the worker has disconnected, or does not read.
        let _ = tokio::time::timeout(patience.0, out.send(Err(status))).await;
    }
    drop(out);
    sending.all_gone(peer, answer_timeout.0).await;
}

impl End {
    fn word(&self) -> &str {
        match self {
            End::Done => "done",
            End::Gone => "gone",
            End::Told(status) => status.message(),
        }
    }
}

/// A wait for a message of a queue; it returns no message once the lease queue is closed.
type Waiting = BoxFuture<'static, (Arc<str>, Option<Loan>)>;

struct Stream {
    ways: Arc<Ways>,
    caller: Caller,
    seat: Seat,
    out: Out,
    /// How many more messages the worker wants.
    credit: u32,
    /// A wait for each queue, while there is credit.
    waiting: FuturesUnordered<Waiting>,
    hands: Hands,
    /// Requests under way that settle a message. They complete even if the stream ends.
    settlements: FuturesUnordered<BoxFuture<'static, Answer>>,
    /// Other requests under way, and checks by the stream itself. They end with the stream.
    answers: FuturesUnordered<BoxFuture<'static, Answer>>,
    /// What waits to be sent to the worker.
    backlog: Backlog,
    /// Tracks what was not sent yet.
    sending: Sending,
    /// How much of it was sent at the last look.
    gone: usize,
    /// When the next message must have been sent, if the worker reads at all.
    read_until: Instant,
    /// When the stream stops receiving, unless leased messages were sent by then.
    stalls_at: Instant,
    /// Whether the worker has closed its half.
    is_closed: bool,
    /// Whether the manager is shutting down: no more messages are leased.
    is_draining: bool,
    /// Whether a check of attempts is under way.
    is_looking: bool,
}

impl Stream {
    fn new(ways: Arc<Ways>, caller: Caller, seat: Seat, out: Out, sending: Sending) -> Stream {
        Stream {
            ways,
            caller,
            seat,
            out,
            credit: 0,
            waiting: FuturesUnordered::new(),
            hands: Hands::default(),
            settlements: FuturesUnordered::new(),
            answers: FuturesUnordered::new(),
            backlog: Backlog::default(),
            sending,
            gone: 0,
            read_until: clock::ticks(),
            stalls_at: clock::ticks(),
            is_closed: false,
            is_draining: false,
            is_looking: false,
        }
    }

    /// Serves the worker until the stream ends.
    async fn run(
        mut self,
        from: Streaming<FromWorker>,
        arrivals: Arrivals,
        line: mpsc::UnboundedReceiver<Ended>,
        phases: watch::Receiver<Phase>,
    ) -> End {
        let end = self.serve(from, arrivals, line, phases).await;
        // The worker does not receive the results of these.
        let settlements = std::mem::take(&mut self.settlements);
        tokio::spawn(settlements.for_each(|_| std::future::ready(())));
        end
    }

    async fn serve(
        &mut self,
        mut from: Streaming<FromWorker>,
        mut arrivals: Arrivals,
        mut line: mpsc::UnboundedReceiver<Ended>,
        mut phases: watch::Receiver<Phase>,
    ) -> End {
        let says_max = self.ways.common.settings.grpc.credit_max as usize;
        let mut looks = tokio::time::interval(self.ways.common.settings.grpc.keep_alive.0);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        looks.reset();
        let (ways, caller) = (self.ways.clone(), self.caller.clone());
        let mut taken_away = std::pin::pin!(caller.taken_away(&ways.common));
        loop {
            if let Some(end) = self.is_done() {
                return end;
            }
            let (has_backlog, open) = (!self.backlog.is_empty(), self.out.clone());
            let unanswered = self.settlements.len() + self.answers.len();
            let listens = !self.is_closed && unanswered + self.backlog.len() < says_max;
            let (lends, is_waiting) = (self.backlog.has_room(), !self.waiting.is_empty());
            let is_sending = has_backlog || self.sending.is_under_way();
            // These are copied before the select, which borrows `self`.
            let (read_until, stalls_at) = (self.read_until, self.stalls_at);
            tokio::select! {
                permit = open.reserve(), if has_backlog => match permit {
                    Ok(permit) => self.send(permit),
                    Err(_) => return End::Gone,
                },
                () = tokio::time::sleep_until(read_until), if is_sending => {
                    let gone = self.sending.gone();
                    if gone != std::mem::replace(&mut self.gone, gone) {
                        self.read_until = self.next_read();
                        continue;
                    }
                    let limit = self.ways.common.settings.http.answer_timeout;
                    return End::Told(Status::deadline_exceeded(format!(
                        "nothing was read for {limit} (setting http.answer_timeout)"
                    )));
                }
                Some((queue, loan)) = self.waiting.next(), if lends && is_waiting => match loan {
                    Some(loan) => self.lend(queue, loan),
                    None if self.seat.desk.is_closed() => return End::Told(closed()),
                    None => self.wait_for(queue),
                },
                // A wait that is not polled must neither be notified of messages nor keep permits:
                // others could use them.
                () = tokio::time::sleep_until(stalls_at), if !lends && is_waiting => {
                    self.waiting.clear();
                }
                Some(answer) = self.settlements.next() => {
                    if let Some(end) = self.answer(answer) {
                        return end;
                    }
                }
                Some(answer) = self.answers.next() => {
                    if let Some(end) = self.answer(answer) {
                        return end;
                    }
                }
                said = from.message(), if listens => match said {
                    Ok(Some(FromWorker { say })) => {
                        // Each message has its permit.
                        let room = arrivals.rooms.try_recv().ok();
                        if let Some(problem) = say.and_then(|say| self.hear(say, room)) {
                            return End::Told(status(&problem));
                        }
                    }
                    // A stream that was reset also looks like this.
                    Ok(None) => match arrivals.others.try_recv() {
                        Ok(Other::Broken) => return End::Gone,
                        Ok(other) => self.hear_other(other),
                        Err(_) => self.close(),
                    },
                    Err(broken) => return End::Told(broken),
                },
                Some(other) = arrivals.others.recv() => match other {
                    Other::Broken => return End::Gone,
                    other => self.hear_other(other),
                },
                Some(ended) = line.recv() => self.lost(&ended),
                _ = looks.tick() => self.look(),
                () = &mut taken_away => {
                    return End::Told(Status::unauthenticated("the token is not good any more"));
                }
                changed = phases.changed() => {
                    let phase = *phases.borrow_and_update();
                    if changed.is_err() || phase == Phase::Ending {
                        return End::Told(closed());
                    }
                    self.drain();
                }
                () = self.out.closed() => return End::Gone,
            }
        }
    }

    /// Returns how the stream ends, if nothing is left to do on it.
    fn is_done(&mut self) -> Option<End> {
        let is_answered = self.settlements.is_empty() && self.answers.is_empty();
        if !is_answered || !self.backlog.is_empty() {
            return None;
        }
        if self.is_closed {
            self.hands.farewell();
            return Some(End::Done);
        }
        (self.is_draining && self.hands.is_empty()).then_some(End::Done)
    }

    fn tell(&mut self, tell: Tell) {
        self.queue_up(ToSend { tell, lent: None });
    }

    fn queue_up(&mut self, to_send: ToSend) {
        if self.backlog.is_empty() {
            self.read_until = self.next_read();
        }
        self.backlog.push(to_send);
    }

    fn next_read(&self) -> Instant {
        clock::ticks() + self.ways.common.settings.http.answer_timeout.0
    }

    fn send(&mut self, permit: mpsc::Permit<'_, Told>) {
        let Some(ToSend { tell, lent }) = self.backlog.pop() else { return };
        let departure = lent.and_then(|lent| {
            self.hands.sent(&lent.id);
            lent.departure
        });
        permit.send(Ok((ToWorker { say: Some(tell) }, departure)));
        self.read_until = self.next_read();
        if self.waiting.is_empty()
            && self.credit > 0
            && !self.is_draining
            && self.backlog.has_room()
        {
            self.wait();
        }
    }

    /// Waits for the next message of each queue.
    fn wait(&mut self) {
        for queue in self.seat.queues.clone() {
            self.wait_for(queue);
        }
    }

    /// Waits for the next message of a queue.
    fn wait_for(&mut self, queue: Arc<str>) {
        let (ways, desk) = (self.ways.clone(), self.seat.desk.clone());
        let borrower = self.seat.borrower.clone();
        self.waiting.push(
            async move {
                let until = clock::ticks() + WAIT;
                let loan = next(&ways, &desk, &queue, &borrower, until).await;
                (queue, loan)
            }
            .boxed(),
        );
    }

    fn lend(&mut self, queue: Arc<str>, mut loan: Loan) {
        let departure = loan.room.take().map(|taken| self.sending.departure(taken));
        let message = message(&queue, &self.seat.vhost, &loan);
        let (id, receipt) = (loan.id.clone(), message.receipt.clone());
        let seat = (self.seat.desk.clone(), self.seat.line.clone());
        self.hands.take(Held::new((id, loan.delivery), seat, receipt));
        let lent = Some(LentAhead { id: loan.id, bytes: message.body.len(), departure });
        self.stalls_at = clock::ticks() + STALLED;
        self.queue_up(ToSend { tell: Tell::Message(message), lent });
        self.credit -= 1;
        if self.credit > 0 {
            self.wait_for(queue);
        } else {
            self.waiting.clear();
        }
    }

    fn answer(&mut self, answer: Answer) -> Option<End> {
        match answer {
            Answer::Tell(tell) => self.tell(tell),
            Answer::Kept(held, taken) => {
                if let Some(held) = held {
                    self.hands.keep(held);
                }
                self.tell(Tell::Taken(taken));
            }
            Answer::Extended(receipt, text, tell) => {
                self.take_up(&receipt, text);
                self.tell(tell);
            }
            Answer::Gone(receipt, gone) => {
                self.hands.put_down(&receipt.id, receipt.delivery).map(Held::let_go);
                self.tell(Tell::Gone(gone));
            }
            Answer::Looked(gone) => {
                self.is_looking = false;
                for (receipt, gone) in gone {
                    if let Some(held) = self.hands.put_down(&receipt.id, receipt.delivery) {
                        held.let_go();
                        self.tell(Tell::Gone(gone));
                    }
                }
            }
            Answer::End(status) => return Some(End::Told(status)),
        }
        None
    }

    /// Adopts a message that the worker may have received before, for example in another session.
    fn take_up(&mut self, receipt: &Receipt, text: String) {
        let (id, delivery, line) = (receipt.id.as_str(), receipt.delivery, &self.seat.line);
        let Ok(desk) = desk_of(&self.ways, &receipt.vhost) else { return };
        // Its lease may have ended again by now.
        if !self.hands.has(id, delivery) && desk.lends(id, delivery, line) {
            let held = Held::new((id.into(), delivery), (desk, line.clone()), text);
            self.hands.take(held.delivered());
        }
    }

    /// Handles the revocation of a lease by the lease queue.
    fn lost(&mut self, ended: &Ended) {
        let Ended { id, delivery, why } = ended;
        let Some(held) = self.hands.put_down(id, *delivery) else { return };
        let reason = match why {
            Why::LeaseEnded => "lease expired",
            Why::Over(Over::Answered) => "settled",
            Why::Over(Over::Cancelled) => "cancelled",
            Why::Over(Over::Failed) => "timed out",
        };
        self.tell(Tell::Gone(Gone { receipt: held.let_go(), reason: reason.to_owned() }));
    }

    /// Checks whether the attempts of the worker's messages have ended. The lease queue is notified
    /// of most ends at once, but not of a reply by hand.
    fn look(&mut self) {
        if self.is_looking || self.hands.is_empty() {
            return;
        }
        self.is_looking = true;
        let (ways, texts) = (self.ways.clone(), self.hands.receipts());
        self.answers.push(
            async move {
                let mut gone = Vec::new();
                for text in texts {
                    let Ok(receipt) = Receipt::parse(&text) else { continue };
                    if let Some(why) = over(&ways, &receipt.id).await {
                        gone.push((receipt, Gone { receipt: text, reason: why.to_owned() }));
                    }
                }
                Answer::Looked(gone)
            }
            .boxed(),
        );
    }

    /// Handles that the worker closed its half: it can reply to no more messages on this stream.
    fn close(&mut self) {
        self.is_closed = true;
        self.credit = 0;
        self.waiting.clear();
    }

    fn drain(&mut self) {
        if !self.is_draining {
            self.is_draining = true;
            self.waiting.clear();
            self.tell(Tell::Drain(Drain {}));
        }
    }
}
