//! The test harness: runs each case, from the messages that it sends to the outcome.

use super::super::arguments::TestedBus;
use super::super::error::ClientError;
use super::cases::Case;
use super::checks::{self, MessageOutcome};
use super::cut::CutTiming;
use super::event_log::{
    EventLog, LoggedEvent, ObservedEvent, Reply, find_reply, find_unexpected, settling_replies,
};
use super::messages::{
    MessageFactory, ROUND_TRIP_KEYS, ROUND_TRIP_VALUES, TestMessage, attempt_of,
};
use super::process::WorkerProcess;
use super::report::{CaseOutcome, Reporter};
use super::stub_transport::StubTransport;
use base::clock;
use serde_json::Value;
use std::time::Duration;

/// The number of messages in the case that sends many.
const BATCH_SIZE: usize = 100;

/// How long to wait for a second reply to the same message.
const DUPLICATE_WAIT: Duration = Duration::from_secs(1);

/// How long a message may be under way to a worker that waits for it.
const DELIVERY_DELAY: Duration = Duration::from_millis(100);

/// The pause between two checks whether the queue exists again.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// By how much the timeout is multiplied for a worker that must connect again.
const RECONNECT_FACTOR: u32 = 2;

/// A worker under test, with its stub manager and all that was seen of it.
pub(super) struct WorkerHarness {
    pub(super) bus: TestedBus,
    pub(super) stub: StubTransport,
    pub(super) log: EventLog,
    pub(super) program: Option<WorkerProcess>,
    pub(super) messages: MessageFactory,
    pub(super) expected: Option<Value>,
    pub(super) timeout: Duration,
    /// The numbers of the messages that the worker is able to process.
    pub(super) valid_messages: Vec<usize>,
}

impl WorkerHarness {
    /// Runs all cases, and stops early if the worker no longer answers.
    pub(super) async fn run(&mut self, report: &mut Reporter<'_>) -> Result<(), ClientError> {
        for case in Case::for_bus(self.bus) {
            let info = case.info(self.bus);
            let outcome = self.run_case(case).await?;
            report.report_case(&info, &outcome)?;
            if !matches!(outcome, CaseOutcome::Failed(_)) || case.needs_no_recovery() {
                continue;
            }
            if case == Case::Answers {
                report.bail_out("the worker does not do the message that it can do (--message)")?;
                return Ok(());
            }
            if let Some(why) = self.recover_worker().await? {
                report.bail_out(&format!("the worker does not answer any more: {why}"))?;
                return Ok(());
            }
        }
        Ok(())
    }

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

    fn format_span(span: Duration) -> String {
        humantime::format_duration(span).to_string()
    }

    async fn send_valid(&mut self) -> Result<TestMessage, ClientError> {
        let message = self.messages.valid();
        self.valid_messages.push(message.number);
        self.stub.send(&message).await?;
        Ok(message)
    }

    /// Returns how the worker's process ended, or `None` if it runs or is not ours.
    fn poll_exit(&mut self) -> Option<String> {
        self.program.as_mut()?.poll_exit()
    }

    /// Waits until a message has an outcome, and returns it; otherwise an error that says what is
    /// missing.
    async fn wait_for_outcome(
        &mut self,
        number: usize,
        is_one_way: bool,
        timeout: Duration,
    ) -> Result<MessageOutcome, String> {
        let (log, program) = (self.log.clone(), &mut self.program);
        let mut exit = None;
        let found = log
            .wait_until(timeout, || {
                if let Some(end) = checks::find_outcome(&log.events_of(number), is_one_way) {
                    return Some(Some(end));
                }
                exit = program.as_mut().and_then(WorkerProcess::poll_exit);
                exit.is_some().then_some(None)
            })
            .await
            .flatten();
        // The last event may have come just before the process ended, so it is preferred.
        match (found, exit) {
            (Some(end), _) => Ok(end),
            (None, Some(how)) => Err(format!("its process has ended: {how}")),
            (None, None) => {
                Err(checks::describe_missing(&log.events_of(number), &Self::format_span(timeout)))
            }
        }
    }

