//! What the HTTP API takes and from whom, in this process: no socket.

mod checks;
mod compression;
mod rooms;
mod sites;
mod tokens;

use actix_web::http::{Method, StatusCode};
use support::api::Headers;
use support::manager::TestManager;
use workflow_manager::settings::{Secret, Settings};

const WORKFLOW: &str = "workflows: [{name: single, steps: [{name: work}]}]";
const ID: &str = "f557697b-f911-401c-86b7-6d9b62f1f2bb";

#[test]
fn every_answer_says_that_nothing_is_to_be_guessed_kept_or_run() {
    let token = |settings: &mut Settings| settings.http.token = Secret("secret".to_owned());
    TestManager::with(WORKFLOW).set(token).serve(|api| async move {
        let authorised = ("authorization", "Bearer secret");
        let unknown = format!("/api/job/{ID}");
        let calls: [(Method, &str, Headers, StatusCode); 13] = [
            (Method::GET, "/livez", &[], StatusCode::OK),
            (Method::GET, "/readyz", &[], StatusCode::OK),
            (Method::GET, "/metrics", &[authorised], StatusCode::OK),
            (Method::GET, "/api/jobs", &[authorised], StatusCode::OK),
            (
                Method::GET,
                "/api/status/single",
                &[authorised, ("accept", "text/csv")],
                StatusCode::OK,
            ),
            (Method::GET, "/api", &[authorised], StatusCode::MOVED_PERMANENTLY),
            (Method::GET, "/api/jobs", &[], StatusCode::UNAUTHORIZED),
            (Method::GET, "/api/jobs?nonsense=1", &[authorised], StatusCode::BAD_REQUEST),
            (Method::GET, "/nowhere", &[authorised], StatusCode::NOT_FOUND),
            (Method::GET, &unknown, &[authorised], StatusCode::NOT_FOUND),
            (Method::PUT, "/api/jobs", &[authorised], StatusCode::METHOD_NOT_ALLOWED),
            (Method::POST, "/api", &[authorised], StatusCode::METHOD_NOT_ALLOWED),
            (Method::GET, "/api/jobs", &[authorised, ("origin", "null")], StatusCode::FORBIDDEN),
        ];
        for (method, path, headers, status) in calls {
            let answer = api.request(method.clone(), path, headers, "").await;
            assert_eq!(answer.status, status, "{method} {path}");
            assert_eq!(answer.header("x-content-type-options"), "nosniff", "{method} {path}");
            assert_eq!(answer.header("cache-control"), "no-store", "{method} {path}");
            assert_eq!(
                answer.header("content-security-policy"),
                "default-src 'none'; frame-ancestors 'none'",
                "{method} {path}"
            );
        }
    });
}

#[test]
fn head_is_answered_as_get_without_a_body() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        api.request(Method::POST, &format!("/api/workflow/single?id={ID}"), &[], "").await;
        let (job, why, events) = (
            format!("/api/job/{ID}"),
            format!("/api/job/{ID}/why"),
            format!("/api/job/{ID}/events"),
        );
        let paths = [
            "/livez",
            "/readyz",
            "/metrics",
            "/api/workflows",
            "/api/workflow/single",
            "/api/jobs",
            "/api/jobs/search",
            "/nowhere",
        ];
        for path in paths.into_iter().chain([
            &*job,
            &why,
            "/api/status/single",
            "/api/status/nothing",
            "/api/job/x",
        ]) {
            let (get, head) =
                (api.get(path, &[]).await, api.request(Method::HEAD, path, &[], "").await);
            assert_eq!(
                (head.status, head.header("content-type")),
                (get.status, get.header("content-type")),
                "{path}"
            );
            assert!(head.body.is_empty(), "{path}");
        }
        // Streams of events would never end.
        for path in ["/api/events", &events] {
            assert_eq!(
                api.request(Method::HEAD, path, &[], "").await.status,
                StatusCode::OK,
                "{path}"
            );
        }
        let wrong = api.request(Method::PUT, "/api/jobs", &[], "").await;
        assert_eq!(wrong.header("allow"), "GET, HEAD");
    });
}

