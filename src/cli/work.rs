//! `work`: makes any program a worker of the embedded queues. The dispatcher, on the calling
//! thread, receives messages by long polls. Each message in flight has a task on its own thread,
//! which runs the program, and reports to the dispatcher by events.

mod message;
mod message_task;
mod program;
mod tail;

use super::arguments::WorkArguments;
use super::client::{ApiResult, Client};
use super::error::ClientError;
use super::file_watcher::{FileWatcher, WATCH_INTERVAL};
use super::signals::Signals;
use base::clock;
use daemon::telemetry::log::print;
use engine::text::enumerate_quoted;
use message::WorkMessage;
use message_task::{DispatcherEvent, MessageTask, TaskOutcome, WorkContext};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
pub(super) use program::read_chunk;
use program::{Program, TaskEvent, is_transient};
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Scope};
use std::time::Duration;

/// The wait of a long poll if there is one queue. A pending poll is not aborted, since its response
/// may have a message. So an idle worker takes up to this long to stop.
const RECEIVE_WAIT: Duration = Duration::from_secs(2);

/// The wait of a long poll if there are several queues. It is shorter, because a message in another
/// queue waits meanwhile.
const RECEIVE_WAIT_SEVERAL_QUEUES: Duration = Duration::from_secs(1);

/// How much longer than its wait a long poll may take before it fails.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// The bounds of the backoff after a failed poll, or after the program could not be started.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// How many invalid outputs in a row stop the worker. Each of them fails an attempt, and a program
/// that prints so many is probably not written as a worker.
const INVALID_OUTPUTS_MAX: u32 = 5;

/// Runs `work QUEUE… -- CMD` until a signal or an error stops the worker.
pub(super) fn work(arguments: &WorkArguments) -> Result<ExitCode, ClientError> {
    let context = WorkContext {
        program: Program::find(&arguments.command)?,
        lease: arguments.lease.0,
        is_quiet: arguments.quiet,
        is_watching: arguments.watch,
    };
    let client = Client::new(&arguments.target)?;
    let (event_sender, events) = channel();
    forward_signals(event_sender.clone())?;
    if arguments.watch {
        forward_changes(context.program.files(), event_sender.clone())?;
    }
    thread::scope(|scope| {
        let mut dispatcher = Dispatcher {
            scope,
            context: &context,
            client,
            arguments,
            event_sender,
            events,
            in_flight: HashMap::new(),
            unsent_replies: HashSet::new(),
            confirmed_queues: HashSet::new(),
            queue_index: 0,
            invalid_outputs: 0,
            has_connected: false,
            is_stopping: false,
            is_waiting_for_change: false,
            failure: None,
            backoff: BACKOFF_MIN,
            is_retrying: false,
        };
        dispatcher.run();
        match dispatcher.failure.take() {
            Some(error) => Err(error),
            None => Ok(ExitCode::SUCCESS),
        }
    })
}

/// A message in flight.
struct InFlightMessage {
    /// Sends events to the task of the message.
    event_sender: Sender<TaskEvent>,
    /// The latest redelivery of the message, if there was one. It is worked on if the task ends
    /// without settling the message.
    redelivered: Option<WorkMessage>,
}

/// Notifies the dispatcher on drop that a message is no longer in flight, even if its task
/// panicked.
struct CompletionGuard {
    id: String,
    outcome: TaskOutcome,
    dispatcher: Sender<DispatcherEvent>,
}

impl Drop for CompletionGuard {
    fn drop(&mut self) {
        let id = std::mem::take(&mut self.id);
        let outcome = std::mem::replace(&mut self.outcome, TaskOutcome::Unsettled);
        // Sending cannot fail: the dispatcher outlives the tasks.
        let _ = self.dispatcher.send(DispatcherEvent::TaskEnded(id, outcome));
    }
}

