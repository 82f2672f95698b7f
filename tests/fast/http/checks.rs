//! A workflow file is checked for its author: what the command `check` says, and nothing is saved.

use super::tokens::token;
use super::{ID, WORKFLOW};
use actix_web::http::{Method, StatusCode};
use actix_web::test::TestRequest;
use serde_json::{Value, json};
use std::time::Duration;
use support::api::{Answer, Api};
use support::manager::TestManager;
use workflow_manager::cli::check;
use workflow_manager::load::FILE_BYTES_MAX;
use workflow_manager::settings::{DurationSetting, Scope, Settings};

const FAN: &str = "
workflows:
  - name: fan
    vhosts: [ prod ]
    deadline: 1h
    steps:
      - { name: split, timeout: 2h }
      - { name: each, task: piece, depends: [ split ] }
    tasks:
      - { name: piece, itemListKey: items, steps: [ { name: work } ] }
      - { name: unused, itemListKey: items, steps: [ { name: idle } ] }
";

async fn checked(api: &Api, text: &str) -> Value {
    let answer = api.post("/api/check", text).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    answer.json()
}

/// What the command says of the text, with the name that the API gives it.
fn by_command(text: &str) -> Value {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let path = directory.path().join("text");
    std::fs::write(&path, text).expect("writes");
    let mut shown = Vec::new();
    let settings = Settings::defaults().expect("the defaults are valid");
    check(std::slice::from_ref(&path), Some(&settings), true, &mut shown).expect("writes");
    let shown = String::from_utf8(shown).expect("text");
    let shown = shown.replace(&*path.to_string_lossy(), "text");
    serde_json::from_str(&shown).expect("JSON")
}

#[test]
fn it_says_what_the_command_says_and_saves_nothing() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        let before = api.get_json("/api/workflows?all=true").await;
        let good = checked(&api, FAN).await;
        assert_eq!(good, by_command(FAN));
        assert_eq!((&good["valid"], &good["errors"]), (&json!(true), &json!([])));
        assert_eq!(good["workflows"][0]["steps"][1]["depends"], json!(["split"]));
        assert_eq!(good["workflows"][0]["tasks"][0]["steps"][0]["name"], "work");
        let lines: Vec<&Value> = list(&good, "warnings").map(|warning| &warning["line"]).collect();
        assert_eq!(lines, [7, 10, 11, 11]);
        assert_eq!(api.get_json("/api/workflows?all=true").await, before);
        let definitions = api.get("/api/definitions?workflow=fan", &[]).await;
        assert_eq!(definitions.status, StatusCode::NOT_FOUND, "{}", definitions.text());

        let bad = FAN.replace("[ split ]", "[ splitt ]");
        let refused = checked(&api, &bad).await;
        assert_eq!(refused, by_command(&bad));
        assert_eq!((&refused["valid"], &refused["workflows"]), (&json!(false), &json!([])));
    });
}

fn list<'v>(view: &'v Value, key: &str) -> impl Iterator<Item = &'v Value> {
    view[key].as_array().expect("a list").iter()
}