#[test]
fn a_slash_at_the_end_and_a_cache_buster_change_nothing() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        api.request(Method::POST, &format!("/api/workflow/single/?id={ID}&_=1"), &[], "").await;
        // One that has ended looks the same each time.
        let cancelled = api.request(Method::POST, &format!("/api/job/{ID}/cancel/"), &[], "").await;
        assert_eq!(cancelled.status, StatusCode::OK);
        let (job, why) = (format!("/api/job/{ID}"), format!("/api/job/{ID}/why"));
        for path in [
            "/api/workflows",
            "/api/jobs",
            "/api/jobs/search",
            "/api/workflow/single",
            "/api/status/single",
            &job,
            &why,
        ] {
            let plain = api.get(path, &[]).await;
            assert_eq!(plain.status, StatusCode::OK, "{path}");
            for same in
                [format!("{path}/"), format!("{path}?_=1700000000000"), format!("{path}/?_=1&_=2")]
            {
                let answer = api.get(&same, &[]).await;
                assert_eq!(
                    (answer.status, answer.body),
                    (plain.status, plain.body.clone()),
                    "{same}"
                );
            }
        }
        assert_eq!(api.get("/api/job/", &[]).await.status, StatusCode::BAD_REQUEST);
        assert_eq!(api.get("/api/", &[]).await.status, StatusCode::NOT_FOUND);
        assert_eq!(api.get("/api/jobs?__=1", &[]).await.status, StatusCode::BAD_REQUEST);
    });
}

#[test]
fn an_id_in_the_body_that_is_no_uuid_is_data() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        let uuid = format!("\"{ID}x\"");
        let foreign = [
            r#""evt_1NG8Du2eZvKYlo2CUI79vXWy""#,
            r#""A234-1234-1234""#,
            "820982911946154508",
            r#"["f557697b-f911-401c-86b7-6d9b62f1f2bb"]"#,
            r#"{"id":"f557697b-f911-401c-86b7-6d9b62f1f2bb"}"#,
            "null",
            "true",
            r#""""#,
            &uuid,
        ];
        for (at, foreign) in foreign.into_iter().enumerate() {
            let message = format!(r#"{{"id":{foreign},"k":1}}"#);
            let named = format!("11111111-1111-4111-8111-{at:012}");
            for path in ["", &format!("?id={named}")] {
                let path = format!("/api/workflow/single{path}");
                let created = api.request(Method::POST, &path, &[], &message).await;
                assert_eq!(created.status, StatusCode::CREATED, "{path} {message}");
                let id = created.json()["id"].as_str().expect("an id").to_owned();
                assert!(!path.contains('?') || id == named, "{path} {id}");
                let kept = api.get(&format!("/api/job/{id}/message"), &[]).await;
                assert_eq!(String::from_utf8_lossy(&kept.body), message);
            }
        }
        // One that is a UUID is the job's, as before.
        let message = format!(r#"{{"id":"{ID}"}}"#);
        let created = api.request(Method::POST, "/api/workflow/single", &[], &message).await;
        assert_eq!(created.json()["id"], ID);
        let other = "/api/workflow/single?id=22222222-2222-4222-8222-222222222222";
        let refused = api.request(Method::POST, other, &[], &message).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    });
}

