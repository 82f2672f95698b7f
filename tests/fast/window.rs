//! Child jobs under way are bounded over all fan-outs together, and none of these stands still.

use support::manager::TestManager;
use support::waits::{until, within};
use workflow_manager::engine::{JobId, JobState, Operation, Reply};

/// Each item waits for a person.
const FAN: &str = "workflows: [{name: fan, steps: [{name: each, task: t}], tasks: [{name: t, \
                   itemListKey: items, steps: [{name: sign, external: true}]}]}]";

/// So few that what each may always have leaves places for those that were held back.
const JOBS: usize = 5;
const ITEMS: usize = 200;
const CHILDREN_MAX: u32 = 100;
/// What a fan-out may always have.
const CHILDREN_MIN: usize = 16;

fn children(manager: &TestManager, jobs: &[JobId]) -> Vec<JobId> {
    let running = manager.core().reader.load_running_jobs(0, 10_000).expect("reads");
    running.into_iter().map(|(_, id)| id).filter(|id| !jobs.contains(id)).collect()
}

/// How many child jobs each of them has under way, as it was committed.
fn under_way(manager: &TestManager, jobs: &[JobId]) -> Vec<usize> {
    jobs.iter().map(|id| manager.job(*id).open_children().count()).collect()
}

#[test]
fn all_fan_outs_together_have_a_bound_and_each_goes_on() {
    actix_rt::System::new().block_on(async {
        let setup = TestManager::with(FAN);
        let manager = setup.set(|settings| settings.fanout.children_max = CHILDREN_MAX).await;
        let list: Vec<usize> = (0..ITEMS).collect();
        let text = serde_json::json!({ "items": list }).to_string();
        let mut jobs = Vec::new();
        for _ in 0..JOBS {
            jobs.push(manager.create_job("fan", &text).await);
        }
        let counts = under_way(&manager, &jobs);
        assert_eq!(counts[0], CHILDREN_MAX as usize, "the first has all places: {counts:?}");
        assert!(counts[1..].iter().all(|count| *count == CHILDREN_MIN), "{counts:?}");

        let (most, has_grown) = within("all jobs end", async {
            let (mut most, mut has_grown) = (0, false);
            while jobs.iter().any(|id| manager.is_active(*id)) {
                let children = children(&manager, &jobs);
                most = most.max(children.len());
                for id in children {
                    let reply = Reply::Result(b"{}".as_slice().into());
                    let signed = Operation::Reply { step: "sign".to_owned(), reply };
                    // Its end may have come since it was listed.
                    drop(manager.handle().operate(id, signed).await);
                }
                let counts = under_way(&manager, &jobs);
                has_grown |= counts[1..].iter().any(|count| *count > CHILDREN_MIN);
            }
            (most, has_grown)
        })
        .await;
        let bound = CHILDREN_MAX as usize + JOBS * CHILDREN_MIN;
        assert!(most <= bound, "{most} child jobs at once, of {bound}");
        assert!(has_grown, "those that were held back take the places of others");
        for id in jobs {
            assert_eq!(manager.job(id).state(), JobState::Completed);
        }
        until("all permits are released", || manager.core().child_budget.used() == 0).await;
        manager.stop().await;
    });
}
