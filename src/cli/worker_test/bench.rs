//! The test harness: runs each case, from the messages that it sends to the outcome.

use super::super::arguments::TestedBus;
use super::super::error::ClientError;
use super::cases::Case;
use super::cut::CutAt;
use super::judge::{self, End};
use super::log::{Log, Reply, Seen, What, replies_in, reply_in, stray_in};
use super::messages::{KEPT, KEYS, Message, Messages};
use super::program::Program;
use super::report::{Outcome, Report};
use super::stand::Stand;
use crate::clock;
use serde_json::Value;
use std::time::Duration;

/// The number of messages in the case that sends many.
const MANY: usize = 100;

/// How long to wait for a second reply to the same message.
const AFTERWARDS: Duration = Duration::from_secs(1);

/// How long a message may be under way to a worker that waits for it.
const ARRIVES_WITHIN: Duration = Duration::from_millis(100);

/// The pause between two checks whether the queue exists again.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// By how much the timeout is multiplied for a worker that must connect again.
const COME_BACK: u32 = 2;

/// A worker under test, with its stub manager and all that was seen of it.
pub(super) struct Bench {
    pub(super) bus: TestedBus,
    pub(super) stand: Stand,
    pub(super) log: Log,
    pub(super) program: Option<Program>,
    pub(super) messages: Messages,
    pub(super) expected: Option<Value>,
    pub(super) within: Duration,
    /// The numbers of the messages that the worker is able to process.
    pub(super) plain: Vec<usize>,
}

impl Bench {
    /// Runs all cases, and stops early if the worker no longer answers.
    pub(super) async fn run(&mut self, report: &mut Report<'_>) -> Result<(), ClientError> {
        for case in Case::of(self.bus) {
            let told = case.told(self.bus);
            let outcome = self.judge(case).await?;
            report.tell(&told, &outcome)?;
            if !matches!(outcome, Outcome::Failed(_)) || case.leaves_no_trace() {
                continue;
            }
            if case == Case::Answers {
                report.stop("the worker does not do the message that it can do (--message)")?;
                return Ok(());
            }
            if let Some(why) = self.wrong_afterwards().await? {
                report.stop(&format!("the worker does not answer any more: {why}"))?;
                return Ok(());
            }
        }
        Ok(())
    }

    async fn judge(&mut self, case: Case) -> Result<Outcome, ClientError> {
        match case {
            Case::Answers => self.answers().await,
            Case::CutBeforeReply => self.cut(CutAt::Reply).await,
            Case::CutAfterReply => self.cut(CutAt::Ack).await,
            Case::NotJson => {
                let message = self.messages.with("{\"this is\": not JSON");
                self.bears(message).await
            }
            Case::Array => {
                let message = self.messages.with("[1, 2, 3]");
                self.bears(message).await
            }
            Case::Empty => {
                let message = self.messages.with("");
                self.bears(message).await
            }
            Case::Deep => {
                let message = self.messages.deep();
                self.bears(message).await
            }
            Case::Large => {
                let message = self.messages.large();
                self.bears(message).await
            }
            Case::Headers => {
                let message = Message { is_adorned: true, ..self.messages.plain() };
                self.bears(message).await
            }
            Case::NoReplyTo => {
                let message = Message { has_reply_to: false, ..self.messages.plain() };
                self.bears(message).await
            }
            Case::Hundred => self.hundred().await,
            Case::Order => Ok(self.order()),
            Case::Confirms => Ok(self.confirms()),
            Case::Attempt => Ok(self.attempt()),
            Case::Persistent => Ok(self.persistent()),
            Case::ContentType => Ok(self.content_type()),
            Case::Digits => self.digits().await,
            Case::Lease => Ok(self.lease()),
            Case::Gone => self.gone().await,
            Case::Declares => self.declares().await,
            Case::Terminates => self.terminates().await,
        }
    }

    fn shown(span: Duration) -> String {
        humantime::format_duration(span).to_string()
    }

    async fn send_plain(&mut self) -> Result<Message, ClientError> {
        let message = self.messages.plain();
        self.plain.push(message.number);
        self.stand.send(&message).await?;
        Ok(message)
    }

