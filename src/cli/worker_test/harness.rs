//! The test harness: runs each case against the worker. A case sends messages through the stub
//! manager, waits for events in the log, and turns them into its outcome.

use super::super::arguments::TestedBus;
use super::super::error::ClientError;
use super::super::text::Text;
use super::cases::Case;
use super::checks::{self, MessageOutcome};
use super::cut::CutTiming;
use super::event_log::{
    EventLog, LoggedEvent, ObservedEvent, Reply, find_reply, find_unexpected, settling_replies,
};
use super::messages::{MessageFactory, ROUND_TRIP_KEYS, ROUND_TRIP_VALUES, TestMessage};
use super::process::WorkerProcess;
use super::report::{CaseOutcome, Reporter};
use super::stub_transport::StubTransport;
use base::clock;
use serde_json::Value;
use std::time::Duration;

/// The number of messages in the case `HundredMessages`.
const BATCH_SIZE: usize = 100;

/// How long to wait for a second reply to the same message.
const DUPLICATE_WAIT: Duration = Duration::from_secs(1);

/// How long to wait, after a delivery was logged, until the worker has surely read the message.
const DELIVERY_GRACE: Duration = Duration::from_millis(100);

/// The interval at which the queue is polled until it exists again.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Multiplies the timeout where the worker must reconnect, or a person must start it first.
const RECONNECT_FACTOR: u32 = 2;

/// A worker under test, with its stub manager and the log of what it did.
pub(super) struct WorkerHarness {
    pub(super) bus: TestedBus,
    pub(super) stub: StubTransport,
    pub(super) log: EventLog,
    /// The worker's process, unless a person starts the worker.
    pub(super) process: Option<WorkerProcess>,
    pub(super) messages: MessageFactory,
    /// The expected result of a valid message (`--expect`). With `None` any valid result passes.
    pub(super) expected: Option<Value>,
    /// How long the worker may take for each thing that a case waits for, such as a reply.
    pub(super) timeout: Duration,
    /// The numbers of the messages that `send_valid` has sent. The passive cases read the events of
    /// these.
    pub(super) valid_messages: Vec<usize>,
}

impl WorkerHarness {
    /// Runs all cases. Stops early if the worker fails the first one, or no longer answers after a
    /// failed one.
    pub(super) async fn run(&mut self, report: &mut Reporter<'_>) -> Result<(), ClientError> {
        for case in Case::for_bus(self.bus) {
            let info = case.info(self.bus);
            let outcome = self.run_case(case).await?;
            report.report_case(&info, &outcome)?;
            if !matches!(outcome, CaseOutcome::Failed(_)) || case.needs_no_recovery() {
                continue;
            }
            if case == Case::Answers {
                report.bail_out("the worker does not process its valid message (--message)")?;
                return Ok(());
            }
            if let Some(problem) = self.recover_worker().await? {
                report.bail_out(&format!("the worker does not answer any more: {problem}"))?;
                return Ok(());
            }
        }
        Ok(())
    }

    /// Runs one case. An error means that the stub manager does not work.
    async fn run_case(&mut self, case: Case) -> Result<CaseOutcome, ClientError> {
        match case {
            Case::Answers => self.check_answers().await,
            Case::CutBeforeReply => self.check_reconnects(CutTiming::Reply).await,
            Case::CutAfterReply => self.check_reconnects(CutTiming::Ack).await,
            Case::NotJson => {
                let message = self.messages.with_body("{\"this is\": not JSON");
                self.check_survives(message).await
            }
            Case::Array => {
                let message = self.messages.with_body("[1, 2, 3]");
                self.check_survives(message).await
            }
            Case::Empty => {
                let message = self.messages.with_body("");
                self.check_survives(message).await
            }
            Case::Deep => {
                let message = self.messages.deep();
                self.check_survives(message).await
            }
            Case::Large => {
                let message = self.messages.large();
                self.check_survives(message).await
            }
            Case::Headers => {
                let message = TestMessage { has_extra_headers: true, ..self.messages.valid() };
                self.check_survives(message).await
            }
            Case::NoReplyTo => {
                let message = TestMessage { has_reply_to: false, ..self.messages.valid() };
                self.check_survives(message).await
            }
            Case::HundredMessages => self.check_hundred().await,
            Case::Order => Ok(self.check_ack_order()),
            Case::Confirms => Ok(self.check_confirms()),
            Case::Attempt => Ok(self.check_attempt_header()),
            Case::Persistent => Ok(self.check_persistent()),
            Case::ContentType => Ok(self.check_content_type()),
            Case::RoundTrip => self.check_round_trip().await,
            Case::Lease => Ok(self.check_lease()),
            Case::AttemptOver => self.check_attempt_over().await,
            Case::RedeclaresQueue => self.check_redeclares_queue().await,
            Case::StopsOnSigterm => self.check_sigterm().await,
        }
    }

