//! What the daemon refuses, and how it says why.

use std::{
    fs::{self, OpenOptions, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use rusqlite::Connection;
use tempfile::TempDir;

use crate::{
    amqp::{Broker, Client, REPLY_QUEUE, Vhost, Worker},
    harness::{Ran, Setup, command, free_port, run},
};

const SIMPLE: &str = "workflows: [ { name: single, steps: [ { name: work } ] } ]";

// ---- the broker refuses

#[test]
fn a_user_that_the_broker_refuses_is_told_once_and_tried_again() {
    let vhost = Vhost::new();
    let broker = Broker::shared();
    let user = format!("late-{}", vhost.name);
    let url = vhost.url.replacen(
        &format!("//{}:guest@", broker.user()),
        &format!("//{user}:the-secret@"),
        1,
    );
    assert_ne!(url, vhost.url, "the broker of the tests has the password guest");
    let mut daemon = Setup::new(&url, SIMPLE).launch();
    daemon.await_log(&["refused", "password", &user]);
    let ready = daemon.api.get("/readyz?verbose").expect(503);
    assert!(ready.text.contains("refused"), "{ready}");
    let id = daemon.api.create("single", "{}");
    assert_eq!(daemon.api.job(id).state, "running");

    broker.ctl(&["add_user", &user, "the-secret"]);
    // Now the password is right, and another thing is wrong.
    daemon.await_log(&["may not use the virtual host", &user]);
    vhost.ctl("set_permissions", &[&user, ".*", ".*", ".*"]);
    daemon.await_ready();
    broker.ctl(&["delete_user", &user]);
    let log = daemon.log();
    for refusal in ["refused the user name or password", "may not use the virtual host"] {
        let told = log.lines().filter(|line| line.contains(refusal)).count();
        assert_eq!(told, 1, "{refusal}: {log}");
    }
    assert!(daemon.ended().is_none(), "it stays alive");
    assert!(
        !log.contains("the-secret") && !ready.text.contains("the-secret"),
        "a password is never shown"
    );
}

#[test]
fn an_address_that_ends_with_a_slash_means_the_default_virtual_host() {
    let queue = format!("replies-of-{}", uuid::Uuid::new_v4());
    let daemon =
        Setup::new(&Broker::shared().url(""), SIMPLE).set("amqp.reply_queue", &queue).start();
    let client = Client::connect(&Broker::shared().url("%2f"));
    assert_eq!(client.count(&queue), Some((0, 1)), "its reply queue is there");
    drop(daemon);
    client.await_count(&queue, 0);
    client.delete(&queue);
}

#[test]
fn a_virtual_host_that_is_missing_is_told() {
    let url = Broker::shared().url("there-is-no-such-host");
    let daemon = Setup::new(&url, SIMPLE).launch();
    daemon.await_log(&["there-is-no-such-host"]);
    daemon.api.get("/readyz").expect(503);
}

// ---- a second process

#[test]
fn a_second_process_on_the_same_journal_is_refused() {
    let (vhost, other) = (Vhost::new(), Vhost::new());
    let daemon = Setup::new(&vhost.url, SIMPLE).start();
    let refused = serve(daemon.dir(), &other.url, &daemon.database(), &[]);
    assert_fails(&refused, &["journal.db", "process"]);
    assert_it_works(&daemon, &vhost);
}

#[test]
fn a_second_process_on_the_same_reply_queue_is_refused() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, SIMPLE).start();
    let elsewhere = scratch();
    fs::write(elsewhere.path().join("workflows.yaml"), SIMPLE).unwrap();
    let refused = serve(elsewhere.path(), &vhost.url, &elsewhere.path().join("other.db"), &[]);
    assert_fails(&refused, &[REPLY_QUEUE, "process", "reply_queue"]);
    assert_it_works(&daemon, &vhost);

    // With a reply queue of its own it runs next to the first.
    let second = Setup::new(&vhost.url, SIMPLE).set("amqp.reply_queue", "second-replies").start();
    assert_it_works(&second, &vhost);
    assert_it_works(&daemon, &vhost);
}

