//! Implements `work`, which makes any program a worker. One thread, the dispatcher, receives
//! messages. Each message in flight has a thread of its own, which sends events to the dispatcher.

mod hand;
mod message;
mod program;
mod tail;

use super::arguments::WorkArguments;
use super::client::{Asked, Client};
use super::error::ClientError;
use super::signals::Signals;
use crate::clock;
use crate::engine::words::enumerated;
use crate::telemetry::log::say;
use hand::{Bench, End, Hand, News};
use message::Message;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use program::{Event, Program, is_passing};
use std::collections::{HashMap, HashSet};
use std::io;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Scope};
use std::time::Duration;

/// How long a receive request waits at an empty queue. A request under way is not aborted, since a
/// message might come with it; this is how long the worker may take to stop.
const WAIT: Duration = Duration::from_secs(2);

/// The same, if there are several queues.
const WAIT_IN_TURN: Duration = Duration::from_secs(1);

/// How much longer than its wait a receive request may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// The bounds of the pause between two attempts to receive.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_LONGEST: Duration = Duration::from_secs(5);

/// After so many outputs in a row that no step can have, or that its step cannot, the worker ends:
/// the program is not one for this, and each message fails an attempt.
const WRONG_OUTPUTS_MAX: u32 = 5;

/// Runs `work QUEUE… -- CMD`.
pub(super) fn work(arguments: &WorkArguments) -> Result<ExitCode, ClientError> {
    let bench = Bench {
        program: Program::find(&arguments.command)?,
        client: Client::new(&arguments.reach)?,
        lease: arguments.lease.0,
        is_quiet: arguments.quiet,
    };
    let (to_me, mail) = channel();
    listen_for_signals(to_me.clone())?;
    thread::scope(|scope| {
        let mut taker = Taker {
            scope,
            bench: &bench,
            arguments,
            to_me,
            mail,
            in_hand: HashMap::new(),
            unsent: HashSet::new(),
            known: HashSet::new(),
            turn: 0,
            wrong_outputs: 0,
            has_begun: false,
            is_stopping: false,
            failure: None,
            pause: PAUSE_FIRST,
            is_in_trouble: false,
        };
        taker.run();
        match taker.failure.take() {
            Some(error) => Err(error),
            None => Ok(ExitCode::SUCCESS),
        }
    })
}

/// A message in flight.
struct InHand {
    events: Sender<Event>,
    /// The same message, if it was delivered again.
    again: Option<Message>,
}

/// Tells the dispatcher on drop that a message is no longer in flight, even if its thread panicked.
struct Done {
    id: String,
    end: End,
    news: Sender<News>,
}

impl Drop for Done {
    fn drop(&mut self) {
        // Sending cannot fail: the dispatcher outlives the tasks.
        let end = std::mem::replace(&mut self.end, End::Open);
        let _ = self.news.send(News::Done(std::mem::take(&mut self.id), end));
    }
}

/// Receives messages and starts a task for each.
struct Taker<'s, 'b> {
    scope: &'s Scope<'s, 'b>,
    bench: &'b Bench,
    arguments: &'b WorkArguments,
    to_me: Sender<News>,
    mail: Receiver<News>,
    /// The messages in flight, by their ids.
    in_hand: HashMap<String, InHand>,
    /// The messages whose replies have not reached the manager yet.
    unsent: HashSet<String>,
    /// The indices of the queues that the manager has confirmed to exist.
    known: HashSet<usize>,
    /// The index of the queue that is polled next.
    turn: usize,
    /// How many outputs in a row failed their attempts.
    wrong_outputs: u32,
    /// Whether the manager has answered before.
    has_begun: bool,
    is_stopping: bool,
    failure: Option<ClientError>,
    pause: Duration,
    is_in_trouble: bool,
}

