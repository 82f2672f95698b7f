//! What a token allows, and what is known of who has sent a call.

use super::{ID, WORKFLOW};
use actix_web::http::{Method, StatusCode};
use serde_json::json;
use support::api::{Answer, Api};
use support::manager::TestManager;
use workflow_manager::access::hash_token;
use workflow_manager::settings::{Names, Scope, Settings, TokenSettings};

const READER: &str = "reader-0123456789";
const OPERATOR: &str = "operator-0123456789";
const ADMIN: &str = "admin-0123456789";
const WORKER: &str = "worker-0123456789";
const BOTH: &str = "both-0123456789";

/// Returns the settings of a token with a scope, and the queues of its worker.
pub(super) fn token(token: &str, scope: Option<Scope>, queues: &[&str]) -> TokenSettings {
    TokenSettings {
        hash: hash_token(token),
        scope,
        queues: Names(queues.iter().map(|queue| (*queue).to_owned()).collect()),
        ..TokenSettings::default()
    }
}

fn tokens(settings: &mut Settings) {
    let all = [
        ("grafana", token(READER, Some(Scope::Read), &[])),
        ("alice", token(OPERATOR, Some(Scope::Operate), &[])),
        ("root", token(ADMIN, Some(Scope::Admin), &[])),
        ("pricing", token(WORKER, None, &["work"])),
        ("robot", token(BOTH, Some(Scope::Read), &["work"])),
    ];
    settings.http.tokens = all.map(|(name, token)| (name.to_owned(), token)).into();
}

async fn ask(api: &Api, token: &str, method: Method, path: &str) -> Answer {
    let bearer = format!("Bearer {token}");
    api.request(method, path, &[("authorization", &bearer)], "").await
}

#[test]
fn each_scope_allows_what_it_says_and_no_more() {
    TestManager::with(WORKFLOW).set(tokens).serve(|api| async move {
        let (created, cancelled) =
            (format!("/api/workflow/single?id={ID}"), format!("/api/job/{ID}/cancel"));
        let (job, deleted) = (format!("/api/job/{ID}"), format!("/api/job/{ID}?erase=true"));
        let take = "/api/queue/work/receive?wait=0s";
        for (token, method, path, status) in [
            (READER, Method::POST, &*created, 403),
            (WORKER, Method::POST, &*created, 403),
            ("nobody-0123456789", Method::POST, &*created, 401),
            (OPERATOR, Method::POST, &*created, 201),
            (READER, Method::GET, &*job, 200),
            (READER, Method::HEAD, "/metrics", 200),
            (WORKER, Method::GET, &*job, 403),
            (OPERATOR, Method::GET, &*job, 200),
            (READER, Method::POST, take, 403),
            (OPERATOR, Method::POST, take, 403),
            // The message may come behind the answer to its creation.
            (BOTH, Method::POST, "/api/queue/work/receive?wait=50s", 200),
            (WORKER, Method::POST, take, 204),
            (WORKER, Method::POST, "/api/queue/other/receive", 403),
            (ADMIN, Method::POST, take, 204),
            (BOTH, Method::GET, "/api/jobs", 200),
            (BOTH, Method::POST, &*cancelled, 403),
            (READER, Method::POST, &*cancelled, 403),
            (OPERATOR, Method::POST, &*cancelled, 200),
            (OPERATOR, Method::POST, "/api/reload", 403),
            (OPERATOR, Method::DELETE, &*deleted, 403),
            (OPERATOR, Method::POST, "/api/jobs/delete?workflow=single", 403),
            (ADMIN, Method::DELETE, &*deleted, 200),
            (ADMIN, Method::GET, &*job, 404),
        ] {
            let answer = ask(&api, token, method.clone(), path).await;
            assert_eq!(answer.status.as_u16(), status, "{token} {method} {path}");
        }
    });
}