#[track_caller]
fn assert_it_works(daemon: &crate::harness::Daemon, vhost: &Vhost) {
    let _worker = Worker::echo(&vhost.url, &["work"]);
    let id = daemon.api.create("single", r#"{"k":1}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"k":1}"#);
}

// ---- workflow files

#[test]
fn check_prints_what_a_good_file_means() {
    let dir = scratch();
    let text = "\
workflows:
  - name: book
    steps:
      - name: split
      - name: count
        task: counting
        depends: [ split ]
    tasks:
      - name: counting
        itemListKey: bookSections
        steps:
          - name: segment
            queue: segments-here
";
    let file = write(&dir, "good.yaml", text);
    let checked = check(&file);
    assert_eq!(checked.code, Some(0), "{checked}");
    for word in
        ["book", "split", "count", "counting", "bookSections", "bookSection", "segments-here"]
    {
        assert!(checked.text().contains(word), "no {word} in {checked}");
    }
}

#[test]
fn five_mistakes_are_reported_at_once_each_with_its_place() {
    let dir = scratch();
    let text = "\
workflows:
  - name: first
    steps:
      - name: split
        dependz: [ __start__ ]
      - name: sum
        depends: [ splits ]
      - name: sum
      - name: 9lives
      - name: each
        task: nowhere
";
    let file = write(&dir, "five.yaml", text);
    // The line of each mistake, and the words that its text must have.
    let expected: [(usize, &[&str]); 5] = [
        (5, &["dependz", "depends"]),
        (7, &["splits", "split"]),
        (8, &["sum"]),
        (9, &["9lives"]),
        (11, &["nowhere", "each"]),
    ];
    let checked = check(&file);
    assert_eq!(checked.code, Some(1), "{checked}");
    assert_reports(&checked, "five.yaml", &expected);

    let served = serve(
        dir.path(),
        &Broker::shared().url("unused"),
        &dir.path().join("journal.db"),
        &[("--workflows", "five.yaml")],
    );
    assert!(!matches!(served.code, Some(0) | None), "{served}");
    assert_reports(&served, "five.yaml", &expected);
}

#[test]
fn mistakes_of_several_files_are_reported_together() {
    let dir = scratch();
    let (one, two) = (
        write(&dir, "one.yaml", "workflows:\n  - name: a\n"),
        write(&dir, "two.yaml", "workflows:\n  - name: b\n    steps: 7\n"),
    );
    let checked = run(command().arg("check").args([&one, &two]));
    assert_eq!(checked.code, Some(1), "{checked}");
    assert!(
        checked.text().contains("one.yaml") && checked.text().contains("two.yaml:3:"),
        "{checked}"
    );
}

#[test]
fn a_cycle_is_named_whole() {
    let dir = scratch();
    let file = write(
        &dir,
        "cycle.yaml",
        "workflows:\n  - name: round\n    steps:\n      - { name: alone }\n      \
         - { name: ay, depends: [ cee ] }\n      - { name: bee, depends: [ ay ] }\n      \
         - { name: cee, depends: [ bee, alone ] }\n",
    );
    let checked = check(&file);
    assert_eq!(checked.code, Some(1), "{checked}");
    let whole = checked
        .text()
        .lines()
        .any(|line| ["cycle", "ay", "bee", "cee"].iter().all(|word| line.contains(word)));
    assert!(whole, "one line names the whole cycle: {checked}");
    let own = write(
        &dir,
        "own.yaml",
        "workflows: [ { name: w, steps: [ { name: me, depends: [ me ] } ] } ]",
    );
    assert_fails(&check(&own), &["own.yaml", "cycle", "me"]);
}

#[test]
fn hostile_files_are_refused_in_bounded_time_and_memory() {
    const MEMORY_MAX: u64 = 300 * 1024 * 1024;
    const TIME_MAX: Duration = Duration::from_secs(10);
    let dir = scratch();
    let mut bomb = String::from("a0: &a0 [ x, x, x, x, x, x, x, x, x, x ]\n");
    for level in 1..10 {
        let before = format!("*a{}", level - 1);
        bomb.push_str(&format!("a{level}: &a{level} [ {} ]\n", [before.as_str(); 10].join(", ")));
    }
    bomb.push_str("workflows: *a9\n");
    let in_place = format!(
        "workflows:\n  - name: &n {}\n    steps: [ {{ name: a }} ]\n",
        "x".repeat(10_000_000)
    );
    let hostile = [
        ("bomb.yaml", bomb),
        ("scalar.yaml", in_place),
        ("flow.yaml", format!("workflows: {}{}", "[".repeat(10_000), "]".repeat(10_000))),
        ("block.yaml", format!("workflows:\n  {}x", "- ".repeat(10_000))),
        ("mapping.yaml", format!("workflows: {}1{}", "{a: ".repeat(10_000), "}".repeat(10_000))),
        ("nul.yaml", "\u{0}\u{1}\u{2}".to_owned()),
        ("tab.yaml", "workflows:\n\t- name: a\n".to_owned()),
        ("empty.yaml", String::new()),
    ];
    for (name, text) in hostile {
        let file = write(&dir, name, &text);
        let begun = Instant::now();
        let checked = check(&file);
        let taken = begun.elapsed();
        assert_eq!(checked.code, Some(1), "{name}: {}", shortened(&checked));
        assert!(checked.text().contains(name), "the file is named: {}", shortened(&checked));
        assert!(checked.text().len() < 100_000, "{name}: {} bytes of text", checked.text().len());
        assert!(!checked.text().contains("panicked"), "{name}: {}", shortened(&checked));
        assert!(
            taken < TIME_MAX && checked.memory < MEMORY_MAX,
            "{name} took {taken:?} and {} bytes",
            checked.memory
        );
    }
    let binary = dir.path().join("binary.yaml");
    fs::write(&binary, b"workflows:\n  - name: \xff\xfe\n").unwrap();
    assert_fails(&check(&binary), &["binary.yaml"]);
    assert_fails(&check(&dir.path().join("missing.yaml")), &["missing.yaml"]);
}

/// Each place is reported as `file:line:column`, and a line of that report has the words.
#[track_caller]
fn assert_reports(ran: &Ran, file: &str, expected: &[(usize, &[&str])]) {
    let text = ran.text();
    for (line, words) in expected {
        let place = format!("{file}:{line}:");
        let found = text.match_indices(&place).any(|(at, _)| {
            let rest = &text[at + place.len()..];
            let report = &rest[..rest.find(file).unwrap_or(rest.len())];
            rest.starts_with(|c: char| c.is_ascii_digit())
                && words.iter().all(|word| report.contains(word))
        });
        assert!(found, "no report at {place}<column> with {words:?}: {ran}");
    }
}

// ---- settings

#[test]
fn another_address_than_loopback_needs_a_token() {
    let vhost = Vhost::new();
    let mut refused = Setup::new(&vhost.url, SIMPLE).listen("0.0.0.0:{port}").spawn();
    assert!(!refused.await_end().success());
    let log = refused.log();
    assert!(
        log.contains("token") && log.contains("--insecure") && log.contains("0.0.0.0"),
        "{log}"
    );

    let _told = Setup::new(&vhost.url, SIMPLE)
        .listen("0.0.0.0:{port}")
        .flag("--insecure")
        .set("amqp.reply_queue", "one")
        .start();
    let _token = Setup::new(&vhost.url, SIMPLE)
        .listen("0.0.0.0:{port}")
        .set("http.token", "sesame-open-yourself")
        .set("amqp.reply_queue", "two")
        .start();
}

#[test]
fn an_unknown_setting_is_refused() {
    let vhost = Vhost::new();
    let mut by_environment = Setup::new(&vhost.url, SIMPLE).set("amqp.reply_quue", "x").spawn();
    assert!(!by_environment.await_end().success());
    assert!(by_environment.log().contains("reply_quue"), "{}", by_environment.log());

    let dir = scratch();
    write(&dir, "workflows.yaml", SIMPLE);
    let settings = write(&dir, "settings.yaml", "jurnal:\n  lag: 5ms\n");
    let by_file = serve(
        dir.path(),
        &vhost.url,
        &dir.path().join("journal.db"),
        &[("--config", settings.to_str().unwrap())],
    );
    assert_fails(&by_file, &["jurnal", "settings.yaml", "did you mean `journal`?"]);

    let wrong = write(&dir, "wrong.yaml", "journal:\n  lag: quickly\n");
    let wrong_value = serve(
        dir.path(),
        &vhost.url,
        &dir.path().join("journal.db"),
        &[("--config", wrong.to_str().unwrap())],
    );
    assert_fails(&wrong_value, &["lag", "quickly"]);
    let missing = serve(
        dir.path(),
        &vhost.url,
        &dir.path().join("journal.db"),
        &[("--config", "nowhere.yaml")],
    );
    assert_fails(&missing, &["nowhere.yaml"]);
}

#[test]
fn a_port_that_is_taken_is_told() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, SIMPLE).start();
    let address = daemon.url().replace("http://", "");
    let mut second =
        Setup::new(&vhost.url, SIMPLE).set("amqp.reply_queue", "other").listen(&address).spawn();
    assert!(!second.await_end().success());
    assert!(second.log().contains(&address), "{}", second.log());
}

