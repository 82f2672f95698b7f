//! The statuses of jobs: by plain SQL while the daemon runs, over HTTP as JSON and as CSV, and on
//! the command line.

use std::process::Command;

use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    amqp::{Client, Vhost, json_properties},
    harness::{Api, Daemon, Setup, command, eventually, must_succeed, run, when},
};

const APPLICATIONS: &str = "
workflows:
  - name: job-application
    steps:
      - name: application
      - name: background-check
        depends: [ application ]
      - name: limit
        depends: [ background-check ]
";

fn start(vhost: &Vhost) -> Daemon {
    Setup::new(&vhost.url, APPLICATIONS).start()
}

/// A reply that is no object fails the step.
const NO_OBJECT: &str = "[]";

/// Creates a job and has its first steps answered, in order.
fn job(daemon: &Daemon, client: &Client, replies: &[(&str, &str)]) -> Uuid {
    let id = daemon.api.create("job-application", "{}");
    for (step, reply) in replies {
        client.reply(&client.take(step), reply);
    }
    id
}

/// Waits until the row of a job has these statuses; gives the row.
#[track_caller]
fn await_statuses(api: &Api, id: Uuid, state: &str, statuses: &Value) -> Value {
    eventually(&format!("job {id} is {state} with {statuses}"), || {
        let answer = api.get(&format!("/api/status/job-application?job={id}")).expect(200);
        let row = answer.json()["rows"][0].clone();
        when(row["state"] == state && row["steps"] == *statuses, &answer).map(|()| row)
    })
}

#[track_caller]
fn jobs_of(api: &Api, query: &str) -> Vec<Uuid> {
    let answer = api.get(&format!("/api/status/job-application{query}")).expect(200);
    let rows = answer.json()["rows"].as_array().expect("rows are a list").clone();
    rows.iter().map(|row| row["job"].as_str().unwrap().parse().unwrap()).collect()
}