#[test]
fn an_id_is_taken_in_every_spelling_and_told_in_one() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        let digits = ID.replace('-', "");
        let (braces, urn) = (format!("{{{ID}}}"), format!("urn:uuid:{ID}"));
        for text in [ID, &digits, &braces, &urn] {
            let in_query = text.replace('{', "%7B").replace('}', "%7D");
            let created = api
                .request(Method::POST, &format!("/api/workflow/single?id={in_query}"), &[], "")
                .await;
            assert_eq!(
                (created.status, &created.json()["id"]),
                (StatusCode::CREATED, &ID.into()),
                "{text}"
            );
            let job = api.get(&format!("/api/job/{in_query}"), &[]).await;
            assert_eq!((job.status, &job.json()["uuid"]), (StatusCode::OK, &ID.into()), "{text}");
            let rows = api.get(&format!("/api/status/single?job={in_query}"), &[]).await;
            assert_eq!(rows.json()["rows"][0]["job"], ID, "{text}");
        }
        let body = format!(r#"{{"id":"{{{}}}"}}"#, "11111111-1111-4111-8111-111111111111");
        let created = api
            .request(
                Method::POST,
                "/api/workflow/single?id=11111111111141118111111111111111",
                &[],
                &body,
            )
            .await;
        assert_eq!(created.json()["id"], "11111111-1111-4111-8111-111111111111");
        let job = api.get("/api/job/11111111-1111-4111-8111-111111111111", &[]).await;
        assert!(String::from_utf8_lossy(&job.body).contains(&body), "the message stays as it came");
    });
}

#[test]
fn a_time_may_have_an_offset() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        api.request(Method::POST, "/api/workflow/single", &[], "").await;
        for (time, found) in [
            ("2026-01-31T12:00:00Z", 1),
            ("2026-01-31T12:00:00+01:00", 1),
            ("2026-01-31T12:00:00%2B01:00", 1),
            ("2026-01-31T12:00:00-01:00", 1),
            ("2999-01-31T12:00:00-01:00", 0),
        ] {
            let answer = api.get(&format!("/api/jobs/search?after={time}"), &[]).await;
            assert_eq!(
                (answer.status, answer.json()["jobs"].as_array().map(Vec::len)),
                (StatusCode::OK, Some(found)),
                "{time}"
            );
        }
        let wrong = api.get("/api/jobs/search?after=2026-01-31T12:00:00%2B25:00", &[]).await;
        assert!(
            wrong.status == StatusCode::BAD_REQUEST && wrong.detail().contains("+01:00"),
            "{}",
            wrong.detail()
        );
    });
}

#[test]
fn a_body_is_taken_as_it_is_and_within_its_size() {
    let change = |settings: &mut Settings| settings.http.body_bytes_max = 300_000;
    TestManager::with(WORKFLOW).set(change).serve(|api| async move {
        let path = format!("/api/workflow/single?id={ID}");
        for encoding in ["gzip", "identity, br", "GZIP"] {
            let answer =
                api.request(Method::POST, &path, &[("content-encoding", encoding)], "{}").await;
            assert_eq!(
                (answer.status, answer.header("accept-encoding")),
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "identity"),
                "{encoding}"
            );
            assert!(
                answer.detail().contains(encoding) && answer.detail().contains("Content-Encoding"),
                "{}",
                answer.detail()
            );
        }
        let large = format!(
            r#"{{"text":"{}","other":[{}]}}"#,
            "é".repeat(100_000),
            vec!["1"; 40_000].join(",")
        );
        let created =
            api.request(Method::POST, &path, &[("content-encoding", "identity")], &large).await;
        assert_eq!(created.status, StatusCode::CREATED);
        let job = api.get(&format!("/api/job/{ID}"), &[]).await;
        assert_eq!(job.json()["state"], "running");
        assert!(
            String::from_utf8_lossy(&job.body).contains(&large),
            "the answer comes in pieces, and is whole"
        );

        let too_large = "x".repeat(300_001);
        let answer = api.request(Method::POST, "/api/workflow/single", &[], &too_large).await;
        assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
        let nonsense =
            api.request(Method::POST, "/api/workflow/single", &[], &too_large[2..]).await;
        assert!(
            nonsense.status == StatusCode::BAD_REQUEST
                && nonsense.detail().contains("the body must be the job's message")
        );
    });
}
