//! `dev`: what a manager does beyond `serve` for the author of a workflow. It reloads workflow
//! files that have changed, and tells people what happens.

mod changes;
mod example;

use super::arguments::{DevOptions, TimeArguments};
use super::file_watcher::{FileWatcher, WATCH_INTERVAL};
use super::screen::Screen;
use super::target::DEFAULT_SERVER;
use super::watch::render_body;
use bus::embedded::Workers;
use changes::describe_changes;
use daemon::actors::role::Role;
use daemon::api::state::ApiState;
use daemon::events::{Event, EventFilter, Subscription};
use daemon::load::LoadErrors;
use daemon::reload::{ReloadError, reload};
use daemon::service;
use daemon::settings::{LogFormat, Settings};
use daemon::telemetry::log::print;
use engine::{Definition, Message};
use example::Example;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// The program that opens an address in a browser, unless `BROWSER` names another one.
const OPENER: &str = "xdg-open";

/// The filter of the log, unless the settings have another one: the lines of `dev` itself tell what
/// else a person wants to know.
const LOG_FILTER: &str = "warn";

/// A manager that runs as `dev`.
pub struct DevSession {
    options: DevOptions,
    /// The built-in example; `None` if workflow files are set.
    example: Option<Example>,
}

impl DevSession {
    /// Adapts the settings, and writes the built-in example if they name no workflow file.
    ///
    /// # Errors
    ///
    /// Returns an error if the example cannot be written.
    pub fn prepare(options: DevOptions, settings: &mut Settings) -> io::Result<DevSession> {
        settings.log.format = LogFormat::Human;
        let default_filter = Settings::defaults().map(|defaults| defaults.log.filter);
        if default_filter.is_ok_and(|filter| filter == settings.log.filter) {
            settings.log.filter = LOG_FILTER.to_owned();
        }
        if options.is_in_memory {
            settings.journal.url.0.clear();
        }
        let example = settings.workflows.is_empty().then(Example::write).transpose()?;
        settings.workflows.extend(example.iter().map(Example::file));
        Ok(DevSession { options, example })
    }

    /// Prints the errors of workflow files with which `dev` starts all the same, unless a file is
    /// missing.
    ///
    /// # Errors
    ///
    /// Returns the errors if a file is missing or a folder: its name is probably wrong.
    pub fn accept_errors(&self, settings: &Settings, errors: LoadErrors) -> Result<(), LoadErrors> {
        if settings.workflows.iter().any(|file| !file.exists()) {
            print("workflow-manager init --list tells how to begin with a file that works");
            return Err(errors);
        }
        if settings.workflows.iter().any(|file| file.is_dir()) {
            return Err(errors);
        }
        print(&format!("{errors}\nno workflow is loaded until this is mended"));
        Ok(())
    }

    /// Returns the workers in this process: those of the example.
    pub fn workers(&self) -> Workers {
        self.example.as_ref().map_or_else(Workers::new, |_| example::workers())
    }

    /// Tells where the manager is and what can be done, and starts the tasks that reload files and
    /// tell what happens.
    pub async fn begin(&self, state: &Arc<ApiState>, address: SocketAddr) {
        let scheme = if state.access.certificate.get().is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{address}");
        let filter = EventFilter::All { workflow: None, subject: None };
        if let Some(subscription) = state.event_hub.subscribe(filter, usize::MAX) {
            actix_rt::spawn(print_events(subscription));
        }
        actix_rt::spawn(reload_changed_files(state.clone()));
        let names: Vec<String> =
            state.settings.workflows.iter().map(|file| file.display().to_string()).collect();
        print(&format!("page      {url}"));
        print(&format!("workflow  {}", names.join(", ")));
        if self.options.is_in_memory {
            print("jobs      in memory, until Ctrl-C; --db FILE keeps them");
        } else {
            print(&format!("jobs      in {}", state.settings.journal.location()));
        }
        let server = render_server_option(&url);
        let definitions = state.definitions.current();
        if self.example.is_some() {
            print(&format!(
                "try       workflow-manager run{server} {} --message '{}'",
                example::WORKFLOW,
                example::MESSAGE
            ));
            create_example_job(state).await;
        } else {
            let bus = state.settings.default_bus();
            definitions.values().flat_map(|definition| describe_queues(definition, bus)).for_each(
                |queue| {
                    print(&format!(
                        "worker    workflow-manager work --watch{server} {queue} -- CMD"
                    ));
                },
            );
            for name in definitions.keys() {
                print(&format!("job       workflow-manager run{server} {name} --message '{{}}'"));
            }
        }
        if self.options.opens_page {
            open_in_browser(&url, std::env::var_os("BROWSER"));
        }
    }
}

