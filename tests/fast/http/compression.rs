//! Responses are compressed for clients that accept it, and mean the same.

use actix_web::http::{Method, StatusCode, header};
use flate2::read::GzDecoder;
use serde_json::json;
use std::io::Read;
use support::api::{Answer, Headers};
use support::manager::TestManager;

const ID: &str = "f557697b-f911-401c-86b7-6d9b62f1f2bb";

const WORKFLOW: &str = "workflows: [{name: single, steps: [{name: sign, external: true}]}]";

const GZIP: Headers<'_> = &[("accept-encoding", "gzip, deflate, br")];

fn decompress(answer: &Answer) -> Vec<u8> {
    assert_eq!(answer.header(header::CONTENT_ENCODING), "gzip");
    let mut content = Vec::new();
    GzDecoder::new(&*answer.body).read_to_end(&mut content).expect("gzip");
    content
}

#[test]
fn whoever_accepts_gzip_gets_the_same_in_fewer_bytes() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        let message = json!({ "text": "some text of a job ".repeat(30_000) }).to_string();
        api.create_job(&format!("single?id={ID}"), &message).await;
        let large = format!("/api/job/{ID}/message");
        for path in ["/openapi.json", &*large, "/metrics", "/api/settings"] {
            let plain = api.get(path, &[]).await;
            assert_eq!(plain.header(header::CONTENT_ENCODING), "", "{path}");
            assert_eq!(plain.header(header::VARY), "accept-encoding", "{path}");
            let compressed = api.get(path, GZIP).await;
            assert!(compressed.body.len() < plain.body.len() / 2, "{path}");
            if path != "/metrics" {
                assert!(decompress(&compressed) == plain.body, "{path}");
            }
            let head = api.request(Method::HEAD, path, GZIP, "").await;
            assert_eq!((head.status, head.body.len()), (StatusCode::OK, 0), "{path}");
        }
        let headers = [GZIP, &[("range", "bytes=0-9999")]].concat();
        let part = api.get(&large, &headers).await;
        assert_eq!(part.header(header::CONTENT_ENCODING), "", "a part of the text itself");
        assert_eq!((part.status, part.body.len()), (StatusCode::PARTIAL_CONTENT, 10_000));
        assert!(message.as_bytes().starts_with(&part.body));
        let small = api.get("/livez", GZIP).await;
        assert_eq!(small.header(header::CONTENT_ENCODING), "");
    });
}

#[test]
fn a_compressed_view_and_its_tag_belong_together() {
    let steps: Vec<String> = (0..50).map(|n| format!("{{name: s{n}, external: true}}")).collect();
    let workflow = format!("workflows: [{{name: wide, steps: [{}]}}]", steps.join(", "));
    TestManager::with(&workflow).serve(|api| async move {
        api.create_job(&format!("wide?id={ID}"), "{}").await;
        let path = format!("/api/job/{ID}?view=light");
        let compressed = api.get(&path, GZIP).await;
        assert!(!decompress(&compressed).is_empty());
        let tag = compressed.header(header::ETAG);
        assert!(tag.starts_with("W/\""), "{tag}: other bytes with the same meaning");
        let headers = [GZIP, &[("if-none-match", tag)]].concat();
        let again = api.get(&path, &headers).await;
        assert_eq!(again.status, StatusCode::NOT_MODIFIED);
        assert!(again.body.is_empty());
    });
}

#[test]
fn the_files_of_the_page_are_compressed() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        let index = api.get("/", &[]).await.text();
        let quoted = index.split('"');
        let files: Vec<&str> = quoted.filter(|text| text.starts_with("assets/")).collect();
        let is_asked = |name: &str| files.iter().any(|file| file.ends_with(name));
        assert!(is_asked("/main.js") && is_asked("/views.css"), "{files:?}");
        for file in files {
            let path = format!("/{file}");
            let (plain, compressed) = (api.get(&path, &[]).await, api.get(&path, GZIP).await);
            assert_eq!(plain.header(header::CONTENT_ENCODING), "", "{path}");
            assert_eq!(compressed.header(header::VARY), "accept-encoding", "{path}");
            assert!(decompress(&compressed) == plain.body, "{path}");
            assert_eq!(
                compressed.header(header::CONTENT_TYPE),
                plain.header(header::CONTENT_TYPE),
                "{path}"
            );
        }
    });
}