    /// Sends a message that the worker is able to process.
    async fn send_valid(&mut self) -> Result<TestMessage, ClientError> {
        let message = self.messages.valid();
        self.valid_messages.push(message.number);
        self.stub.send(&message).await?;
        Ok(message)
    }

    /// Returns how the worker's process ended. `None` if it runs, or a person has started it.
    fn poll_exit(&mut self) -> Option<String> {
        self.process.as_mut()?.poll_exit()
    }

    /// Waits until a message has an outcome, and returns it.
    ///
    /// # Errors
    ///
    /// Returns an error that says what is missing, after the timeout or when the process has ended.
    async fn wait_for_outcome(
        &mut self,
        number: usize,
        is_one_way: bool,
        timeout: Duration,
    ) -> Result<MessageOutcome, String> {
        let (log, process) = (self.log.clone(), &mut self.process);
        // Set when the process has ended, which also ends the wait.
        let mut exit = None;
        let outcome = log
            .wait_until(timeout, || {
                if let Some(outcome) = checks::find_outcome(&log.events_of(number), is_one_way) {
                    return Some(Some(outcome));
                }
                exit = process.as_mut().and_then(WorkerProcess::poll_exit);
                exit.is_some().then_some(None)
            })
            .await
            .flatten();
        // The last event may precede the end of the process, so an outcome is preferred.
        match (outcome, exit) {
            (Some(outcome), _) => Ok(outcome),
            (None, Some(exit)) => Err(format!("its process has ended: {exit}")),
            (None, None) => {
                Err(checks::describe_missing(&log.events_of(number), &format_duration(timeout)))
            }
        }
    }

    /// Sends a valid message, and waits until the worker has processed it. Returns what is wrong,
    /// if anything is.
    async fn check_working(&mut self, timeout: Duration) -> Result<Option<String>, ClientError> {
        let number = self.send_valid().await?.number;
        Ok(match self.wait_for_outcome(number, false, timeout).await {
            Ok(MessageOutcome::Answered(reply)) => self.check_reply(&reply),
            Ok(outcome) => Some(format_outcome(&outcome)),
            Err(problem) => Some(problem),
        })
    }

    /// Returns what is wrong with the reply to a valid message, if anything is.
    fn check_reply(&self, reply: &Reply) -> Option<String> {
        checks::check_result(reply).or_else(|| {
            let expected = self.expected.as_ref()?;
            (checks::result_value(reply) != *expected)
                .then(|| format!("expected {expected}, it answered {}", reply.render()))
        })
    }

    /// Recovers after a failed case: removes the remaining messages, and checks that the worker
    /// works. If it does not, restarts its process and checks again. Returns what is wrong, if
    /// anything is.
    async fn recover_worker(&mut self) -> Result<Option<String>, ClientError> {
        self.stub.clear().await?;
        let problem = match self.poll_exit() {
            Some(exit) => Some(format!("its process has ended: {exit}")),
            None => self.check_working(self.timeout * RECONNECT_FACTOR).await?,
        };
        let (Some(_), Some(process)) = (&problem, &mut self.process) else { return Ok(problem) };
        process.restart()?;
        self.stub.clear().await?;
        self.check_working(self.timeout * RECONNECT_FACTOR).await
    }

    /// Waits until a worker appears, and checks that it answers a valid message.
    async fn check_answers(&mut self) -> Result<CaseOutcome, ClientError> {
        let start = clock::timer_now();
        // A person needs time to start the worker.
        let (log, has_process) = (self.log.clone(), self.process.is_some());
        let timeout = if has_process { self.timeout } else { self.timeout * RECONNECT_FACTOR };
        let find_any_event = || log.with_events(|events| !events.is_empty()).then_some(());
        if log
            .wait_until(timeout, || find_any_event().or_else(|| self.poll_exit().map(drop)))
            .await
            .is_none()
        {
            return Ok(CaseOutcome::failed(format!(
                "no worker came within {}",
                format_duration(timeout)
            )));
        }
        let number = self.send_valid().await?.number;
        let outcome = self.wait_for_outcome(number, false, self.timeout).await;
        let unexpected = log.with_events(|events| find_unexpected(events).map(Text::to_string));
        Ok(match (outcome, unexpected) {
            (Ok(MessageOutcome::Answered(reply)), None) => match self.check_reply(&reply) {
                None => CaseOutcome::passed(format!(
                    "{} after {} ms",
                    reply.render(),
                    start.elapsed().as_millis()
                )),
                Some(problem) => CaseOutcome::failed(problem),
            },
            (Ok(MessageOutcome::Answered(_)), Some(unexpected)) => CaseOutcome::failed(unexpected),
            (Ok(outcome), _) => CaseOutcome::failed(format_outcome(&outcome)),
            (Err(problem), Some(unexpected)) => {
                CaseOutcome::failed(format!("{problem}; {unexpected}"))
            }
            (Err(problem), None) => CaseOutcome::failed(problem),
        })
    }