/// Returns what the commands of a person need to ask the manager at this address: nothing if it is
/// the one that they ask anyway.
fn render_server_option(url: &str) -> String {
    if url == DEFAULT_SERVER { String::new() } else { format!(" --server {url}") }
}

/// Returns the queues of a workflow whose workers ask this manager for messages. `default_bus`: the
/// bus of steps that name none.
fn describe_queues(definition: &Definition, default_bus: &str) -> Vec<String> {
    let embedded = bus::BusKind::Embedded.name();
    let is_embedded = |bus: Option<&str>| bus.unwrap_or(default_bus) == embedded;
    let steps = definition.sending_steps().filter(|step| is_embedded(step.bus.as_deref()));
    let mut queues: Vec<String> = Vec::new();
    for step in steps.filter(|step| !Definition::is_workflow_queue(&step.queue)) {
        if !queues.iter().any(|queue| **queue == *step.queue) {
            queues.push(step.queue.to_string());
        }
    }
    queues
}

/// Creates the first job of the built-in example, so that the page has one.
async fn create_example_job(state: &ApiState) {
    let Ok(message) = Message::parse(example::MESSAGE.as_bytes()) else { return };
    if let Role::Active(manager) = &state.role
        && let Err(error) = manager.create(example::WORKFLOW, None, message).await
    {
        print(&format!("the first job was not created: {error:?}"));
    }
}

/// Prints what happens to jobs and their steps. Child jobs are left out: there may be very many.
async fn print_events(mut subscription: Subscription) {
    let screen = Screen::for_stdout(TimeArguments::default());
    while let Some(batch) = subscription.next().await {
        if batch.missed > 0 {
            print(&format!("… {} events were missed", batch.missed));
        }
        let of_jobs = batch.events.iter().filter(|event| event.parent.is_none());
        of_jobs.filter_map(|event| render_line(event, screen)).for_each(|line| print(&line));
    }
}

/// Renders an event as one line: the time of day here, the first digits of the job's id, and what
/// has happened.
fn render_line(event: &Event, screen: Screen) -> Option<String> {
    /// How many characters of a job's id are shown.
    const ID_CHARACTERS: usize = 8;
    let body = std::str::from_utf8(&event.body).ok()?;
    let change = render_body(&event.name(), body, screen)?;
    let job: String = event.job.to_string().chars().take(ID_CHARACTERS).collect();
    Some(format!("{}  {job}  {change}", super::screen::format_time_of_day(event.at)))
}

/// Reloads the workflow files whenever one of them has changed, and tells what is different, or
/// what is wrong.
async fn reload_changed_files(state: Arc<ApiState>) {
    let reloader = state.reloader();
    let mut watcher = FileWatcher::new(state.settings.workflows.clone());
    loop {
        tokio::time::sleep(WATCH_INTERVAL).await;
        let changed = watcher.poll();
        if changed.is_empty() {
            continue;
        }
        let names: Vec<String> = changed.iter().map(|file| display_name(file)).collect();
        let names = names.join(", ");
        let before = state.definitions.current();
        match reload(&reloader).await {
            Ok(reloaded) => {
                let lines = describe_changes(&before, &state.definitions.current());
                if lines.is_empty() {
                    print(&format!("{names}: saved, and nothing is different"));
                }
                lines.iter().for_each(|line| print(&format!("{names}: {line}")));
                reloaded.warnings.iter().for_each(|warning| print(&format!("warning: {warning}")));
            }
            Err(ReloadError::Files(errors)) => {
                print(&format!("{errors}\n{names}: not valid, the workflows stay as they were"));
            }
            Err(error) => print(&format!("{names}: {error}; the workflows stay as they were")),
        }
    }
}

/// Returns the name of a file without its folder.
fn display_name(file: &Path) -> String {
    file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned()
}

/// Opens an address in the browser that `browser` names, or in that of the desktop.
fn open_in_browser(url: &str, browser: Option<OsString>) {
    let program = browser.unwrap_or_else(|| OPENER.into());
    let mut command = Command::new(&program);
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    service::clear_systemd_env(&mut command);
    match command.spawn() {
        // A thread waits for the program, so that it does not remain as a zombie.
        Ok(mut child) => drop(std::thread::spawn(move || child.wait())),
        Err(error) => print(&format!(
            "the page cannot be opened with {}: {error}; open {url}, or name a program in BROWSER",
            program.to_string_lossy()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_name_the_manager_where_they_would_ask_another() {
        assert_eq!(render_server_option("http://127.0.0.1:8088"), "");
        assert_eq!(
            render_server_option("http://127.0.0.1:9000"),
            " --server http://127.0.0.1:9000"
        );
    }
}
