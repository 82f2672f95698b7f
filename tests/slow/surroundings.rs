//! What surrounds the process: signals, the environment, files that are none, few open files. What
//! it cannot use it names.

use crate::harness::{
    Daemon, Ran, Setup, command, command_at_terminal, eventually, must_succeed, run, when,
};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

const SIMPLE: &str = "workflows: [ { name: single, steps: [ { name: work } ] } ]";

fn signal(daemon: &Daemon, number: i32) {
    let pid = daemon.pid().to_string();
    must_succeed(Command::new("kill").arg(format!("-{number}")).arg(pid));
}

#[test]
fn a_signal_that_means_nothing_is_named_and_ends_nothing() {
    let mut daemon = Setup::new("", SIMPLE).start();
    for (number, name) in [
        (10, "SIGUSR1"),
        (12, "SIGUSR2"),
        (14, "SIGALRM"),
        (16, "SIGSTKFLT"),
        (25, "SIGXFSZ"),
        (26, "SIGVTALRM"),
        (27, "SIGPROF"),
        (29, "SIGIO"),
        (34, "signal 34"),
        (64, "signal 64"),
    ] {
        signal(&daemon, number);
        daemon.await_log(&["this signal is ignored", name]);
    }
    daemon.api.get("/livez").expect(200);
    assert!(daemon.ended().is_none());
}

#[test]
fn signals_that_ask_for_a_stop_stop_in_order() {
    for (number, name) in [(3, "SIGQUIT"), (24, "SIGXCPU"), (30, "SIGPWR"), (2, "SIGINT")] {
        let mut daemon = Setup::new("", SIMPLE).start();
        signal(&daemon, number);
        let status = daemon.await_end();
        assert!(status.success(), "{name}: {status}");
        let log = daemon.log();
        assert!(log.contains(&format!("{name}: stopping")), "{log}");
        assert!(log.contains("\"stopped\"") || log.contains("stopped"), "{log}");
    }
}

fn serve(arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
    let variables = variables.iter().map(|(name, value)| (*name, *value));
    run(command().arg("serve").args(arguments).envs(variables))
}

#[test]
fn a_variable_that_is_almost_a_setting_is_named_with_the_right_one() {
    let ran = serve(&["--print-settings"], &[("WORKFLOW_MANAGER_HTTP_LISTEN", "127.0.0.1:1")]);
    assert_eq!(ran.code, Some(1), "{ran}");
    assert!(ran.stderr.contains("WORKFLOW_MANAGER__HTTP__LISTEN"), "{ran}");
    let ran = run(command()
        .args(["jobs", "--server", "http://127.0.0.1:1"])
        .env("WORKFLOW_MANAGER_TOKN", "x"));
    assert!(ran.stderr.contains("did you mean WORKFLOW_MANAGER_TOKEN?"), "{ran}");
    assert_eq!(ran.code, Some(3), "{ran}");
    let daemon = Setup::new("", SIMPLE).variable("WORKFLOW_MANAGER_HTTP_LISTN", "x").start();
    daemon.await_log(&["did you mean WORKFLOW_MANAGER__HTTP__LISTEN?"]);
}

#[test]
fn a_level_that_is_none_is_refused() {
    for filter in ["warning", "lapin=debug", "info,lapin=loud"] {
        let ran = serve(&[], &[("WORKFLOW_MANAGER__LOG__FILTER", filter)]);
        assert_eq!(ran.code, Some(1), "{ran}");
        assert!(ran.stderr.contains("log.filter") && ran.stderr.contains("info"), "{ran}");
    }
}

#[test]
fn no_secret_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.yaml");
    let text = "{ http: { public_url: 'https://manager/' }, \
                amqp: { management: 'http://host/?token=SECRET' }, \
                events: { webhook: { url: 'https://hooks.example/T1/SECRETsecret01234' } }, \
                traces: { endpoint: 'http://collector/v1?key=SECRET', \
                headers: 'Authorization=SECRET' }, \
                buses: { p: { kind: push, endpoints: { q: { url: 'https://h/x?key=SECRET', \
                headers: { Authorization: SECRET } } } } } }";
    std::fs::write(&file, text).unwrap();
    let config = file.to_str().unwrap();
    let ran =
        serve(&["--print-settings", "--config", config, "--amqp-server", "amqp://u:SECRET"], &[]);
    assert_eq!(ran.code, Some(0), "{ran}");
    assert!(!ran.text().contains("SECRET"), "{ran}");
    assert!(ran.stdout.contains("amqp://u:***"), "{ran}");
}