/// Receives messages, and starts a task for each.
struct Dispatcher<'scope, 'env> {
    /// The scope in which tasks are spawned.
    scope: &'scope Scope<'scope, 'env>,
    context: &'env WorkContext,
    /// Cloned for each task.
    client: Client,
    arguments: &'env WorkArguments,
    /// Cloned for each task, so that it can send events to this dispatcher.
    event_sender: Sender<DispatcherEvent>,
    events: Receiver<DispatcherEvent>,
    /// The messages in flight, by their ids.
    in_flight: HashMap<String, InFlightMessage>,
    /// The ids of the messages whose replies have not reached the manager yet.
    unsent_replies: HashSet<String>,
    /// The indices of the queues that the manager has confirmed to exist.
    confirmed_queues: HashSet<usize>,
    /// The index of the queue that is polled next.
    queue_index: usize,
    /// How many outputs in a row were invalid.
    invalid_outputs: u32,
    /// Whether the manager has answered before.
    has_connected: bool,
    /// Whether no more messages are received, and the worker ends once nothing is in flight.
    is_stopping: bool,
    /// Whether no more messages are received until a file of the program has changed.
    is_waiting_for_change: bool,
    /// Why the worker stops, unless a signal asked for it.
    failure: Option<ClientError>,
    /// The pause after the next error that may be transient.
    backoff: Duration,
    /// Whether an error that may be transient was reported, and no poll has succeeded since.
    is_retrying: bool,
}

impl Dispatcher<'_, '_> {
    /// Runs until the worker is stopping, by a signal or a failure, and nothing is in flight.
    fn run(&mut self) {
        loop {
            while let Ok(event) = self.events.try_recv() {
                self.handle_event(event);
            }
            if self.is_stopping && self.in_flight.is_empty() {
                return;
            }
            // Replies are sent before more messages are received, so that their messages are not
            // delivered again.
            let is_at_capacity = self.in_flight.len() >= self.arguments.jobs as usize;
            let is_waiting = is_at_capacity || self.is_waiting_for_change;
            if self.is_stopping || is_waiting || !self.unsent_replies.is_empty() {
                // Receiving cannot fail: the dispatcher itself holds a sender.
                if let Ok(event) = self.events.recv() {
                    self.handle_event(event);
                }
                continue;
            }
            match self.poll_queues() {
                Ok(Ok(message)) => {
                    self.handle_connected();
                    self.backoff = BACKOFF_MIN;
                    if let Some(message) = message {
                        self.handle_message(message);
                    }
                }
                Ok(Err((status, detail))) => {
                    // A queue that a reload of the workflow files has removed may exist again after
                    // the next reload.
                    if self.confirmed_queues.contains(&self.queue_index) || status.is_server_error()
                    {
                        self.back_off(&detail);
                    } else {
                        self.fail(ClientError::Refused(detail));
                    }
                }
                Err(ClientError::Unreachable { server, error }) => {
                    self.back_off(&format!("cannot reach the manager at {server}: {error}"));
                }
                Err(error) => self.fail(error),
            }
        }
    }

    /// Handles a successful call. The first one prints which queues are consumed, and the first one
    /// after an error that the manager answers again.
    fn handle_connected(&mut self) {
        let was_retrying = std::mem::take(&mut self.is_retrying);
        if std::mem::replace(&mut self.has_connected, true) {
            if was_retrying {
                print("the manager answers again");
            }
        } else if !self.context.is_quiet {
            let queues = self.arguments.queues.iter().map(String::as_str);
            print(&format!(
                "takes messages of {}, {} at once",
                enumerate_quoted(queues, "and"),
                self.arguments.jobs
            ));
        }
    }

    /// Receives a message from the queues in round-robin order. Each queue is polled without a wait
    /// first. If none has a message, the next queue gets a long poll.
    fn poll_queues(&mut self) -> ApiResult<Option<WorkMessage>> {
        let queue_count = self.arguments.queues.len();
        if queue_count == 1 {
            return self.receive(RECEIVE_WAIT);
        }
        for _ in 0..queue_count {
            match self.receive(Duration::ZERO)? {
                Ok(None) => self.queue_index = (self.queue_index + 1) % queue_count,
                Ok(Some(message)) => {
                    self.queue_index = (self.queue_index + 1) % queue_count;
                    return Ok(Ok(Some(message)));
                }
                Err(refusal) => return Ok(Err(refusal)),
            }
        }
        let result = self.receive(RECEIVE_WAIT_SEVERAL_QUEUES)?;
        if result.is_ok() {
            self.queue_index = (self.queue_index + 1) % queue_count;
        }
        Ok(result)
    }

