//! `doctor`: what is wrong is found, and told with what to do.

use super::json_of;
use crate::amqp::{Broker, Vhost, Worker};
use crate::harness::{Daemon, Ran, Setup, command, eventually, free_port, run, variable, when};
use crate::tls::{Authority, serve_with_tls};
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
fn steps_that_may_take_longer_than_a_broker_waits_for_their_workers_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("workflows.yaml");
    let text = "workflows: [ { name: w, steps: [ { name: long, timeout: 2h }, { name: short, \
                timeout: 30m }, { name: here, bus: embedded, timeout: 2h } ] } ]";
    fs::write(&file, text).unwrap();
    let mut doctor = command();
    doctor.args(["doctor", "--json", "--amqp-server", "amqp://127.0.0.1:1"]);
    doctor.arg("--workflows").arg(&file).arg("--db").arg(dir.path().join("journal.db"));
    let words = "the \"timeout\" of step \"long\" of \"w\" is longer than 30m";
    has(&run(&mut doctor), "warning", "timeouts", words);
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
    has(&broken, "error", "journal", "not a SQLite database");
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

#[test]
fn web_services_are_asked_and_nothing_is_posted() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let daemon = Setup::new("", WORKFLOWS).start();
    let place = daemon.url().replace("http://", "");
    let over_tls = |authority: &Authority, host: &str| {
        serve_with_tls(&authority.vouch(host, host, 2099), place.clone())
    };
    let good = over_tls(&authority, "localhost");
    let (strange, other) = (over_tls(&stranger, "localhost"), over_tls(&authority, "example.org"));
    let gone = free_port();
    let (settings, workflows) =
        (daemon.dir().join("hooks.yaml"), daemon.dir().join("address.yaml"));
    let port = daemon.url().rsplit(':').next().unwrap().to_owned();
    let address = format!("http://localhost:{port}/hidden-4711");
    fs::write(
        &workflows,
        format!(
            "workflows: [ {{ name: hooked, steps: [ {{ name: hook, queue: '{address}', \
             timeout: 1m }} ] }} ]"
        ),
    )
    .unwrap();
    let write = |deny: &str| {
        let text = format!(
            "workflows: [ {workflows:?} ]
tls: {{ authorities: {authority:?} }}
push: {{ networks: {{ deny: [ {deny} ] }} }}
buses:
  hooks:
    kind: push
    endpoints:
      good: {{ url: 'https://localhost:{good}/hook' }}
      strange: {{ url: 'https://localhost:{strange}/hook' }}
      other: {{ url: 'https://localhost:{other}/hook' }}
      gone: {{ url: 'http://localhost:{gone}/hook' }}
      nowhere: {{ url: 'http://nowhere.invalid/hook' }}
",
            authority = authority.file(),
        );
        fs::write(&settings, text).unwrap();
    };
    let doctor =
        || run(command().args(["doctor", "--json", "--db", ":memory:", "--config"]).arg(&settings));
    write("");
    let asked = doctor();
    assert_eq!(asked.code, Some(1), "{asked}");
    has(&asked, "ok", "services", "\"good\" at localhost (bus \"hooks\") answers (");
    has(&asked, "ok", "services", "\"localhost\" at localhost");
    for (name, words) in [
        ("strange", "a certificate that is not believed: invalid peer certificate: UnknownIssuer"),
        ("other", "a certificate that is not believed"),
        ("gone", "cannot be reached"),
        ("nowhere", "cannot be reached"),
    ] {
        has(
            &asked,
            "error",
            "services",
            &format!(
                "\"{name}\" at {}",
                if name == "nowhere" { "nowhere.invalid" } else { "localhost" }
            ),
        );
        has(&asked, "error", "services", words);
    }
    assert!(!asked.text().contains("4711"), "{asked}");
    write("127.0.0.0/8, '::1/128'");
    let denied = doctor();
    has(&denied, "error", "services", "\"good\" at localhost (bus \"hooks\") may not be called");
    has(&denied, "error", "services", "push.networks.deny");
    assert!(daemon.api.get("/api/jobs").expect(200).text.contains("[]"), "nothing was asked for");
}

