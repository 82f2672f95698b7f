//! Many replies in one call: a verdict for each, and a bad one costs itself alone.

use super::{ID, WORKFLOW, receive, until};
use actix_web::http::{Method, StatusCode};
use serde_json::{Value, json};
use support::api::{Answer, Api};
use support::manager::TestManager;
use workflow_manager::settings::{Names, Secret, Settings, WorkerToken};

const OTHER_ID: &str = "f557697b-f911-401c-86b7-6d9b62f1f2bc";

/// A reply of the list, whose body is written as it is.
fn part(message: &Answer, rest: &str) -> String {
    format!(r#"{{"reply_to":"{}"{rest}}}"#, message.header("reply-to"))
}

/// The verdicts on these replies.
async fn send(api: &Api, parts: &[String]) -> Vec<Value> {
    let answer = api.post("/api/replies", &format!("[{}]", parts.join(","))).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let verdicts = answer.json();
    let verdicts = verdicts.as_array().expect("a list").clone();
    assert_eq!(verdicts.len(), parts.len());
    verdicts
}

async fn create_both(api: &Api) -> [Answer; 2] {
    api.create_job(&format!("orders?id={ID}"), "{}").await;
    let first = receive(api, "price/receive").await;
    api.create_job(&format!("orders?id={OTHER_ID}"), "{}").await;
    [first, receive(api, "price/receive").await]
}

#[test]
fn a_bad_reply_costs_itself_alone() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        let [first, second] = create_both(&api).await;
        let told = send(
            &api,
            &[
                "7".to_owned(),
                part(&first, r#","type":"no","body":{}"#),
                part(&first, r#","bodi":{}"#),
                r#"{"reply_to":"/api/queue/price","body":{}}"#.to_owned(),
                format!(r#"{{"reply_to":"/api/queue/price/message/{ID}:no:1/1/reply"}}"#),
                format!(
                    r#"{{"reply_to":"/api/queue/price/message/{ID}:price:1/1/reply?vhost=no"}}"#
                ),
                part(&first, r#","body":{ "ok" :1.0, "long":12345678901234567890}"#),
                part(&first, r#","body":{"ok":2}"#),
                part(&second, r#","type":"error","body":{"error":"no"}"#),
            ],
        )
        .await;
        let statuses: Vec<&Value> = told.iter().map(|told| &told["status"]).collect();
        let expected = [400, 400, 400, 400, 200, 404, 200, 200, 200].map(Value::from);
        assert_eq!(statuses, expected.iter().collect::<Vec<_>>(), "{told:?}");
        for (verdict, said) in told.iter().zip([
            "expected struct",
            "type is \"no\", expected result, error or progress",
            "unknown field `bodi`",
            "the receipt is \"/api/queue/price\"",
        ]) {
            let detail = verdict["detail"].as_str().expect("a detail");
            assert!(detail.contains(said), "{detail}");
            assert_eq!(verdict.get("taken"), None);
        }
        assert_eq!(told[4], json!({ "status": 200, "taken": false, "reason": "unknown_step" }));
        assert_eq!(told[6], json!({ "status": 200, "taken": true }));
        assert_eq!(told[7], json!({ "status": 200, "taken": false, "reason": "duplicate" }));
        assert_eq!(told[8], json!({ "status": 200, "taken": true }));
        let shipped = receive(&api, "ship/receive").await;
        assert_eq!(
            String::from_utf8_lossy(&shipped.body),
            r#"{"ok":1.0,"long":12345678901234567890}"#,
            "every digit"
        );
        let again = receive(&api, "price/receive").await;
        assert_eq!(again.header("message-id"), format!("{OTHER_ID}:price:2"));
    });
}

#[test]
fn replies_to_one_message_count_in_their_order() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        let [first, second] = create_both(&api).await;
        let progress = r#","type":"progress","body":{"progress":0.5}"#;
        let told = send(
            &api,
            &[
                part(&first, progress),
                part(&second, progress),
                part(&first, ""),
                part(&first, progress),
                part(&second, r#","body":[1]"#),
            ],
        )
        .await;
        assert!(told[0]["taken"] == true && told[1]["taken"] == true, "{told:?}");
        assert_eq!(told[2], json!({ "status": 200, "taken": true }));
        assert_eq!(told[3]["taken"], false, "the step is over: {told:?}");
        assert!(told[4]["failed"].is_string(), "{told:?}");
        assert_eq!(receive(&api, "ship/receive").await.text(), "{}", "no body is an empty output");
        until(&api, |job| job["steps"][0]["state"] == "completed").await;
    });
}

#[test]
fn a_call_has_a_hundred_replies_and_the_bytes_of_one_body() {
    let limit = |settings: &mut Settings| settings.http.body_bytes_max = 20_000;
    TestManager::with(WORKFLOW).set(limit).serve(|api| async move {
        for (body, status, said) in [
            ("[]".to_owned(), 400, "the body has 0 replies, expected a JSON array of 1 to 100"),
            (format!("[{}0]", "0,".repeat(100)), 400, "the body has 101 replies"),
            ("{}".to_owned(), 400, "expected a JSON array of 1 to 100 replies"),
            ("[".to_owned(), 400, "EOF"),
            (format!("[\"{}\"]", "x".repeat(20_000)), 413, "larger than 20000 bytes"),
        ] {
            let answer = api.post("/api/replies", &body).await;
            assert_eq!(answer.status.as_u16(), status, "{body:.40}: {}", answer.detail());
            assert!(answer.detail().contains(said), "{body:.40}: {}", answer.detail());
        }
        let most = vec!["0".to_owned(); 100];
        let told = send(&api, &most).await;
        assert!(told.iter().all(|told| told["status"] == 400), "{told:?}");
    });
}

#[test]
fn each_reply_needs_a_token_for_its_queue() {
    let tokens = |settings: &mut Settings| {
        settings.http.token = Secret("all".to_owned());
        let worker = |token: &str, queues: &[&str]| WorkerToken {
            token: Secret(token.to_owned()),
            queues: Names(queues.iter().map(|queue| (*queue).to_owned()).collect()),
            vhost: String::new(),
        };
        let workers =
            [("pricing", worker("pp", &["price"])), ("shipping", worker("ss", &["ship"]))];
        settings.http.workers = workers.map(|(name, worker)| (name.to_owned(), worker)).into();
    };
    TestManager::with(WORKFLOW).set(tokens).serve(|api| async move {
        let ask = async |token: &str, path: &str, body: &str| {
            let bearer = format!("Bearer {token}");
            api.request(Method::POST, path, &[("authorization", &bearer)], body).await
        };
        let create = format!("/api/workflow/orders?id={ID}");
        assert_eq!(ask("all", &create, "").await.status, StatusCode::CREATED);
        let message = ask("pp", "/api/queue/price/receive", "").await;
        assert_eq!(message.status, StatusCode::OK);
        let own = part(&message, "");
        let renamed = own.replace("/queue/price/", "/queue/ship/");
        assert_ne!(own, renamed);
        let body = format!("[{own},{renamed}]");
        for token in ["", "wrong"] {
            let answer = ask(token, "/api/replies", &body).await;
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
        }
        let told = ask("ss", "/api/replies", &body).await.json();
        for (index, said) in [
            "the token \\\"shipping\\\" is for messages of the queue \\\"ship\\\" alone",
            "this message is not of the queue \\\"ship\\\"",
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(told[index]["status"], 403, "{told}");
            assert!(told[index]["detail"].to_string().contains(said), "{told}");
        }
        let told = ask("pp", "/api/replies", &body).await.json();
        assert_eq!(told[0], json!({ "status": 200, "taken": true }));
        assert_eq!(told[1]["status"], 403, "{told}");
    });
}