#[test]
fn any_sqlite_client_reads_them_while_the_daemon_runs() {
    let vhost = Vhost::new();
    let mut daemon = start(&vhost);
    let client = vhost.client();
    // Python's, in a process of its own.
    let sql = "select job, state, application, \"background-check\", \"limit\" \
               from \"status_job-application\" where \"background-check\" = 'FAILED'";
    let script = "import sqlite3, sys, json
connection = sqlite3.connect(f'file:{sys.argv[1]}?mode=ro', uri=True)
print(json.dumps(connection.execute(sys.argv[2]).fetchall()))";
    let ask = |daemon: &Daemon| -> Value {
        let output = must_succeed(
            Command::new("python3").args(["-c", script]).arg(daemon.database()).arg(sql),
        );
        serde_json::from_slice(&output.stdout).unwrap()
    };
    assert_eq!(ask(&daemon), json!([]), "the table is there before the first job");

    // A reader that stays in its transaction sees one moment, and holds up nobody.
    let reader =
        Connection::open_with_flags(daemon.database(), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    reader.execute_batch("BEGIN").unwrap();
    let count = |reader: &Connection| {
        reader
            .query_row("select count(*) from \"status_job-application\"", [], |row| {
                row.get::<_, i64>(0)
            })
            .unwrap()
    };
    assert_eq!(count(&reader), 0);

    let waiting = job(&daemon, &client, &[("application", "{}")]);
    await_statuses(
        &daemon.api,
        waiting,
        "running",
        &json!({ "application": "COMPLETED", "background-check": "PENDING", "limit": "" }),
    );
    let message = client.take("background-check");
    let failed = job(&daemon, &client, &[("application", "{}"), ("background-check", NO_OBJECT)]);
    await_statuses(
        &daemon.api,
        failed,
        "failed",
        &json!({ "application": "COMPLETED", "background-check": "FAILED", "limit": "" }),
    );
    let rows = json!([[failed.to_string(), "failed", "COMPLETED", "FAILED", ""]]);
    assert_eq!(ask(&daemon), rows);
    assert_eq!(count(&reader), 0);
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(count(&reader), 2);

    daemon.kill();
    assert_eq!(ask(&daemon), rows, "also after a crash, before the next start");
    daemon.start_again();
    client.reply(&message, "{}");
    await_statuses(
        &daemon.api,
        waiting,
        "running",
        &json!({ "application": "COMPLETED", "background-check": "COMPLETED", "limit": "PENDING" }),
    );
    daemon.api.delete(&format!("/api/job/{failed}?erase=true")).expect(200);
    assert_eq!(ask(&daemon), json!([]));
}

#[test]
fn a_new_step_has_its_column_after_a_restart_and_a_table_that_was_dropped_is_there_again() {
    let vhost = Vhost::new();
    let mut daemon = start(&vhost);
    let client = vhost.client();
    let old = job(&daemon, &client, &[("application", "{}")]);
    await_statuses(
        &daemon.api,
        old,
        "running",
        &json!({ "application": "COMPLETED", "background-check": "PENDING", "limit": "" }),
    );
    daemon.stop();
    daemon.write_workflows(&APPLICATIONS.replace("name: limit", "name: offer"));
    Connection::open(daemon.database())
        .unwrap()
        .execute_batch("DROP TABLE \"status_job-application\"")
        .unwrap();
    daemon.start_again();
    await_statuses(
        &daemon.api,
        old,
        "running",
        &json!({
            "application": "COMPLETED",
            "background-check": "PENDING",
            "limit": "",
            "offer": "",
        }),
    );

    // While it runs: the next change makes it anew.
    Connection::open(daemon.database())
        .unwrap()
        .execute_batch("DROP TABLE \"status_job-application\"")
        .unwrap();
    daemon.api.get("/api/status/job-application").expect_problem(500, &["is missing"]);
    let new = daemon.api.create("job-application", "{}");
    assert_eq!(jobs_of(&daemon.api, ""), [new, old]);
    daemon.await_log(&["statuses is filled from the journal", "\"jobs\":2"]);
}

#[test]
fn over_http_they_are_filtered_and_paged() {
    let vhost = Vhost::new();
    let daemon = start(&vhost);
    let (api, client) = (&daemon.api, vhost.client());
    let done = job(
        &daemon,
        &client,
        &[("application", "{}"), ("background-check", "{}"), ("limit", "{}")],
    );
    let row = await_statuses(
        api,
        done,
        "completed",
        &json!({
            "application": "COMPLETED",
            "background-check": "COMPLETED",
            "limit": "COMPLETED",
        }),
    );
    let names: Vec<&String> = row.as_object().unwrap().keys().collect();
    assert_eq!(names, ["created", "job", "state", "steps", "updated"]);
    for key in ["created", "updated"] {
        let time = row[key].as_str().unwrap();
        assert!(
            time.len() == 24 && time.ends_with('Z') && time.as_bytes()[10] == b'T',
            "RFC 3339 in UTC with milliseconds: {time}"
        );
    }
    assert!(row["created"].as_str() <= row["updated"].as_str(), "{row}");
    let failed = job(&daemon, &client, &[("application", "{}"), ("background-check", NO_OBJECT)]);
    await_statuses(
        api,
        failed,
        "failed",
        &json!({ "application": "COMPLETED", "background-check": "FAILED", "limit": "" }),
    );
    let first = job(&daemon, &client, &[]);
    let second = job(&daemon, &client, &[]);

    assert_eq!(jobs_of(api, ""), [second, first, failed, done], "newest first");
    assert_eq!(jobs_of(api, "?background-check=FAILED"), [failed]);
    assert_eq!(jobs_of(api, "?application=COMPLETED&background-check=COMPLETED"), [done]);
    assert_eq!(jobs_of(api, "?application=COMPLETED&state=failed"), [failed]);
    assert_eq!(jobs_of(api, "?background-check="), [second, first], "empty: the step waits");
    assert_eq!(
        jobs_of(api, "?step.limit=COMPLETED"),
        [done],
        "a step whose name means something else in the query"
    );
    assert_eq!(jobs_of(api, &format!("?job={first}")), [first]);
    assert!(jobs_of(api, &format!("?job={}", Uuid::new_v4())).is_empty());

    let page = api.get("/api/status/job-application?limit=3").expect(200);
    assert_eq!(page.json()["rows"].as_array().map(Vec::len), Some(3), "{page}");
    let next = page.json()["next"].as_str().unwrap().to_owned();
    assert_eq!(jobs_of(api, &format!("?limit=3&cursor={next}")), [done]);
    for whole in
        ["?limit=4", &format!("?limit=3&cursor={next}"), "?background-check=FAILED&limit=1"]
    {
        let page = api.get(&format!("/api/status/job-application{whole}")).expect(200);
        assert!(page.json().get("next").is_none(), "there is nothing more: {page}");
    }

    api.get("/api/status/job-aplication")
        .expect_problem(404, &["did you mean \"job-application\""]);
    api.get("/api/status/job-application?vhost=other")
        .expect_problem(404, &["other/job-application"]);
    api.get("/api/status/job-application?backgroundcheck=FAILED")
        .expect_problem(400, &["backgroundcheck", "did you mean \"background-check\""]);
    api.get("/api/status/job-application?step.vhost=1").expect_problem(400, &["no step \"vhost\""]);
    api.get("/api/status/job-application?state=done").expect_problem(400, &["done", "completed"]);
    for wrong in [
        "limit=0",
        "limit=10001",
        "limit=many",
        "cursor=x",
        "job=1",
        "state=failed&state=failed",
        "updated=now",
    ] {
        api.get(&format!("/api/status/job-application?{wrong}"))
            .expect_problem(400, &[wrong.split_once('=').unwrap().0]);
    }
    api.post("/api/status/job-application", "{}").expect_problem(405, &["POST"]);
}

#[test]
fn as_csv_they_are_whole_and_no_cell_is_a_formula() {
    let vhost = Vhost::new();
    let daemon = start(&vhost);
    let (api, client) = (&daemon.api, vhost.client());
    let mut ids = Vec::new();
    for word in ["=1+1", "+1", "-1", "@a", "＝1+1", "\n=1+1", "a, \"b\"\n\u{1b}[2J", "\tx"] {
        let id = daemon.api.create("job-application", "{}");
        let body = json!({ "status": word }).to_string();
        client.say(
            &client.take("application"),
            body,
            json_properties().with_type("progress".into()),
        );
        await_statuses(
            api,
            id,
            "running",
            &json!({ "application": word, "background-check": "", "limit": "" }),
        );
        ids.push(id);
    }
    let csv = |query: &str| {
        api.send(
            "GET",
            &format!("/api/status/job-application{query}"),
            &[("Accept", "text/csv")],
            None,
        )
        .expect(200)
    };
    let whole = csv("");
    assert!(whole.header("content-type").starts_with("text/csv"), "{whole}");
    let mut table = csv::Reader::from_reader(whole.text.as_bytes());
    assert_eq!(
        table.headers().unwrap(),
        ["job", "state", "created", "updated", "application", "background-check", "limit"]
            .as_slice()
    );
    let rows: Vec<csv::StringRecord> = table.records().collect::<Result<_, _>>().unwrap();
    let cells: Vec<&str> = rows.iter().rev().map(|row| &row[4]).collect();
    assert_eq!(
        cells,
        ["'=1+1", "'+1", "'-1", "'@a", "'＝1+1", r"'\n=1+1", r#"a, "b"\n\u{1b}[2J"#, r"'\tx"]
    );
    assert!(rows.iter().rev().zip(&ids).all(|(row, id)| row[0] == id.to_string()), "{whole}");
    assert_eq!(csv("?limit=2").text.lines().count(), 1 + 2, "the newest two, of a line each");
    assert_eq!(csv("?state=failed").text.lines().count(), 1, "the header alone");
    let json_first = api
        .send(
            "GET",
            "/api/status/job-application",
            &[("Accept", "application/json, text/csv;q=0.5")],
            None,
        )
        .expect(200);
    assert!(json_first.header("content-type").starts_with("application/json"), "{json_first}");
    api.send("GET", "/api/status/nothing", &[("Accept", "text/csv")], None)
        .expect_problem(404, &["nothing"]);
}

#[test]
fn the_command_line_shows_them() {
    let vhost = Vhost::new();
    let daemon = start(&vhost);
    let client = vhost.client();
    let status = |arguments: &[&str]| {
        run(command()
            .args(["status", "job-application", "--server", &daemon.url()])
            .args(arguments))
    };
    assert!(status(&[]).stdout.contains("no jobs"));
    let done =
        job(&daemon, &client, &[("application", "{}"), ("background-check", "{}")]).to_string();
    let running = job(&daemon, &client, &[]).to_string();
    await_statuses(
        &daemon.api,
        done.parse().unwrap(),
        "running",
        &json!({ "application": "COMPLETED", "background-check": "COMPLETED", "limit": "PENDING" }),
    );

    let table = status(&[]);
    assert_eq!(table.code, Some(0), "{table}");
    for word in [&*done, &*running, "background-check", "COMPLETED", "PENDING"] {
        assert!(table.stdout.contains(word), "no {word} in {table}");
    }
    let filtered = status(&["--filter", "application=COMPLETED", "--filter", "limit=PENDING"]);
    assert!(filtered.stdout.contains(&done) && !filtered.stdout.contains(&running), "{filtered}");
    let cut = status(&["--limit", "1"]);
    assert!(
        cut.stdout.contains(&running)
            && !cut.stdout.contains(&done)
            && cut.stdout.contains("--limit"),
        "{cut}"
    );
    let machine = status(&["--job", &done, "--json"]);
    let answer: Value =
        serde_json::from_str(&machine.stdout).unwrap_or_else(|error| panic!("{error}: {machine}"));
    assert_eq!(answer["rows"][0]["job"], done, "{machine}");
    let csv = status(&["--csv"]);
    assert!(
        csv.stdout.starts_with("job,state,created,updated,application,background-check,limit\n")
            && csv.stdout.lines().count() == 3,
        "{csv}"
    );

    let wrong = status(&["--filter", "offer=PENDING"]);
    assert!(wrong.code == Some(1) && wrong.stderr.contains("offer"), "{wrong}");
    assert_eq!(status(&["--filter", "application"]).code, Some(2));
    assert_eq!(status(&["--csv", "--json"]).code, Some(2));
}

#[test]
fn a_failed_job_that_waits_for_a_reply_is_gone_when_its_retention_is_over() {
    let vhost = Vhost::new();
    let workflow = "workflows: [{ name: w, steps: [{ name: fails }, { name: silent }] }]";
    let setup = Setup::new(&vhost.url, workflow)
        .set("journal.retention", "1s")
        .set("journal.retention_interval", "100ms");
    let daemon = setup.start();
    let (api, client) = (&daemon.api, vhost.client());
    let id = Uuid::new_v4();
    let path = format!("/api/workflow/w?id={id}");
    api.post(&path, "{}").expect(201);
    let late = client.take("silent");
    client.reply(&client.take("fails"), NO_OBJECT);
    api.await_state(id, "failed");
    eventually("the job is gone", || {
        let answer = api.get(&format!("/api/job/{id}"));
        when(answer.status == 404, answer)
    });
    let answer = api.get("/api/status/w").expect(200);
    assert_eq!(answer.json()["rows"], json!([]), "{answer}");
    // Its id is free, and what comes late is for nobody.
    client.reply(&late, "{}");
    eventually("the late reply is counted", || {
        let metrics = api.get("/metrics").text;
        when(
            metrics.contains("workflow_replies_rejected_total{reason=\"unknown_job\"} 1"),
            &metrics,
        )
    });
    api.post(&path, r#"{"another":"message"}"#).expect(201);
    assert_eq!(api.job(id).state, "running");
}