#[test]
fn an_address_that_is_no_broker_address_is_refused_without_its_password() {
    for url in [
        "http://me:secret-4711@127.0.0.1/",
        "amqp://me:secret-4711@127.0.0.1:notaport/x",
        "nonsense",
    ] {
        let mut daemon = Setup::new(url, SIMPLE).spawn();
        assert!(!daemon.await_end().success(), "{url}");
        let log = daemon.log();
        assert!(log.contains("amqp"), "{log}");
        assert!(!log.contains("secret-4711"), "{log}");
    }
}

// ---- a damaged journal

#[test]
fn a_damaged_journal_is_refused_and_left_as_it_is() {
    const MARKER: &str = "marker-of-the-row-that-is-damaged";
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, SIMPLE).start();
    for n in 0..20 {
        daemon.api.create("single", &format!(r#"{{"n":{n},"text":"{MARKER}-{n}"}}"#));
    }
    assert!(daemon.stop().success());
    let database = daemon.database();
    Connection::open(&database).unwrap().pragma_update(None, "wal_checkpoint", "TRUNCATE").unwrap();

    let sound = fs::read(&database).unwrap();
    let wanted = format!("{MARKER}-7");
    let mut damaged = sound.clone();
    let places: Vec<usize> = damaged
        .windows(wanted.len())
        .enumerate()
        .filter(|(_, bytes)| *bytes == wanted.as_bytes())
        .map(|(at, _)| at)
        .collect();
    assert!(!places.is_empty(), "the journal keeps a job's message as it came");
    for at in places {
        damaged[at] ^= 1;
    }
    fs::write(&database, &damaged).unwrap();

    daemon.spawn_again();
    assert!(!daemon.await_end().success(), "a daemon does not start on a damaged journal");
    let log = daemon.log();
    let told = log.lines().any(|line| {
        line.contains("journal.db")
            && line.contains("row")
            && line.contains(|c: char| c.is_ascii_digit())
    });
    assert!(told, "a line names the file and the row:\n{log}");
    assert!(fs::read(&database).unwrap() == damaged, "the file is left as it was");

    fs::write(&database, &sound).unwrap();
    daemon.start_again();
    assert_eq!(daemon.api.get("/api/jobs").expect(200).ids("jobs").len(), 20);
}

#[test]
fn a_file_that_is_no_journal_is_refused_and_left_as_it_is() {
    let vhost = Vhost::new();
    let dir = scratch();
    write(&dir, "workflows.yaml", SIMPLE);
    let text = write(&dir, "text.db", &"this is no database\n".repeat(500));
    let foreign = dir.path().join("foreign.db");
    Connection::open(&foreign)
        .unwrap()
        .execute_batch("CREATE TABLE cats (name TEXT); INSERT INTO cats VALUES ('Tom');")
        .unwrap();
    for file in [&text, &foreign] {
        let before = fs::read(file).unwrap();
        let refused = serve(dir.path(), &vhost.url, file, &[]);
        assert_fails(&refused, &[file.file_name().unwrap().to_str().unwrap()]);
        assert!(fs::read(file).unwrap() == before, "{} is left as it was", file.display());
    }
}

#[test]
fn a_journal_that_can_be_read_alone_is_refused_at_the_start() {
    let dir = scratch();
    let file = write(&dir, "workflows.yaml", SIMPLE).with_file_name("journal.db");
    Connection::open(&file).unwrap().execute_batch("PRAGMA user_version = 0; VACUUM").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o400)).unwrap();
    // Root may write everything, unless it gives that up.
    let mut start = Command::new("setpriv");
    start.args(["--bounding-set", "-dac_override", "--"]).arg(command().get_program());
    if OpenOptions::new().write(true).open(&file).is_err() {
        start = command();
    }
    let port = free_port().to_string();
    let refused = run(start
        .args(["serve", "--workflows", "workflows.yaml", "--db", "journal.db", "--listen", &port])
        .current_dir(dir.path()));
    assert_fails(&refused, &["journal.db can be read, but not written", "chmod 600"]);
}

