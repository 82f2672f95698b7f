//! Ended jobs, and their rows, go when their retention is over.

use super::*;

#[test]
fn a_definition_s_retention_counts_for_its_jobs_and_the_setting_for_others() {
    let place = Place::new();
    let definitions = [
        chain("by-setting", &["a"]),
        Definition { retention: Some(Millis(1_000)), ..chain("short", &["a"]) },
        Definition { retention: Some(Millis(1_000_000_000)), ..chain("long", &["a"]) },
    ];
    let mut store = place.open(&definitions.iter().collect::<Vec<_>>());
    for (number, definition) in (1..).zip(&definitions) {
        let mut live = Live::create(number, definition);
        live.reply("a", "{}").commit(&mut store);
    }
    let left = |place: &Place| -> Vec<usize> {
        ["by-setting", "short", "long"]
            .iter()
            .map(|name| place.rows(&format!("SELECT * FROM \"status_{name}\"")).len())
            .collect()
    };
    let minutes = |count: i64| Timestamp(count * 60_000_000_000);
    let kept = Millis(600_000);
    assert_eq!(store.delete_expired(minutes(5), kept, 10).expect("deletes").roots, 1);
    assert_eq!(left(&place), [1, 0, 1]);
    assert_eq!(store.delete_expired(minutes(30), kept, 10).expect("deletes").roots, 1);
    assert_eq!(left(&place), [0, 0, 1]);
    assert_eq!(store.delete_expired(minutes(30_000), kept, 10).expect("deletes").roots, 1);
    assert_eq!(left(&place), [0, 0, 0]);
    assert_eq!(place.rows("SELECT count(*) FROM jobs"), [["0"]]);
    let plan = place.rows(
        "explain query plan SELECT number FROM jobs WHERE parent IS NULL AND ended IS NOT NULL \
         AND definition = 1 AND ended < 5 ORDER BY ended",
    );
    assert!(
        plan.len() == 1 && plan[0].join(" ").contains("jobs_retained (definition=?"),
        "{plan:?}"
    );
}

#[test]
fn a_failed_job_that_waits_for_late_replies_goes_with_its_retention() {
    let place = Place::new();
    let graph = Graph::new("w".to_owned(), None, vec![Step::with_name("a"), Step::with_name("b")]);
    let definition = Definition::new("w", vec![graph]);
    let mut store = place.open(&[&definition]);
    let mut live = Live::create(1, &definition);
    live.fail("a").commit(&mut store);
    assert_eq!((live.job.state(), live.job.is_closed()), (JobState::Failed, false));
    assert_eq!(place.rows("SELECT state, a, b FROM status_w"), [["failed", "FAILED", "PENDING"]]);
    let deleted = store.delete_expired(Timestamp(i64::MAX), Millis(0), 10).expect("deletes");
    assert_eq!(deleted.maybe_active, [DeletedJob { id: live.job.id(), number: 1 }]);
    live.reply("b", "{}").commit(&mut store);
    assert!(place.rows("SELECT * FROM status_w").is_empty(), "what comes later is void");
}
