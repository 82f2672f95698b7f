//! Lists of jobs: their pages and their order.

use super::book;
use crate::{
    amqp::{Vhost, Worker},
    harness::{Api, eventually, when},
};
use serde_json::Value;
use std::collections::BTreeSet;
use uuid::Uuid;

#[test]
fn long_lists_come_in_pages() {
    const JOBS: usize = 25;
    let vhost = Vhost::new();
    let daemon = book(&vhost);
    let api = &daemon.api;
    let ids: Vec<Uuid> = (0..JOBS).map(|_| api.create("other", "{}")).collect();
    let expected: BTreeSet<Uuid> = ids.iter().copied().collect();

    assert_eq!(
        all_pages(api, "/api/jobs?limit=10", "jobs").into_iter().collect::<BTreeSet<_>>(),
        expected
    );
    assert_eq!(
        all_pages(api, "/api/workflow/other?limit=10", "running")
            .into_iter()
            .collect::<BTreeSet<_>>(),
        expected
    );

    let worker = Worker::echo(&vhost.url, &["other-step"]);
    eventually("all jobs have ended", || {
        let left = api.get("/api/jobs").expect(200).ids("jobs");
        when(left.is_empty(), format!("{} run", left.len()))
    });
    drop(worker);
    let ended = all_pages(api, "/api/workflow/other?limit=10", "completed");
    assert_eq!(ended.iter().copied().collect::<BTreeSet<_>>(), expected);
    assert_eq!(ended.len(), JOBS, "no job is on two pages");
    let whole = api.get("/api/workflow/other").expect(200).ids("completed");
    assert_eq!(whole, ended, "the pages keep the order of the whole list");
}

#[test]
fn ended_jobs_are_listed_newest_first() {
    let vhost = Vhost::new();
    let daemon = book(&vhost);
    let _worker = Worker::echo(&vhost.url, &["other-step"]);
    let mut ids = Vec::new();
    for _ in 0..4 {
        let id = daemon.api.create("other", "{}");
        daemon.api.await_result(id);
        ids.insert(0, id);
    }
    assert_eq!(daemon.api.get("/api/workflow/other").expect(200).ids("completed"), ids);
}

/// Follows `next` to the end; every page has at most ten entries.
#[track_caller]
fn all_pages(api: &Api, path: &str, key: &str) -> Vec<Uuid> {
    let mut all = Vec::new();
    let mut cursor = String::new();
    for _ in 0..20 {
        let page = api.get(&format!("{path}{cursor}")).expect(200);
        let ids = page.ids(key);
        assert!(ids.len() <= 10, "a page has at most the limit: {page}");
        all.extend(ids);
        match &page.json()["next"] {
            Value::String(next) => cursor = format!("&cursor={next}"),
            Value::Null => return all,
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                panic!("\"next\" is a string or missing: {page}")
            }
        }
    }
    panic!("the pages of {path} do not end");
}