    /// Returns how the worker's process ended, or `None` if it runs or is not ours.
    fn death(&mut self) -> Option<String> {
        self.program.as_mut()?.ended()
    }

    /// Waits until a message has an outcome, and returns it; otherwise an error that says what is
    /// missing.
    async fn end_of(
        &mut self,
        number: usize,
        is_mute: bool,
        within: Duration,
    ) -> Result<End, String> {
        let (log, program) = (self.log.clone(), &mut self.program);
        let mut death = None;
        let found = log
            .until(within, || {
                if let Some(end) = judge::end(&log.of(number), is_mute) {
                    return Some(Some(end));
                }
                death = program.as_mut().and_then(Program::ended);
                death.is_some().then_some(None)
            })
            .await
            .flatten();
        // The last event may have come just before the process ended, so it is preferred.
        match (found, death) {
            (Some(end), _) => Ok(end),
            (None, Some(how)) => Err(format!("its process has ended: {how}")),
            (None, None) => Err(judge::what_is_missing(&log.of(number), &Self::shown(within))),
        }
    }

    /// Sends a valid message. Returns what is wrong with its outcome, or `None` if the worker
    /// works.
    async fn is_working(&mut self, within: Duration) -> Result<Option<String>, ClientError> {
        let number = self.send_plain().await?.number;
        Ok(match self.end_of(number, false, within).await {
            Ok(End::Answered(reply)) => self.wrong(&reply),
            Ok(end) => Some(ended(&end)),
            Err(why) => Some(why),
        })
    }

    /// Returns what is wrong with the reply to a valid message, or `None`.
    fn wrong(&self, reply: &Reply) -> Option<String> {
        judge::wrong_result(reply).or_else(|| {
            let expected = self.expected.as_ref()?;
            (judge::value(reply) != *expected)
                .then(|| format!("expected {expected}, it answered {}", reply.shown()))
        })
    }

    /// Recovers after a failed case: removes the remaining messages, restarts the worker's process
    /// if it is ours, and checks that it works. Returns what is wrong, or `None`.
    async fn wrong_afterwards(&mut self) -> Result<Option<String>, ClientError> {
        self.stand.clear().await?;
        let wrong = match self.death() {
            Some(how) => Some(format!("its process has ended: {how}")),
            None => self.is_working(self.within * COME_BACK).await?,
        };
        let (Some(_), Some(program)) = (&wrong, &mut self.program) else { return Ok(wrong) };
        program.start_again()?;
        self.stand.clear().await?;
        self.is_working(self.within * COME_BACK).await
    }

    async fn answers(&mut self) -> Result<Outcome, ClientError> {
        let begun = clock::ticks();
        // A worker that is started by hand gets more time.
        let (log, is_ours) = (self.log.clone(), self.program.is_some());
        let wait = if is_ours { self.within } else { self.within * COME_BACK };
        let came = || log.look(|seen| !seen.is_empty()).then_some(());
        if log.until(wait, || came().or_else(|| self.death().map(drop))).await.is_none() {
            return Ok(Outcome::failed(format!("no worker came within {}", Self::shown(wait))));
        }
        let number = self.send_plain().await?.number;
        let end = self.end_of(number, false, self.within).await;
        let stray = log.look(|seen| stray_in(seen).map(|what| what.to_string()));
        Ok(match (end, stray) {
            (Ok(End::Answered(reply)), None) => match self.wrong(&reply) {
                None => Outcome::passed(format!(
                    "{} after {} ms",
                    reply.shown(),
                    begun.elapsed().as_millis()
                )),
                Some(why) => Outcome::failed(why),
            },
            (Ok(End::Answered(_)), Some(stray)) => Outcome::failed(stray),
            (Ok(end), _) => Outcome::failed(ended(&end)),
            (Err(why), Some(stray)) => Outcome::failed(format!("{why}; {stray}")),
            (Err(why), None) => Outcome::failed(why),
        })
    }

