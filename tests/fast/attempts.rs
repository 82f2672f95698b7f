//! The time of an attempt: it begins when workers can have the message, and what is not sent by the
//! end of the attempt is not sent.

use actix_web::http::StatusCode;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use support::api::Api;
use support::manager::TestManager;
use support::world::LIMITS;
use workflow_manager::clock;
use workflow_manager::engine::{
    Context, Decision, Definition, Graph, Input, Job, JobId, JobState, Lease, Message, Millis,
    Operation, Origin, Recorded, Rejected, Reply, Retry, Sender, Step, StepIndex, StepState,
    Timestamp, UnreadReplies,
};
use workflow_manager::times::{Rfc3339Time, parse_rfc3339};

const STEP: StepIndex = StepIndex(0);

/// A job with one step, at the second.
struct Told {
    job: Job,
    rows: Vec<Recorded>,
}

fn at(second: i64) -> Timestamp {
    Timestamp(second * 1_000_000_000)
}

fn timed() -> Step {
    Step {
        timeout: Some(Millis(5_000)),
        retry: Some(Retry { attempts: 2, backoff: Millis(0), ..Retry::default() }),
        ..Step::with_name("price")
    }
}

impl Told {
    fn with(step: Step) -> Told {
        let graph = Graph::new("w".to_owned(), None, vec![step]);
        let definition = Arc::new(Definition::new("w", vec![graph]));
        let id = JobId(uuid::Uuid::from_u128(7));
        let context = Context { now: at(0), limits: &LIMITS, pauses: None, spare: None };
        let origin = Origin::for_root_job(id, definition, at(0));
        let (job, Decision { recorded, .. }) = Job::create(origin, Message::default(), &context);
        Told { job, rows: vec![recorded] }
    }

    fn take(&mut self, second: i64, input: Input) -> Result<(), Rejected> {
        let context = Context { now: at(second), limits: &LIMITS, pauses: None, spare: None };
        let decision = self.job.handle_input(input, &context)?;
        self.rows.push(decision.recorded);
        let again = Job::recover(self.job.origin().clone(), None, self.rows.clone());
        assert_eq!(again, self.job, "the journal tells the same");
        Ok(())
    }

    fn confirmed(&mut self, second: i64) -> Result<(), Rejected> {
        let attempt = self.job.step(STEP).attempt;
        self.take(second, Input::Confirmed { step: STEP, attempt, dispatch: None })
    }

    fn leased(&mut self, second: i64, delivery: u32) -> Result<(), Rejected> {
        let lease = Lease { delivery, until: at(second + 1) };
        self.take(second, Input::Leased { step: STEP, attempt: 1, lease })
    }

    fn time(&mut self, second: i64) -> Result<(), Rejected> {
        self.take(second, Input::Timer { due: at(second), unread: UnreadReplies::new() })
    }

    fn reason(&self) -> &str {
        self.job.step(STEP).failure.as_ref().map_or("", |failure| &failure.reason)
    }
}

#[test]
fn the_time_of_an_attempt_begins_with_the_confirm_of_its_message() {
    let mut told = Told::with(timed());
    assert_eq!(told.job.next_timer(), None, "nobody can be late with what nobody was sent");
    assert_eq!(told.time(60), Err(Rejected::Void));
    told.confirmed(60).expect("taken");
    assert_eq!(told.job.next_timer(), Some(at(65)));
    assert_eq!(told.confirmed(62), Err(Rejected::Void), "it begins once");
    told.time(65).expect("it is due");
    assert_eq!(
        (told.job.step(STEP).attempt, told.reason()),
        (1, "no reply within its timeout of 5s")
    );
    let retry = told.job.next_timer().expect("the next attempt");
    told.take(66, Input::Timer { due: retry, unread: UnreadReplies::new() }).expect("it is due");
    assert_eq!((told.job.step(STEP).attempt, told.job.next_timer()), (2, None), "so does the next");
}

#[test]
fn it_begins_with_the_first_lease_and_with_no_later_one() {
    let mut told = Told::with(timed());
    told.leased(10, 1).expect("leased");
    assert_eq!(told.job.next_timer(), Some(at(15)));
    told.leased(12, 2).expect("leased again");
    assert_eq!(told.job.next_timer(), Some(at(15)));
    // A worker that had it not in its hands yet has given it back.
    let mut told = Told::with(timed());
    told.leased(10, 1).expect("leased");
    told.leased(11, 0).expect("taken back");
    assert_eq!(told.job.next_timer(), None);
    told.leased(20, 1).expect("leased");
    assert_eq!(told.job.next_timer(), Some(at(25)));
}

