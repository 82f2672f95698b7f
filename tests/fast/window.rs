//! Child jobs under way are bounded over all fan-outs together, and none of these stands still.

use support::waits::DEADLINE;
use workflow_manager::actors::manager::{self, Manager};
use workflow_manager::bus::embedded::Workers;
use workflow_manager::engine::{JobId, JobState, Message, Operation, Reply};
use workflow_manager::load::load_text;
use workflow_manager::settings::Settings;

/// Each item waits for a person.
const FAN: &str = "workflows: [{name: fan, steps: [{name: each, task: t}], tasks: [{name: t, \
                   itemListKey: items, steps: [{name: sign, external: true}]}]}]";

const JOBS: usize = 10;
const ITEMS: usize = 200;
const CHILDREN_MAX: u32 = 100;
/// What a fan-out may always have.
const CHILDREN_MIN: usize = 16;

fn children(manager: &Manager, jobs: &[JobId]) -> Vec<JobId> {
    let running = manager.common().reader.all_running(0, 10_000).expect("reads");
    running.into_iter().map(|(_, id)| id).filter(|id| !jobs.contains(id)).collect()
}

/// How many child jobs each of them has under way, as it was committed.
fn under_way(manager: &Manager, jobs: &[JobId]) -> Vec<usize> {
    let count = |id: &JobId| {
        let found = manager.common().reader.job(*id).expect("reads").expect("is kept");
        found.job.open_children().count()
    };
    jobs.iter().map(count).collect()
}

#[test]
fn all_fan_outs_together_have_a_bound_and_each_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    actix_rt::System::new().block_on(async {
        let mut settings = Settings::defaults().expect("defaults");
        settings.journal.file = folder.path().join("j.db");
        settings.fanout.children_max = CHILDREN_MAX;
        let definitions = load_text("fan.yaml", FAN).expect("valid").definitions;
        let manager = manager::start(settings, definitions, Workers::new()).await.expect("starts");
        let list: Vec<usize> = (0..ITEMS).collect();
        let body = serde_json::json!({ "items": list }).to_string();
        let message = Message::parse(body.as_bytes()).expect("a message");
        let mut jobs = Vec::new();
        for _ in 0..JOBS {
            let created = manager.create("fan", None, message.clone()).await;
            jobs.push(created.expect("created").id());
        }
        let counts = under_way(&manager, &jobs);
        assert_eq!(counts[0], CHILDREN_MAX as usize, "the first has all places: {counts:?}");
        assert!(counts[1..].iter().all(|count| *count == CHILDREN_MIN), "{counts:?}");

        let begun = actix_rt::time::timeout(DEADLINE, async {
            let (mut most, mut has_grown) = (0, false);
            while jobs.iter().any(|id| manager.ways().routes.is_live(*id)) {
                let children = children(&manager, &jobs);
                most = most.max(children.len());
                for id in children {
                    let reply = Reply::Result(b"{}".as_slice().into());
                    let signed = Operation::Reply { step: "sign".to_owned(), reply };
                    // Its end may have come since it was listed.
                    drop(manager.operate(id, signed).await);
                }
                let counts = under_way(&manager, &jobs);
                has_grown |= counts[1..].iter().any(|count| *count > CHILDREN_MIN);
            }
            (most, has_grown)
        });
        let (most, has_grown) = begun.await.expect("all jobs end");
        let bound = CHILDREN_MAX as usize + JOBS * CHILDREN_MIN;
        assert!(most <= bound, "{most} child jobs at once, of {bound}");
        assert!(has_grown, "those that were held back take the places of others");
        for id in jobs {
            let found = manager.common().reader.job(id).expect("reads").expect("is kept");
            assert_eq!(found.job.state(), JobState::Completed);
        }
        let left = &manager.common().children;
        assert_eq!(left.load(std::sync::atomic::Ordering::Relaxed), 0, "all places are free");
        manager.stop().await;
    });
}