    /// Sends a valid message. Returns what is wrong with its outcome, or `None` if the worker
    /// works.
    async fn check_working(&mut self, timeout: Duration) -> Result<Option<String>, ClientError> {
        let number = self.send_valid().await?.number;
        Ok(match self.wait_for_outcome(number, false, timeout).await {
            Ok(MessageOutcome::Answered(reply)) => self.check_reply(&reply),
            Ok(end) => Some(format_outcome(&end)),
            Err(why) => Some(why),
        })
    }

    /// Returns what is wrong with the reply to a valid message, or `None`.
    fn check_reply(&self, reply: &Reply) -> Option<String> {
        checks::check_result(reply).or_else(|| {
            let expected = self.expected.as_ref()?;
            (checks::result_value(reply) != *expected)
                .then(|| format!("expected {expected}, it answered {}", reply.render()))
        })
    }

    /// Recovers after a failed case: removes the remaining messages, restarts the worker's process
    /// if it is ours, and checks that it works. Returns what is wrong, or `None`.
    async fn recover_worker(&mut self) -> Result<Option<String>, ClientError> {
        self.stub.clear().await?;
        let wrong = match self.poll_exit() {
            Some(how) => Some(format!("its process has ended: {how}")),
            None => self.check_working(self.timeout * RECONNECT_FACTOR).await?,
        };
        let (Some(_), Some(program)) = (&wrong, &mut self.program) else { return Ok(wrong) };
        program.restart()?;
        self.stub.clear().await?;
        self.check_working(self.timeout * RECONNECT_FACTOR).await
    }

    async fn check_answers(&mut self) -> Result<CaseOutcome, ClientError> {
        let begun = clock::timer_now();
        // A worker that is started by hand gets more time.
        let (log, is_ours) = (self.log.clone(), self.program.is_some());
        let wait = if is_ours { self.timeout } else { self.timeout * RECONNECT_FACTOR };
        let has_event = || log.with_events(|seen| !seen.is_empty()).then_some(());
        if log
            .wait_until(wait, || has_event().or_else(|| self.poll_exit().map(drop)))
            .await
            .is_none()
        {
            return Ok(CaseOutcome::failed(format!(
                "no worker came within {}",
                Self::format_span(wait)
            )));
        }
        let number = self.send_valid().await?.number;
        let end = self.wait_for_outcome(number, false, self.timeout).await;
        let stray = log.with_events(|seen| find_unexpected(seen).map(|what| what.to_string()));
        Ok(match (end, stray) {
            (Ok(MessageOutcome::Answered(reply)), None) => match self.check_reply(&reply) {
                None => CaseOutcome::passed(format!(
                    "{} after {} ms",
                    reply.render(),
                    begun.elapsed().as_millis()
                )),
                Some(why) => CaseOutcome::failed(why),
            },
            (Ok(MessageOutcome::Answered(_)), Some(stray)) => CaseOutcome::failed(stray),
            (Ok(end), _) => CaseOutcome::failed(format_outcome(&end)),
            (Err(why), Some(stray)) => CaseOutcome::failed(format!("{why}; {stray}")),
            (Err(why), None) => CaseOutcome::failed(why),
        })
    }

