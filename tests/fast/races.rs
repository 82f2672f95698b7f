//! Clients that ask for everything at once, with the actors on their threads: whatever overtakes
//! what, no job is lost, stuck or wrong, and nothing of it is left behind.

use fastrand::Rng;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use support::manager::TestManager;
use workflow_manager::actors::client_response::{
    CreateResponse, Erased, OperationResponse, RequestError,
};
use workflow_manager::bus::Publication;
use workflow_manager::bus::embedded::{WorkerError, Workers};
use workflow_manager::engine::{JobId, JobState, Message, Operation, Reply};
use workflow_manager::settings::{DurationSetting, Settings};

const WORKFLOWS: &str = "
workflows:
  - name: kept
    steps: [ { name: each, task: t }, { name: last, depends: [ each ] }, \
        { name: sign, external: true } ]
    tasks: [ { name: t, itemListKey: items, steps: [ { name: work }, \
        { name: more, depends: [ work ] } ] } ]
  - name: brief
    retention: 20ms
    steps: [ { name: each, task: t }, { name: last, depends: [ each ] }, \
        { name: sign, external: true } ]
    tasks: [ { name: t, itemListKey: items, steps: [ { name: work }, \
        { name: more, depends: [ work ] } ] } ]
";
const MESSAGE: &str = r#"{"items":[1,2,3,4,5,6,7]}"#;
const RESULT: &str = r#"{"items":[1,2,3,4,5,6,7],"signed":true}"#;
const CLIENTS: u64 = 12;
const TURNS: u32 = 150;

/// The environment variable that sets how many turns each client has.
const TURNS_VARIABLE: &str = "RACES_TURNS";

const DEADLINE: Duration = Duration::from_secs(120);

/// What a test knows about a job.
struct Known {
    is_kept: bool,
    /// It was deleted, or cancelled.
    is_over: Cell<bool>,
}

type Answered = Pin<Box<dyn Future<Output = Result<OperationResponse, RequestError>>>>;

struct Clients {
    manager: TestManager,
    jobs: RefCell<BTreeMap<JobId, Known>>,
    violations: RefCell<Vec<String>>,
}

impl Clients {
    async fn create(&self, rng: &mut Rng) {
        let is_kept = rng.bool();
        let workflow = if is_kept { "kept" } else { "brief" };
        let message = Message::parse(MESSAGE.as_bytes()).expect("a message");
        let answer = self.manager.handle().create(workflow, None, message).await;
        if let Ok(CreateResponse::New(id)) = answer {
            self.jobs.borrow_mut().insert(id, Known { is_kept, is_over: Cell::new(false) });
        } else {
            self.violations.borrow_mut().push(format!("not created: {answer:?}"));
        }
    }

    /// Asked for at once, answered later.
    fn operate(&self, id: JobId, operation: Operation) -> Answered {
        Box::pin(self.manager.handle().operate(id, operation))
    }

    /// One client asks something of one job, or several things without waiting for the answers.
    async fn turn(&self, rng: &mut Rng) {
        let known: Vec<JobId> = self
            .jobs
            .borrow()
            .iter()
            .filter(|(_, known)| !known.is_over.get())
            .map(|(id, _)| *id)
            .collect();
        if known.len() < 20 || rng.u32(0..10) == 0 {
            return self.create(rng).await;
        }
        // Mostly the latest: the others have come to rest.
        let at = known.len() - 1 - rng.usize(0..known.len().min(20));
        let id = known[at];
        let mut asked = Vec::new();
        for _ in 0..rng.u32(1..4) {
            let operation = match rng.u32(0..40) {
                0 => Operation::Cancel { reason: "a test".into() },
                1 => {
                    // As often as a client looks first whether there is anything left to cancel.
                    let end: Answered = if rng.bool() {
                        Box::pin(self.manager.handle().cancel(id, None))
                    } else {
                        let erased = self.manager.handle().erase(id);
                        // Its rows were there to be deleted: it had ended.
                        let ended = |Erased| OperationResponse::Job(JobState::Cancelled);
                        Box::pin(async move { erased.await.map(ended) })
                    };
                    asked.push((true, end));
                    continue;
                }
                2..6 => Operation::Pause,
                6..12 => Operation::Resume,
                12..15 => {
                    let only_failed_items = rng.bool();
                    Operation::Rerun { step: "each".to_owned(), only_failed_items }
                }
                15..17 => Operation::Rerun { step: "sign".to_owned(), only_failed_items: false },
                17..22 => signed(),
                _ => Operation::Retry,
            };
            asked
                .push((matches!(operation, Operation::Cancel { .. }), self.operate(id, operation)));
        }
        for (ends, answered) in asked {
            let answer = tokio::time::timeout(DEADLINE, answered).await;
            match answer {
                Ok(Ok(OperationResponse::Job(_))) if ends => {
                    self.jobs.borrow()[&id].is_over.set(true)
                }
                Ok(Ok(_) | Err(RequestError::Conflict(_) | RequestError::NotFound)) => {}
                other => self.violations.borrow_mut().push(format!("{id} was answered {other:?}")),
            }
        }
    }

