//! A manager in this process, for tests. It has the embedded bus, unless its settings or parts say
//! otherwise.

use crate::api::Api;
use crate::waits::until;
use bytes::Bytes;
use std::future::IntoFuture;
use std::ops::Deref;
use std::path::Path;
use std::pin::Pin;
use tempfile::TempDir;
use workflow_manager::actors::manager::{self, Manager, Parts, Threads};
use workflow_manager::bus::Publication;
use workflow_manager::bus::embedded::{WorkerError, Workers};
use workflow_manager::engine::{Job, JobId, Message};
use workflow_manager::load::load_text;
use workflow_manager::settings::{Overrides, Settings};

/// Parses a valid message.
pub fn message(text: &str) -> Message {
    Message::parse(text.as_bytes()).expect("a message")
}

/// A worker's function that replies with its input.
pub fn echo(message: &Publication) -> Result<Bytes, WorkerError> {
    Ok(message.body.to_bytes())
}

/// A running manager. It dereferences to [`Manager`], whose methods it adds to.
pub struct TestManager {
    manager: Manager,
    /// The folder of the journal, which is deleted on drop. `None` if the test has named another
    /// place for the journal.
    _folder: Option<TempDir>,
}

/// What a manager is started with. Awaiting it starts the manager.
pub struct Setup {
    /// The text of a workflow file.
    workflows: String,
    settings: Settings,
    workers: Workers,
    /// See [`TestManager`].
    folder: Option<TempDir>,
}

impl TestManager {
    /// Prepares a manager with these workflows, the default settings and no workers. Its journal is
    /// deleted with the manager, unless `Setup::folder` or `Setup::journal` names another place.
    pub fn with(workflows: &str) -> Setup {
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = Settings::defaults().expect("defaults");
        settings.journal.file = folder.path().join("j.db");
        Setup {
            workflows: workflows.to_owned(),
            settings,
            workers: Workers::new(),
            folder: Some(folder),
        }
    }

    /// Creates a job with this message.
    pub async fn create_job(&self, workflow: &str, text: &str) -> JobId {
        self.handle().create(workflow, None, message(text)).await.expect("created").id()
    }

    /// Loads a job from the journal. `None` if the journal does not have it.
    pub fn find_job(&self, id: JobId) -> Option<Job> {
        self.core().reader.load_job(id).expect("reads").map(|loaded| loaded.job)
    }

    /// Loads a job from the journal, which has it.
    pub fn job(&self, id: JobId) -> Job {
        self.find_job(id).expect("it is there")
    }

    /// Waits until the job in the journal meets a condition, and returns it.
    pub async fn until(&self, id: JobId, is_met: impl Fn(&Job) -> bool) -> Job {
        until("the job meets the condition", || self.find_job(id).filter(&is_met)).await
    }

    /// Waits until a job has ended, and returns it.
    pub async fn until_ended(&self, id: JobId) -> Job {
        self.until(id, |job| job.state().is_ended()).await
    }

    /// Waits until a job is closed: it accepts no more input.
    pub async fn until_closed(&self, id: JobId) {
        until("the job is closed", || !self.is_active(id)).await;
    }

    /// Returns whether a job still accepts input: the router has a route for it.
    pub fn is_active(&self, id: JobId) -> bool {
        self.core().routes.is_active(id)
    }

    /// Stops the manager.
    pub async fn stop(self) {
        self.manager.stop().await;
    }
}

impl Deref for TestManager {
    type Target = Manager;

    fn deref(&self) -> &Manager {
        &self.manager
    }
}

/// Returns the condition that at least this many child jobs of the first step have ended.
pub fn children_ended(count: u32) -> impl Fn(&Job) -> bool {
    move |job| {
        let fan_out = job.steps().next().and_then(|(_, step_run)| step_run.fan_out.as_ref());
        fan_out.is_some_and(|fan_out| fan_out.ended() >= count)
    }
}

impl Setup {
    /// Puts the journal into this folder, as `j.db`. It is not deleted.
    pub fn folder(self, folder: &Path) -> Setup {
        self.journal(&folder.join("j.db"))
    }

    /// Sets the file of the journal. It is not deleted.
    pub fn journal(mut self, file: &Path) -> Setup {
        self.folder = None;
        self.set(|settings| file.clone_into(&mut settings.journal.file))
    }

    /// Changes settings.
    pub fn set(mut self, change: impl FnOnce(&mut Settings)) -> Setup {
        change(&mut self.settings);
        self
    }

    /// Adds a worker with one thread, which calls `work` for each message of the queue.
    pub fn worker(
        mut self,
        queue: &str,
        work: impl Fn(&Publication) -> Result<Bytes, WorkerError> + Send + Sync + 'static,
    ) -> Setup {
        self.workers = self.workers.with_worker(queue, 1, work);
        self
    }

    /// Adds workers that reply with their inputs.
    pub fn echo<const N: usize>(self, queues: [&str; N]) -> Setup {
        queues.into_iter().fold(self, |setup, queue| setup.worker(queue, echo))
    }

    /// Sets the workers. Replaces those that were added before.
    pub fn workers(self, workers: Workers) -> Setup {
        Setup { workers, ..self }
    }

    /// Starts the manager with other parts, on these threads. The workers of this setup are
    /// ignored: the parts name the workers.
    pub fn start_on(self, threads: Threads, parts: Parts) -> TestManager {
        let definitions = load_text("test.yaml", &self.workflows)
            .unwrap_or_else(|errors| panic!("{errors}"))
            .definitions;
        let manager = manager::start_on(threads, self.settings, definitions, parts);
        TestManager { manager: manager.expect("starts"), _folder: self.folder }
    }

    /// Starts the manager on a new Actix system, waits until it is ready, and runs `test` on its
    /// API.
    pub fn serve<F: Future>(self, test: impl FnOnce(Api) -> F) -> F::Output {
        actix_rt::System::new().block_on(self.serve_here(test))
    }

    /// Starts the manager on the current Actix system, waits until it is ready, and runs `test` on
    /// its API.
    pub async fn serve_here<F: Future>(self, test: impl FnOnce(Api) -> F) -> F::Output {
        let manager = self.await;
        let health = &manager.core().health;
        until("it is ready", || health.checks().iter().all(|check| check.is_passed)).await;
        let output = test(Api::new(&manager).await).await;
        manager.stop().await;
        output
    }
}

impl IntoFuture for Setup {
    type Output = TestManager;
    type IntoFuture = Pin<Box<dyn Future<Output = TestManager>>>;

    fn into_future(mut self) -> Self::IntoFuture {
        let workers = std::mem::take(&mut self.workers);
        Box::pin(async move { self.start_on(Threads::Own(Vec::new()), Parts::standard(workers)) })
    }
}

/// Loads settings from the text of a settings file.
///
/// # Errors
///
/// Returns why they are refused.
pub fn load_settings(text: &str) -> Result<Settings, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("settings.yaml");
    std::fs::write(&file, text).expect("written");
    Settings::load(Some(&file), &Overrides::default()).map_err(|error| error.to_string())
}