    /// Receives a message from the queue at `queue_index`. Returns `None` if no message arrives
    /// within `wait`.
    fn receive(&mut self, wait: Duration) -> ApiResult<Option<WorkMessage>> {
        let (queue, vhost) = (&self.arguments.queues[self.queue_index], &self.arguments.vhost);
        let format_duration = |duration: Duration| humantime::format_duration(duration).to_string();
        let mut query = vec![
            ("wait".to_owned(), format_duration(wait)),
            ("lease".to_owned(), format_duration(self.context.lease)),
        ];
        if !vhost.is_empty() {
            query.push(("vhost".to_owned(), vhost.clone()));
        }
        let path = format!("/api/queue/{}/receive", utf8_percent_encode(queue, NON_ALPHANUMERIC));
        let response = match self.client.receive(&path, &query, wait + RESPONSE_TIMEOUT)? {
            Ok(response) => response,
            Err(refusal) => return Ok(Err(refusal)),
        };
        self.confirmed_queues.insert(self.queue_index);
        response.map(|message| WorkMessage::new(queue, vhost, message)).transpose().map(Ok)
    }

    /// Starts a task for a message. If a task already has the message, the task gets the new lease.
    fn handle_message(&mut self, message: WorkMessage) {
        // The task of the same message may just have ended.
        while let Ok(event) = self.events.try_recv() {
            self.handle_event(event);
        }
        let id = message.id();
        if let Some(in_flight) = self.in_flight.get_mut(&id) {
            // A restarted manager delivers the message again. The program is not run a second time.
            // Sending fails if the task has just ended. Its end is handled with `redelivered`.
            let _ =
                in_flight.event_sender.send(TaskEvent::Redelivered(message.reply_to().to_owned()));
            in_flight.redelivered = Some(message);
        } else {
            self.start_task(id, message);
        }
    }

    /// Starts the task of a message. A message that arrives while the worker stops is requeued.
    fn start_task(&mut self, id: String, message: WorkMessage) {
        if self.is_stopping {
            if let Err(error) = message.requeue(&self.client, "0s") {
                print(&format!("{}: not given back: {error}", message.describe()));
            }
            return;
        }
        let (event_sender, events) = channel();
        let in_flight = InFlightMessage { event_sender: event_sender.clone(), redelivered: None };
        self.in_flight.insert(id.clone(), in_flight);
        let dispatcher = self.event_sender.clone();
        let task = MessageTask {
            context: self.context,
            client: self.client.clone(),
            message,
            event_sender,
            events,
            dispatcher: dispatcher.clone(),
        };
        self.scope.spawn(move || {
            let mut guard = CompletionGuard { id, outcome: TaskOutcome::Unsettled, dispatcher };
            guard.outcome = task.run();
        });
    }

    fn handle_event(&mut self, event: DispatcherEvent) {
        match event {
            DispatcherEvent::ReplyUnsent(id) => {
                if self.unsent_replies.insert(id) && self.unsent_replies.len() == 1 {
                    print("the manager does not take a reply; it is sent again until it does");
                }
            }
            DispatcherEvent::TaskEnded(id, outcome) => {
                self.unsent_replies.remove(&id);
                let redelivered =
                    self.in_flight.remove(&id).and_then(|in_flight| in_flight.redelivered);
                match outcome {
                    TaskOutcome::Unsettled => {
                        if let Some(message) = redelivered {
                            self.start_task(id, message);
                        }
                    }
                    TaskOutcome::Settled => self.invalid_outputs = 0,
                    TaskOutcome::InvalidOutput(reason) => self.handle_invalid_output(&reason),
                }
            }
            DispatcherEvent::SpawnFailed(error) => self.handle_spawn_error(&error),
            DispatcherEvent::FilesChanged(files) => self.handle_changed_files(&files),
            DispatcherEvent::Stop if self.is_stopping => {
                for in_flight in self.in_flight.values() {
                    // Sending fails for a task that has just ended, which has nothing to requeue.
                    let _ = in_flight.event_sender.send(TaskEvent::Requeue);
                }
            }
            DispatcherEvent::Stop => {
                self.is_stopping = true;
                if !self.in_flight.is_empty() {
                    print(&match self.in_flight.len() {
                        1 => "stopping when the message is done; the next signal gives it back"
                            .to_owned(),
                        count => format!(
                            "stopping when the {count} messages are done; the next signal gives \
                             them back"
                        ),
                    });
                }
            }
        }
    }

