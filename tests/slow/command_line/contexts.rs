//! Contexts, and whom the command line asks.

use super::{WORKFLOWS, json_of};
use crate::harness::{Daemon, Ran, Setup, command, free_port, run};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const TOKEN: &str = "sesame-4711-open-it";

fn guarded() -> (Daemon, TempDir) {
    let daemon = Setup::new("", WORKFLOWS).set("http.token", TOKEN).start();
    (daemon, tempfile::tempdir().unwrap())
}

fn with(home: &Path, arguments: &[&str]) -> Ran {
    run(command().args(arguments).env("XDG_CONFIG_HOME", home))
}

fn file(home: &Path) -> PathBuf {
    home.join("workflow-manager/contexts.json")
}

#[track_caller]
fn done(ran: Ran) -> Ran {
    assert_eq!(ran.code, Some(0), "{ran}");
    ran
}

#[test]
fn a_context_has_address_and_token_in_a_file_of_its_own() {
    let (daemon, home) = guarded();
    let home = home.path();
    let url = daemon.url();
    assert_eq!(with(home, &["jobs", "--server", &url]).code, Some(1), "it asks for a token");
    let added = done(with(home, &["context", "add", "work", "--server", &url, "--token", TOKEN]));
    let mode = fs::metadata(file(home)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let folder = fs::metadata(home.join("workflow-manager")).unwrap().permissions().mode();
    assert_eq!(folder & 0o777, 0o700);
    done(with(home, &["jobs"]));

    let nowhere = format!("http://127.0.0.1:{}", free_port());
    let add = ["context", "add", "other", "--server", &nowhere];
    done(with(home, &[&add[..], &["--token-command", "echo 4711-of-command"]].concat()));
    let list = done(with(home, &["context", "list"]));
    for words in [["work", "*", &url, "file"].as_slice(), &["other", &nowhere, "command"]] {
        let is_there = |line: &str| line.split_whitespace().eq(words.iter().copied());
        assert!(list.stdout.lines().any(is_there), "{words:?}: {list}");
    }
    let machine = with(home, &["context", "list", "-o", "json"]);
    assert_eq!(json_of(&machine.stdout)[0]["used"], true, "{machine}");
    done(with(home, &["context", "use", "other"]));
    assert_eq!(with(home, &["jobs"]).code, Some(3), "the other one is asked");
    done(with(home, &["jobs", "--context", "work"]));
    let chosen = run(command()
        .args(["jobs"])
        .env("XDG_CONFIG_HOME", home)
        .env("WORKFLOW_MANAGER_CONTEXT", "work"));
    done(chosen);
    done(with(home, &["context", "remove", "other"]));
    let gone = with(home, &["jobs", "--context", "othr"]);
    assert!(gone.code == Some(2) && gone.stderr.contains("there is no context"), "{gone}");
    for ran in [added, list, machine, gone, with(home, &["whoami", "--context", "work"])] {
        assert!(!ran.text().contains("4711"), "a token is never printed: {ran}");
    }
}

#[test]
fn a_token_comes_from_a_command_or_from_standard_input() {
    let (daemon, home) = guarded();
    let home = home.path();
    let url = daemon.url();
    let add = ["context", "add", "c", "--replace", "--server", &url, "--token-command"];
    let told = format!("echo {TOKEN}; echo asked >&2");
    done(with(home, &[&add[..], &[&told]].concat()));
    let ran = done(with(home, &["jobs"]));
    assert!(ran.stderr.contains("asked"), "what it says goes to the terminal: {ran}");
    for (broken, why) in [("exit 3", "exit status: 3"), ("true", "printed no token")] {
        done(with(home, &[&add[..], &[broken]].concat()));
        let ran = with(home, &["jobs"]);
        assert!(ran.code == Some(2) && ran.stderr.contains(why), "{ran}");
        assert!(ran.stderr.contains("\"c\""), "the context is named: {ran}");
    }
    let program = env!("CARGO_BIN_EXE_workflow-manager");
    let line = format!("echo {TOKEN} | {program} context add s --use --server {url} --token -");
    let mut shell = std::process::Command::new("sh");
    done(run(shell.args(["-c", &line]).env("XDG_CONFIG_HOME", home)));
    done(with(home, &["jobs"]));
}

#[test]
fn contexts_that_are_wrong_are_told() {
    let (daemon, home) = guarded();
    let home = home.path();
    let url = daemon.url();
    for (arguments, why) in [
        (vec!["add", "a b", "--server", &url], "letters, digits"),
        (vec!["add", "a", "--server", "http://me:secret@host"], "--token"),
        (vec!["add", "a", "--server", "host"], "http://host:port"),
        (vec!["add", "a", "--server", &url, "--token", "a b"], "without blanks"),
        (vec!["use", "a"], "there are none yet"),
    ] {
        let ran = with(home, &[vec!["context"], arguments].concat());
        assert!(ran.code == Some(2) && ran.stderr.contains(why), "{why}: {ran}");
        assert!(!ran.stderr.contains("secret") || why.contains("http"), "{ran}");
    }
    let add = ["context", "add", "a", "--server", &url, "--token", TOKEN];
    done(with(home, &add));
    let again = with(home, &add);
    assert!(again.code == Some(2) && again.stderr.contains("--replace"), "{again}");
    fs::set_permissions(file(home), Permissions::from_mode(0o644)).unwrap();
    let open = with(home, &["jobs"]);
    assert!(open.code == Some(2) && open.stderr.contains("chmod 600"), "{open}");
    fs::write(file(home), "{\"contexts\": [ 4711 ]}").unwrap();
    let broken = with(home, &["jobs"]);
    assert!(broken.code == Some(2) && broken.stderr.contains("line 1"), "{broken}");
    assert!(!broken.stderr.contains("4711"), "{broken}");
    // Who names the manager needs no context.
    done(with(home, &["jobs", "--server", &url, "--token", TOKEN]));
}

#[test]
fn the_token_of_a_context_goes_to_no_other_address() {
    let (daemon, home) = guarded();
    let home = home.path();
    let elsewhere = format!("http://127.0.0.1:{}", free_port());
    done(with(home, &["context", "add", "a", "--server", &elsewhere, "--token", TOKEN]));
    for arguments in [&["whoami"][..], &["whoami", "--context", "a"]] {
        let ran = with(home, &[arguments, &["--server", &daemon.url(), "--json"]].concat());
        let told = json_of(&ran.stdout);
        assert_eq!((ran.code, &told["tokenFrom"]), (Some(1), &serde_json::Value::Null), "{ran}");
    }
}

#[test]
fn whoami_tells_the_manager_and_what_the_token_allows() {
    let (daemon, _home) = guarded();
    let url = daemon.url();
    let whoami = |token: &[&str]| run(command().args(["whoami", "--server", &url]).args(token));
    let right = done(whoami(&["--token", TOKEN]));
    let version = env!("CARGO_PKG_VERSION");
    for words in [&url, "from --server", "from --token", "the token is right", version, "yes"] {
        assert!(right.stdout.contains(words), "no {words:?} in {right}");
    }
    let wrong = whoami(&["--token", "4712"]);
    assert!(wrong.code == Some(1) && wrong.stdout.contains("the token is wrong"), "{wrong}");
    let none = whoami(&[]);
    assert!(none.code == Some(1) && none.stdout.contains("asks for a token"), "{none}");
    assert!(!(right.text() + &wrong.text()).contains("471"), "no token is printed");
    let open = Setup::new("", WORKFLOWS).start();
    let open = done(run(command().args(["whoami", "--server", &open.url()])));
    assert!(open.stdout.contains("asks for no token"), "{open}");
}
