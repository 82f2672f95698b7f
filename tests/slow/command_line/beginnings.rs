//! Jobs by the first digits of their ids, and the search with each of its flags, of a real manager.

use super::{Ran, client, complete, fail, json_of, printed, start};
use crate::harness::Daemon;
use serde_json::Value;
use uuid::Uuid;

/// Two whose ids begin alike, and one whose id does not.
const FIRST: &str = "abcd0000-0000-4000-8000-000000000001";
const SECOND: &str = "abcd1111-0000-4000-8000-000000000002";
const OTHER: &str = "fedcba98-0000-4000-8000-000000000003";

#[track_caller]
fn create(daemon: &Daemon, workflow: &str, id: &str, message: &str) -> Uuid {
    daemon.api.post(&format!("/api/workflow/{workflow}?id={id}"), message).expect(201).id()
}

/// What a command is refused with.
#[track_caller]
fn refused(daemon: &Daemon, arguments: &[&str], words: &[&str]) {
    let ran: Ran = client(daemon, arguments);
    assert!(ran.code != Some(0) && ran.stdout.is_empty(), "{arguments:?}: {ran}");
    for word in words {
        assert!(ran.stderr.contains(word), "{arguments:?}: no {word:?} in {ran}");
    }
}

#[test]
fn a_job_is_named_by_the_first_digits_of_its_id_in_each_command() {
    let daemon = start();
    let first = create(&daemon, "signed", FIRST, r#"{"n":1}"#);
    create(&daemon, "signed", SECOND, "{}");
    let commands = |id: &'static str| -> Vec<Vec<&'static str>> {
        [
            &["job", id][..],
            &["job", id, "--children"],
            &["why", id],
            &["history", id],
            &["step", id, "sign"],
            &["pause", id],
            &["resume", id],
            &["rerun", id, "--step", "sign"],
            &["search", "--parent", id],
            &["watch", id],
            &["wait", id, "--for", "completed"],
            &["complete", id, "sign"],
            &["cancel", id],
            &["retry", id],
            &["redispatch", id, "sign"],
            &["status", "signed", "--job", id],
            &["delete", id],
            &["items", id, "sign"],
        ]
        .iter()
        .map(|words| words.to_vec())
        .collect()
    };
    for command in commands("abcd") {
        refused(&daemon, &command, &["2 jobs begin with abcd", FIRST, SECOND, "running"]);
    }
    for command in commands("abce") {
        refused(&daemon, &command, &["no job's id begins with abce"]);
    }
    refused(&daemon, &["job", "abc"], &["abc"]);
    let states = [FIRST, SECOND].map(|id| daemon.api.job(id.parse().unwrap()).state);
    assert_eq!(states, ["running", "running"], "nothing was changed");

    for command in [
        &["job", "abcd0"][..],
        &["job", "ABCD0000-0000", "--json"],
        &["why", "abcd0"],
        &["history", "abcd0"],
        &["step", "abcd0", "sign"],
        &["status", "signed", "--job", "abcd0"],
        &["pause", "abcd0"],
        &["resume", "abcd0"],
    ] {
        let text = printed(&daemon, command);
        assert!(!text.is_empty() && !text.contains(SECOND), "{command:?}: {text}");
    }
    let shown = json_of(&printed(&daemon, &["job", "abcd0", "--json"]));
    assert_eq!(shown["uuid"], FIRST);
    assert_eq!(printed(&daemon, &["step", "abcd0", "sign", "--input"]).trim(), r#"{"n":1}"#);

    printed(&daemon, &["complete", "abcd0", "sign", "--message", "{}"]);
    complete(&daemon, first, "archive", "{}");
    printed(&daemon, &["wait", "abcd0", "--for", "completed"]);
    printed(&daemon, &["watch", "abcd0"]);
    printed(&daemon, &["rerun", "abcd0", "--step", "archive"]);
    fail(&daemon, first, "archive", "lost", true);
    daemon.api.await_state(first, "failed");
    printed(&daemon, &["retry", "abcd0"]);
    printed(&daemon, &["cancel", "abcd0"]);
    daemon.api.await_state(first, "cancelled");
    printed(&daemon, &["delete", "abcd0"]);
    daemon.api.get(&format!("/api/job/{first}")).expect(404);
    assert_eq!(daemon.api.job(SECOND.parse().unwrap()).state, "running");
    // It is the only one now.
    printed(&daemon, &["cancel", "abcd"]);
    daemon.api.await_state(SECOND.parse().unwrap(), "cancelled");

    create(&daemon, "queued", OTHER, "{}");
    let ran = client(&daemon, &["redispatch", "fedc", "work"]);
    assert!(ran.to_string().contains(OTHER), "{ran}");
}

#[test]
fn each_flag_of_a_search_gives_what_the_api_gives() {
    let daemon = start();
    let first = create(&daemon, "signed", FIRST, "{}");
    let second = create(&daemon, "signed", SECOND, "{}");
    let parent = create(&daemon, "fan", OTHER, r#"{"items":[1,2,3]}"#);
    complete(&daemon, second, "sign", "{}");
    complete(&daemon, second, "archive", "{}");
    daemon.api.await_state(second, "completed");
    fail(&daemon, first, "sign", "no pen", true);
    let ended = daemon.api.await_state(first, "failed");
    let ended = json_of(&ended.text)["ended"].as_str().unwrap().to_owned();
    crate::harness::eventually("the list has all", || {
        let count = daemon.api.get("/api/jobs/search?state=running,failed,completed&count=true");
        let count = count.expect(200).json();
        crate::harness::when(count["count"] == 3 && count["jobs"][0]["state"] == "running", count)
    });
    crate::harness::eventually("the child jobs are there", || {
        let found = daemon.api.get(&format!("/api/jobs/search?parent={parent}")).expect(200).json();
        crate::harness::when(found["jobs"].as_array().map(Vec::len) == Some(3), found)
    });

    let parent = parent.to_string();
    let escaped = ended.replace(':', "%3A");
    let cases: [(&[&str], String, &[&str]); 10] = [
        (&["--id", "abcd"], "id=abcd".to_owned(), &[SECOND, FIRST]),
        (&["--id", "fedc"], "id=fedc".to_owned(), &[OTHER]),
        (&["--ended-after", &ended], format!("endedAfter={escaped}"), &[FIRST]),
        (&["--ended-before", &ended], format!("endedBefore={escaped}"), &[SECOND]),
        (&["--order", "oldest"], "order=oldest".to_owned(), &[FIRST, SECOND, OTHER]),
        (&["--order", "newest"], "order=newest".to_owned(), &[OTHER, SECOND, FIRST]),
        (&["--count"], "count=true".to_owned(), &[OTHER, SECOND, FIRST]),
        (&["--limit", "2"], "limit=2".to_owned(), &[OTHER, SECOND]),
        (&["--workflow", "signed"], "workflow=signed".to_owned(), &[SECOND, FIRST]),
        (&["--state", "failed"], "state=failed".to_owned(), &[FIRST]),
    ];
    for (flags, query, ids) in cases {
        let found = same(&daemon, flags, &query);
        assert_eq!(jobs(&found), ids, "{flags:?}: {found}");
    }
    let found = same(&daemon, &["--parent", &parent], &format!("parent={parent}"));
    assert_eq!(jobs(&found).len(), 3, "{found}");
    assert_eq!(found, same(&daemon, &["--parent", "fedc"], &format!("parent={parent}")));
    assert_eq!(same(&daemon, &["--count"], "count=true")["count"], 3);
    assert!(printed(&daemon, &["search", "--count"]).contains('3'));

    let page = same(&daemon, &["--limit", "2"], "limit=2");
    let cursor = page["next"].as_str().unwrap_or_else(|| panic!("no cursor: {page}"));
    let rest = same(
        &daemon,
        &["--limit", "2", "--cursor", cursor],
        &format!("limit=2&cursor={}", cursor.replace(':', "%3A")),
    );
    assert_eq!(jobs(&rest), [FIRST], "{rest}");
}

/// What the command prints as JSON, which is what the API answers.
#[track_caller]
fn same(daemon: &Daemon, flags: &[&str], query: &str) -> Value {
    let printed = printed(daemon, &[&["search", "--json"], flags].concat());
    let answer = daemon.api.get(&format!("/api/jobs/search?{query}")).expect(200).json();
    let printed = json_of(&printed);
    assert_eq!(printed, answer, "{flags:?}");
    printed
}

fn jobs(found: &Value) -> Vec<&str> {
    let rows = found["jobs"].as_array().unwrap_or_else(|| panic!("no jobs: {found}"));
    rows.iter().map(|row| row["job"].as_str().unwrap()).collect()
}
