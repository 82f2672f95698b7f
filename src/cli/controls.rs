//! `limit`, and `pause` and `resume` of queues, workflows and limits: changes for a time.

use super::arguments::{
    ControlOptions, LimitArguments, NamedSubject, PauseSubject, QueueSubject, ResumeSubject,
};
use super::client::Client;
use super::error::ClientError;
use super::responses::parse_response;
use super::screen::print_json;
use super::text::Text;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use std::io::Write;

/// What is in force, or has ended.
#[derive(Deserialize)]
struct ControlResponse {
    kind: Text,
    #[serde(default)]
    bus: Option<Text>,
    name: Text,
    vhost: Text,
    rate: Option<Text>,
    concurrency: Option<u32>,
    until: Option<Text>,
    reason: Option<Text>,
    /// How many steps a pause holds back.
    waiting: Option<u64>,
}

/// What operators have changed, as lists note it.
#[derive(Default, Deserialize)]
pub(super) struct ControlsResponse {
    controls: Vec<ControlResponse>,
}

impl ControlsResponse {
    /// Reads what is in force. Only the active manager knows it.
    pub(super) fn read(client: &Client) -> Result<ControlsResponse, ClientError> {
        parse_response(&client.get("/api/controls")?)
    }

    /// Returns the notes about a queue, a workflow or a limit. `kinds`: what controls of it are
    /// called.
    pub(super) fn notes(
        &self,
        kinds: &[&str],
        (vhost, name): (&str, &str),
        bus: Option<&str>,
    ) -> Vec<String> {
        let is_about = |control: &&ControlResponse| {
            kinds.contains(&&*control.kind)
                && (&*control.vhost, &*control.name) == (vhost, name)
                && bus.is_none_or(|bus| control.bus.as_deref() == Some(bus))
        };
        self.controls.iter().filter(is_about).map(ControlResponse::note).collect()
    }
}

impl ControlResponse {
    /// Describes it beside what it is about.
    fn note(&self) -> String {
        let what = if self.is_pause() { "paused" } else { "changed" };
        let waiting = match self.waiting {
            None | Some(0) => String::new(),
            Some(waiting) => format!(", {waiting} waiting"),
        };
        let until = self.until.as_ref().map_or_else(String::new, |until| format!(" until {until}"));
        let reason = self.reason.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        format!("{what}{until}{waiting}{reason}")
    }

    /// Describes what is in force.
    fn describe(&self) -> String {
        let until = self.until.as_ref().map_or_else(
            || {
                if self.is_pause() { " until it is resumed" } else { " until it is ended" }
                    .to_owned()
            },
            |until| format!(" until {until}"),
        );
        if self.is_pause() {
            return format!("{} is paused{until}", self.subject());
        }
        let rate = self.rate.as_ref().map(|rate| rate.to_string());
        let concurrency = self.concurrency.map(|max| format!("{max} at once"));
        let allows: Vec<String> = rate.into_iter().chain(concurrency).collect();
        format!("{} allows {}{until}", self.subject(), allows.join(" and "))
    }

    fn is_pause(&self) -> bool {
        self.kind.ends_with("Pause")
    }

    /// Returns what it is about, such as `queue price`.
    fn subject(&self) -> String {
        let noun = self.kind.trim_end_matches("Pause").trim_end_matches("Change");
        let vhost = if self.vhost.is_empty() { "" } else { "/" };
        format!("{noun} {}{vhost}{}", self.vhost, self.name)
    }
}

/// Parameters of a query, without those that were not given.
type Parameters = Vec<(String, String)>;

fn parameters<const N: usize>(optional: [(&str, Option<String>); N]) -> Parameters {
    let given = optional.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    given.collect()
}

fn encode(segment: &str) -> String {
    utf8_percent_encode(segment, NON_ALPHANUMERIC).to_string()
}

/// Runs `pause` of something other than jobs.
pub(super) fn pause(subject: PauseSubject, out: &mut dyn Write) -> Result<(), ClientError> {
    let (path, mut query, time, options) = match subject {
        PauseSubject::Queue { queue, time, options } => {
            let (path, query) = queue_path(queue, "pause");
            (path, query, time, options)
        }
        PauseSubject::Workflow { subject, time, options } => {
            let (path, query) = named_path("workflows", subject, "/pause");
            (path, query, time, options)
        }
        PauseSubject::Limit { subject, time, options } => {
            let (path, query) = named_path("limits", subject, "/pause");
            (path, query, time, options)
        }
    };
    query.extend(parameters([("for", time.duration)]));
    post(&path, query, options, ControlResponse::describe, out)
}

/// Runs `resume` of something other than jobs.
pub(super) fn resume(subject: ResumeSubject, out: &mut dyn Write) -> Result<(), ClientError> {
    let (path, query, options) = match subject {
        ResumeSubject::Queue { queue, options } => {
            let (path, query) = queue_path(queue, "resume");
            (path, query, options)
        }
        ResumeSubject::Workflow { subject, options } => {
            let (path, query) = named_path("workflows", subject, "/resume");
            (path, query, options)
        }
        ResumeSubject::Limit { subject, options } => {
            let (path, query) = named_path("limits", subject, "/resume");
            (path, query, options)
        }
    };
    let describe = |ended: &ControlResponse| format!("{} is not paused any more", ended.subject());
    post(&path, query, options, describe, out)
}

/// Runs `limit`.
pub(super) fn change_limit(
    arguments: LimitArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let LimitArguments { subject, rate, burst, concurrency, time, end, options } = arguments;
    let (path, mut query) = named_path("limits", subject, "");
    if !end {
        query.extend(parameters([
            ("rate", rate),
            ("burst", burst.map(|burst| burst.to_string())),
            ("concurrency", concurrency.map(|max| max.to_string())),
            ("for", time.duration),
        ]));
        return post(&path, query, options, ControlResponse::describe, out);
    }
    query.extend(parameters([("reason", options.reason)]));
    let pairs: Vec<String> =
        query.iter().map(|(key, value)| format!("{key}={}", encode(value))).collect();
    let client = Client::new(&options.client.target)?;
    let body = client.delete(&format!("{path}?{}", pairs.join("&")))?;
    let describe =
        |ended: &ControlResponse| format!("{} allows again what its file says", ended.subject());
    print(&body, options.client.json, describe, out)
}

fn queue_path(queue: QueueSubject, operation: &str) -> (String, Parameters) {
    let QueueSubject { name, bus, vhost } = queue;
    let path = format!("/api/queue/{}/{operation}", encode(&name));
    (path, parameters([("bus", bus), ("vhost", vhost)]))
}

fn named_path(folder: &str, subject: NamedSubject, suffix: &str) -> (String, Parameters) {
    let NamedSubject { name, vhost } = subject;
    let path = format!("/api/{folder}/{}{suffix}", encode(&name));
    (path, parameters([("vhost", vhost)]))
}

fn post(
    path: &str,
    mut query: Parameters,
    options: ControlOptions,
    describe: impl FnOnce(&ControlResponse) -> String,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    query.extend(parameters([("reason", options.reason)]));
    let body = Client::new(&options.client.target)?.post(path, &query, "")?;
    print(&body, options.client.json, describe, out)
}

fn print(
    body: &str,
    is_json: bool,
    describe: impl FnOnce(&ControlResponse) -> String,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    if is_json {
        print_json(body, out)?;
    } else {
        let response: ControlResponse = parse_response(body)?;
        writeln!(out, "{}", describe(&response))?;
    }
    Ok(())
}
