//! A manager in this process: the embedded bus, unless its settings say otherwise.

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

/// Parses a message, which is valid.
pub fn message(text: &str) -> Message {
    Message::parse(text.as_bytes()).expect("a message")
}

/// Works: replies what it was sent.
pub fn echo(message: &Publication) -> Result<Bytes, WorkerError> {
    Ok(message.body.to_bytes())
}

/// A manager that runs. What it does not name here is that of [`Manager`].
pub struct TestManager {
    manager: Manager,
    /// Goes with the manager; none: the test has named a place.
    _folder: Option<TempDir>,
}

/// What a manager is started with: to await it starts the manager.
pub struct Setup {
    workflows: String,
    settings: Settings,
    workers: Workers,
    folder: Option<TempDir>,
}

impl TestManager {
    /// Prepares a manager with these workflows, the default settings and no workers. Its journal
    /// goes with it, unless a place is named.
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

    /// Creates a job.
    pub async fn create_job(&self, workflow: &str, text: &str) -> JobId {
        self.handle().create(workflow, None, message(text)).await.expect("created").id()
    }

    /// Returns a job as the journal has it; none: it does not know the job.
    pub fn find_job(&self, id: JobId) -> Option<Job> {
        self.core().reader.load_job(id).expect("reads").map(|found| found.job)
    }

    /// Returns a job as the journal has it.
    pub fn job(&self, id: JobId) -> Job {
        self.find_job(id).expect("it is there")
    }

    /// Waits until the journal has a job that fits, and returns it.
    pub async fn until(&self, id: JobId, fits: impl Fn(&Job) -> bool) -> Job {
        until("the job is as wanted", || self.find_job(id).filter(&fits)).await
    }

    /// Waits until a job has ended, and returns it.
    pub async fn until_ended(&self, id: JobId) -> Job {
        self.until(id, |job| job.state().is_ended()).await
    }

    /// Waits until a job takes no more input.
    pub async fn until_closed(&self, id: JobId) {
        until("the job takes no more input", || !self.is_active(id)).await;
    }

    /// Returns whether a job takes input.
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

/// Makes the condition that so many child jobs of the first step have ended.
pub fn children_ended(count: u32) -> impl Fn(&Job) -> bool {
    move |job| {
        let fan_out = job.steps().next().and_then(|(_, run)| run.fan_out.as_ref());
        fan_out.is_some_and(|fan_out| fan_out.ended() >= count)
    }
}

impl Setup {
    /// Names the folder of the journal, `j.db`, which stays.
    pub fn folder(self, folder: &Path) -> Setup {
        self.journal(&folder.join("j.db"))
    }

    /// Names the file of the journal, which stays.
    pub fn journal(mut self, file: &Path) -> Setup {
        self.folder = None;
        self.set(|settings| file.clone_into(&mut settings.journal.file))
    }

    /// Changes settings.
    pub fn set(mut self, change: impl FnOnce(&mut Settings)) -> Setup {
        change(&mut self.settings);
        self
    }

    /// Adds a worker with one thread.
    pub fn worker(
        mut self,
        queue: &str,
        work: impl Fn(&Publication) -> Result<Bytes, WorkerError> + Send + Sync + 'static,
    ) -> Setup {
        self.workers = self.workers.with_worker(queue, 1, work);
        self
    }

    /// Adds workers that reply what they were sent.
    pub fn echo<const N: usize>(self, queues: [&str; N]) -> Setup {
        queues.into_iter().fold(self, |setup, queue| setup.worker(queue, echo))
    }

    /// Has these workers, and none that were named before.
    pub fn workers(self, workers: Workers) -> Setup {
        Setup { workers, ..self }
    }

    /// Starts the manager of other parts, on these threads. It has no other workers than these
    /// parts name.
    pub fn start_on(self, threads: Threads, parts: Parts) -> TestManager {
        let loaded = load_text("test.yaml", &self.workflows);
        let definitions = loaded.unwrap_or_else(|errors| panic!("{errors}")).definitions;
        let manager = manager::start_on(threads, self.settings, definitions, parts);
        TestManager { manager: manager.expect("starts"), _folder: self.folder }
    }

    /// Runs `test` on the API of such a manager, once it is ready, on a system of its own.
    pub fn serve<F: Future>(self, test: impl FnOnce(Api) -> F) -> F::Output {
        actix_rt::System::new().block_on(self.serve_here(test))
    }

    /// Runs `test` on the API of such a manager, once it is ready.
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

/// Loads settings with these lines, as a file has them.
///
/// # Errors
///
/// Why they are refused.
pub fn load_settings(text: &str) -> Result<Settings, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("settings.yaml");
    std::fs::write(&file, text).expect("written");
    Settings::load(Some(&file), &Overrides::default()).map_err(|error| error.to_string())
}
