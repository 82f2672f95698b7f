//! What others hear of a job: each change of a state once, in order, under a stable id.

use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;
use workflow_manager::engine::{
    Column, Context, Decision, Definition, Dependency, Expression, FanOutKeys, Graph, Input, Job,
    JobId, Limits, Message, Millis, Operation, Origin, ParentItem, Reply, Retry, Sender, Step,
    StepIndex, Timestamp, UnreadReplies,
};
use workflow_manager::events::Event;
use workflow_manager::journal::{
    Journal, JournalOptions, NewJob, Notice, NoticeRecords, Reader, Record, SqliteJournal,
};

const LIMITS: Limits = Limits {
    step_message_bytes_max: 1 << 20,
    reply_bytes_max: 1 << 20,
    depth_max: 32,
    window: 100,
    window_bytes: 1 << 26,
};

fn context(now: i64) -> Context<'static> {
    Context { now: Timestamp(now), limits: &LIMITS, pauses: None, spare: None }
}

fn id(number: u128) -> JobId {
    JobId(uuid::Uuid::from_u128(number))
}

/// Two steps, the first of which may be tried twice, and a task.
fn definition() -> Arc<Definition> {
    let retry = Retry { attempts: 2, backoff: Millis(0), ..Retry::default() };
    let steps = vec![
        Step { retry: Some(retry), ..Step::with_name("first") },
        Step {
            depends: vec![Dependency::Step(StepIndex(0))],
            task: Some(1),
            ..Step::with_name("each")
        },
    ];
    let task = Graph::new(
        "piece".to_owned(),
        Some(FanOutKeys::new("items", "item")),
        vec![Step::with_name("work")],
    );
    Arc::new(Definition::new("chain", vec![Graph::new("chain".to_owned(), None, steps), task]))
}

/// A job with its decisions, each of them reported.
struct Told {
    job: Job,
    events: Vec<Value>,
    now: i64,
}

impl Told {
    fn new(origin: Origin) -> Told {
        let now = origin.created.0;
        let (job, decision) = Job::create(origin, Message::default(), &context(now));
        let mut told = Told { job, events: Vec::new(), now };
        told.tell(&decision);
        told
    }

    fn take(&mut self, input: Input) {
        self.now += 1;
        let decision = self.job.handle_input(input, &context(self.now)).expect("taken");
        self.tell(&decision);
    }

    fn reply(&mut self, step: &str, reply: Reply) {
        self.take(Input::Reply {
            step: step.to_owned(),
            attempt: None,
            reply,
            from: Sender::Unknown,
        });
    }

    fn tell(&mut self, decision: &Decision) {
        let events = Event::from_decision(&self.job, &decision.recorded, "/test");
        self.events.extend(
            events.iter().map(|event| serde_json::from_slice::<Value>(&event.body).expect("JSON")),
        );
    }

    /// The types without their prefix, with the step.
    fn names(&self) -> Vec<String> {
        let name = |event: &Value| {
            let kind = event["type"]
                .as_str()
                .and_then(|kind| kind.strip_prefix("workflow-manager."))
                .expect("a type");
            format!("{kind} {}", event["data"]["step"].as_str().unwrap_or_default())
                .trim_end()
                .to_owned()
        };
        self.events.iter().map(name).collect()
    }
}

fn origin(job: u128, created: i64) -> Origin {
    Origin::for_root_job(id(job), definition(), Timestamp(created))
}

fn result(body: &str) -> Reply {
    Reply::Result(body.to_owned().into())
}