    async fn cut(&mut self, at: CutAt) -> Result<Outcome, ClientError> {
        let message = self.messages.plain();
        let number = message.number;
        self.stand.cut(&message, at);
        self.stand.send(&message).await?;
        let log = self.log.clone();
        let was_cut = |seen: &[Seen]| {
            let is_cut = seen.iter().any(|seen| matches!(seen.what, What::Cut));
            let is_over = judge::circles(seen).is_some();
            (is_cut || is_over).then_some(is_cut)
        };
        if log.until_of(number, self.within, was_cut).await != Some(true) {
            let why = judge::what_is_missing(&log.of(number), &Self::shown(self.within));
            return Ok(Outcome::failed(why));
        }
        let begun = clock::ticks();
        let wait = self.within * COME_BACK;
        let is_back = |seen: &[Seen]| {
            let cut = seen.iter().rposition(|seen| matches!(seen.what, What::Cut))?;
            let is_sign = |seen: &Seen| {
                matches!(seen.what, What::Came | What::Given | What::Said(_) | What::Published)
            };
            seen[cut + 1..].iter().any(is_sign).then_some(())
        };
        if log.until(wait, || log.look(is_back)).await.is_none() {
            let how = self.death().map_or(String::new(), |how| format!("; its process: {how}"));
            let wait = Self::shown(wait);
            return Ok(Outcome::failed(format!("it did not come back within {wait}{how}")));
        }
        let outcome = match self.end_of(number, false, wait).await {
            Ok(End::Answered(reply)) => match judge::wrong_result(&reply) {
                Some(why) => Outcome::failed(why),
                None => Outcome::passed(format!(
                    "it was back after {} ms: {}",
                    begun.elapsed().as_millis(),
                    reply.shown()
                )),
            },
            Ok(end) => Outcome::failed(ended(&end)),
            Err(why) => Outcome::failed(format!("after the cut: {why}")),
        };
        if let (Outcome::Passed(_), Some(why)) = (&outcome, judge::different(&log.of(number))) {
            return Ok(Outcome::failed(why));
        }
        self.still_works(outcome).await
    }

    /// Turns a passed outcome into a failed one if the worker does not work afterwards.
    async fn still_works(&mut self, outcome: Outcome) -> Result<Outcome, ClientError> {
        if !matches!(outcome, Outcome::Passed(_)) {
            return Ok(outcome);
        }
        let wrong = self.is_working(self.within * COME_BACK).await?;
        Ok(wrong.map_or(outcome, |why| {
            Outcome::failed(format!("afterwards it does not work any more: {why}"))
        }))
    }

    /// Sends the worker an unusual message, and checks that it survives.
    async fn bears(&mut self, message: Message) -> Result<Outcome, ClientError> {
        self.stand.send(&message).await?;
        let is_mute = !message.has_reply_to;
        let outcome = match self.end_of(message.number, is_mute, self.within).await {
            Ok(End::Circles(count)) => {
                self.stand.give_up(&message);
                Outcome::failed(circle(count))
            }
            Ok(end) => Outcome::passed(ended(&end)),
            Err(why) => Outcome::failed(why),
        };
        self.still_works(outcome).await
    }

    async fn hundred(&mut self) -> Result<Outcome, ClientError> {
        let mut numbers = Vec::new();
        for _ in 0..MANY {
            numbers.push(self.send_plain().await?.number);
        }
        let log = self.log.clone();
        let done = || {
            let is_done = |number: &&usize| judge::end(&log.of(**number), false).is_some();
            numbers.iter().filter(is_done).count()
        };
        let mut before = 0;
        while before < MANY {
            let more = || Some(done()).filter(|count| *count > before);
            match log.until(self.within, more).await {
                Some(count) => before = count,
                None => {
                    return Ok(Outcome::failed(format!(
                        "{before} of {MANY} were done, and no other within {}",
                        Self::shown(self.within)
                    )));
                }
            }
        }
        let wrong = |number: &usize| {
            let seen = log.of(*number);
            let count = replies_in(&seen).count();
            (count != 1)
                .then(|| format!("message {number} was answered {count} times"))
                .or_else(|| self.wrong(reply_in(&seen)?))
        };
        // A second reply may come late.
        let found = log.until(AFTERWARDS, || numbers.iter().find_map(wrong)).await;
        Ok(found.map_or_else(
            || Outcome::passed(format!("{MANY} messages, {MANY} answers")),
            Outcome::failed,
        ))
    }

    /// Returns the events of each valid message that the worker has answered.
    fn answered(&self) -> Vec<Vec<Seen>> {
        let seen = self.plain.iter().map(|number| self.log.of(*number));
        seen.filter(|seen| reply_in(seen).is_some()).collect()
    }