    /// Cuts the connection at a message, and checks that the worker reconnects and answers.
    async fn check_reconnects(&mut self, timing: CutTiming) -> Result<CaseOutcome, ClientError> {
        let message = self.messages.valid();
        let number = message.number;
        self.stub.cut(&message, timing);
        self.stub.send(&message).await?;
        let log = self.log.clone();
        // `Some(false)` ends the wait: a message in a requeue loop gets no reply to cut at.
        let find_cut = |events: &[LoggedEvent]| {
            let is_cut =
                events.iter().any(|logged| matches!(logged.event, ObservedEvent::ConnectionCut));
            let is_in_requeue_loop = checks::find_requeue_loop(events).is_some();
            (is_cut || is_in_requeue_loop).then_some(is_cut)
        };
        if log.wait_until_message(number, self.timeout, find_cut).await != Some(true) {
            let missing =
                checks::describe_missing(&log.events_of(number), &format_duration(self.timeout));
            return Ok(CaseOutcome::failed(missing));
        }
        let start = clock::timer_now();
        let timeout = self.timeout * RECONNECT_FACTOR;
        let find_reconnection = |events: &[LoggedEvent]| {
            let is_cut =
                |logged: &LoggedEvent| matches!(logged.event, ObservedEvent::ConnectionCut);
            let cut_index = events.iter().rposition(is_cut)?;
            let is_sign_of_life = |logged: &LoggedEvent| {
                matches!(
                    logged.event,
                    ObservedEvent::Connected
                        | ObservedEvent::Delivered
                        | ObservedEvent::Replied(_)
                        | ObservedEvent::Published
                )
            };
            events[cut_index + 1..].iter().any(is_sign_of_life).then_some(())
        };
        if log.wait_until(timeout, || log.with_events(find_reconnection)).await.is_none() {
            let exit =
                self.poll_exit().map_or(String::new(), |exit| format!("; its process: {exit}"));
            let timeout = format_duration(timeout);
            return Ok(CaseOutcome::failed(format!("it did not come back within {timeout}{exit}")));
        }
        let outcome = match self.wait_for_outcome(number, false, timeout).await {
            Ok(MessageOutcome::Answered(reply)) => match checks::check_result(&reply) {
                Some(problem) => CaseOutcome::failed(problem),
                None => CaseOutcome::passed(format!(
                    "it was back after {} ms: {}",
                    start.elapsed().as_millis(),
                    reply.render()
                )),
            },
            Ok(outcome) => CaseOutcome::failed(format_outcome(&outcome)),
            Err(problem) => CaseOutcome::failed(format!("after the cut: {problem}")),
        };
        if let (CaseOutcome::Passed(_), Some(difference)) =
            (&outcome, checks::check_same_results(&log.events_of(number)))
        {
            return Ok(CaseOutcome::failed(difference));
        }
        self.check_still_works(outcome).await
    }

    /// Turns a passed outcome into a failed one if the worker does not work afterwards.
    async fn check_still_works(
        &mut self,
        outcome: CaseOutcome,
    ) -> Result<CaseOutcome, ClientError> {
        if !matches!(outcome, CaseOutcome::Passed(_)) {
            return Ok(outcome);
        }
        let problem = self.check_working(self.timeout * RECONNECT_FACTOR).await?;
        Ok(problem.map_or(outcome, |problem| {
            CaseOutcome::failed(format!("afterwards it does not work any more: {problem}"))
        }))
    }