impl Taker<'_, '_> {
    /// Runs until the worker is asked to stop, or cannot go on, and nothing is in flight.
    fn run(&mut self) {
        loop {
            while let Ok(news) = self.mail.try_recv() {
                self.hear(news);
            }
            if self.is_stopping && self.in_hand.is_empty() {
                return;
            }
            // Replies come first, so that what they settle is not delivered twice.
            let is_busy = self.in_hand.len() >= self.arguments.jobs as usize;
            if self.is_stopping || is_busy || !self.unsent.is_empty() {
                // The channel stays open, since the dispatcher holds a sender itself.
                if let Ok(news) = self.mail.recv() {
                    self.hear(news);
                }
                continue;
            }
            match self.ask_in_turn() {
                Ok(Ok(message)) => {
                    self.answered();
                    self.pause = PAUSE_FIRST;
                    if let Some(message) = message {
                        self.take(message);
                    }
                }
                Ok(Err((status, why))) => {
                    // A queue that existed before may come back with the next reload.
                    if self.known.contains(&self.turn) || status.is_server_error() {
                        self.trouble(&why);
                    } else {
                        self.fail(ClientError::Refused(why));
                    }
                }
                Err(ClientError::Unreachable { server, error }) => {
                    self.trouble(&format!("cannot reach the manager at {server}: {error}"));
                }
                Err(error) => self.fail(error),
            }
        }
    }

    fn answered(&mut self) {
        let was_in_trouble = std::mem::take(&mut self.is_in_trouble);
        if std::mem::replace(&mut self.has_begun, true) {
            if was_in_trouble {
                say("the manager answers again");
            }
        } else if !self.bench.is_quiet {
            let queues = self.arguments.queues.iter().map(String::as_str);
            say(&format!(
                "takes messages of {}, {} at once",
                enumerated(queues, "and"),
                self.arguments.jobs
            ));
        }
    }

    /// Polls each queue in turn, and waits at the last one.
    fn ask_in_turn(&mut self) -> Asked<Option<Message>> {
        let count = self.arguments.queues.len();
        if count == 1 {
            return self.ask(WAIT);
        }
        for _ in 0..count {
            match self.ask(Duration::ZERO)? {
                Ok(None) => self.turn = (self.turn + 1) % count,
                Ok(Some(message)) => {
                    self.turn = (self.turn + 1) % count;
                    return Ok(Ok(Some(message)));
                }
                Err(refused) => return Ok(Err(refused)),
            }
        }
        let found = self.ask(WAIT_IN_TURN)?;
        if found.is_ok() {
            self.turn = (self.turn + 1) % count;
        }
        Ok(found)
    }

    /// Receives a message from the queue at `queue_index`, if there is one.
    fn ask(&mut self, wait: Duration) -> Asked<Option<Message>> {
        let (queue, vhost) = (&self.arguments.queues[self.turn], &self.arguments.vhost);
        let shown = |span: Duration| humantime::format_duration(span).to_string();
        let mut query =
            vec![("wait".to_owned(), shown(wait)), ("lease".to_owned(), shown(self.bench.lease))];
        if !vhost.is_empty() {
            query.push(("vhost".to_owned(), vhost.clone()));
        }
        let path = format!("/api/queue/{}/receive", utf8_percent_encode(queue, NON_ALPHANUMERIC));
        let found = match self.bench.client.receive(&path, &query, wait + ANSWER_TIMEOUT)? {
            Ok(found) => found,
            Err(refused) => return Ok(Err(refused)),
        };
        self.known.insert(self.turn);
        found.map(|received| Message::new(queue, vhost, received)).transpose().map(Ok)
    }

    fn take(&mut self, message: Message) {
        while let Ok(news) = self.mail.try_recv() {
            self.hear(news);
        }
        let id = message.id();
        if let Some(in_hand) = self.in_hand.get_mut(&id) {
            // After a restart the manager delivers the message again. It is processed once.
            let _ = in_hand.events.send(Event::LentAgain(message.reply_to().to_owned()));
            in_hand.again = Some(message);
        } else {
            self.begin(id, message);
        }
    }