    async fn check_reconnects(&mut self, at: CutTiming) -> Result<CaseOutcome, ClientError> {
        let message = self.messages.valid();
        let number = message.number;
        self.stub.cut(&message, at);
        self.stub.send(&message).await?;
        let log = self.log.clone();
        let find_cut = |seen: &[LoggedEvent]| {
            let is_cut = seen.iter().any(|seen| matches!(seen.event, ObservedEvent::ConnectionCut));
            let is_over = checks::find_requeue_loop(seen).is_some();
            (is_cut || is_over).then_some(is_cut)
        };
        if log.wait_until_message(number, self.timeout, find_cut).await != Some(true) {
            let why =
                checks::describe_missing(&log.events_of(number), &Self::format_span(self.timeout));
            return Ok(CaseOutcome::failed(why));
        }
        let begun = clock::timer_now();
        let wait = self.timeout * RECONNECT_FACTOR;
        let find_return = |seen: &[LoggedEvent]| {
            let cut =
                seen.iter().rposition(|seen| matches!(seen.event, ObservedEvent::ConnectionCut))?;
            let is_sign = |seen: &LoggedEvent| {
                matches!(
                    seen.event,
                    ObservedEvent::Connected
                        | ObservedEvent::Delivered
                        | ObservedEvent::Replied(_)
                        | ObservedEvent::Published
                )
            };
            seen[cut + 1..].iter().any(is_sign).then_some(())
        };
        if log.wait_until(wait, || log.with_events(find_return)).await.is_none() {
            let how = self.poll_exit().map_or(String::new(), |how| format!("; its process: {how}"));
            let wait = Self::format_span(wait);
            return Ok(CaseOutcome::failed(format!("it did not come back within {wait}{how}")));
        }
        let outcome = match self.wait_for_outcome(number, false, wait).await {
            Ok(MessageOutcome::Answered(reply)) => match checks::check_result(&reply) {
                Some(why) => CaseOutcome::failed(why),
                None => CaseOutcome::passed(format!(
                    "it was back after {} ms: {}",
                    begun.elapsed().as_millis(),
                    reply.render()
                )),
            },
            Ok(end) => CaseOutcome::failed(format_outcome(&end)),
            Err(why) => CaseOutcome::failed(format!("after the cut: {why}")),
        };
        if let (CaseOutcome::Passed(_), Some(why)) =
            (&outcome, checks::check_same_results(&log.events_of(number)))
        {
            return Ok(CaseOutcome::failed(why));
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
        let wrong = self.check_working(self.timeout * RECONNECT_FACTOR).await?;
        Ok(wrong.map_or(outcome, |why| {
            CaseOutcome::failed(format!("afterwards it does not work any more: {why}"))
        }))
    }

    /// Sends the worker an unusual message, and checks that it survives.
    async fn check_survives(&mut self, message: TestMessage) -> Result<CaseOutcome, ClientError> {
        self.stub.send(&message).await?;
        let is_mute = !message.has_reply_to;
        let outcome = match self.wait_for_outcome(message.number, is_mute, self.timeout).await {
            Ok(MessageOutcome::RequeueLoop(count)) => {
                self.stub.end_attempt(&message);
                CaseOutcome::failed(format_requeue_loop(count))
            }
            Ok(end) => CaseOutcome::passed(format_outcome(&end)),
            Err(why) => CaseOutcome::failed(why),
        };
        self.check_still_works(outcome).await
    }

    async fn check_hundred(&mut self) -> Result<CaseOutcome, ClientError> {
        let mut numbers = Vec::new();
        for _ in 0..BATCH_SIZE {
            numbers.push(self.send_valid().await?.number);
        }
        let log = self.log.clone();
        let count_done = || {
            let is_done =
                |number: &&usize| checks::find_outcome(&log.events_of(**number), false).is_some();
            numbers.iter().filter(is_done).count()
        };
        let mut before = 0;
        while before < BATCH_SIZE {
            let more = || Some(count_done()).filter(|count| *count > before);
            match log.wait_until(self.timeout, more).await {
                Some(count) => before = count,
                None => {
                    return Ok(CaseOutcome::failed(format!(
                        "{before} of {BATCH_SIZE} were done, and no other within {}",
                        Self::format_span(self.timeout)
                    )));
                }
            }
        }
        let check_message = |number: &usize| {
            let seen = log.events_of(*number);
            let count = settling_replies(&seen).count();
            (count != 1)
                .then(|| format!("message {number} was answered {count} times"))
                .or_else(|| self.check_reply(find_reply(&seen)?))
        };
        // A second reply may come late.
        let found = log.wait_until(DUPLICATE_WAIT, || numbers.iter().find_map(check_message)).await;
        Ok(found.map_or_else(
            || CaseOutcome::passed(format!("{BATCH_SIZE} messages, {BATCH_SIZE} answers")),
            CaseOutcome::failed,
        ))
    }

    /// Returns the events of each valid message that the worker has answered.
    fn answered_messages(&self) -> Vec<Vec<LoggedEvent>> {
        let seen = self.valid_messages.iter().map(|number| self.log.events_of(*number));
        seen.filter(|seen| find_reply(seen).is_some()).collect()
    }

    fn check_ack_order(&self) -> CaseOutcome {
        let answered = self.answered_messages();
        match answered.iter().find_map(|seen| checks::check_ack_after_reply(seen)) {
            Some(why) => CaseOutcome::failed(why),
            None => CaseOutcome::passed(format!("{} replies, each before its ack", answered.len())),
        }
    }

    fn check_confirms(&self) -> CaseOutcome {
        let answered = self.answered_messages();
        let confirmed =
            answered.iter().filter(|seen| checks::is_confirmed_before_ack(seen)).count();
        let summary = format!("{confirmed} of {} acks came after the confirm", answered.len());
        if confirmed == answered.len() {
            CaseOutcome::passed(summary)
        } else {
            CaseOutcome::failed(summary)
        }
    }

    /// Passes if `wrong` finds nothing in any reply; fails with its first finding otherwise.
    fn check_each_reply(
        &self,
        good: &str,
        wrong: impl Fn(&Reply) -> Option<String>,
    ) -> CaseOutcome {
        let answered = self.answered_messages();
        match answered.iter().filter_map(|seen| find_reply(seen)).find_map(wrong) {
            Some(why) => CaseOutcome::failed(why),
            None => CaseOutcome::passed(format!("{} replies {good}", answered.len())),
        }
    }

    fn check_attempt_header(&self) -> CaseOutcome {
        for number in &self.valid_messages {
            let seen = self.log.events_of(*number);
            let Some(reply) = find_reply(&seen) else { continue };
            let expected = i64::from(attempt_of(*number));
            match reply.properties.attempt {
                None => return CaseOutcome::failed("its replies have no header attempt"),
                Some(given) if given != expected => {
                    return CaseOutcome::failed(format!("attempt {expected} came back as {given}"));
                }
                Some(_) => {}
            }
        }
        CaseOutcome::passed("each reply has it")
    }

    fn check_persistent(&self) -> CaseOutcome {
        self.check_each_reply("are persistent", |reply| {
            (!reply.properties.is_persistent).then(|| "delivery_mode is not 2".to_owned())
        })
    }

    fn check_content_type(&self) -> CaseOutcome {
        self.check_each_reply("are application/json", |reply| {
            match &reply.properties.content_type {
                None => Some("its replies have no content_type".to_owned()),
                Some(name) if name.starts_with("application/json") => None,
                Some(name) => Some(format!("content_type is {name}")),
            }
        })
    }

    async fn check_round_trip(&mut self) -> Result<CaseOutcome, ClientError> {
        if self.expected.is_some() {
            return Ok(CaseOutcome::skipped("with --expect it is known what the worker gives"));
        }
        let (message, marker) = self.messages.round_trip();
        self.stub.send(&message).await?;
        let reply = match self.wait_for_outcome(message.number, false, self.timeout).await {
            Ok(MessageOutcome::Answered(reply)) => reply,
            Ok(end) => return Ok(CaseOutcome::skipped(format_outcome(&end))),
            Err(why) => return Ok(CaseOutcome::failed(why)),
        };
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        if !text.contains(&marker) {
            return Ok(CaseOutcome::skipped("the worker does not give its input back"));
        }
        let lost: Vec<&str> =
            ROUND_TRIP_VALUES.into_iter().filter(|part| !text.contains(part)).collect();
        if !lost.is_empty() {
            let lost = lost.join(", ");
            return Ok(CaseOutcome::failed(format!(
                "{lost} did not come back: {}",
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

    fn check_lease(&self) -> CaseOutcome {
        let (extended, expired) = self.log.with_events(|seen| {
            let count = |wanted: fn(&ObservedEvent) -> bool| {
                seen.iter().filter(|seen| wanted(&seen.event)).count()
            };
            (
                count(|what| matches!(what, ObservedEvent::LeaseExtended)),
                count(|what| matches!(what, ObservedEvent::LeaseExpired)),
            )
        });
        match (extended, expired) {
            (0, 0) => CaseOutcome::skipped("no work took as long as its lease"),
            (_, 0) => CaseOutcome::passed(format!("it extended {extended} times, in time")),
            _ => CaseOutcome::failed(format!("{expired} leases ended while it worked")),
        }
    }

    async fn check_attempt_over(&mut self) -> Result<CaseOutcome, ClientError> {
        let message = self.messages.valid();
        let number = message.number;
        self.stub.cancel_when_delivered(&message);
        self.stub.send(&message).await?;
        let log = self.log.clone();
        let is_given = |seen: &[LoggedEvent]| {
            seen.iter().any(|seen| matches!(seen.event, ObservedEvent::Delivered)).then_some(())
        };
        if log.wait_until_message(number, self.timeout, is_given).await.is_none() {
            return Ok(CaseOutcome::failed(checks::describe_missing(
                &log.events_of(number),
                &Self::format_span(self.timeout),
            )));
        }
        let first = |seen: &[LoggedEvent]| {
            let extended =
                seen.iter().any(|seen| matches!(seen.event, ObservedEvent::LeaseExtended));
            (extended || find_reply(seen).is_some()).then_some(extended)
        };
        match log.wait_until_message(number, self.timeout, first).await {
            Some(true) => {}
            Some(false) => {
                return Ok(CaseOutcome::skipped("it replied before it asked for more time"));
            }
            None => return Ok(CaseOutcome::skipped("it neither replied nor asked for more time")),
        }
        let wrong = self.check_working(self.timeout * RECONNECT_FACTOR).await?;
        Ok(match (find_reply(&log.events_of(number)), wrong) {
            (Some(reply), _) => {
                CaseOutcome::failed(format!("it went on, and replied {}", reply.render()))
            }
            (None, Some(why)) => CaseOutcome::failed(format!("afterwards: {why}")),
            (None, None) => CaseOutcome::passed("it stopped, and took the next message"),
        })
    }

    async fn check_redeclares_queue(&mut self) -> Result<CaseOutcome, ClientError> {
        if !self.stub.delete_queue().await? {
            return Ok(CaseOutcome::skipped("the queue was there before: it is not deleted"));
        }
        let begun = clock::timer_now();
        let wait = self.timeout * RECONNECT_FACTOR;
        while !self.stub.has_consumers().await {
            if begun.elapsed() > wait {
                let wait = Self::format_span(wait);
                return Ok(CaseOutcome::failed(format!("no worker declared it within {wait}")));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let seen = format!("it took from it again after {} ms", begun.elapsed().as_millis());
        self.check_still_works(CaseOutcome::passed(seen)).await
    }

    async fn check_sigterm(&mut self) -> Result<CaseOutcome, ClientError> {
        if self.program.is_none() {
            return Ok(CaseOutcome::skipped("worker-test must start the worker: -- CMD"));
        }
        let number = self.send_valid().await?.number;
        let log = self.log.clone();
        let is_given = |seen: &[LoggedEvent]| {
            seen.iter().any(|seen| matches!(seen.event, ObservedEvent::Delivered)).then_some(())
        };
        let given = log.wait_until_message(number, self.timeout, is_given).await;
        let Some(program) = self.program.as_mut().filter(|_| given.is_some()) else {
            return Ok(CaseOutcome::failed("it did not take the message"));
        };
        // Gives the message the time to reach the worker.
        tokio::time::sleep(DELIVERY_DELAY).await;
        program.terminate();
        let Some(how) = program.wait_for_exit(self.timeout).await else {
            return Ok(CaseOutcome::failed(format!(
                "it runs on {} after SIGTERM",
                Self::format_span(self.timeout)
            )));
        };
        let is_success = program.is_success();
        let end = |seen: &[LoggedEvent]| {
            let is_back =
                |seen: &LoggedEvent| matches!(seen.event, ObservedEvent::Nacked { requeue: true });
            let is_back = seen.iter().any(is_back).then_some("it put back what it had not begun");
            checks::find_outcome(seen, false).map(|_| "it answered what it had in hand").or(is_back)
        };
        Ok(match (log.wait_until_message(number, DUPLICATE_WAIT, end).await, is_success) {
            (Some(what), true) => CaseOutcome::passed(format!("{what}; exit code 0")),
            (Some(what), false) => CaseOutcome::failed(format!("{what}; {how}")),
            (None, _) => {
                CaseOutcome::failed(format!("what it had in hand was not answered; {how}"))
            }
        })
    }

    /// Stops the worker's process, if it is ours, and the stub manager.
    pub(super) async fn close(self) {
        if let Some(mut program) = self.program {
            program.stop().await;
        }
        self.stub.close().await;
    }
}

fn format_requeue_loop(count: usize) -> String {
    format!(
        "it puts the message back again and again: {count} deliveries within a second (nack with \
         requeue)"
    )
}

fn format_outcome(end: &MessageOutcome) -> String {
    match end {
        MessageOutcome::Answered(reply) => reply.render(),
        MessageOutcome::Refused => "it refused the message (nack without requeue)".to_owned(),
        MessageOutcome::Acked => "it acknowledged the message".to_owned(),
        MessageOutcome::RequeueLoop(count) => format_requeue_loop(*count),
    }
}