    /// Sends the worker an unusual message, and checks that it survives.
    async fn check_survives(&mut self, message: TestMessage) -> Result<CaseOutcome, ClientError> {
        self.stub.send(&message).await?;
        let is_one_way = !message.has_reply_to;
        let outcome = match self.wait_for_outcome(message.number, is_one_way, self.timeout).await {
            Ok(MessageOutcome::RequeueLoop(count)) => {
                self.stub.end_attempt(&message);
                CaseOutcome::failed(format_requeue_loop(count))
            }
            Ok(outcome) => CaseOutcome::passed(format_outcome(&outcome)),
            Err(problem) => CaseOutcome::failed(problem),
        };
        self.check_still_works(outcome).await
    }

    /// Sends a batch of messages, and checks that each is answered exactly once.
    async fn check_hundred(&mut self) -> Result<CaseOutcome, ClientError> {
        let mut numbers = Vec::new();
        for _ in 0..BATCH_SIZE {
            numbers.push(self.send_valid().await?.number);
        }
        let log = self.log.clone();
        let count_finished = || {
            let has_outcome =
                |number: &&usize| checks::find_outcome(&log.events_of(**number), false).is_some();
            numbers.iter().filter(has_outcome).count()
        };
        let mut finished_count = 0;
        while finished_count < BATCH_SIZE {
            // The timeout is for the next answer, not for all of them.
            let find_more = || Some(count_finished()).filter(|count| *count > finished_count);
            match log.wait_until(self.timeout, find_more).await {
                Some(count) => finished_count = count,
                None => {
                    return Ok(CaseOutcome::failed(format!(
                        "{finished_count} of {BATCH_SIZE} were done, and no other within {}",
                        format_duration(self.timeout)
                    )));
                }
            }
        }
        let check_message = |number: &usize| {
            let events = log.events_of(*number);
            let count = settling_replies(&events).count();
            (count != 1)
                .then(|| format!("message {number} was answered {count} times"))
                .or_else(|| self.check_reply(find_reply(&events)?))
        };
        // A duplicate reply may be late.
        let problem =
            log.wait_until(DUPLICATE_WAIT, || numbers.iter().find_map(check_message)).await;
        Ok(problem.map_or_else(
            || CaseOutcome::passed(format!("{BATCH_SIZE} messages, {BATCH_SIZE} answers")),
            CaseOutcome::failed,
        ))
    }

    /// Checks that a worker which returns its input changes nothing in it. Skipped if the worker
    /// does not return its input.
    async fn check_round_trip(&mut self) -> Result<CaseOutcome, ClientError> {
        if self.expected.is_some() {
            return Ok(CaseOutcome::skipped("with --expect it is known what the worker gives"));
        }
        let (message, marker) = self.messages.round_trip();
        self.stub.send(&message).await?;
        let reply = match self.wait_for_outcome(message.number, false, self.timeout).await {
            Ok(MessageOutcome::Answered(reply)) => reply,
            Ok(outcome) => return Ok(CaseOutcome::skipped(format_outcome(&outcome))),
            Err(problem) => return Ok(CaseOutcome::failed(problem)),
        };
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        if !text.contains(&marker) {
            return Ok(CaseOutcome::skipped("the worker does not give its input back"));
        }
        let missing_values: Vec<&str> =
            ROUND_TRIP_VALUES.into_iter().filter(|value| !text.contains(value)).collect();
        if !missing_values.is_empty() {
            return Ok(CaseOutcome::failed(format!(
                "{} did not come back: {}",
                missing_values.join(", "),
                reply.render()
            )));
        }
        let positions: Vec<Option<usize>> =
            ROUND_TRIP_KEYS.iter().map(|key| text.find(key)).collect();
        Ok(if positions.is_sorted() {
            CaseOutcome::passed("all came back as it was")
        } else {
            CaseOutcome::failed(format!("the keys are in another order: {}", reply.render()))
        })
    }

    /// Cancels an attempt, and checks that the worker stops without a reply. Skipped if the worker
    /// never asks for an extension, by which it would learn that the attempt is over.
    async fn check_attempt_over(&mut self) -> Result<CaseOutcome, ClientError> {
        let message = self.messages.valid();
        let number = message.number;
        self.stub.cancel_when_delivered(&message);
        self.stub.send(&message).await?;
        let log = self.log.clone();
        if log.wait_until_message(number, self.timeout, find_delivery).await.is_none() {
            return Ok(CaseOutcome::failed(checks::describe_missing(
                &log.events_of(number),
                &format_duration(self.timeout),
            )));
        }
        let find_extension = |events: &[LoggedEvent]| {
            let has_extended =
                events.iter().any(|logged| matches!(logged.event, ObservedEvent::LeaseExtended));
            (has_extended || find_reply(events).is_some()).then_some(has_extended)
        };
        match log.wait_until_message(number, self.timeout, find_extension).await {
            Some(true) => {}
            Some(false) => {
                return Ok(CaseOutcome::skipped("it replied before it asked for more time"));
            }
            None => return Ok(CaseOutcome::skipped("it neither replied nor asked for more time")),
        }
        let problem = self.check_working(self.timeout * RECONNECT_FACTOR).await?;
        Ok(match (find_reply(&log.events_of(number)), problem) {
            (Some(reply), _) => {
                CaseOutcome::failed(format!("it went on, and replied {}", reply.render()))
            }
            (None, Some(problem)) => CaseOutcome::failed(format!("afterwards: {problem}")),
            (None, None) => CaseOutcome::passed("it stopped, and took the next message"),
        })
    }