    fn order(&self) -> Outcome {
        let answered = self.answered();
        match answered.iter().find_map(|seen| judge::acked_early(seen)) {
            Some(why) => Outcome::failed(why),
            None => Outcome::passed(format!("{} replies, each before its ack", answered.len())),
        }
    }

    fn confirms(&self) -> Outcome {
        let answered = self.answered();
        let confirmed = answered.iter().filter(|seen| judge::is_confirmed_first(seen)).count();
        let told = format!("{confirmed} of {} acks came after the confirm", answered.len());
        if confirmed == answered.len() { Outcome::passed(told) } else { Outcome::failed(told) }
    }

    /// Passes if `wrong` finds nothing in any reply; fails with its first finding otherwise.
    fn each_reply(&self, good: &str, wrong: impl Fn(&Reply) -> Option<String>) -> Outcome {
        let answered = self.answered();
        match answered.iter().filter_map(|seen| reply_in(seen)).find_map(wrong) {
            Some(why) => Outcome::failed(why),
            None => Outcome::passed(format!("{} replies {good}", answered.len())),
        }
    }

    fn attempt(&self) -> Outcome {
        let of = |number: &usize| 1 + i64::try_from(number % 3).unwrap_or_default();
        for number in &self.plain {
            let seen = self.log.of(*number);
            let Some(reply) = reply_in(&seen) else { continue };
            match reply.properties.attempt {
                None => return Outcome::failed("its replies have no header attempt"),
                Some(given) if given != of(number) => {
                    return Outcome::failed(format!("attempt {} came back as {given}", of(number)));
                }
                Some(_) => {}
            }
        }
        Outcome::passed("each reply has it")
    }

    fn persistent(&self) -> Outcome {
        self.each_reply("are persistent", |reply| {
            (!reply.properties.is_persistent).then(|| "delivery_mode is not 2".to_owned())
        })
    }

    fn content_type(&self) -> Outcome {
        self.each_reply("are application/json", |reply| match &reply.properties.content_type {
            None => Some("its replies have no content_type".to_owned()),
            Some(name) if name.starts_with("application/json") => None,
            Some(name) => Some(format!("content_type is {name}")),
        })
    }

    async fn digits(&mut self) -> Result<Outcome, ClientError> {
        if self.expected.is_some() {
            return Ok(Outcome::skipped("with --expect it is known what the worker gives"));
        }
        let (message, mark) = self.messages.digits();
        self.stand.send(&message).await?;
        let reply = match self.end_of(message.number, false, self.within).await {
            Ok(End::Answered(reply)) => reply,
            Ok(end) => return Ok(Outcome::skipped(ended(&end))),
            Err(why) => return Ok(Outcome::failed(why)),
        };
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        if !text.contains(&mark) {
            return Ok(Outcome::skipped("the worker does not give its input back"));
        }
        let lost: Vec<&str> = KEPT.into_iter().filter(|part| !text.contains(part)).collect();
        if !lost.is_empty() {
            let lost = lost.join(", ");
            return Ok(Outcome::failed(format!("{lost} did not come back: {}", reply.shown())));
        }
        let places: Vec<Option<usize>> = KEYS.iter().map(|key| text.find(key)).collect();
        Ok(if places.is_sorted() {
            Outcome::passed("all came back as it was")
        } else {
            Outcome::failed(format!("the keys are in another order: {}", reply.shown()))
        })
    }

    fn lease(&self) -> Outcome {
        let (extended, expired) = self.log.look(|seen| {
            let count =
                |wanted: fn(&What) -> bool| seen.iter().filter(|seen| wanted(&seen.what)).count();
            (
                count(|what| matches!(what, What::Extended)),
                count(|what| matches!(what, What::Expired)),
            )
        });
        match (extended, expired) {
            (0, 0) => Outcome::skipped("no work took as long as its lease"),
            (_, 0) => Outcome::passed(format!("it extended {extended} times, in time")),
            _ => Outcome::failed(format!("{expired} leases ended while it worked")),
        }
    }