    fn begin(&mut self, id: String, message: Message) {
        if self.is_stopping {
            if let Err(why) = message.give_back(&self.bench.client, "0s") {
                say(&format!("{}: not given back: {why}", message.name()));
            }
            return;
        }
        let (to_me, events) = channel();
        let in_hand = InHand { events: to_me.clone(), again: None };
        self.in_hand.insert(id.clone(), in_hand);
        let news = self.to_me.clone();
        let hand = Hand { bench: self.bench, message, to_me, events, news: news.clone() };
        self.scope.spawn(move || {
            let mut done = Done { id, end: End::Open, news };
            done.end = hand.work();
        });
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Unsent(id) => {
                if self.unsent.insert(id) && self.unsent.len() == 1 {
                    say("the manager does not take a reply; it is sent again until it does");
                }
            }
            News::Done(id, end) => {
                self.unsent.remove(&id);
                let again = self.in_hand.remove(&id).and_then(|in_hand| in_hand.again);
                match end {
                    End::Open => {
                        if let Some(message) = again {
                            self.begin(id, message);
                        }
                    }
                    End::Settled => self.wrong_outputs = 0,
                    End::WrongOutput(why) => self.wrong_output(&why),
                }
            }
            News::NotStarted(error) => self.not_started(&error),
            News::Stop if self.is_stopping => {
                for in_hand in self.in_hand.values() {
                    // Sending fails for a task that has just ended, which has nothing to requeue.
                    let _ = in_hand.events.send(Event::GiveUp);
                }
            }
            News::Stop => {
                self.is_stopping = true;
                if !self.in_hand.is_empty() {
                    say(&format!(
                        "stopping when {} in hand; the next signal gives back what is",
                        counted(self.in_hand.len())
                    ));
                }
            }
        }
    }

    fn not_started(&mut self, error: &io::Error) {
        let why = format!("cannot run {}: {error}", self.bench.program.shown());
        if is_passing(error) {
            self.trouble(&why);
        } else {
            self.fail(ClientError::Usage(why));
        }
    }

    fn wrong_output(&mut self, why: &str) {
        self.wrong_outputs += 1;
        if self.wrong_outputs >= WRONG_OUTPUTS_MAX {
            self.fail(ClientError::Refused(format!(
                "{WRONG_OUTPUTS_MAX} times in a row {why}. No more messages are taken: each one \
                 fails an attempt. {} must print one JSON object that the step can have, or nothing, \
                 on its standard output; what else it says belongs on its standard error",
                self.bench.program.shown()
            )));
        }
    }

    /// Stops the worker once nothing is in flight, with this error.
    fn fail(&mut self, error: ClientError) {
        self.failure.get_or_insert(error);
        self.is_stopping = true;
    }

    /// Waits for the backoff after an error that may be transient.
    fn trouble(&mut self, why: &str) {
        if !std::mem::replace(&mut self.is_in_trouble, true) {
            say(&format!("{why}; it is tried again until it works"));
        }
        let until = clock::ticks() + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_LONGEST);
        while let Ok(news) = self.mail.recv_timeout(until.saturating_duration_since(clock::ticks()))
        {
            self.hear(news);
            if self.is_stopping {
                return;
            }
        }
    }
}

fn counted(messages: usize) -> String {
    match messages {
        1 => "the message is done that is".to_owned(),
        _ => format!("the {messages} messages are done that are"),
    }
}

/// Forwards each signal to stop to the dispatcher, and prints that other signals have no effect.
fn listen_for_signals(to: Sender<News>) -> Result<(), ClientError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut stops, mut void) = {
        let _entered = runtime.enter();
        (Signals::stops_at_a_terminal()?, Signals::void()?)
    };
    let listen = async move {
        loop {
            tokio::select! {
                _ = stops.next() => {}
                signal = void.next() => {
                    say(&format!("{signal} means nothing here: SIGTERM ends the worker"));
                    continue;
                }
            }
            if to.send(News::Stop).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(move || runtime.block_on(listen))?;
    Ok(())
}