#[test]
fn a_token_of_a_queue_is_for_one_virtual_host() {
    const FAR: &str = "far-0123456789abc";
    let workflow = "workflows: [\
        {name: single, steps: [{name: work}]},\
        {name: other, vhosts: [far], steps: [{name: work}]},\
        {name: third, vhosts: [farther], steps: [{name: work}]}]";
    let change = |settings: &mut Settings| {
        tokens(settings);
        let far = TokenSettings {
            hash: hash_token(FAR),
            queues: Names(vec!["work".to_owned()]),
            vhost: "far".to_owned(),
            ..TokenSettings::default()
        };
        settings.http.tokens.insert("far".to_owned(), far);
    };
    TestManager::with(workflow).set(change).serve(|api| async move {
        for (name, vhost) in [("single", ""), ("other", "far"), ("third", "farther")] {
            let path = format!("/api/workflow/{name}?vhost={vhost}");
            assert_eq!(ask(&api, ADMIN, Method::POST, &path).await.status, StatusCode::CREATED);
        }
        for (token, own) in [(WORKER, ""), (FAR, "far")] {
            for vhost in ["", "far", "farther"] {
                let wait = if vhost == own { "50s" } else { "0s" };
                let path = format!("/api/queue/work/receive?wait={wait}&vhost={vhost}");
                let answer = ask(&api, token, Method::POST, &path).await;
                let expected = if vhost == own { StatusCode::OK } else { StatusCode::FORBIDDEN };
                assert_eq!(answer.status, expected, "{token} {vhost:?}");
                if vhost == own {
                    let reply = answer.header("reply-to").to_owned();
                    for (token, status) in [(WORKER, ""), (FAR, "far")] {
                        let extend = reply.replace("/reply", "/extend");
                        let answer = ask(&api, token, Method::POST, &extend).await;
                        let is_own = status == own;
                        assert_eq!(answer.status.is_success(), is_own, "{token} {extend}");
                    }
                } else {
                    assert!(answer.detail().contains("needs the queue \"work\""), "{vhost}");
                }
            }
        }
        let whoami = ask(&api, FAR, Method::GET, "/api/whoami").await.json();
        assert_eq!(whoami["vhost"], "far");
    });
}

#[test]
fn a_call_with_two_tokens_is_malformed() {
    TestManager::with(WORKFLOW).set(tokens).serve(|api| async move {
        let (reader, wrong) = (format!("Bearer {READER}"), "Bearer nobody-0123456789");
        for both in [[&*reader, wrong], [wrong, &reader], [&reader, &reader]] {
            let headers = both.map(|value| ("authorization", value));
            for path in ["/api/jobs", "/livez", "/nowhere"] {
                let answer = api.get(path, &headers).await;
                assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path} {both:?}");
                assert!(answer.detail().contains("Authorization"), "{}", answer.detail());
            }
        }
    });
}

#[test]
fn a_token_that_is_good_for_other_calls_is_told_which() {
    TestManager::with(WORKFLOW).set(tokens).serve(|api| async move {
        let told = ask(&api, BOTH, Method::POST, "/api/workflow/single").await.detail();
        for words in
            ["\"robot\"", "the scope read", "the queue \"work\"", "needs the scope operate"]
        {
            assert!(told.contains(words), "{words}: {told}");
        }
        let told = ask(&api, OPERATOR, Method::POST, "/api/queue/work/receive").await.detail();
        assert!(told.contains("needs the queue \"work\", or the scope admin"), "{told}");
    });
}

#[test]
fn who_asks_is_told_and_who_asked_is_in_the_record() {
    TestManager::with(WORKFLOW).set(tokens).serve(|api| async move {
        let robot = ask(&api, BOTH, Method::GET, "/api/whoami").await.json();
        let expected =
            json!({ "asksForToken": true, "name": "robot", "scope": "read", "queues": ["work"] });
        assert_eq!(robot, expected);
        let worker = ask(&api, WORKER, Method::GET, "/api/whoami").await;
        assert_eq!((worker.status, worker.json().get("scope")), (StatusCode::OK, None));
        let none = api.get("/api/whoami", &[]).await;
        assert_eq!(none.status, StatusCode::UNAUTHORIZED);

        ask(&api, OPERATOR, Method::POST, &format!("/api/workflow/single?id={ID}")).await;
        ask(&api, OPERATOR, Method::POST, &format!("/api/job/{ID}/pause")).await;
        ask(&api, ADMIN, Method::POST, &format!("/api/job/{ID}/cancel?reason=enough")).await;
        let record = ask(&api, READER, Method::GET, &format!("/api/job/{ID}/entries")).await;
        let entries = record.json()["entries"].clone();
        let asked: Vec<_> = entries
            .as_array()
            .expect("a list")
            .iter()
            .filter(|entry| entry["kind"] == "job.asked")
            .map(|entry| (entry["operation"].clone(), entry["by"].clone(), entry["reason"].clone()))
            .collect();
        let expected = [
            (json!("pause"), json!("alice"), json!(null)),
            (json!("cancel"), json!("root"), json!("enough")),
        ];
        assert_eq!(asked, expected);
    });
}