    /// What keeps a job from its end now; each is helped along.
    fn unfinished(&self, id: JobId, known: &Known) -> Option<String> {
        let Some(found) = self.manager.core().reader.load_job(id).expect("reads") else {
            return (known.is_kept && !known.is_over.get()).then(|| format!("{id} is lost"));
        };
        match found.job.state() {
            JobState::Completed => {
                let result = found.job.result().to_text();
                return (result != RESULT).then(|| format!("{id} has the result {result}"));
            }
            JobState::Cancelled => return None,
            JobState::Failed if known.is_over.get() || !known.is_kept => return None,
            JobState::Failed => drop(self.operate(id, Operation::Retry)),
            JobState::Paused => drop(self.operate(id, Operation::Resume)),
            JobState::Running => drop(self.operate(id, signed())),
        }
        let steps: Vec<String> = found
            .job
            .steps()
            .map(|(step, run)| format!("{}: {:?} {}", step.name, run.state, run.attempt))
            .collect();
        Some(format!("{id} is {}: {}", found.job.state().as_str(), steps.join(", ")))
    }
}

fn signed() -> Operation {
    Operation::Reply {
        step: "sign".to_owned(),
        reply: Reply::Result(br#"{"signed":true}"#.as_slice().into()),
    }
}

/// Fails one message in six until it is calm.
fn worker(
    is_calm: &Arc<AtomicBool>,
    calls: &Arc<AtomicU64>,
) -> impl Fn(&Publication) -> Result<bytes::Bytes, WorkerError> + Clone + Send + Sync + use<> {
    let (is_calm, calls) = (is_calm.clone(), calls.clone());
    move |message| {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        if Rng::with_seed(call).u32(0..6) == 0 && !is_calm.load(Ordering::Relaxed) {
            return Err("not today".into());
        }
        Ok(message.body.to_bytes())
    }
}

async fn race() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let changed = |settings: &mut Settings| {
        settings.journal.retention_interval = DurationSetting(Duration::from_millis(50));
        settings.fanout.window = 3;
    };
    let (is_calm, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let work = worker(&is_calm, &calls);
    let workers = Workers::new()
        .with_worker("work", 2, work.clone())
        .with_worker("more", 2, work.clone())
        .with_worker("last", 1, work);
    let setup = TestManager::with(WORKFLOWS).journal(&file).set(changed);
    let manager = setup.workers(workers).await;
    let clients =
        Rc::new(Clients { manager, jobs: RefCell::default(), violations: RefCell::default() });
    let turns =
        std::env::var(TURNS_VARIABLE).map_or(TURNS, |turns| turns.parse().expect("a number"));
    let busy: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let clients = clients.clone();
            actix_rt::spawn(async move {
                let mut rng = Rng::with_seed(client);
                for _ in 0..turns {
                    clients.turn(&mut rng).await;
                }
            })
        })
        .collect();
    for client in busy {
        client.await.expect("no client panics");
    }
    is_calm.store(true, Ordering::Relaxed);
    let mut left = Vec::new();
    let finished = tokio::time::timeout(DEADLINE, async {
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        loop {
            tick.tick().await;
            left = clients
                .jobs
                .borrow()
                .iter()
                .filter_map(|(id, known)| clients.unfinished(*id, known))
                .collect();
            let routes = &clients.manager.core().routes;
            if left.is_empty() && routes.is_empty() {
                return;
            }
            if left.is_empty() {
                left.push(format!(
                    "{} top-level jobs or child jobs are still there",
                    routes.root_count()
                ));
            }
        }
    });
    assert!(finished.await.is_ok(), "{}", left.join("\n"));
    assert!(clients.violations.borrow().is_empty(), "{}", clients.violations.borrow().join("\n"));
    Rc::into_inner(clients).expect("no client is left").manager.stop().await;
    let file = rusqlite::Connection::open(&file).expect("opens");
    let open: i64 = file
        .query_row("SELECT count(*) FROM jobs WHERE open = 1", [], |row| row.get(0))
        .expect("counts");
    assert_eq!(open, 0, "all is closed");
}

#[test]
fn whatever_overtakes_what_no_job_is_lost_stuck_or_wrong() {
    actix_rt::System::new().block_on(race());
}
