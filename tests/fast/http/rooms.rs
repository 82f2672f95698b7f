//! Bodies, reads and answers have a bounded room each.

use super::{ID, WORKFLOW};
use actix_web::http::StatusCode;
use serde_json::json;
use std::time::Duration;
use support::api::Answer;
use support::manager::TestManager;
use workflow_manager::settings::{DurationSetting, Settings};

/// The call is refused for now, and the answer names the setting.
#[track_caller]
fn assert_full(answer: &Answer, setting: &str) {
    assert_eq!(
        (answer.status, answer.header("retry-after")),
        (StatusCode::SERVICE_UNAVAILABLE, "1"),
        "{setting}"
    );
    assert!(answer.detail().contains(setting), "{}", answer.detail());
}

#[test]
fn bodies_have_room_large_ones_apart_from_small_ones() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        let budgets = &api.state().budgets;
        let create = |length: usize| {
            let api = api.clone();
            let body = format!(r#"{{"k":"{}"}}"#, "x".repeat(length));
            async move { api.post("/api/workflow/single", &body).await }
        };
        let all = budgets.large_bodies.try_acquire(usize::MAX).expect("free");
        assert_full(&create(100_000).await, "http.bodies_bytes_max");
        assert_eq!(create(10).await.status, StatusCode::CREATED);
        drop(all);
        let small = budgets.small_bodies.try_acquire(usize::MAX).expect("free");
        assert_full(&create(10).await, "http.bodies_bytes_max");
        drop(small);
        for length in [10, 60_000, 66_000, 1_000_000] {
            assert_eq!(create(length).await.status, StatusCode::CREATED, "{length}");
        }
        assert!(
            budgets.large_bodies.try_acquire(usize::MAX).is_some()
                && budgets.small_bodies.try_acquire(usize::MAX).is_some(),
            "all is given back"
        );
    });
}

/// 200,000 keys take more memory than their text.
#[test]
fn what_is_made_of_a_body_needs_room_too() {
    let change = |settings: &mut Settings| {
        settings.http.body_bytes_max = 6_000_000;
        settings.http.bodies_bytes_max = 16_000_000;
    };
    TestManager::with(WORKFLOW).set(change).serve(|api| async move {
        let budgets = &api.state().budgets;
        let keys: Vec<String> = (0..200_000).map(|number| format!("\"{number}\":1")).collect();
        let body = format!("{{{}}}", keys.join(","));
        let other = budgets.large_bodies.try_acquire(9_000_000).expect("free");
        assert_full(&api.post("/api/workflow/single", &body).await, "http.bodies_bytes_max");
        drop(other);
        let alone = api.post("/api/workflow/single", &body).await;
        assert_eq!(
            alone.status,
            StatusCode::CREATED,
            "what is larger than all room has it for itself"
        );
    });
}

#[test]
fn reads_wait_for_their_turn_a_moment() {
    let change = |settings: &mut Settings| {
        settings.http.reads_wait = DurationSetting(Duration::from_millis(20))
    };
    TestManager::with(WORKFLOW).set(change).serve(|api| async move {
        let budgets = &api.state().budgets;
        let message = format!(r#"{{"k":"{}"}}"#, "x".repeat(300_000));
        api.post(&format!("/api/workflow/single?id={ID}"), &message).await;
        let job = format!("/api/job/{ID}");
        let paths = [
            "/api/jobs?limit=10",
            "/api/jobs/search",
            "/api/workflows",
            "/api/workflow/single?limit=10",
            &job,
        ];

        let places = budgets.reads.try_acquire(usize::MAX).expect("free");
        for path in paths {
            assert_full(&api.get(path, &[]).await, "http.reads_max");
        }
        drop(places);
        let room = budgets.answers.try_acquire(usize::MAX).expect("free");
        for path in ["/api/jobs/search", &job] {
            assert_full(&api.get(path, &[]).await, "http.reads_bytes_max");
        }
        assert_eq!(
            api.get("/api/workflows", &[]).await.status,
            StatusCode::OK,
            "small reads need no room"
        );
        drop(room);
        for path in paths {
            assert_eq!(api.get(path, &[]).await.status, StatusCode::OK, "{path}");
        }
        assert!(
            budgets.reads.try_acquire(usize::MAX).is_some()
                && budgets.answers.try_acquire(usize::MAX).is_some(),
            "all is given back"
        );
    });
}

/// So many items that their times are more than one part of an answer.
const ITEMS: usize = 9_000;

#[test]
fn an_answer_that_finds_no_room_for_its_next_part_is_refused_whatever_its_format() {
    const FAN: &str = "workflows: [{name: fan, steps: [{name: each, task: t}], tasks: [{name: t, \
                       itemListKey: items, steps: [{name: sign, external: true}]}]}]";
    const BYTES: usize = 200_000;
    let change = |settings: &mut Settings| {
        settings.fanout.children_max = 16;
        settings.http.reads_bytes_max = BYTES;
    };
    TestManager::with(FAN).set(change).serve(|api| async move {
        let list: Vec<usize> = (0..ITEMS).collect();
        let message = json!({ "items": list }).to_string();
        api.create_job(&format!("fan?id={ID}"), &message).await;
        let times = format!("/api/job/{ID}/step/each/items?format=times");
        let room = &api.state().budgets.answers;
        // It leaves room for the first part.
        let other = room.try_acquire(BYTES / 2).expect("free");
        assert_full(&api.get(&times, &[]).await, "http.reads_bytes_max");
        drop(other);
        let whole = api.get(&times, &[]).await;
        assert_eq!((whole.status, whole.body.len()), (StatusCode::OK, 8 * ITEMS));
    });
}
