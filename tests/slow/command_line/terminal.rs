//! What is other on a terminal: width, colours, questions, the bar.

use super::{complete, on_terminal, start, uncoloured};
use crate::harness::{command, eventually, run, when};
use crate::shown::fanned_out;
use std::thread;
use std::time::Duration;
use uuid::Uuid;

#[test]
fn tables_are_as_wide_as_the_terminal_and_states_have_colours() {
    let daemon = start();
    let id = daemon.api.create("signed", "{}").to_string();
    let url = daemon.url();
    let text = on_terminal(70, "", &["search"], &url);
    assert!(text.contains("\u{1b}[34mrunning\u{1b}[0m"), "{text:?}");
    let plain = uncoloured(&text);
    let table: Vec<&str> = plain.lines().take(2).collect();
    assert!(table.iter().all(|line| line.chars().count() <= 70), "{plain}");
    assert!(table[1].contains(&id), "ids stay whole: {plain}");
    assert!(plain.contains("there is no room for") && plain.contains("-o wide"), "{plain}");
    let wide = uncoloured(&on_terminal(70, "", &["search", "-o", "wide"], &url));
    assert!(wide.contains("CREATED") && wide.contains("ENDED"), "{wide}");
    let short = uncoloured(&on_terminal(200, "", &["search"], &url));
    let fraction = short.lines().nth(1).unwrap().contains('.');
    assert!(!fraction, "times have whole seconds: {short}");

    let forced = run(command()
        .args(["search", "--server", &url])
        .env_remove("NO_COLOR")
        .env("CLICOLOR_FORCE", "1"));
    assert!(forced.stdout.contains("\u{1b}[34m"), "{forced}");
    let piped = run(command().args(["search", "--server", &url]).env_remove("NO_COLOR"));
    assert!(!piped.stdout.contains('\u{1b}'), "{piped}");
}

#[test]
fn payloads_command_no_terminal() {
    let daemon = start();
    let job = daemon.api.create("signed", "{}");
    complete(&daemon, job, "sign", "{\"a\":\"\u{9b}31m\u{202e}x\"}");
    let text = on_terminal(100, "", &["step", &job.to_string(), "sign", "--output"], &daemon.url());
    assert!(text.contains(r#"{"a":"\u009b31m\u202ex"}"#), "{text:?}");
}

#[test]
fn what_destroys_much_is_asked_for() {
    let daemon = start();
    let job = daemon.api.create("signed", "{}");
    let cancel = |typed| on_terminal(80, typed, &["cancel", "--workflow", "signed"], &daemon.url());
    let no = cancel("n\\n");
    assert!(no.contains("cancel 1 job? [y/N]") && no.contains("nothing was done"), "{no}");
    assert!(no.contains("code 1"), "{no}");
    assert_eq!(daemon.api.job(job).state, "running");
    let yes = cancel("y\\n");
    assert!(yes.contains("1 of 1 job done") && yes.contains("code 0"), "{yes}");
    daemon.api.await_state(job, "cancelled");
}

#[test]
fn a_fan_out_has_a_bar_with_rate_and_time_left_and_elsewhere_one_line() {
    let daemon = start();
    let url = daemon.url();
    let message = format!("{{\"items\":{:?}}}", (0..40).collect::<Vec<_>>());
    let id = Uuid::new_v4().to_string();
    let shown = {
        let (url, message, id) = (url.clone(), message, id.clone());
        thread::spawn(move || {
            on_terminal(120, "", &["run", "fan", "--id", &id, "--message", &message], &url)
        })
    };
    let children = eventually("the child jobs are there", || {
        let answer = daemon.api.get(&format!("/api/job/{id}/children"));
        let page = answer.text.clone();
        let ids: Vec<Uuid> =
            serde_json::from_str::<serde_json::Value>(&page).unwrap_or_default()["children"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|row| row["job"].as_str()?.parse().ok())
                .collect();
        when(ids.len() == 40, page).map(|()| ids)
    });
    for child in children {
        complete(&daemon, child, "by-hand", r#"{"item":1}"#);
        // The bar is drawn four times a second.
        thread::sleep(Duration::from_millis(40));
    }
    let shown = shown.join().unwrap();
    assert!(shown.contains("/s, ") && shown.contains("s left"), "{shown}");
    assert!(shown.contains("/41 ") && shown.contains("code 0"), "{shown}");

    let (job, children) = fanned_out(&daemon, 3);
    let following = thread::spawn(move || {
        let message = "{\"items\":[0,1,2]}";
        let id = job.to_string();
        run(command().args(["run", "fan", "--id", &id, "--message", message, "--server", &url]))
    });
    children.iter().for_each(|child| complete(&daemon, *child, "by-hand", r#"{"item":1}"#));
    let ran = following.join().unwrap();
    assert_eq!(ran.code, Some(0), "{ran}");
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "the id, and one line: {ran}");
    assert!(lines[1].contains("3 child jobs, ") && lines[1].ends_with("/s"), "{ran}");
    assert_eq!(ran.stdout.trim(), r#"{"items":[1,1,1]}"#);
}
