//! Several names on one database: each has its workflows and its jobs, and a standby of its own.

use std::time::Duration;

use serde_json::json;
use support::journal_rules::InDatabase;
use uuid::Uuid;

use crate::amqp::{Vhost, Worker};
use crate::harness::{Daemon, Setup, command, eventually, run, when, within};
use crate::postgres::{HttpWorker, assert_records_sound};

const NAMES: [&str; 3] = ["one", "two", "three"];

/// How many jobs each name has at the faults.
const JOBS: usize = 20;

/// How long a takeover may take, with all jobs after it.
const LONG: Duration = Duration::from_secs(60);

/// A manager of a name, whose workflow has the name too.
fn of_name(database: &InDatabase, name: &str) -> Setup {
    let workflows = format!(
        "workflows: [{{ name: {name}, steps: [{{ name: first, queue: work }}, \
         {{ name: second, queue: work, depends: [ first ] }}] }}]"
    );
    Setup::new("", &workflows)
        .set("journal.url", &database.url())
        .set("journal.full_retry", "100ms")
        .set("embedded.lease", "2s")
        .set("cluster.name", name)
        .set("http.public_url", "http://127.0.0.1:{port}")
}

/// Two processes of a name; the first one is active.
fn start_pair(database: &InDatabase, name: &str) -> [Daemon; 2] {
    let first = of_name(database, name).start();
    let mut second = of_name(database, name).spawn();
    second.await_alive();
    [first, second]
}

fn create_jobs(daemon: &Daemon, workflow: &str) -> Vec<Uuid> {
    (0..JOBS)
        .map(|index| daemon.api.create(workflow, &json!({ "index": index }).to_string()))
        .collect()
}

#[test]
fn three_names_share_a_database_and_each_goes_on_when_its_manager_is_killed() {
    let database = InDatabase::create();
    let mut pairs: Vec<[Daemon; 2]> =
        NAMES.iter().map(|name| start_pair(&database, name)).collect();
    let jobs: Vec<Vec<Uuid>> =
        pairs.iter().zip(NAMES).map(|(pair, name)| create_jobs(&pair[0], name)).collect();

    // Lists, searches and reads of a job are of all names, at whichever process.
    for pair in &pairs {
        for daemon in pair {
            for (name, jobs) in NAMES.iter().zip(&jobs) {
                let list = daemon.api.get(&format!("/api/jobs/search?workflow={name}&count=true"));
                assert_eq!(list.expect(200).json()["count"], JOBS, "{name}");
                assert_eq!(daemon.api.job(jobs[0]).state, "running");
            }
        }
    }

    // Only the active one of its name changes a job, or makes one of a workflow.
    let [one, two] = [&pairs[0][0], &pairs[1][0]];
    for (method, path) in [
        ("POST", format!("/api/job/{}/pause", jobs[1][0])),
        ("DELETE", format!("/api/job/{}", jobs[1][0])),
        ("POST", format!("/api/job/{}/step/first", jobs[1][0])),
        ("POST", "/api/workflow/two".to_owned()),
    ] {
        let answer = one.api.send(method, &path, &[], Some(b"{}"));
        let answer = answer.expect_problem(421, &["belongs to the manager \"two\""]);
        assert_eq!(answer.header("workflow-manager-active"), two.url(), "{method} {path}");
        assert_eq!(answer.json()["active"], two.url(), "{method} {path}");
    }
    one.api.post("/api/workflow/nobody", "{}").expect(404);
    one.api.post(&format!("/api/job/{}/pause", Uuid::from_u128(7)), "").expect(404);
    // The command line goes where it is led.
    for (command_name, state) in [("pause", "paused"), ("resume", "running")] {
        let job = jobs[1][0].to_string();
        let ran = run(command().args([command_name, &job, "--server", &one.url()]));
        assert_eq!(ran.code, Some(0), "{}", ran.text());
        two.api.await_state(jobs[1][0], state);
    }

    // Two of three lose their managers at once; the third one notices nothing.
    pairs[0][0].kill();
    pairs[1][0].kill();
    let apis = pairs.iter().flatten().map(|daemon| daemon.api.anew()).collect();
    let worker = HttpWorker::start(apis);
    let reader = &pairs[2][0].api;
    for (name, jobs) in NAMES.iter().zip(&jobs) {
        within(LONG, "all jobs of the name end", || {
            let path = format!("/api/jobs/search?workflow={name}&state=completed&count=true");
            let total = reader.get(&path).expect(200).json()["count"].clone();
            when(total == jobs.len(), total)
        });
    }
    drop(worker);
    assert_records_sound(&database);
    // The number of a job tells its name.
    let misnumbered = "SELECT j.number FROM jobs j JOIN names n
                         ON n.ordinal = (j.number >> 12) & 1023 WHERE n.name <> j.workflow";
    assert_eq!(database.query(misnumbered), "");
    let epochs = database.query("SELECT epoch FROM names ORDER BY ordinal");
    assert_eq!(epochs.split_whitespace().collect::<Vec<_>>(), ["2", "2", "1"]);
}

#[test]
fn a_name_calls_the_workflow_of_another_name_by_its_queue() {
    let (database, vhost) = (InDatabase::create(), Vhost::new());
    let manager = |name: &str, workflows: &str| {
        let setup = Setup::new(&vhost.url, workflows).set("journal.url", &database.url());
        setup.set("cluster.name", name).start()
    };
    let _callee = manager("callee", "workflows: [{ name: price, steps: [{ name: work }] }]");
    let caller = manager(
        "caller",
        "workflows: [{ name: order, steps: [{ name: price, queue: workflow.price }] }]",
    );
    let _worker = Worker::echo(&vhost.url, &["work"]);
    let job = caller.api.create("order", "{\"price\":7}");
    assert_eq!(caller.api.await_result(job), "{\"price\":7}");
    // Both jobs are in every list, each with its own name.
    eventually("both are completed", || {
        let count = database.query(
            "SELECT count(DISTINCT (number >> 12) & 1023) FROM jobs WHERE state = 'completed'",
        );
        when(count.trim() == "2", count)
    });
}
