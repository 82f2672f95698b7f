//! What the API shows of one step: its attempts, its payloads, its items; and the definition that
//! it is part of.

use actix_web::http::StatusCode;
use serde_json::{Value, json};
use support::api::{Answer, Api};
use support::manager::TestManager;

const FAN: &str = "
workflows:
  - name: fan
    steps:
      - name: first
        external: true
        retry: { attempts: 2, backoff: 1ms }
      - name: each
        task: piece
        depends: [ first, __start__ ]
      - name: last
        external: true
        when: input.n > 1
        depends: [ each ]
    tasks:
      - name: piece
        itemListKey: items
        maxConcurrency: 4
        tolerate: 50%
        steps: [ { name: work, external: true } ]
";

const ID: &str = "f557697b-f911-401c-86b7-6d9b62f1f2bb";

fn job(rest: &str) -> String {
    format!("/api/job/{ID}{rest}")
}

/// A job whose first step failed an attempt and gave five items.
async fn at_the_items(api: &Api) {
    api.create_job(&format!("fan?id={ID}"), r#"{"n":1.50,"long":12345678901234567890}"#).await;
    api.post_until_accepted(&job("/step/first?type=error"), r#"{"error":"no\npen"}"#).await;
    api.until(&job("?view=light"), |view| view["steps"][0]["attempt"] == 2).await;
    api.post_until_accepted(&job("/step/first"), r#"{"items":[1,2,3,4,5],"n":2}"#).await;
    api.until(&job("?view=light"), |view| view["steps"][1]["children"]["started"] == 4).await;
}

/// The child jobs, by item, as soon as there are so many.
async fn children(api: &Api, count: usize) -> Vec<String> {
    let is_whole = |page: &Value| page["children"].as_array().map(Vec::len) == Some(count);
    let page = api.until(&job("/children"), is_whole).await;
    let rows = page["children"].as_array().expect("a list").iter();
    rows.map(|row| row["job"].as_str().expect("an id").to_owned()).collect()
}

#[test]
fn a_step_is_shown_with_each_attempt_and_what_came_of_it() {
    TestManager::with(FAN).serve(|api| async move {
        at_the_items(&api).await;
        let step = api.get_json(&job("/step/first")).await;
        assert_eq!((&step["name"], &step["state"]), (&json!("first"), &json!("completed")));
        let attempts = step["attempts"].as_array().expect("a list");
        assert_eq!(attempts.len(), 2, "{step}");
        let [failed, done] = [&attempts[0], &attempts[1]];
        assert_eq!((&failed["attempt"], &failed["state"]), (&json!(1), &json!("failed")));
        assert!(failed["reason"].as_str().is_some_and(|reason| reason.contains("no\npen")));
        for key in ["startTime", "endTime", "retryAt"] {
            assert!(failed[key].is_string(), "{key} of {failed}");
        }
        assert_eq!((&done["attempt"], &done["state"]), (&json!(2), &json!("completed")));
        assert!(done.get("retryAt").is_none() && done["endTime"].is_string(), "{done}");
        assert_eq!(step["outputBytes"], json!(r#"{"items":[1,2,3,4,5],"n":2}"#.len()));
        assert_eq!(step["inputBytes"], json!(r#"{"n":1.50,"long":12345678901234567890}"#.len()));

        // As it was when the first attempt had just failed.
        let entries = api.get_json(&job("/entries")).await;
        let failure = entries["entries"].as_array().expect("a list").iter();
        let mut failure = failure.filter(|entry| entry["kind"] == "step.attempt-failed");
        let n = failure.next().expect("a failed attempt")["n"].as_u64().expect("a number");
        let before = api.get_json(&job(&format!("/step/first?at={}", n - 1))).await;
        assert_eq!(before["attempts"].as_array().map(Vec::len), Some(1), "{before}");
        assert_eq!(before["attempts"][0]["state"], "running");
        // Its first attempt began with the job, in the same row, but as a later entry.
        let created = api.get_json(&job("/step/first?at=1")).await;
        assert_eq!((&created["state"], &created["attempts"]), (&json!("waiting"), &json!([])));
        let then = api.get_json(&job(&format!("/step/first?at={n}"))).await;
        assert_eq!(
            (&then["attempts"][0]["state"], then.get("outputBytes")),
            (&json!("failed"), None)
        );

        let each = api.get_json(&job("/step/each")).await;
        assert_eq!(
            (&each["attempts"][0]["state"], &each["children"]["items"]),
            (&json!("running"), &json!(5))
        );
        let waiting = api.get_json(&job("/step/last")).await;
        assert_eq!((&waiting["attempts"], waiting.get("inputBytes")), (&json!([]), None));

        api.post_until_accepted(&job("/cancel"), "").await;
        let cut = api.get_json(&job("/step/each")).await;
        assert_eq!(cut["attempts"][0]["state"], "cancelled", "{cut}");
        let wrong = api.get(&job("/step/frist"), &[]).await;
        assert_eq!(
            (wrong.status, wrong.detail()),
            (
                StatusCode::NOT_FOUND,
                format!("job {ID} has no step \"frist\"; did you mean \"first\"?")
            )
        );
        let never = api.get(&job("/step/first?at=4711"), &[]).await;
        assert_eq!(never.status, StatusCode::NOT_FOUND);
    });
}

#[test]
fn payloads_are_the_text_that_was_sent_and_come_in_parts() {
    TestManager::with(FAN).serve(|api| async move {
        let message = r#"{"n":1.50,"long":12345678901234567890}"#;
        at_the_items(&api).await;
        let whole = async |path: &str| {
            let answer = api.get(&job(path), &[]).await;
            assert_eq!(answer.status, StatusCode::OK, "{path}");
            String::from_utf8(answer.body).expect("text")
        };
        assert_eq!(whole("/message").await, message);
        assert_eq!(whole("/step/first/input").await, message);
        assert_eq!(whole("/step/first/output").await, r#"{"items":[1,2,3,4,5],"n":2}"#);
        assert_eq!(
            whole("/step/each/input").await,
            r#"{"items":[1,2,3,4,5],"n":2,"long":12345678901234567890}"#
        );
        let child = children(&api, 4).await.remove(0);
        let of_child = api.get(&format!("/api/job/{child}/message"), &[]).await;
        assert_eq!(of_child.body, br#"{"item":1,"n":2,"long":12345678901234567890}"#);

        // Of a job under way and of an ended one.
        for is_ended in [false, true] {
            if is_ended {
                api.post_until_accepted(&job("/cancel"), "").await;
            }
            let part = async |range: &str| {
                let answer = api.get(&job("/message"), &[("range", range)]).await;
                let place = answer.header("content-range").to_owned();
                (answer.status, place, String::from_utf8(answer.body).expect("text"))
            };
            let some = StatusCode::PARTIAL_CONTENT;
            let of = message.len();
            assert_eq!(
                part("bytes=1-5").await,
                (some, format!("bytes 1-5/{of}"), message[1..=5].into())
            );
            assert_eq!(
                part("bytes=30-").await,
                (some, format!("bytes 30-{}/{of}", of - 1), message[30..].into())
            );
            assert_eq!(
                part("bytes=0-999").await,
                (some, format!("bytes 0-{}/{of}", of - 1), message.into())
            );
            assert_eq!(
                part(&format!("bytes={of}-")).await,
                (StatusCode::RANGE_NOT_SATISFIABLE, format!("bytes */{of}"), String::new())
            );
            for unused in ["bytes=-5", "bytes=5-1", "items=0-1", "bytes=0-1,3-4"] {
                assert_eq!(
                    part(unused).await,
                    (StatusCode::OK, String::new(), message.into()),
                    "{unused}"
                );
            }
        }
        for (path, said) in [
            ("/step/last/input", format!("step \"last\" of job {ID} has no input: it is waiting")),
            (
                "/step/last/output",
                format!("step \"last\" of job {ID} has no output: it is waiting"),
            ),
        ] {
            let none = api.get(&job(path), &[]).await;
            assert_eq!((none.status, none.detail()), (StatusCode::NOT_FOUND, said));
        }
    });
}

/// The state of each item on the map.
fn states(map: &Answer, items: usize) -> Vec<u8> {
    assert_eq!(map.status, StatusCode::OK);
    assert_eq!(map.header("content-type"), "application/octet-stream");
    assert_eq!(map.body.len(), items.div_ceil(4));
    (0..items).map(|item| map.body[item / 4] >> (2 * (item % 4)) & 3).collect()
}

/// It has not happened yet.
const NEVER: u32 = u32::MAX;

/// When each item began and ended.
fn times(answer: &Answer, items: usize) -> Vec<(u32, u32)> {
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.header("content-type"), "application/octet-stream");
    assert_eq!(answer.body.len(), 8 * items);
    let number =
        |at: usize| u32::from_le_bytes(answer.body[at..at + 4].try_into().expect("four bytes"));
    (0..items).map(|item| (number(8 * item), number(8 * item + 4))).collect()
}

#[test]
fn the_items_of_a_fan_out_are_counted_and_mapped_under_way_and_once_it_is_over() {
    TestManager::with(FAN).serve(|api| async move {
        let (counts, map) = (job("/step/each/items"), job("/step/each/items?format=map"));
        api.create_job(&format!("fan?id={ID}"), "{}").await;
        let early = api.get(&counts, &[]).await;
        assert_eq!(
            (early.status, early.detail()),
            (
                StatusCode::NOT_FOUND,
                format!("step \"each\" of job {ID} has no items yet: it is waiting")
            )
        );
        let none = api.get(&job("/step/first/items"), &[]).await;
        assert_eq!(
            none.detail(),
            format!("step \"first\" of job {ID} has no items: it runs no task")
        );
        api.post_until_accepted(&job("/step/first"), r#"{"items":[1,2,3,4,5],"n":2}"#).await;
        api.until(&counts, |counts| counts["running"] == 4).await;
        assert_eq!(
            api.get_json(&counts).await,
            json!({"items": 5, "waiting": 1, "running": 4, "completed": 0, "failed": 0,
                       "cancelled": 0, "window": 4, "tolerate": "50%", "tolerated": 2})
        );
        assert_eq!(states(&api.get(&map, &[]).await, 5), [1, 1, 1, 1, 0]);
        // The step counts a child job that has yet to begin.
        let ids = children(&api, 4).await;
        let moments = job("/step/each/items?format=times");
        let begun = times(&api.get(&moments, &[]).await, 5);
        assert!(begun[..4].iter().all(|(began, ended)| *began < NEVER && *ended == NEVER));
        assert_eq!(begun[4], (NEVER, NEVER), "it waits");
        api.post_until_accepted(
            &format!("/api/job/{}/step/work?type=error", ids[1]),
            r#"{"error":"no"}"#,
        )
        .await;
        api.post_until_accepted(&format!("/api/job/{}/step/work", ids[2]), "{}").await;
        api.until(&counts, |counts| counts["failed"] == 1 && counts["completed"] == 1).await;
        assert_eq!(states(&api.get(&map, &[]).await, 5), [1, 3, 2, 1, 1]);
        let some = times(&api.get(&moments, &[]).await, 5);
        let over: Vec<bool> = some.iter().map(|(_, ended)| *ended < NEVER).collect();
        assert_eq!(over, [false, true, true, false, false]);
        assert!(some[4].0 >= some[1].1.min(some[2].1), "it took the place of one: {some:?}");
        for at in [0, 3] {
            api.post_until_accepted(&format!("/api/job/{}/step/work", ids[at]), "{}").await;
        }
        let last = children(&api, 5).await.pop().expect("the fifth");
        api.post_until_accepted(&format!("/api/job/{last}/step/work"), r#"{"n":2}"#).await;
        // The step is over, first in a job under way, then in one that has ended.
        api.until(&counts, |counts| counts["completed"] == 4).await;
        for is_ended in [false, true] {
            if is_ended {
                api.post_until_accepted(&job("/step/last"), "{}").await;
                api.until(&job("?view=light"), |view| view["state"] == "completed").await;
            }
            assert_eq!(states(&api.get(&map, &[]).await, 5), [2, 3, 2, 2, 2]);
            let all = times(&api.get(&moments, &[]).await, 5);
            assert!(all.iter().all(|(began, ended)| began <= ended && *ended < NEVER));
            assert_eq!(all[1], some[1], "it stays");
        }
        let wrong = api.get(&job("/step/each/items?format=list"), &[]).await;
        assert_eq!(wrong.detail(), "format is \"list\", expected counts, map, times or reasons");
    });
}

#[test]
fn what_the_end_of_a_job_cut_off_is_over_and_was_cancelled() {
    TestManager::with(FAN).serve(|api| async move {
        api.create_job(&format!("fan?id={ID}"), "{}").await;
        api.post_until_accepted(&job("/step/first"), r#"{"items":[1,2,3,4,5],"n":2}"#).await;
        let counts = job("/step/each/items");
        api.until(&counts, |counts| counts["running"] == 4).await;
        let ids = children(&api, 4).await;
        api.post_until_accepted(&format!("/api/job/{}/step/work", ids[2]), "{}").await;
        api.until(&counts, |counts| counts["completed"] == 1).await;
        api.post_until_accepted(&job("/cancel"), "").await;
        api.until(&job("?view=light"), |view| view["state"] == "cancelled").await;
        let of = |counts: &Value| {
            ["waiting", "running", "completed", "failed", "cancelled"]
                .map(|key| counts[key].as_u64().expect("a number"))
        };
        assert_eq!(of(&api.get_json(&counts).await), [0, 0, 1, 0, 4]);
        let view = api.get_json(&job("?view=light")).await;
        let each = &view["steps"][1];
        assert_eq!((&each["name"], &each["state"]), (&json!("each"), &json!("cancelled")));
        assert_eq!(of(&each["children"]), [0, 0, 1, 0, 4]);
        assert_eq!(each["endTime"], view["ended"], "it ended with its job");
        let map = api.get(&job("/step/each/items?format=map"), &[]).await;
        assert_eq!(states(&map, 5), [1, 1, 2, 1, 1], "neither failed nor completed");
    });
}

#[test]
fn failed_items_are_grouped_by_their_reasons_the_most_frequent_first() {
    TestManager::with(FAN).serve(|api| async move {
        let reasons = job("/step/each/items?format=reasons");
        api.create_job(&format!("fan?id={ID}"), "{}").await;
        let none = json!({"failed": 0, "failedIsMinimum": false, "reasons": []});
        assert_eq!(api.get_json(&reasons).await, none);
        let no_task = api.get(&job("/step/first/items?format=reasons"), &[]).await;
        assert!(no_task.detail().ends_with("has no items: it runs no task"));
        api.post_until_accepted(&job("/step/first"), r#"{"items":[1,2,3,4,5,6]}"#).await;
        let ids = children(&api, 4).await;
        for (at, error) in [(0, "no pen"), (1, "no ink 17"), (3, "no ink 4")] {
            let body = json!({ "error": error }).to_string();
            api.post_until_accepted(&format!("/api/job/{}/step/work?type=error", ids[at]), &body)
                .await;
        }
        let all = api.until(&reasons, |told| told["failed"] == 3).await;
        let told = all["reasons"].as_array().expect("a list");
        let heads: Vec<_> = told.iter().map(|group| (&group["count"], &group["item"])).collect();
        assert_eq!(heads, [(&json!(2), &json!(1)), (&json!(1), &json!(0))], "{all}");
        assert_eq!(told[0]["job"], json!(ids[1]));
        let [many, one] = [&told[0], &told[1]];
        let reason = |what: &str| json!(format!("step \"work\": failed by hand: {what}"));
        assert_eq!((&many["reason"], &one["reason"]), (&reason("no ink #"), &reason("no pen")));
        let example = many["example"].as_str().expect("a text");
        assert!(example.ends_with(": no ink 17"), "{example}");
        assert!(many["first"].as_str() < many["last"].as_str() && one["first"] == one["last"]);
    });
}

const CUT: &str = "
workflows:
  - name: fan
    steps:
      - { name: first, external: true }
      - { name: each, task: piece, depends: [ first ] }
      - { name: beside, external: true }
      # Once it has failed, the job still hears of this one, and of its child jobs.
      - { name: unanswered }
    tasks:
      - name: piece
        itemListKey: items
        maxConcurrency: 4
        tolerate: 50%
        steps: [ { name: work, external: true } ]
";

/// What cuts items off: a call to the job, or to the child job of the third item. How many have
/// failed for themselves by then, how many are cut off, and the map.
const ENDS: [(&str, bool, u64, u64, [u8; 5]); 3] = [
    ("/cancel", false, 2, 3, [3, 3, 1, 1, 1]),
    ("/step/beside?type=error", false, 2, 3, [3, 3, 1, 1, 1]),
    // One more than is tolerated.
    ("/step/work?type=error", true, 3, 2, [3, 3, 3, 1, 1]),
];

#[test]
fn items_that_the_end_of_a_job_cut_off_are_neither_running_nor_failed() {
    for (path, is_of_item, failed, cancelled, mapped) in ENDS {
        TestManager::with(CUT).serve(|api| async move {
            api.create_job(&format!("fan?id={ID}"), "{}").await;
            api.post_until_accepted(&job("/step/first"), r#"{"items":[1,2,3,4,5]}"#).await;
            let ids = children(&api, 4).await;
            let error = r#"{"error":"no"}"#;
            api.post_until_accepted(&format!("/api/job/{}/step/work?type=error", ids[0]), error)
                .await;
            // Cancelled for itself: it has failed.
            api.post_until_accepted(&format!("/api/job/{}/cancel", ids[1]), "").await;
            let counts = job("/step/each/items");
            api.until(&counts, |counts| counts["failed"] == 2).await;
            children(&api, 5).await;
            let end = if is_of_item { format!("/api/job/{}{path}", ids[2]) } else { job(path) };
            api.post_until_accepted(&end, error).await;
            api.until(&job("?view=light"), |view| view["ended"].is_string()).await;
            let under_way = job("/children?state=running");
            api.until(&under_way, |page| page["children"] == json!([])).await;
            let keys = ["waiting", "running", "completed", "failed", "cancelled"];
            let expected = [0, 0, 0, failed, cancelled].map(Some);
            let told = api.get_json(&counts).await;
            assert_eq!(keys.map(|key| told[key].as_u64()), expected, "{path}: {told}");
            let view = api.get_json(&job("?view=light")).await;
            let step = &view["steps"][1]["children"];
            assert_eq!(keys.map(|key| step[key].as_u64()), expected, "{path}: {step}");
            let map = api.get(&job("/step/each/items?format=map"), &[]).await;
            assert_eq!(states(&map, 5), mapped, "{path}");
            let reasons = api.get_json(&job("/step/each/items?format=reasons")).await;
            assert_eq!(reasons["failed"], json!(failed), "{path}: {reasons}");
            if view["state"] == "failed" {
                // All that have no result go on.
                api.post_until_accepted(&job("/retry"), "").await;
                let again = api.until(&counts, |counts| counts["running"] == 5).await;
                let all = keys.map(|key| again[key].as_u64());
                assert_eq!(all, [0, 5, 0, 0, 0].map(Some), "{path}: {again}");
            }
        });
    }
}

#[test]
fn a_completed_job_tells_what_failed_in_it_all_the_same() {
    TestManager::with(FAN).serve(|api| async move {
        api.create_job(&format!("fan?id={ID}"), r#"{"n":2}"#).await;
        api.post_until_accepted(&job("/step/first"), r#"{"items":[1,2,3],"n":2}"#).await;
        let ids = children(&api, 3).await;
        for (at, id) in ids.iter().enumerate() {
            let (kind, body) =
                if at == 1 { ("?type=error", r#"{"error":"no"}"#) } else { ("", r#"{"n":2}"#) };
            api.post_until_accepted(&format!("/api/job/{id}/step/work{kind}"), body).await;
        }
        api.post_until_accepted(&job("/step/last"), "{}").await;
        api.until(&job("?view=light"), |view| view["state"] == "completed").await;
        assert_eq!(
            api.get_json(&job("/why")).await["why"],
            "completed: every step is done; 1 of 3 items of step \"each\" failed, which its \
                 task tolerates"
        );
    });
}

#[test]
fn a_definition_is_found_by_the_hash_that_its_jobs_name() {
    TestManager::with(FAN).serve(|api| async move {
        api.create_job(&format!("fan?id={ID}"), "{}").await;
        let light = api.get_json(&job("?view=light")).await;
        let hash = light["definition"].as_str().expect("a hash").to_owned();
        let path = format!("/api/definition/{hash}");
        let answer = api.get(&path, &[]).await;
        assert!(
            answer.header("cache-control").contains("immutable"),
            "what it names never changes"
        );
        let definition = answer.json();
        assert_eq!((&definition["hash"], &definition["name"]), (&json!(hash), &json!("fan")));
        assert_eq!(
            definition["steps"][1],
            json!({"name": "each", "depends": ["first", "__start__"], "task": "piece"})
        );
        assert_eq!(definition["steps"][2]["when"], "input.n > 1");
        assert_eq!(definition["result"], json!(["last"]));
        assert_eq!(
            (&definition["tasks"][0]["maxConcurrency"], &definition["tasks"][0]["tolerate"]),
            (&json!(4), &json!("50%"))
        );
        let then = api.get_json(&job("?view=light&at=1")).await;
        assert_eq!(then["definition"], json!(hash));
        let unknown = api.get(&format!("/api/definition/{}", "0".repeat(64)), &[]).await;
        assert_eq!(unknown.status, StatusCode::NOT_FOUND);
        for malformed in ["x", "00", &"0g".repeat(32), &"0".repeat(65)] {
            let answer = api.get(&format!("/api/definition/{malformed}"), &[]).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{malformed}");
        }
    });
}

#[test]
fn a_client_that_has_the_newest_light_view_is_told_so() {
    TestManager::with(FAN).serve(|api| async move {
        api.create_job(&format!("fan?id={ID}"), "{}").await;
        let path = job("?view=light");
        // Of a job under way, and of one that has ended.
        for _ in 0..2 {
            let first = api.get(&path, &[]).await;
            let tag = first.header("etag").to_owned();
            assert!(tag.starts_with('"') && tag.len() > 4, "{tag}");
            let again = api.get(&path, &[("if-none-match", &tag)]).await;
            assert_eq!((again.status, again.body.len()), (StatusCode::NOT_MODIFIED, 0));
            assert_eq!(again.header("etag"), tag);
            let ended = first.json()["state"] != "running";
            let _ = api.post(&job("/cancel"), "").await;
            let changed = api.get(&path, &[("if-none-match", &tag)]).await;
            let expected = if ended { StatusCode::NOT_MODIFIED } else { StatusCode::OK };
            assert_eq!(changed.status, expected);
        }
    });
}
