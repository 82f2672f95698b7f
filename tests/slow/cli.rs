//! The command line.

use std::{fs, process::Command};

use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    amqp::{Answer, Vhost, Worker},
    harness::{Daemon, Ran, Setup, command, free_port, run},
};

const WORKFLOWS: &str = r"
workflows:
  - name: greet
    steps: [ { name: greet-step } ]
  - name: idle
    steps: [ { name: idle-step } ]
";

/// A worker that greets by name; without a name its reply is no object, which fails the job.
fn greeter(vhost: &Vhost) -> Worker {
    Worker::start(&vhost.url, &["greet-step"], |message| match message.json()["name"].as_str() {
        Some(name) => Answer::json(&json!({ "greeting": format!("Hello, {name}!") })),
        None => Answer::Reply(b"[]".to_vec()),
    })
}

fn start() -> (Vhost, Daemon, Worker) {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, WORKFLOWS).start();
    let worker = greeter(&vhost);
    (vhost, daemon, worker)
}

/// The command with `--server`.
fn client(daemon: &Daemon, arguments: &[&str]) -> Ran {
    run(command().args(arguments).args(["--server", &daemon.url()]))
}

#[test]
fn run_prints_the_result_and_nothing_else() {
    let (_vhost, daemon, _worker) = start();
    let ran = client(&daemon, &["run", "greet", "--message", r#"{"name":"Ada"}"#]);
    assert_eq!(ran.code, Some(0), "{ran}");
    assert_eq!(json_of(&ran), json!({ "greeting": "Hello, Ada!" }));

    let machine = client(&daemon, &["run", "greet", "--message", r#"{"name":"Bob"}"#, "--json"]);
    assert_eq!(machine.code, Some(0), "{machine}");
    assert!(json_of(&machine).to_string().contains("Hello, Bob!"), "{machine}");
}

#[test]
fn run_takes_its_message_from_a_file_or_from_standard_input() {
    let (_vhost, daemon, _worker) = start();
    let file = daemon.dir().join("message.json");
    fs::write(&file, r#"{"name":"File"}"#).unwrap();
    let ran = client(&daemon, &["run", "greet", "--message", &format!("@{}", file.display())]);
    assert_eq!(json_of(&ran), json!({ "greeting": "Hello, File!" }));

    let program = env!("CARGO_BIN_EXE_workflow-manager");
    let piped = format!(
        r#"echo '{{"name":"Pipe"}}' | "{program}" run greet --message - --server {}"#,
        daemon.url()
    );
    let ran = run(Command::new("sh").args(["-c", &piped]));
    assert_eq!(json_of(&ran), json!({ "greeting": "Hello, Pipe!" }));

    let missing = client(&daemon, &["run", "greet", "--message", "@nowhere.json"]);
    assert!(
        missing.code.is_some_and(|code| code != 0) && missing.stderr.contains("nowhere.json"),
        "{missing}"
    );
}

#[test]
fn run_takes_an_id_and_the_server_from_the_environment() {
    let (_vhost, daemon, _worker) = start();
    let id = Uuid::new_v4();
    let mut in_environment = command();
    in_environment.env("WORKFLOW_MANAGER_URL", daemon.url());
    let ran = run(in_environment.args([
        "run",
        "greet",
        "--id",
        &id.to_string(),
        "--message",
        r#"{"name":"Ida"}"#,
    ]));
    assert_eq!(ran.code, Some(0), "{ran}");
    assert_eq!(daemon.api.await_result(id), r#"{"greeting":"Hello, Ida!"}"#);
}

#[test]
fn a_job_that_fails_is_exit_code_1_with_the_reason() {
    let (_vhost, daemon, _worker) = start();
    let ran = client(&daemon, &["run", "greet", "--message", "{}"]);
    assert_eq!(ran.code, Some(1), "{ran}");
    assert!(ran.stderr.contains("greet-step"), "the failed step is named: {ran}");
    assert!(ran.stdout.trim().is_empty(), "there is no result: {ran}");

    let unknown = client(&daemon, &["run", "gret"]);
    assert!(
        unknown.code.is_some_and(|code| code != 0) && unknown.stderr.contains("gret"),
        "{unknown}"
    );
}

#[test]
fn jobs_and_job_show_what_runs() {
    let (_vhost, daemon, _worker) = start();
    let id = daemon.api.create("idle", r#"{"k":"v"}"#).to_string();

    let jobs = client(&daemon, &["jobs"]);
    assert_eq!(jobs.code, Some(0), "{jobs}");
    assert!(jobs.stdout.contains(&id), "{jobs}");
    let machine = client(&daemon, &["jobs", "--json"]);
    assert!(json_of(&machine).to_string().contains(&id), "{machine}");

    let job = client(&daemon, &["job", &id]);
    assert_eq!(job.code, Some(0), "{job}");
    for word in [id.as_str(), "idle", "running", "idle-step"] {
        assert!(job.stdout.contains(word), "no {word} in {job}");
    }
    let machine = json_of(&client(&daemon, &["job", &id, "--json"]));
    assert_eq!((&machine["uuid"], &machine["state"]), (&json!(id), &json!("running")));

    let unknown = client(&daemon, &["job", &Uuid::new_v4().to_string()]);
    assert!(
        unknown.code.is_some_and(|code| code != 0)
            && unknown.stdout.is_empty()
            && !unknown.stderr.is_empty(),
        "{unknown}"
    );
}

#[test]
fn a_manager_that_is_not_there_is_exit_code_3() {
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    for arguments in
        [&["jobs"][..], &["job", "4d1f598a-0000-4000-8000-000000000000"], &["run", "greet"]]
    {
        let ran = run(command().args(arguments).args(["--server", &nowhere]));
        assert_eq!(ran.code, Some(3), "{ran}");
        assert!(ran.stderr.contains(&nowhere), "the address is named: {ran}");
    }
}

#[test]
fn wrong_usage_is_exit_code_2() {
    for arguments in [
        &["no-such-command"][..],
        &["run"],
        &["job"],
        &["check"],
        &["serve", "--no-such-flag"],
        &["job", "not-a-uuid"],
        &[],
    ] {
        let ran = run(command().args(arguments));
        assert_eq!(ran.code, Some(2), "{arguments:?}: {ran}");
        assert!(!ran.stderr.is_empty(), "{arguments:?}: {ran}");
    }
}

#[test]
fn help_names_the_commands() {
    let help = run(command().arg("--help"));
    assert_eq!(help.code, Some(0), "{help}");
    for word in [
        "serve", "check", "schema", "test", "run", "jobs", "search", "job", "watch", "why",
        "retry", "complete",
    ] {
        assert!(help.stdout.contains(word), "no {word} in {help}");
    }
    let version = run(command().arg("--version"));
    assert!(
        version.code == Some(0) && version.stdout.contains(env!("CARGO_PKG_VERSION")),
        "{version}"
    );
}

#[test]
fn settings_are_shown_with_their_secrets_masked() {
    let shown = run(command()
        .args([
            "serve",
            "--print-settings",
            "--amqp-server",
            "amqp://me:secret-4711@broker.example:5672/%2f",
        ])
        .env("WORKFLOW_MANAGER__HTTP__TOKEN", "sesame-4711-open-it")
        .env("WORKFLOW_MANAGER__AMQP__REPLY_QUEUE", "from-the-environment"));
    assert_eq!(shown.code, Some(0), "{shown}");
    assert!(
        shown.stdout.contains("from-the-environment") && shown.stdout.contains("broker.example"),
        "{shown}"
    );
    assert!(!shown.text().contains("4711"), "{shown}");
}

#[test]
fn flags_win_over_the_environment_and_the_environment_over_files() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("settings.yaml");
    fs::write(
        &file,
        "amqp:\n  reply_queue: from-file\n  prefetch: 11\nhttp:\n  listen: 127.0.0.1:1111\n",
    )
    .unwrap();
    let shown = run(command()
        .args(["serve", "--print-settings", "--listen", "127.0.0.1:3333", "--config"])
        .arg(&file)
        .env("AMQP_SERVER", "amqp://someone@from-environment.example/%2f")
        .env("WORKFLOW_MANAGER__HTTP__LISTEN", "127.0.0.1:2222")
        .env("WORKFLOW_MANAGER__AMQP__PREFETCH", "22"));
    assert_eq!(shown.code, Some(0), "{shown}");
    let text = shown.stdout.replace('"', "");
    for (wanted, unwanted) in [
        ("from-file", "\u{0}"),
        ("prefetch: 22", "prefetch: 11"),
        ("3333", "2222"),
        ("from-environment.example", "1111"),
    ] {
        assert!(
            text.contains(wanted) && !text.contains(unwanted),
            "{wanted}, not {unwanted}: {shown}"
        );
    }
}

#[track_caller]
fn json_of(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout)
        .unwrap_or_else(|error| panic!("standard output is not JSON ({error}): {ran}"))
}
