//! Fuzzes what a client sends to the API: the id and the body of a creation, and the cursor of a
//! page. The input is an id, a zero byte, a cursor, a zero byte and a body.

use actix_web::ResponseError;
use actix_web::http::StatusCode;
use workflow_manager::api::Problem;
use workflow_manager::api::jobs::{WorkflowCursor, parse_creation};
use workflow_manager::engine::{JobId, Message};

/// Parses the parts of one request.
pub fn run(data: &[u8]) {
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let mut next_part = || parts.next().unwrap_or_default();
    let id = String::from_utf8_lossy(next_part());
    let cursor = String::from_utf8_lossy(next_part());
    let body = next_part();
    check_creation((!id.is_empty()).then_some(&*id), body);
    check_cursor(&cursor);
}

/// Checks that a creation is either refused, or has the id that the request or its body names.
fn check_creation(id: Option<&str>, body: &[u8]) {
    match parse_creation(id, body) {
        Ok((job_id, message)) => {
            assert_eq!(Message::parse(body).expect("it was accepted"), message);
            // An id in the body that is no UUID is ordinary data.
            let body_id: Option<JobId> = message.get("id").and_then(|value| {
                let text: String = serde_json::from_str(value.text()).ok()?;
                text.parse().ok()
            });
            let request_id: Option<JobId> = id.map(|text| text.parse().expect("an id is a UUID"));
            assert!(body_id.is_none() || request_id.is_none() || body_id == request_id);
            assert_eq!(job_id, request_id.or(body_id));
        }
        Err(problem) => check_refusal(&problem),
    }
}

/// Checks that a cursor is either refused, or equal to what its own text is parsed as.
fn check_cursor(text: &str) {
    match WorkflowCursor::parse(text) {
        Ok(cursor) => {
            let reparsed = WorkflowCursor::parse(&cursor.to_text()).expect("its own text");
            assert_eq!(reparsed, cursor);
        }
        Err(problem) => check_refusal(&problem),
    }
}

/// Checks that a refusal blames the client.
fn check_refusal(problem: &Problem) {
    assert_eq!(problem.status_code(), StatusCode::BAD_REQUEST);
}