    /// Deletes the queue, and checks that the worker declares it again.
    async fn check_redeclares_queue(&mut self) -> Result<CaseOutcome, ClientError> {
        if !self.stub.delete_queue().await? {
            return Ok(CaseOutcome::skipped("the queue was there before: it is not deleted"));
        }
        let start = clock::timer_now();
        let timeout = self.timeout * RECONNECT_FACTOR;
        while !self.stub.has_consumers().await {
            if start.elapsed() > timeout {
                let timeout = format_duration(timeout);
                return Ok(CaseOutcome::failed(format!("no worker declared it within {timeout}")));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let observation = format!("it took from it again after {} ms", start.elapsed().as_millis());
        self.check_still_works(CaseOutcome::passed(observation)).await
    }

    /// Sends SIGTERM while a message is in flight, and checks that the worker ends gracefully.
    async fn check_sigterm(&mut self) -> Result<CaseOutcome, ClientError> {
        if self.process.is_none() {
            return Ok(CaseOutcome::skipped("worker-test must start the worker: -- CMD"));
        }
        let number = self.send_valid().await?.number;
        let log = self.log.clone();
        let delivery = log.wait_until_message(number, self.timeout, find_delivery).await;
        let Some(process) = self.process.as_mut().filter(|_| delivery.is_some()) else {
            return Ok(CaseOutcome::failed("it did not take the message"));
        };
        // The delivery is logged before the message reaches the worker.
        tokio::time::sleep(DELIVERY_GRACE).await;
        process.terminate();
        let Some(exit) = process.wait_for_exit(self.timeout).await else {
            return Ok(CaseOutcome::failed(format!(
                "it runs on {} after SIGTERM",
                format_duration(self.timeout)
            )));
        };
        let is_success = process.is_success();
        let describe_end = |events: &[LoggedEvent]| {
            let is_requeue = |logged: &LoggedEvent| {
                matches!(logged.event, ObservedEvent::Nacked { requeue: true })
            };
            if checks::find_outcome(events, false).is_some() {
                return Some("it answered what it had in hand");
            }
            events.iter().any(is_requeue).then_some("it put back what it had not begun")
        };
        let end = log.wait_until_message(number, DUPLICATE_WAIT, describe_end).await;
        Ok(match (end, is_success) {
            (Some(end), true) => CaseOutcome::passed(format!("{end}; exit code 0")),
            (Some(end), false) => CaseOutcome::failed(format!("{end}; {exit}")),
            (None, _) => {
                CaseOutcome::failed(format!("what it had in hand was not answered; {exit}"))
            }
        })
    }

    /// Stops the worker's process, unless a person has started the worker, and the stub manager.
    pub(super) async fn close(self) {
        if let Some(mut process) = self.process {
            process.stop().await;
        }
        self.stub.close().await;
    }
}

fn format_duration(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

/// A probe for `EventLog::wait_until_message`: returns `Some` once the message was delivered.
fn find_delivery(events: &[LoggedEvent]) -> Option<()> {
    let is_delivery = |logged: &LoggedEvent| matches!(logged.event, ObservedEvent::Delivered);
    events.iter().any(is_delivery).then_some(())
}

fn format_requeue_loop(count: usize) -> String {
    format!(
        "it puts the message back again and again: {count} deliveries within a second (nack with \
         requeue)"
    )
}

fn format_outcome(outcome: &MessageOutcome) -> String {
    match outcome {
        MessageOutcome::Answered(reply) => reply.render(),
        MessageOutcome::Refused => "it refused the message (nack without requeue)".to_owned(),
        MessageOutcome::Acked => "it acknowledged the message".to_owned(),
        MessageOutcome::RequeueLoop(count) => format_requeue_loop(*count),
    }
}