#[test]
fn a_job_with_a_retry_is_told_step_by_step() {
    let mut told = Told::new(origin(1, 1_000));
    told.take(Input::Confirmed { step: StepIndex(0), attempt: 1, dispatch: None });
    told.reply(
        "first",
        Reply::Progress(r#"{"status":"HALF","progress":0.50,"message":"half"}"#.into()),
    );
    told.reply("first", Reply::Error(r#"{"error":"too early"}"#.into()));
    let due = told.job.next_timer().expect("the next attempt");
    told.take(Input::Timer { due, unread: UnreadReplies::new() });
    told.reply("first", result(r#"{"items":[]}"#));
    let expected = [
        "job.running",
        "step.running first",
        "step.progressed first",
        "step.attempt-failed first",
        "step.running first",
        "step.completed first",
        "step.running each",
        "step.completed each",
        "job.completed",
    ];
    assert_eq!(told.names(), expected);
    let data = |at: usize| &told.events[at]["data"];
    assert_eq!(
        (&data(1)["attempt"], &data(4)["attempt"], &data(5)["attempt"]),
        (&json!(1), &json!(2), &json!(2))
    );
    assert_eq!(
        (&data(2)["status"], data(2)["progress"].to_string().as_str(), &data(2)["message"]),
        (&json!("HALF"), "0.5", &json!("half"))
    );
    assert_eq!((&data(3)["state"], &data(3)["attempt"]), (&json!("running"), &json!(1)));
    assert!(
        data(3)["reason"].as_str().unwrap().contains("too early") && data(3)["retryAt"].is_string(),
        "{}",
        data(3)
    );
    assert_eq!((&data(5)["state"], &data(5)["status"]), (&json!("completed"), &json!("COMPLETED")));

    let first = &told.events[1];
    let job = told.job.id().to_string();
    assert_eq!(first["specversion"], "1.0");
    assert_eq!(
        (&first["source"], &first["subject"]),
        (&json!("/test"), &json!(format!("{job}/first")))
    );
    assert_eq!(
        (&first["time"], &first["datacontenttype"]),
        (&json!("1970-01-01T00:00:00.000001000Z"), &json!("application/json"))
    );
    assert_eq!(
        (&first["data"]["workflow"], &first["data"]["job"], &first["data"]["root"]),
        (&json!("chain"), &json!(job), &json!(job))
    );
    assert_eq!(told.events[0]["subject"], json!(job));
    let ids: HashSet<&str> =
        told.events.iter().map(|event| event["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), told.events.len(), "each has an id of its own");
}

#[test]
fn the_end_of_an_ended_job_has_the_id_that_it_had_also_after_a_restart() {
    let mut told = Told::new(origin(1, 1_000));
    let mut rows = Vec::new();
    let mut also = |told: &mut Told, input: Input| {
        told.now += 1;
        let decision = told.job.handle_input(input, &context(told.now)).expect("taken");
        told.tell(&decision);
        rows.push(decision.recorded);
    };
    also(&mut told, Input::from_request(Operation::Pause));
    also(&mut told, Input::from_request(Operation::Resume));
    also(&mut told, Input::from_request(Operation::Cancel { reason: "enough".into() }));
    let tail = ["job.paused", "job.running", "step.cancelled first", "job.cancelled"];
    assert_eq!(told.names()[2..], tail);
    let end: Value =
        serde_json::from_slice(&Event::from_state(&told.job, "/test").body).expect("JSON");
    assert_eq!(Some(&end), told.events.last());
    assert_eq!(end["data"]["reason"], "enough");

    let (fresh, decision) = Job::create(origin(1, 1_000), Message::default(), &context(1_000));
    let all = [decision.recorded].into_iter().chain(rows);
    let recovered = Job::recover(fresh.origin().clone(), None, all);
    assert_eq!(Event::from_state(&recovered, "/test"), Event::from_state(&told.job, "/test"));
}

#[test]
fn what_waits_for_people_is_told_once_for_each_attempt() {
    let retry = Retry { attempts: 2, backoff: Millis(0), ..Retry::default() };
    let steps = vec![
        Step::with_name("work"),
        Step {
            depends: vec![Dependency::Step(StepIndex(0))],
            external: true,
            retry: Some(retry),
            ..Step::with_name("sign")
        },
    ];
    let graph = Graph::new("human".to_owned(), None, steps);
    let mut definition = Definition::new("human", vec![graph]);
    definition.columns.label = Some(Expression::parse("job.title").expect("a label"));
    let total = Expression::parse("steps.work.output.total").expect("a column");
    definition.columns.list.push(Column { name: "total".into(), value: total });
    let definition = Arc::new(definition);
    let origin = Origin::for_root_job(id(1), definition, Timestamp(1_000));
    let message = Message::parse(br#"{"title":"Order 4711"}"#).expect("a message");
    let (job, decision) = Job::create(origin, message, &context(1_000));
    let mut told = Told { job, events: Vec::new(), now: 1_000 };
    told.tell(&decision);
    told.reply("work", result(r#"{"total":12.5}"#));
    told.take(Input::from_request(Operation::Pause));
    told.take(Input::from_request(Operation::Resume));
    let by_hand =
        |reply: Reply| Input::from_request(Operation::Reply { step: "sign".to_owned(), reply });
    told.take(by_hand(Reply::Error(r#"{"error":"not yet"}"#.into())));
    let due = told.job.next_timer().expect("the next attempt");
    told.take(Input::Timer { due, unread: UnreadReplies::new() });
    told.take(by_hand(result("{}")));
    let expected = [
        "job.running",
        "step.running work",
        "step.completed work",
        "step.running sign",
        "step.asked sign",
        "job.paused",
        "job.running",
        "step.attempt-failed sign",
        "step.running sign",
        "step.asked sign",
        "step.completed sign",
        "job.completed",
    ];
    assert_eq!(told.names(), expected);
    let (first, second) = (&told.events[4], &told.events[9]);
    for (event, attempt) in [(first, 1), (second, 2)] {
        let data = &event["data"];
        assert_eq!(
            (&data["attempt"], &data["state"], &data["workflow"], &data["job"]),
            (&json!(attempt), &json!("running"), &json!("human"), &json!(id(1)))
        );
    }
    let ids: HashSet<&str> =
        told.events.iter().map(|event| event["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), told.events.len(), "each has an id of its own");

    // The label and the columns are those that the job has at the event.
    for (at, event) in told.events.iter().enumerate() {
        let total = if at < 2 { Value::Null } else { json!({ "total": 12.5 }) };
        let data = &event["data"];
        assert_eq!((&data["label"], &data["columns"]), (&json!("Order 4711"), &total), "{at}");
    }
    let end: Value =
        serde_json::from_slice(&Event::from_state(&told.job, "/test").body).expect("JSON");
    assert_eq!(Some(&end), told.events.last());
}

#[test]
fn a_child_job_names_its_task_its_place_and_its_family() {
    let parent = ParentItem { job: id(1), step: StepIndex(1), index: 3 };
    let child = Origin { id: id(2), graph: 1, parent: Some(parent), depth: 1, ..origin(1, 1_000) };
    let mut told = Told::new(child);
    told.reply("work", result("[]"));
    assert_eq!(
        told.names(),
        ["job.running", "step.running work", "step.failed work", "job.failed"]
    );
    let data = &told.events[3]["data"];
    assert_eq!(
        (&data["task"], &data["item"], &data["parent"], &data["root"]),
        (&json!("piece"), &json!(3), &json!(id(1)), &json!(id(1)))
    );
    assert_eq!((&data["job"], &data["state"]), (&json!(id(2)), &json!("failed")));
}

#[test]
fn a_uuid_that_comes_back_has_other_event_ids_and_long_texts_are_cut() {
    let (early, late) = (Told::new(origin(1, 1_000)), Told::new(origin(1, 2_000)));
    assert_ne!(early.events[0]["id"], late.events[0]["id"]);
    let mut told = Told::new(origin(1, 1_000));
    told.take(Input::from_request(Operation::Cancel { reason: "ä".repeat(5_000).into() }));
    assert_eq!(
        told.events.last().unwrap()["data"]["reason"].as_str().map(|reason| reason.chars().count()),
        Some(1_000)
    );
}

#[test]
fn notices_stay_in_the_journal_until_they_are_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let options = JournalOptions {
        file: folder.path().join("journal.db"),
        cache_bytes: 1 << 20,
        verify_bytes_max: 1 << 30,
        pages_max: 0,
    };
    let notice =
        |number: i64| Notice { at: Timestamp(number), body: format!("{{\"n\":{number}}}").into() };
    let record = |number: i64| {
        let origin = origin(number.unsigned_abs().into(), 1_000);
        let (_, decision) = Job::create(origin.clone(), Message::default(), &context(number));
        let created = NewJob { origin: Arc::new(origin), root: number, parent: None };
        let record = Record::from_decision(number, Some(created), decision);
        Record { notice: Some(notice(number)), ..record }
    };
    let mut store = SqliteJournal::open(&options).unwrap();
    let records: Vec<Record> = (1..=3).map(record).collect();
    store.append(&records.iter().collect::<Vec<_>>()).unwrap();
    store.delete_notices(&[1, 3]).unwrap();
    drop(store);

    let mut store = SqliteJournal::open(&options).unwrap();
    let reader = Reader::new(&options.file);
    assert_eq!(reader.load_notices(0, 10).unwrap(), [(2, notice(2))]);
    assert_eq!(
        (
            reader.load_notice(2).unwrap(),
            reader.load_notice(3).unwrap(),
            reader.count_notices().unwrap()
        ),
        (Some(notice(2)), None, 1)
    );
    store.append(&[&record(4)]).unwrap();
    assert_eq!(
        reader.load_notices(2, 10).unwrap(),
        [(4, notice(4))],
        "a number is never used again"
    );
    drop(store);

    let file = rusqlite::Connection::open(&options.file).unwrap();
    file.execute("UPDATE notices SET body = '{}' WHERE number = 4", []).unwrap();
    drop(file);
    let refused = SqliteJournal::open(&options).err().expect("refused").to_string();
    assert!(refused.contains("table notices, row 4"), "{refused}");
}
