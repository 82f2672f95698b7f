//! A step, its payloads, the items of a fan-out, and waiting for a state.

use super::{client, complete, fail, json_of, printed, start};
use crate::amqp::{Answer, Vhost, Worker};
use crate::harness::{Setup, command, eventually, free_port, run, when};
use crate::shown::fanned_out;
use std::thread;
use std::time::Duration;
use uuid::Uuid;

/// Every digit counts. The journal keeps values as they came, without blanks between them.
const EXACT: &str = "{\"n\":1.00000000000000000001,\"sign\":\"\u{202e}\u{9b}31m\",\"n2\":1E400}";

#[test]
fn payloads_are_printed_byte_for_byte() {
    let daemon = start();
    let job = daemon.api.create("signed", r#"{"a":1}"#);
    let id = job.to_string();
    let none = client(&daemon, &["step", &id, "sign", "--output"]);
    assert!(none.code == Some(1) && none.stdout.is_empty(), "{none}");
    assert!(none.stderr.contains("has no output: it is running"), "{none}");
    complete(&daemon, job, "sign", EXACT);
    let path = format!("/api/job/{id}/step/sign/output");
    assert_eq!(printed(&daemon, &["step", &id, "sign", "--output"]), EXACT);
    assert_eq!(daemon.api.get(&path).expect(200).text, EXACT);
    assert_eq!(printed(&daemon, &["step", &id, "sign", "--input"]), r#"{"a":1}"#);
    let raw = client(&daemon, &["step", &id, "sign", "--raw"]);
    assert!(raw.code == Some(1) && raw.stderr.contains("--output"), "{raw}");
    for wrong in [&["--input", "--output"][..], &["--output", "--at", "1"]] {
        let ran = client(&daemon, &[&["step", &id, "sign"], wrong].concat());
        assert_eq!(ran.code, Some(2), "{ran}");
    }
}

#[test]
fn a_step_is_shown_with_its_attempts_and_as_it_was() {
    let daemon = start();
    let job = daemon.api.create("signed", "{}");
    let id = job.to_string();
    fail(&daemon, job, "sign", "no \u{1b}[31mpen", false);
    eventually("the second attempt runs", || {
        let steps = json_of(&daemon.api.job(job).text);
        when(steps["steps"][0]["attempt"] == 2, steps)
    });
    let text = printed(&daemon, &["step", &id, "sign"]);
    assert!(text.contains("no \\u{1b}[31mpen") && !text.contains('\u{1b}'), "{text}");
    let states: Vec<&str> = text
        .lines()
        .filter(|line| line.split_whitespace().nth(2) != Some("by"))
        .filter_map(|line| line.split_whitespace().nth(1))
        .filter(|word| ["failed", "running"].contains(word))
        .collect();
    assert_eq!(states, ["running", "failed", "running"], "the step, then its attempts: {text}");
    let before = printed(&daemon, &["step", &id, "sign", "--at", "2"]);
    assert!(!before.contains("failed"), "{before}");
    let machine = json_of(&printed(&daemon, &["step", &id, "sign", "--json"]));
    assert_eq!(machine["attempts"].as_array().unwrap().len(), 2);
    let unknown = client(&daemon, &["step", &id, "sing"]);
    assert!(unknown.code == Some(1) && unknown.stderr.contains("\"sign\""), "{unknown}");
}

#[test]
fn a_reply_that_was_no_object_is_printed_as_it_came() {
    let vhost = Vhost::new();
    let workflows = "workflows: [ { name: odd, steps: [ { name: work } ] } ]";
    let daemon = Setup::new(&vhost.url, workflows).start();
    let reply = "[1,\u{1b}[31m\n";
    let _worker = Worker::start(&vhost.url, &["work"], move |_| Answer::Reply(reply.into()));
    let job = daemon.api.create("odd", "{}");
    daemon.api.await_state(job, "failed");
    assert_eq!(printed(&daemon, &["step", &job.to_string(), "work", "--raw"]), reply);
}

#[test]
fn items_are_counted_and_listed() {
    let daemon = start();
    let (job, children) = fanned_out(&daemon, 4);
    let id = job.to_string();
    complete(&daemon, children[0], "by-hand", r#"{"item":1}"#);
    fail(&daemon, children[2], "by-hand", "item two is broken", true);
    let counts = "4 items: 1 completed, 2 running, 0 waiting, 1 failed";
    let text = eventually("both are counted", || {
        let text = printed(&daemon, &["items", &id, "each"]);
        when(text.contains(counts), &text).map(|()| text)
    });
    assert!(text.contains("5 may fail"), "{text}");
    assert!(children.iter().all(|child| text.contains(&child.to_string())), "{text}");
    let failed = printed(&daemon, &["items", &id, "each", "--failed"]);
    assert!(failed.contains("item two is broken"), "{failed}");
    assert!(!failed.contains(&children[0].to_string()), "{failed}");
    let reasons = printed(&daemon, &["items", &id, "each", "--reasons", "-o", "csv"]);
    assert!(reasons.starts_with("child job,item,count,reason\n"), "{reasons}");
    assert!(reasons.contains(&format!("{},2,1,", children[2])), "{reasons}");
    let machine = json_of(&printed(&daemon, &["items", &id, "each", "--failed", "-o", "json"]));
    assert_eq!(
        (&machine["counts"]["items"], &machine["children"][0]["item"]),
        (&4.into(), &2.into())
    );
    let page = printed(&daemon, &["items", &id, "each", "--limit", "1", "-o", "name"]);
    assert_eq!(page.trim(), children[0].to_string());
    let wrong = client(&daemon, &["items", &id, "eech"]);
    assert!(wrong.code == Some(1) && wrong.stderr.contains("each"), "{wrong}");
    // Where one step alone has items, it is meant.
    let unnamed = printed(&daemon, &["items", &id, "--failed", "-o", "name"]);
    assert_eq!(unnamed.trim(), children[2].to_string());
    let without = client(&daemon, &["items", &children[0].to_string()]);
    assert!(without.code == Some(1) && without.stderr.contains("has items"), "{without}");
}

#[test]
fn wait_ends_with_the_state_and_tells_by_its_exit_code() {
    let daemon = start();
    let job = daemon.api.create("signed", "{}");
    let id = job.to_string();
    let code = |arguments: &[&str]| client(&daemon, &[&["wait", &id], arguments].concat()).code;
    assert_eq!(code(&["--for", "running"]), Some(0), "it is that already");
    let late = client(&daemon, &["wait", &id, "--for", "completed", "--timeout", "300ms"]);
    assert_eq!(late.code, Some(4), "{late}");
    assert!(late.stderr.contains("has not been completed within 300ms"), "{late}");

    let url = daemon.url();
    let waiting = |state: &'static str| {
        let (id, url) = (id.clone(), url.clone());
        thread::spawn(move || {
            run(command().args(["wait", &id, "--for", state, "--timeout", "50s", "--server", &url]))
        })
    };
    let (paused, ended) = (waiting("paused"), waiting("ended"));
    // Whether they wait already or not, they see it.
    thread::sleep(Duration::from_millis(100));
    daemon.api.post(&format!("/api/job/{id}/pause"), "").expect(200);
    let paused = paused.join().unwrap();
    assert_eq!((paused.code, &*paused.stdout), (Some(0), &*format!("job {id} is paused\n")));
    daemon.api.post(&format!("/api/job/{id}/resume"), "").expect(200);
    complete(&daemon, job, "sign", "{}");
    complete(&daemon, job, "archive", "{}");
    assert_eq!(ended.join().unwrap().code, Some(0));
    assert_eq!(code(&["--for", "completed"]), Some(0));
    let vain = client(&daemon, &["wait", &id, "--for", "failed"]);
    assert!(vain.code == Some(1) && vain.stderr.contains("is completed"), "{vain}");
    let unknown = client(&daemon, &["wait", &Uuid::nil().to_string()]);
    assert!(unknown.code == Some(1) && unknown.stderr.contains("unknown job id"), "{unknown}");
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    assert_eq!(run(command().args(["wait", &id, "--server", &nowhere])).code, Some(3));
}