#[test]
fn it_begins_when_a_bus_without_confirms_and_leases_hands_the_message_over() {
    let mut told = Told::with(timed());
    told.take(9, Input::Begun { step: STEP, attempt: 1 }).expect("taken");
    assert_eq!(told.job.next_timer(), Some(at(14)));
    let again = told.take(11, Input::Begun { step: STEP, attempt: 1 });
    assert_eq!(again, Err(Rejected::Void), "a second call changes nothing");
    told.confirmed(12).expect("the service took it over");
    assert_eq!(told.job.next_timer(), Some(at(14)));
    let mut without = Told::with(Step { timeout: None, ..timed() });
    let begun = without.take(9, Input::Begun { step: STEP, attempt: 1 });
    assert_eq!(begun, Err(Rejected::Void), "no time, nothing to write");
}

#[test]
fn it_begins_anew_when_the_message_was_lost_and_is_sent_again() {
    for lost in [
        Input::QueueMissing(vec![STEP]),
        Input::from_request(Operation::Redispatch { step: "price".to_owned() }),
    ] {
        let mut told = Told::with(timed());
        told.confirmed(1).expect("taken");
        told.take(4, lost).expect("sent again");
        assert_eq!(told.job.next_timer(), None, "it is with the manager");
        told.confirmed(30).expect("taken");
        assert_eq!(told.job.next_timer(), Some(at(35)));
    }
}

#[test]
fn progress_before_the_confirm_shows_that_a_worker_has_the_message() {
    let mut told = Told::with(timed());
    let progress = Input::Reply {
        step: "price".to_owned(),
        attempt: Some(1),
        reply: Reply::Progress(r#"{"progress":0.5}"#.into()),
        from: Sender::Unknown,
    };
    told.take(3, progress).expect("taken");
    assert_eq!(told.job.next_timer(), Some(at(8)));
    told.confirmed(4).expect("taken");
    assert_eq!(told.job.next_timer(), Some(at(8)));
}

#[test]
fn a_pause_and_the_failure_of_the_job_leave_a_wait_as_it_is() {
    let mut told = Told::with(timed());
    told.take(1, Input::from_request(Operation::Pause)).expect("paused");
    assert_eq!(told.job.next_timer(), None);
    told.confirmed(3).expect("taken");
    assert_eq!(told.job.next_timer(), Some(at(8)), "a pause stops no clock");
    told.take(4, Input::from_request(Operation::Resume)).expect("resumed");
    assert_eq!(told.job.next_timer(), Some(at(8)));
    told.take(5, Input::from_request(Operation::Cancel { reason: "over".into() }))
        .expect("cancelled");
    assert_eq!(told.job.next_timer(), None);
}

#[test]
fn start_within_bounds_the_wait_for_the_start_and_nothing_else() {
    let step = || Step { start_within: Some(Millis(3_000)), ..timed() };
    let mut told = Told::with(step());
    assert_eq!(told.job.next_timer(), Some(at(3)));
    told.time(3).expect("it is due");
    assert_eq!(told.reason(), "its message was not taken within its startWithin of 3s");
    let retry = told.job.next_timer().expect("the next attempt");
    told.take(4, Input::Timer { due: retry, unread: UnreadReplies::new() }).expect("it is due");
    assert_eq!(told.job.next_timer(), Some(at(7)), "each attempt has its own");
    told.time(7).expect("it is due");
    assert_eq!(
        (told.job.state(), told.job.step(STEP).state),
        (JobState::Failed, StepState::Failed)
    );

    let mut told = Told::with(step());
    told.leased(2, 1).expect("leased");
    assert_eq!(told.job.next_timer(), Some(at(7)), "its timeout");
    let mut told = Told::with(Step { timeout: None, ..step() });
    told.leased(2, 1).expect("leased");
    assert_eq!(told.job.next_timer(), None);

    // A reply to a message whose confirm is lost may lie in the reply queue.
    let mut told = Told::with(step());
    let unread = UnreadReplies::from([(STEP, at(1))]);
    assert_eq!(told.job.next_timer_without(&unread), None);
    assert_eq!(told.take(3, Input::Timer { due: at(3), unread }), Err(Rejected::Void));
    let unread = UnreadReplies::from([(STEP, at(0))]);
    told.take(3, Input::Timer { due: at(3), unread }).expect("it was sent later");
}

/// As version 0.1.0 wrote it.
#[test]
fn an_attempt_that_was_recorded_with_its_end_keeps_it() {
    let mut told = Told::with(timed());
    let text = r#"[{"job":{"created":{"message":{}}}},
        {"step":[0,{"started":{"attempt":1,"deadline":5000000000}}]}]"#;
    told.rows[0].entries = serde_json::from_str(text).expect("entries");
    told.job = Job::recover(told.job.origin().clone(), None, told.rows.clone());
    assert_eq!(told.job.next_timer(), Some(at(5)));
    told.confirmed(2).expect("taken");
    assert_eq!(told.job.next_timer(), Some(at(5)));
}

