//! The command line beside `run` and `watch`: lists and their forms, parts of jobs, contexts, and
//! `doctor`. On the embedded bus where no broker is asked for; the steps are external.

mod beginnings;
mod contexts;
mod doctor;
mod lists;
mod operators;
mod parts;
mod shells;
mod terminal;
mod work;
mod worker_test;

use std::process::Command;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::harness::{Daemon, Ran, Setup, command, run};

const WORKFLOWS: &str = r"
workflows:
  - name: signed
    steps:
      - { name: sign, external: true, retry: { attempts: 3, backoff: 10ms } }
      - { name: archive, external: true, depends: [ sign ] }
  - name: fan
    steps: [ { name: each, task: piece } ]
    tasks:
      - name: piece
        itemListKey: items
        tolerate: 5
        steps: [ { name: by-hand, external: true } ]
  - name: queued
    steps: [ { name: work, queue: nobody } ]
";

fn start() -> Daemon {
    Setup::new("", WORKFLOWS).start()
}

/// The command, for this manager.
fn client(daemon: &Daemon, arguments: &[&str]) -> Ran {
    run(command().args(arguments).args(["--server", &daemon.url()]))
}

/// What a command prints that must succeed.
#[track_caller]
fn printed(daemon: &Daemon, arguments: &[&str]) -> String {
    let ran = client(daemon, arguments);
    assert_eq!(ran.code, Some(0), "{arguments:?}: {ran}");
    ran.stdout
}

/// Runs a command on a terminal of so many columns, with `typed` as what somebody types. Colours
/// are as by default.
fn on_terminal(columns: u16, typed: &str, arguments: &[&str], server: &str) -> String {
    let words: Vec<String> =
        arguments.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
    let program = env!("CARGO_BIN_EXE_workflow-manager");
    let line = format!(
        "stty -echo cols {columns} rows 50; '{program}' {} --server {server}; echo code $?",
        words.join(" ")
    );
    // `script` of util-linux gives the command a terminal of its own.
    let mut shell = Command::new("sh");
    shell.args(["-c", "printf \"$1\" | script -qec \"$2\" /dev/null", "sh", typed, &line]);
    shell.env("TERM", "xterm").env("XDG_CONFIG_HOME", "/nonexistent");
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "WORKFLOW_MANAGER_TIME"] {
        shell.env_remove(name);
    }
    let ran = run(&mut shell);
    assert_eq!(ran.code, Some(0), "{ran}");
    ran.stdout.replace('\r', "")
}

/// A text without colours.
fn uncoloured(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|part| part.split_once('m').map_or("", |(_, rest)| rest));
    first + &rest.collect::<String>()
}

fn complete(daemon: &Daemon, job: Uuid, step: &str, body: &str) {
    daemon.api.post(&format!("/api/job/{job}/step/{step}"), body).expect(200);
}

fn fail(daemon: &Daemon, job: Uuid, step: &str, reason: &str, is_final: bool) {
    let body = json!({ "error": reason, "retryable": !is_final }).to_string();
    daemon.api.post(&format!("/api/job/{job}/step/{step}?type=error"), body).expect(200);
}

#[track_caller]
fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("not JSON ({error}): {text}"))
}