#[test]
fn what_is_no_file_is_told_and_nobody_waits() {
    let folder = tempfile::tempdir().unwrap();
    let (pipe, socket) = (folder.path().join("pipe"), folder.path().join("socket"));
    must_succeed(Command::new("mkfifo").arg(&pipe));
    let _listens = UnixListener::bind(&socket).unwrap();
    let cases: [(&Path, &str); 3] =
        [(&pipe, "named pipe"), (&socket, "socket"), (folder.path(), "directory")];
    for (file, kind) in cases {
        let name = file.to_str().unwrap();
        let at_message = format!("@{name}");
        for arguments in [
            &["serve", "--workflows", name, "--db", ":memory:"][..],
            &["serve", "--config", name],
            &["serve", "--db", name],
            &["check", name],
            &["check", "--config", name, name],
            &["test", name],
            &["run", "single", "--message", &at_message],
            &["worker-test", "q", "--bus", "http", "--message", &at_message],
            &["token", "new", "a", "--scope", "read", "--file", name],
            &["replay", "--db", name, "f557697b-f911-401c-86b7-6d9b62f1f2bb"],
            &["restore", "--check", name],
        ] {
            let ran = run(command().args(arguments));
            assert!(matches!(ran.code, Some(1 | 2)), "{arguments:?}: {ran}");
            let told = ran.text();
            assert!(
                told.contains(kind)
                    || told.contains("not a regular file")
                    || told.contains("no file")
                    || told.contains("no journal"),
                "{arguments:?}: {ran}"
            );
        }
        for setting in ["HTTP__TOKEN_FILE", "HTTP__TOKENS_FILE", "TLS__AUTHORITIES"] {
            let variable = format!("WORKFLOW_MANAGER__{setting}");
            let ran = serve(&["--print-settings"], &[(&variable, name)]);
            assert!(ran.code == Some(1) && ran.text().contains(kind), "{setting}: {ran}");
        }
        let key = ("WORKFLOW_MANAGER__HTTP__TLS__KEY", name);
        let certificate = ("WORKFLOW_MANAGER__HTTP__TLS__CERTIFICATE", name);
        let ran = serve(&["--db", ":memory:"], &[key, certificate]);
        assert!(ran.code == Some(1) && ran.text().contains(kind), "{ran}");
    }
    // A pipe that the process was given is read.
    let given = format!("printf '%s' '{SIMPLE}' | \"$0\" check /dev/stdin");
    let binary = command().get_program().to_owned();
    let ran = run(Command::new("sh").arg("-c").arg(given).arg(&binary));
    assert!(ran.code == Some(0) && ran.stdout.contains("valid"), "{ran}");
}

#[test]
fn too_few_open_files_are_told_at_the_start() {
    let binary = command().get_program().to_owned();
    let with = |files: u32, arguments: &str| {
        let script = format!("ulimit -n {files}; exec \"$0\" {arguments}");
        run(Command::new("sh").arg("-c").arg(script).arg(&binary))
    };
    let ran = with(48, "serve --db :memory: --listen 127.0.0.1:0");
    assert_eq!(ran.code, Some(1), "{ran}");
    assert!(
        ran.stderr.contains("may have 48 open files") && ran.stderr.contains("ulimit -n"),
        "{ran}"
    );
    // A command that asks a manager needs few.
    let ran = with(16, "jobs --server http://127.0.0.1:1");
    assert!(ran.code == Some(3) && ran.stderr.contains("cannot reach the manager"), "{ran}");
}

#[test]
fn a_worker_ends_in_order_when_its_terminal_is_gone() {
    let daemon = Setup::new("", SIMPLE).start();
    let log = daemon.dir().join("worker");
    for (number, name) in [(1, "SIGHUP"), (3, "SIGQUIT")] {
        let mut worker = command_at_terminal();
        worker.args(["work", "work", "--server", &daemon.url(), "--", "cat"]);
        worker.stderr(std::fs::File::create(&log).unwrap());
        let mut worker = worker.spawn().unwrap();
        let said = || std::fs::read_to_string(&log).unwrap();
        eventually("it begins", || when(said().contains("takes messages"), said()));
        let pid = worker.id().to_string();
        must_succeed(Command::new("kill").args(["-USR1", &pid]));
        eventually("it says a word", || when(said().contains("SIGUSR1 means nothing"), said()));
        must_succeed(Command::new("kill").arg(format!("-{number}")).arg(&pid));
        let status = eventually("it ends", || worker.try_wait().unwrap().ok_or("it runs"));
        assert_eq!(status.code(), Some(0), "{name}: {}", said());
    }
}