#[test]
fn without_tokens_nobody_is_named() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        let anybody = api.get("/api/whoami", &[]).await.json();
        assert_eq!(anybody, json!({ "asksForToken": false, "scope": "admin", "queues": [] }));
        api.post(&format!("/api/workflow/single?id={ID}"), "").await;
        api.post(&format!("/api/job/{ID}/pause"), "").await;
        let record = api.get(&format!("/api/job/{ID}/entries"), &[]).await.json().to_string();
        assert!(record.contains("job.asked") && !record.contains("\"by\""), "{record}");
    });
}

/// A path with one of its letters as a percent-encoded octet, for each of them.
fn encodings(path: &str) -> Vec<String> {
    let letters = path.char_indices().filter(|(_, letter)| letter.is_ascii_alphanumeric());
    letters
        .map(|(at, letter)| format!("{}%{:02x}{}", &path[..at], letter as u32, &path[at + 1..]))
        .collect()
}

#[test]
fn a_path_in_another_spelling_needs_what_it_needs() {
    TestManager::with(WORKFLOW).set(tokens).serve(|api| async move {
        ask(&api, OPERATOR, Method::POST, &format!("/api/workflow/single?id={ID}")).await;
        for (token, method, path) in [
            (OPERATOR, Method::POST, "/api/reload"),
            (OPERATOR, Method::POST, "/api/jobs/delete"),
            (OPERATOR, Method::POST, "/api/queue/work/receive"),
            (WORKER, Method::POST, "/api/queue/other/receive"),
            (WORKER, Method::GET, "/api/jobs"),
            (READER, Method::POST, "/api/workflow/single"),
        ] {
            for spelling in encodings(path) {
                let answer = ask(&api, token, method.clone(), &spelling).await;
                assert_eq!(answer.status, StatusCode::FORBIDDEN, "{token} {method} {spelling}");
            }
        }
        for spelling in encodings("/api/jobs").into_iter().chain(encodings("/metrics")) {
            assert_eq!(
                api.get(&spelling, &[]).await.status,
                StatusCode::UNAUTHORIZED,
                "{spelling}"
            );
        }
        let odd = ask(&api, OPERATOR, Method::POST, "/api/queue/%FF/receive").await;
        assert_eq!(odd.status, StatusCode::FORBIDDEN);
        let other = "/api/queue/a%20b%2Fc/message/x/1/reply";
        let told = ask(&api, WORKER, Method::POST, other).await.detail();
        assert!(told.contains("needs the queue \"a b/c\""), "{told}");
        // What is allowed stays so in any spelling.
        for spelling in encodings("/api/queue/work/receive") {
            let path = format!("{spelling}?wait=0s&lease=1s");
            let status = ask(&api, WORKER, Method::POST, &path).await.status;
            assert!(status == StatusCode::OK || status == StatusCode::NO_CONTENT, "{spelling}");
        }
    });
}

#[test]
fn a_cancel_by_delete_names_who_asked() {
    TestManager::with(WORKFLOW).set(tokens).serve(|api| async move {
        ask(&api, OPERATOR, Method::POST, &format!("/api/workflow/single?id={ID}")).await;
        ask(&api, ADMIN, Method::DELETE, &format!("/api/job/{ID}")).await;
        let record = ask(&api, READER, Method::GET, &format!("/api/job/{ID}/entries")).await;
        assert!(record.json().to_string().contains(r#""by":"root""#), "{}", record.json());
    });
}