#[test]
fn each_error_has_its_line_its_place_and_a_remedy() {
    let step = |keys: &str| format!("workflows:\n  - name: w\n    steps:\n      - {keys}\n");
    let bomb = format!(
        "x-text: &t {}\nworkflows:\n  - {{ name: w, steps: [ {{ name: s }} ] }}\nschedules:\n{}",
        "x".repeat(500_000),
        (0..100)
            .map(|at| format!(" - {{name: s{at}, workflow: w, every: 1h, message: {{t: *t}}}}\n"))
            .collect::<String>()
    );
    let deep = format!("workflows:\n  {}", "[".repeat(1_000));
    let cases: [(String, [u32; 2], &str); 12] = [
        (String::new(), [1, 1], "the file is empty"),
        ("workflows: [".to_owned(), [1, 12], "unclosed"),
        (deep, [2, 35], "nest deeper than 32"),
        (bomb, [55, 4], "more than 100000 keys and values"),
        (step("{ name: s, depends: [ x ] }"), [4, 31], "which is not a step here"),
        (step("{ name: s, depends: [ s ] }"), [4, 31], "depends on itself"),
        (step("{ name: s, timout: 5s }"), [4, 20], "did you mean \"timeout\""),
        (step("{ name: s, timeout: 5 }"), [4, 29], "timeout"),
        (step("{ name: s, when: input. }"), [4, 32], "ends too early"),
        (step("{ name: s, task: t }"), [4, 26], "task"),
        (step("{ name: s, limit: bank }"), [4, 27], "bank"),
        // What only this manager can say.
        (step("{ name: s, bus: elsewhere }"), [4, 25], "elsewhere"),
    ];
    TestManager::with(WORKFLOW).serve(|api| async move {
        let mut wrong = Vec::new();
        for (text, place, words) in cases {
            let view = checked(&api, &text).await;
            let start: String = text.chars().take(80).collect();
            let error = &view["errors"][0];
            let message = error["message"].as_str().unwrap_or_default();
            let found = json!([error["line"], error["column"]]);
            if found != json!(place) || !message.contains(words) {
                wrong.push(format!("{start}: {found} {message}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}

#[test]
fn it_opens_no_file_that_the_text_names() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let path = directory.path().join("other.yaml");
    std::fs::write(&path, FAN).expect("writes");
    let path = path.display().to_string();
    let cases = [
        (format!("include: {path}\n"), "unknown key"),
        (format!("workflows: !include {path}\n"), "tag"),
        (
            format!("workflows:\n  - {{ name: w, schema: {path}, steps: [ {{ name: s }} ] }}\n"),
            "unknown key",
        ),
        (format!("workflows: {path}\n"), "list"),
        (path.clone(), "expected a workflow file"),
        ("-".to_owned(), "expected a workflow file"),
    ];
    TestManager::with(WORKFLOW).serve(|api| async move {
        for (text, words) in cases {
            let view = checked(&api, &text).await;
            assert_eq!(view["valid"], false, "{text}");
            let errors = view["errors"].to_string();
            assert!(errors.contains(words) && !errors.contains("split"), "{text}: {errors}");
        }
    });
}

#[test]
fn what_is_too_large_or_no_text_is_refused() {
    let change = |settings: &mut Settings| settings.http.body_bytes_max = 2 * FILE_BYTES_MAX;
    TestManager::with(WORKFLOW).set(change).serve(|api| async move {
        let view = checked(&api, &"#".repeat(FILE_BYTES_MAX + 1)).await;
        assert_eq!(view["errors"][0]["line"], 0);
        let message = view["errors"][0]["message"].as_str().expect("text");
        assert!(message.contains("larger than 1024 KiB"), "{message}");
        let refused = api.post("/api/check", &"#".repeat(2 * FILE_BYTES_MAX + 1)).await;
        assert_eq!(refused.status, StatusCode::PAYLOAD_TOO_LARGE);
        let request = TestRequest::post().uri("/api/check").insert_header(("host", "127.0.0.1"));
        let answer = api.send(request.set_payload(b"workflows:\n  - \xff".as_slice())).await;
        let error = &answer.json()["errors"][0];
        assert_eq!(json!([error["line"], error["column"]]), json!([2, 5]), "{error}");
    });
}

#[test]
fn a_check_takes_a_place_of_a_read_and_not_of_what_moves_jobs() {
    let change = |settings: &mut Settings| {
        settings.http.reads_wait = DurationSetting(Duration::from_millis(50));
    };
    TestManager::with(WORKFLOW).set(change).serve(|api| async move {
        let budgets = &api.state().budgets;
        let reads = budgets.reads.try_acquire(usize::MAX).expect("free");
        let refused = api.post("/api/check", FAN).await;
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(refused.detail().contains("http.reads_max"), "{}", refused.detail());
        api.create_job(&format!("single?id={ID}"), "{}").await;
        drop(reads);
        let bytes = budgets.answers.try_acquire(usize::MAX).expect("free");
        let refused = api.post("/api/check", FAN).await;
        assert!(refused.detail().contains("http.reads_bytes_max"), "{}", refused.detail());
        drop(bytes);
        assert_eq!(checked(&api, FAN).await["valid"], true);
        assert_eq!(budgets.answers.used(), 0, "all is given back");
    });
}

#[test]
fn whoever_may_read_definitions_may_check() {
    const READER: &str = "reader-0123456789";
    const WORKER: &str = "worker-0123456789";
    let tokens = |settings: &mut Settings| {
        let all = [
            ("reader", token(READER, Some(Scope::Read), &[])),
            ("worker", token(WORKER, None, &["work"])),
        ];
        settings.http.tokens = all.map(|(name, token)| (name.to_owned(), token)).into();
    };
    TestManager::with(WORKFLOW).set(tokens).serve(|api| async move {
        let ask = async |token: &str| -> Answer {
            let bearer = format!("Bearer {token}");
            let headers = [("authorization", &*bearer)];
            api.request(Method::POST, "/api/check", &headers, FAN).await
        };
        assert_eq!(ask(READER).await.status, StatusCode::OK);
        assert_eq!(ask(WORKER).await.status, StatusCode::FORBIDDEN);
        assert_eq!(ask("nobody-0123456789").await.status, StatusCode::UNAUTHORIZED);
    });
}