#[test]
fn the_port_of_workers_over_grpc_is_asked_as_a_worker_would() {
    let listen = format!("127.0.0.1:{}", free_port());
    let token = "the-right-one-of-all";
    let mut daemon =
        Setup::new("", WORKFLOWS).set("grpc.listen", &listen).set("http.token", token).start();
    let doctor = |token: &str| {
        let mut doctor = examine(&daemon, "");
        doctor.env(variable("grpc.listen"), &listen).args(["--json", "--token", token]);
        run(&mut doctor)
    };
    // The health service hears of readiness a moment later.
    crate::harness::eventually("it is well", || {
        let ran = doctor(token);
        let text = format!("workers can come to {listen}");
        let is_well = findings(&ran).iter().all(|finding| finding["level"] != "error");
        crate::harness::when(is_well && ran.stdout.contains(&text), ran)
    });
    has(&doctor("wrong-wrong-wrong-wrong"), "error", "grpc", "a worker is refused");
    // Somebody else listens there.
    let mut doctor = examine(&daemon, "");
    let other = Setup::new("", WORKFLOWS).start();
    let place = other.url().replace("http://", "");
    doctor.env(variable("grpc.listen"), place).args(["--json", "--token", token]);
    has(&run(&mut doctor), "error", "grpc", "it does not speak gRPC");
    daemon.stop();
    let mut doctor = examine(&daemon, "");
    doctor.env(variable("grpc.listen"), &listen).args(["--json", "--token", token]);
    has(&run(&mut doctor), "error", "grpc", "onnection refused");
}

#[test]
fn the_port_of_workers_over_grpc_shows_the_certificate_of_the_api() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let identity = authority.vouch("api", "localhost", 2099);
    let (certificate, key) = identity.files();
    let listen = format!("127.0.0.1:{}", free_port());
    let set = [
        ("grpc.listen", listen.as_str()),
        ("http.tls.certificate", certificate.to_str().unwrap()),
        ("http.tls.key", key.to_str().unwrap()),
    ];
    let mut setup = Setup::new("", WORKFLOWS);
    for (name, value) in set {
        setup = setup.set(name, value);
    }
    let daemon = setup.spawn();
    daemon.await_log(&["\"listening\""]);
    let server = daemon.url().replace("http://127.0.0.1", "https://localhost");
    let doctor = |believed: &Authority, server: &str| {
        let mut doctor = examine(&daemon, "");
        for (name, value) in set {
            doctor.env(variable(name), value);
        }
        doctor.env(variable("tls.authorities"), believed.file());
        doctor.env("SSL_CERT_FILE", believed.file()).args(["--json", "--server", server]);
        run(&mut doctor)
    };
    crate::harness::eventually("it is well", || {
        let ran = doctor(&authority, &server);
        let text = format!("workers can come to {listen} over TLS");
        crate::harness::when(ran.stdout.contains(&text), ran)
    });
    let told = doctor(&stranger, &server);
    has(&told, "error", "grpc", "UnknownIssuer");
    let other = doctor(&authority, &server.replace("localhost", "127.0.0.1"));
    has(&other, "error", "grpc", "ertificate");
}

#[test]
fn policies_by_which_the_reply_queue_drops_replies_are_found() {
    let vhost = Vhost::new();
    let management = vhost.management_url(Broker::shared().user());
    let daemon = Setup::new(&vhost.url, WORKFLOWS).set("amqp.management", &management).start();
    let drops = || {
        let mut doctor = examine(&daemon, &vhost.url);
        let ran = run(doctor.env(variable("amqp.management"), &management).arg("--json"));
        let found = findings(&ran).into_iter();
        let texts = found.filter_map(|finding| finding["text"].as_str().map(str::to_owned));
        texts.filter(|text| text.contains("drops replies")).collect::<Vec<String>>().join(" ")
    };
    vhost.ctl("set_operator_policy", &["bound", "^workflow-manager$", r#"{"max-length":1000}"#]);
    vhost.ctl("set_policy", &["everything", ".*", r#"{"message-ttl":60000,"expires":3600000}"#]);
    let told = ["message-ttl 60000", "expires 3600000"];
    eventually("doctor finds the policy", || {
        let found = drops();
        let is_told = |key: &str| found.contains(&format!("{key}, by the policy \"everything\""));
        when(told.into_iter().all(is_told), found)
    });
    // The broker tells the operator's with its statistics, which an idle queue may never renew.
    let (confirmed, client) = ("max-length 1000, by the operator policy \"bound\"", vhost.client());
    eventually("doctor finds the operator's policy", || {
        client.publish("workflow-manager", "{}", crate::amqp::json_properties());
        let found = drops();
        when(found.contains(confirmed), found)
    });
    vhost.ctl("clear_policy", &["everything"]);
    vhost.ctl("clear_operator_policy", &["bound"]);
    eventually("doctor finds nothing", || {
        let found = drops();
        when(found.is_empty(), found)
    });
}