    async fn gone(&mut self) -> Result<Outcome, ClientError> {
        let message = self.messages.plain();
        let number = message.number;
        self.stand.cancel_when_given(&message);
        self.stand.send(&message).await?;
        let log = self.log.clone();
        let is_given =
            |seen: &[Seen]| seen.iter().any(|seen| matches!(seen.what, What::Given)).then_some(());
        if log.until_of(number, self.within, is_given).await.is_none() {
            return Ok(Outcome::failed(judge::what_is_missing(
                &log.of(number),
                &Self::shown(self.within),
            )));
        }
        let first = |seen: &[Seen]| {
            let extended = seen.iter().any(|seen| matches!(seen.what, What::Extended));
            (extended || reply_in(seen).is_some()).then_some(extended)
        };
        match log.until_of(number, self.within, first).await {
            Some(true) => {}
            Some(false) => return Ok(Outcome::skipped("it replied before it asked for more time")),
            None => return Ok(Outcome::skipped("it neither replied nor asked for more time")),
        }
        let wrong = self.is_working(self.within * COME_BACK).await?;
        Ok(match (reply_in(&log.of(number)), wrong) {
            (Some(reply), _) => {
                Outcome::failed(format!("it went on, and replied {}", reply.shown()))
            }
            (None, Some(why)) => Outcome::failed(format!("afterwards: {why}")),
            (None, None) => Outcome::passed("it stopped, and took the next message"),
        })
    }

    async fn declares(&mut self) -> Result<Outcome, ClientError> {
        if !self.stand.delete_queue().await? {
            return Ok(Outcome::skipped("the queue was there before: it is not deleted"));
        }
        let begun = clock::ticks();
        let wait = self.within * COME_BACK;
        while !self.stand.is_consumed().await {
            if begun.elapsed() > wait {
                let wait = Self::shown(wait);
                return Ok(Outcome::failed(format!("no worker declared it within {wait}")));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let seen = format!("it took from it again after {} ms", begun.elapsed().as_millis());
        self.still_works(Outcome::passed(seen)).await
    }

    async fn terminates(&mut self) -> Result<Outcome, ClientError> {
        if self.program.is_none() {
            return Ok(Outcome::skipped("worker-test must start the worker: -- CMD"));
        }
        let number = self.send_plain().await?.number;
        let log = self.log.clone();
        let is_given =
            |seen: &[Seen]| seen.iter().any(|seen| matches!(seen.what, What::Given)).then_some(());
        let given = log.until_of(number, self.within, is_given).await;
        let Some(program) = self.program.as_mut().filter(|_| given.is_some()) else {
            return Ok(Outcome::failed("it did not take the message"));
        };
        // Gives the message the time to reach the worker.
        tokio::time::sleep(ARRIVES_WITHIN).await;
        program.terminate();
        let Some(how) = program.await_end(self.within).await else {
            return Ok(Outcome::failed(format!(
                "it runs on {} after SIGTERM",
                Self::shown(self.within)
            )));
        };
        let is_success = program.is_success();
        let end = |seen: &[Seen]| {
            let is_back = |seen: &Seen| matches!(seen.what, What::Nacked { requeue: true });
            let is_back = seen.iter().any(is_back).then_some("it put back what it had not begun");
            judge::end(seen, false).map(|_| "it answered what it had in hand").or(is_back)
        };
        Ok(match (log.until_of(number, AFTERWARDS, end).await, is_success) {
            (Some(what), true) => Outcome::passed(format!("{what}; exit code 0")),
            (Some(what), false) => Outcome::failed(format!("{what}; {how}")),
            (None, _) => Outcome::failed(format!("what it had in hand was not answered; {how}")),
        })
    }

    /// Stops the worker's process, if it is ours, and the stub manager.
    pub(super) async fn close(self) {
        if let Some(mut program) = self.program {
            program.end().await;
        }
        self.stand.close().await;
    }
}

fn circle(count: usize) -> String {
    format!(
        "it puts the message back again and again: {count} deliveries within a second (nack with \
         requeue)"
    )
}

fn ended(end: &End) -> String {
    match end {
        End::Answered(reply) => reply.shown(),
        End::Refused => "it refused the message (nack without requeue)".to_owned(),
        End::Acked => "it acknowledged the message".to_owned(),
        End::Circles(count) => circle(*count),
    }
}
