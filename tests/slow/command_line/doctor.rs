//! `doctor`: what is wrong is found, and told with what to do.

use super::json_of;
use crate::amqp::{Broker, Vhost, Worker};
use crate::harness::{Daemon, Ran, Setup, command, free_port, run, variable};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

const WORKFLOWS: &str = r"
workflows:
  - name: greet
    steps: [ { name: greet-step, timeout: 1m } ]
";

/// `doctor` with the settings of this daemon.
fn examine(daemon: &Daemon, server: &str) -> Command {
    let mut doctor = command();
    doctor.arg("doctor").arg("--workflows").arg(daemon.dir().join("workflows.yaml"));
    doctor.arg("--db").arg(daemon.database()).args(["--amqp-server", server]);
    doctor.args(["--listen", &daemon.url().replace("http://", "")]);
    doctor
}

/// The address with other credentials.
fn with_user(url: &str, credentials: &str) -> String {
    let (_, host) = url.split_once('@').unwrap();
    format!("amqp://{credentials}@{host}")
}

/// What it found, as JSON.
fn findings(ran: &Ran) -> Vec<Value> {
    json_of(&ran.stdout).as_array().cloned().unwrap()
}

/// A finding of this level with these words, which says what to do.
#[track_caller]
fn has(ran: &Ran, level: &str, check: &str, words: &str) {
    let is_it = |finding: &Value| {
        finding["level"] == level
            && finding["check"] == check
            && finding["text"].as_str().is_some_and(|text| text.contains(words))
            && (level == "ok") == finding["do"].as_str().is_some_and(str::is_empty)
    };
    assert!(findings(ran).iter().any(is_it), "no {level} {check} with {words:?}: {ran}");
}

#[test]
fn a_healthy_installation_has_no_errors() {
    let vhost = Vhost::new();
    let management = vhost.management_url(Broker::shared().user());
    let daemon = Setup::new(&vhost.url, WORKFLOWS).set("amqp.management", &management).start();
    let _worker = Worker::echo(&vhost.url, &["greet-step"]);
    let doctor = || {
        let mut doctor = examine(&daemon, &vhost.url);
        doctor.env(variable("amqp.management"), &management);
        doctor
    };
    crate::harness::eventually("all is well", || {
        let ran = run(doctor().arg("--json"));
        let well = findings(&ran).iter().all(|finding| finding["level"] == "ok");
        crate::harness::when(ran.code == Some(0) && well, &ran)
    });
    let ran = run(doctor().arg("--json"));
    has(&ran, "ok", "journal", &format!("in use by process {}", daemon.pid()));
    for (check, words) in [
        ("manager", "it is ready"),
        ("manager", "from the settings"),
        ("clock", "agree"),
        ("disk", "free"),
        ("broker", "a message went through"),
        ("replies", "1 take them"),
        ("policy", "dead letters come to the reply queue"),
        ("queues", "each has a worker"),
        ("workflows", "1 workflow in 1 file"),
    ] {
        has(&ran, "ok", check, words);
    }
    let text = run(&mut doctor());
    assert!(text.stdout.ends_with("\nno errors, no warnings\n"), "{text}");
}

#[test]
fn what_is_missing_is_told_with_what_to_do() {
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, WORKFLOWS).start();
    let waiting = run(examine(&daemon, &vhost.url).arg("--json"));
    assert_eq!(waiting.code, Some(0), "a warning is no error: {waiting}");
    has(&waiting, "warning", "queues", "\"greet-step\" has no worker");
    has(&waiting, "warning", "policy", "cannot be told");

    daemon.stop();
    fs::set_permissions(daemon.database(), Permissions::from_mode(0o644)).unwrap();
    let stopped = run(examine(&daemon, &vhost.url).arg("--json"));
    assert_eq!(stopped.code, Some(1), "{stopped}");
    has(&stopped, "error", "manager", "nobody answers at");
    has(&stopped, "warning", "journal", "mode 644");
    has(&stopped, "ok", "journal", "no process has it open");
    has(&stopped, "warning", "queues", "\"greet-step\" has no worker");

    let wrong = with_user(&vhost.url, "nobody:secret-4711");
    let refused = run(examine(&daemon, &wrong).arg("--json"));
    has(&refused, "error", "broker", "refused the user name or password");
    assert!(!refused.text().contains("4711"), "{refused}");
    let nowhere = format!("amqp://127.0.0.1:{}", free_port());
    let gone = run(examine(&daemon, &nowhere).arg("--json"));
    has(&gone, "error", "broker", "connection refused");

    daemon.write_workflows("workflows: [ { name: greet, steps: [ { nam: x } ] } ]");
    fs::write(daemon.database(), "no journal at all, by no means").unwrap();
    let broken = run(examine(&daemon, "").arg("--json"));
    assert_eq!(broken.code, Some(1), "{broken}");
    has(&broken, "error", "workflows", "\"nam\"");
    has(&broken, "error", "journal", "no SQLite database");
    has(&broken, "ok", "broker", "no broker is set: workers take messages over HTTP");

    let settings = daemon.dir().join("settings.yaml");
    fs::write(&settings, "htp: {}\n").unwrap();
    let unread = run(command().args(["doctor", "--json", "--config"]).arg(&settings));
    has(&unread, "error", "settings", "htp");
}

#[test]
fn permissions_and_a_second_manager_are_found() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, WORKFLOWS).start();
    let other = Setup::new("", WORKFLOWS).start();
    // The settings of one, the address of another.
    let mixed =
        run(examine(&other, "").args(["--json", "--server", &daemon.url(), "--db"]).arg("none.db"));
    assert_eq!(mixed.code, Some(2), "--db twice: {mixed}");
    let mut doctor = command();
    doctor.args(["doctor", "--json", "--db", "not-there.db", "--server", &other.url()]);
    has(&run(&mut doctor), "warning", "manager", "it is another manager");
    let taken = run(command().args([
        "doctor",
        "--json",
        "--db",
        "not-there.db",
        "--amqp-server",
        &vhost.url,
    ]));
    has(&taken, "warning", "replies", "1 take them");

    let broker = Broker::shared();
    let user = format!("doctor-{}", std::process::id());
    broker.ctl(&["add_user", &user, "secret"]);
    vhost.ctl("set_permissions", &[&user, "^$", ".*", ".*"]);
    let limited = with_user(&vhost.url, &format!("{user}:secret"));
    let refused = run(examine(&daemon, &limited).arg("--json"));
    broker.ctl(&["delete_user", &user]);
    has(&refused, "error", "broker", "it may not declare a queue (permission \"configure\")");
}

#[test]
fn without_settings_the_manager_alone_is_looked_at() {
    let daemon = Setup::new("", WORKFLOWS).set("http.token", "the-right-one-of-all").start();
    let url = daemon.url();
    let doctor =
        |token: &str| run(command().args(["doctor", "--json", "--server", &url, "--token", token]));
    let right = doctor("the-right-one-of-all");
    has(&right, "ok", "settings", "none are given here");
    has(&right, "ok", "manager", "it is ready");
    assert!(findings(&right).iter().all(|finding| finding["check"] != "journal"), "{right}");
    let wrong = doctor("wrong");
    assert_eq!(wrong.code, Some(1));
    has(&wrong, "error", "manager", "401");
}
