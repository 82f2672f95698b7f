//! Pages of other sites and names that are not the manager's are refused.

use super::WORKFLOW;
use actix_web::http::{Method, StatusCode, Version};
use actix_web::test::TestRequest;
use support::api::Headers;
use support::manager::TestManager;
use workflow_manager::settings::{Secret, Settings};

#[test]
fn a_page_of_another_site_is_refused_and_a_program_is_not() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        let calls = [
            (Method::POST, "/api/workflow/single", r#"{"k":1}"#),
            (Method::POST, "/api/jobs/cancel?workflow=single", ""),
            (Method::POST, "/api/jobs/delete?workflow=single", ""),
            (Method::GET, "/api/jobs", ""),
            (Method::GET, "/readyz?verbose", ""),
            (Method::GET, "/api/", ""),
        ];
        let refused: [Headers; 12] = [
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")],
            &[("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "same-origin, cross-site")],
            &[("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")],
            &[("origin", "null")],
            &[("origin", "http://evil.example")],
            &[("origin", "http://127.0.0.1:3000")],
            &[("origin", "http://127.0.0.1")],
            &[("origin", "http://evil.example@127.0.0.1:8088")],
            &[("origin", "file://127.0.0.1:8088")],
            &[("origin", "http://127.0.0.1:8088"), ("origin", "http://evil.example")],
        ];
        for (method, path, body) in &calls {
            for headers in refused {
                let answer = api.request(method.clone(), path, headers, body).await;
                assert_eq!(answer.status, StatusCode::FORBIDDEN, "{method} {path} {headers:?}");
                assert!(
                    answer.detail().contains("a page of another site sent this"),
                    "{}",
                    answer.detail()
                );
            }
        }
        let jobs = api.get("/api/jobs", &[]).await;
        assert_eq!(jobs.json(), serde_json::json!({ "jobs": [] }), "nothing was created");

        let taken: [Headers; 6] = [
            &[],
            &[("content-type", "application/x-www-form-urlencoded")],
            &[("sec-fetch-site", "none")],
            &[("sec-fetch-site", "same-origin"), ("origin", "http://127.0.0.1:8088")],
            &[("host", "localhost"), ("origin", "http://localhost:80")],
            &[("host", "LOCALHOST:443"), ("origin", "https://localhost")],
        ];
        for headers in taken {
            let answer =
                api.request(Method::POST, "/api/workflow/single", headers, r#"{"k":1}"#).await;
            assert_eq!(answer.status, StatusCode::CREATED, "{headers:?}");
        }
    });
}

#[test]
fn a_page_behind_a_proxy_that_changes_the_host_is_the_managers_own() {
    let change = |settings: &mut Settings| {
        settings.http.hosts = vec!["manager.lan".to_owned(), "other.lan:8443".to_owned()];
        settings.http.public_url = "https://manager.example/base".to_owned();
    };
    TestManager::with(WORKFLOW).set(change).serve(|api| async move {
        // Host is what the proxy has made of it: the address of the manager.
        let post = |headers: Headers<'static>| {
            let api = api.clone();
            async move {
                let path = "/api/workflow/single";
                api.request(Method::POST, path, headers, "{}").await.status
            }
        };
        let own: [Headers; 7] = [
            // The browser has compared the names itself.
            &[("sec-fetch-site", "same-origin"), ("origin", "https://unheard-of.example")],
            &[("sec-fetch-site", "same-origin"), ("origin", "https://manager.example")],
            // Over http it tells no more than the origin.
            &[("origin", "https://manager.example")],
            &[("origin", "https://manager.example:443")],
            &[("origin", "http://manager.lan")],
            &[("origin", "https://MANAGER.lan")],
            &[("origin", "https://other.lan:8443")],
        ];
        for headers in own {
            assert_eq!(post(headers).await, StatusCode::CREATED, "{headers:?}");
        }
        let strange: [Headers; 10] = [
            &[("sec-fetch-site", "cross-site"), ("origin", "https://manager.example")],
            &[("sec-fetch-site", "same-site"), ("origin", "https://manager.example")],
            &[("sec-fetch-site", "none"), ("origin", "https://evil.example")],
            &[
                ("sec-fetch-site", "same-origin"),
                ("sec-fetch-site", "none"),
                ("origin", "https://evil.example"),
            ],
            &[("origin", "http://manager.example")],
            &[("origin", "https://manager.example:8443")],
            &[("origin", "http://manager.lan:3000")],
            &[("origin", "https://other.lan")],
            &[("origin", "https://evil.example"), ("x-forwarded-host", "evil.example")],
            &[("origin", "https://evil.example"), ("forwarded", "host=evil.example")],
        ];
        for headers in strange {
            assert_eq!(post(headers).await, StatusCode::FORBIDDEN, "{headers:?}");
        }
        // A page whose name was pointed here is of the same origin to its browser.
        let rebound: Headers = &[
            ("host", "evil.example:8088"),
            ("sec-fetch-site", "same-origin"),
            ("origin", "http://evil.example:8088"),
        ];
        assert_eq!(post(rebound).await, StatusCode::FORBIDDEN);
    });
}