const WORKFLOWS: &str = "
workflows:
  - name: burst
    steps: [{ name: price, timeout: 1s }]
  - name: impatient
    steps: [{ name: nobody, startWithin: 300ms, retry: { attempts: 2, backoff: 1ms } }]
  - name: many
    steps: [{ name: leased }]
";

async fn create(api: &Api, workflow: &str, jobs: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..jobs {
        ids.push(api.create_job(workflow, "{}").await);
    }
    ids
}

async fn messages(api: &Api, queue: &str, query: &str) -> Vec<Value> {
    let given = api.post(&format!("/api/queue/{queue}/receive?{query}"), "").await;
    assert_eq!(given.status, StatusCode::OK);
    given.json().as_array().expect("messages").clone()
}

/// The jobs' end, which comes.
async fn ended(api: &Api, id: &str) -> Value {
    api.until(&format!("/api/job/{id}?view=light"), |job| job["state"] != "running").await
}

#[test]
fn a_burst_fails_no_attempt_as_long_as_its_worker_is_healthy() {
    const JOBS: usize = 800;
    TestManager::with(WORKFLOWS).serve(|api| async move {
        let ids = create(&api, "burst", JOBS).await;
        // All of them have waited for longer than their timeout.
        actix_rt::time::sleep(Duration::from_millis(1_200)).await;
        let mut done = 0;
        while done < JOBS {
            for message in messages(&api, "price", "max=5&wait=10s").await {
                let to = message["reply_to"].as_str().expect("an address");
                let taken = api.post(to, "{}").await;
                assert_eq!(taken.json(), json!({ "taken": true }));
                done += 1;
            }
        }
        for id in ids {
            let job = ended(&api, &id).await;
            assert_eq!(
                (&job["state"], &job["steps"][0]["attempt"]),
                (&json!("completed"), &json!(1))
            );
        }
    });
}

#[test]
fn nobody_takes_a_message_within_its_start_within() {
    TestManager::with(WORKFLOWS).serve(|api| async move {
        let ids = create(&api, "impatient", 1).await;
        let job = ended(&api, &ids[0]).await;
        assert_eq!(job["state"], "failed", "{job}");
        let why = "step \"nobody\": its message was not taken within its startWithin of 300ms";
        assert_eq!((&job["reason"], &job["steps"][0]["attempt"]), (&json!(why), &json!(2)));
        // The withdrawal follows the commit that ends the job.
        let is_empty = |queue: &Value| queue["queue"] == "nobody" && queue["messages"] == 0;
        let is_withdrawn = |view: &Value| {
            view["queues"].as_array().is_some_and(|queues| queues.iter().any(is_empty))
        };
        api.until("/api/queues", is_withdrawn).await;
        let left = api.post("/api/queue/nobody/receive?wait=0s", "").await;
        assert_eq!(left.status, StatusCode::NO_CONTENT, "it is withdrawn");
    });
}

/// The queue looks at each message before it lends it, which takes its time for many.
#[test]
fn a_message_goes_to_nobody_else_before_the_end_of_the_lease_that_was_told() {
    const MESSAGES: usize = 500;
    TestManager::with(WORKFLOWS).serve(|api| async move {
        create(&api, "many", MESSAGES).await;
        // What has waited for longer is looked at.
        actix_rt::time::sleep(Duration::from_millis(1_100)).await;
        let mut first = Vec::new();
        while first.len() < MESSAGES {
            first.extend(messages(&api, "leased", "max=100&lease=5s").await);
        }
        assert_eq!(first.len(), MESSAGES);
        // Others are created all the time.
        let load = actix_rt::spawn({
            let api = api.clone();
            async move {
                loop {
                    create(&api, "burst", 20).await;
                }
            }
        });
        let told = |message: &Value| {
            let until = message["lease_until"].as_str().and_then(parse_rfc3339).expect("a time");
            (message["message_id"].clone(), until)
        };
        let mut told: Vec<(Value, Timestamp)> = first.iter().map(told).collect();
        while !told.is_empty() {
            let again = messages(&api, "leased", "max=1&lease=1h&wait=10s").await;
            let now = clock::now();
            for message in again {
                let place = told.iter().position(|(id, _)| *id == message["message_id"]);
                let (id, until) = told.remove(place.expect("one that was leased before"));
                assert!(
                    now >= until,
                    "{id} was leased until {}, and leased again at {}",
                    json!(Rfc3339Time(until)),
                    json!(Rfc3339Time(now))
                );
            }
        }
        load.abort();
    });
}