// ---- small ones

fn scratch() -> TempDir {
    tempfile::Builder::new().prefix("workflow-manager-slow-").tempdir().unwrap()
}

fn write(dir: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = dir.path().join(name);
    fs::write(&path, text).unwrap();
    path
}

fn check(file: &Path) -> Ran {
    run(command().arg("check").arg(file))
}

/// `serve` in a directory with a `workflows.yaml`, expected to end by itself; `flags` may name
/// other files.
fn serve(dir: &Path, server: &str, database: &Path, flags: &[(&str, &str)]) -> Ran {
    let mut command = command();
    command
        .arg("serve")
        .args(["--amqp-server", server])
        .arg("--db")
        .arg(database)
        .args(["--listen", &format!("127.0.0.1:{}", free_port())]);
    if !flags.iter().any(|(flag, _)| *flag == "--workflows") {
        command.args(["--workflows", "workflows.yaml"]);
    }
    run(command.args(flags.iter().flat_map(|(flag, value)| [flag, value])).current_dir(dir))
}

/// It failed, and what it printed has all of the words.
#[track_caller]
fn assert_fails(ran: &Ran, words: &[&str]) {
    assert!(ran.code.is_some_and(|code| code != 0), "expected a failure: {}", shortened(ran));
    let text = ran.text().to_lowercase();
    let missing: Vec<_> =
        words.iter().filter(|word| !text.contains(&word.to_lowercase())).collect();
    assert!(missing.is_empty(), "nothing of {missing:?} in: {}", shortened(ran));
}