#[test]
fn a_name_that_is_not_the_managers_is_refused_without_a_token() {
    let change = |settings: &mut Settings| {
        settings.http.hosts = vec!["manager.example".to_owned(), "other.example:81".to_owned()];
        settings.http.public_url = "https://public.example/base".to_owned();
    };
    TestManager::with(WORKFLOW).set(change).serve(|api| async move {
        for own in [
            "127.0.0.1:8088",
            "127.0.0.1",
            "127.3.2.1:9000",
            "localhost:9000",
            "LocalHost",
            "localhost.:8088",
            "[::1]:8088",
            "[::ffff:127.0.0.1]",
            "manager.example",
            "Manager.Example:9000",
            "other.example:81",
            "public.example",
        ] {
            assert_eq!(
                api.get("/api/jobs", &[("host", own)]).await.status,
                StatusCode::OK,
                "{own}"
            );
        }
        for strange in [
            "evil.example",
            "evil.example:8088",
            "localhost.evil.example",
            "other.example:82",
            "10.0.0.1:8088",
            "0.0.0.0:8088",
            "[::]",
            "2130706433",
        ] {
            let answer = api.get("/api/jobs", &[("host", strange)]).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{strange}");
            let detail = answer.detail();
            assert!(
                [strange, "http.hosts", "http.token"].iter().all(|word| detail.contains(word)),
                "{detail}"
            );
            for path in ["/livez", "/readyz"] {
                assert_eq!(
                    api.get(path, &[("host", strange)]).await.status,
                    StatusCode::OK,
                    "a probe may call {path} by any name"
                );
            }
            assert_eq!(
                api.get("/metrics", &[("host", strange)]).await.status,
                StatusCode::FORBIDDEN
            );
        }
        for unclear in ["", "me@localhost", "a b", "localhost:x", "localhost, evil.example"] {
            assert_eq!(
                api.get("/api/jobs", &[("host", unclear)]).await.status,
                StatusCode::BAD_REQUEST,
                "{unclear:?}"
            );
        }
        let twice = api.get("/api/jobs", &[("host", "localhost"), ("host", "evil.example")]).await;
        assert_eq!(twice.status, StatusCode::BAD_REQUEST);
        let by_line = api.get("http://evil.example/api/jobs", &[]).await;
        assert_eq!(
            by_line.status,
            StatusCode::FORBIDDEN,
            "the request line counts before the header"
        );

        // HTTP/1.1 has a Host, HTTP/1.0 need not.
        let without =
            |version: Version| api.send(TestRequest::with_uri("/api/jobs").version(version));
        assert_eq!(without(Version::HTTP_11).await.status, StatusCode::BAD_REQUEST);
        assert_eq!(without(Version::HTTP_10).await.status, StatusCode::OK);
    });
}

#[test]
fn with_a_token_or_on_all_addresses_more_names_are_taken() {
    let token = |settings: &mut Settings| settings.http.token = Secret("secret".to_owned());
    TestManager::with(WORKFLOW).set(token).serve(|api| async move {
        for scheme in ["Bearer", "bearer", "BEARER"] {
            let headers =
                [("host", "anything.example"), ("authorization", &format!("{scheme} secret"))];
            assert_eq!(api.get("/api/jobs", &headers).await.status, StatusCode::OK, "{scheme}");
        }
        for wrong in ["secret", "Basic secret", "bearer", "bearer other", "bearersecret"] {
            let answer = api.get("/api/jobs", &[("authorization", wrong)]).await;
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{wrong}");
        }
        let headers = [("authorization", "Bearer secret"), ("sec-fetch-site", "cross-site")];
        assert_eq!(api.get("/api/jobs", &headers).await.status, StatusCode::FORBIDDEN);
        assert_eq!(api.get("/livez/", &[]).await.status, StatusCode::OK);
    });
    let everywhere = |settings: &mut Settings| {
        settings.http.listen = "0.0.0.0:8088".parse().expect("an address")
    };
    TestManager::with(WORKFLOW).set(everywhere).serve(|api| async move {
        for (host, status) in [
            ("10.1.2.3:8088", StatusCode::OK),
            ("[fd00::1]", StatusCode::OK),
            ("evil.example", StatusCode::FORBIDDEN),
        ] {
            assert_eq!(api.get("/api/jobs", &[("host", host)]).await.status, status, "{host}");
        }
    });
}