    fn handle_spawn_error(&mut self, error: &io::Error) {
        let reason = format!("cannot run {}: {error}", self.context.program.display_name());
        if is_transient(error) {
            self.back_off(&reason);
        } else {
            self.fail_program(ClientError::Usage(reason));
        }
    }

    /// Begins the messages in hand again, with the program as it is now.
    fn handle_changed_files(&mut self, files: &[PathBuf]) {
        let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        let begun_again = match self.in_flight.len() {
            0 => "the next message gets the new program".to_owned(),
            1 => "the message in hand is begun again".to_owned(),
            count => format!("the {count} messages in hand are begun again"),
        };
        print(&format!("{} changed: {begun_again}", files.join(", ")));
        self.is_waiting_for_change = false;
        self.invalid_outputs = 0;
        for in_flight in self.in_flight.values() {
            // Sending fails for a task that has just ended, which needs no restart.
            let _ = in_flight.event_sender.send(TaskEvent::Restart);
        }
    }

    fn handle_invalid_output(&mut self, reason: &str) {
        self.invalid_outputs += 1;
        if self.invalid_outputs >= INVALID_OUTPUTS_MAX {
            self.fail_program(ClientError::Refused(format!(
                "{INVALID_OUTPUTS_MAX} times in a row {reason}. No more messages are taken: each \
                 one fails an attempt. {} must print one JSON object that the step can have, or \
                 nothing, on its standard output; what else it says belongs on its standard error",
                self.context.program.display_name()
            )));
        }
    }

    /// Handles an error of the program: the worker stops, or waits until the program has changed if
    /// its files are watched.
    fn fail_program(&mut self, error: ClientError) {
        if !self.context.is_watching {
            return self.fail(error);
        }
        if !std::mem::replace(&mut self.is_waiting_for_change, true) {
            print(&format!("{error}. Messages are taken again when the program has changed"));
        }
    }

    /// Makes the worker stop once nothing is in flight, with this error unless there was an earlier
    /// one.
    fn fail(&mut self, error: ClientError) {
        self.failure.get_or_insert(error);
        self.is_stopping = true;
    }

    /// Waits for the backoff after an error that may be transient, and handles events meanwhile. A
    /// stop ends the wait.
    fn back_off(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.is_retrying, true) {
            print(&format!("{reason}; it is tried again until it works"));
        }
        let retry_at = clock::timer_now() + self.backoff;
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        while let Ok(event) =
            self.events.recv_timeout(retry_at.saturating_duration_since(clock::timer_now()))
        {
            self.handle_event(event);
            if self.is_stopping {
                return;
            }
        }
    }
}

/// Starts a thread that tells the dispatcher of each change of these files.
fn forward_changes(
    files: Vec<PathBuf>,
    dispatcher: Sender<DispatcherEvent>,
) -> Result<(), ClientError> {
    let mut watcher = FileWatcher::new(files);
    let watch = move || {
        loop {
            thread::sleep(WATCH_INTERVAL);
            let changed = watcher.poll();
            if !changed.is_empty()
                && dispatcher.send(DispatcherEvent::FilesChanged(changed)).is_err()
            {
                return;
            }
        }
    };
    thread::Builder::new().name("files".to_owned()).spawn(watch)?;
    Ok(())
}

/// Starts a thread that forwards each stop signal to the dispatcher. For any other handled signal
/// it prints that the signal has no effect.
fn forward_signals(dispatcher: Sender<DispatcherEvent>) -> Result<(), ClientError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut stop_signals, mut ignored_signals) = {
        let _runtime_guard = runtime.enter();
        (Signals::for_stop_at_terminal()?, Signals::for_ignored()?)
    };
    let listen = async move {
        loop {
            tokio::select! {
                _ = stop_signals.next() => {}
                signal = ignored_signals.next() => {
                    print(&format!("{signal} means nothing here: SIGTERM ends the worker"));
                    continue;
                }
            }
            if dispatcher.send(DispatcherEvent::Stop).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(move || runtime.block_on(listen))?;
    Ok(())
}