fn shortened(ran: &Ran) -> String {
    ran.to_string().chars().take(3000).collect()
}

// ---- an address that is taken

#[test]
fn a_start_whose_address_is_taken_leaves_no_journal_and_no_trace_in_one() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let files = |dir: &Path| -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names
            .map(|name| name.to_string_lossy().into_owned())
            .filter(|name| name.starts_with("journal.db"))
            .collect();
        names.sort_unstable();
        names
    };
    // Known before the journal is opened.
    let mut daemon = Setup::new("", SIMPLE).listen(&address).spawn();
    assert!(!daemon.await_end().success());
    daemon.await_log(&["cannot listen on", &address, "--listen"]);
    assert!(files(daemon.dir()).is_empty(), "{:?}", files(daemon.dir()));
    // Known only after it: all is in the main file.
    let mut daemon = Setup::new("", SIMPLE).set("grpc.listen", &address).spawn();
    assert!(!daemon.await_end().success());
    daemon.await_log(&["cannot listen on", &address, "grpc.listen"]);
    let left = files(daemon.dir());
    assert_eq!(left, ["journal.db", "journal.db.lock", "journal.db.reserve"], "no -wal");
    let tables: i64 = Connection::open(daemon.database())
        .and_then(|file| {
            file.query_row("SELECT count(*) FROM sqlite_schema WHERE type = 'table'", [], |row| {
                row.get(0)
            })
        })
        .unwrap();
    assert!(tables > 5, "the main file alone is a journal: {tables} tables");
}
