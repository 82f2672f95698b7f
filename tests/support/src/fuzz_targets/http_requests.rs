//! What a client sends to the API: the body and the id of a creation, the cursor of a page. An id,
//! a zero byte, a cursor, a zero byte, a body.

use actix_web::ResponseError;
use actix_web::http::StatusCode;
use workflow_manager::api::Problem;
use workflow_manager::api::jobs::{WorkflowCursor, parse_creation};
use workflow_manager::engine::{JobId, Message};

/// One request.
pub fn run(data: &[u8]) {
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let mut next = || parts.next().unwrap_or_default();
    let (id, cursor, body) =
        (String::from_utf8_lossy(next()), String::from_utf8_lossy(next()), next());
    let id = (!id.is_empty()).then_some(&*id);
    match parse_creation(id, body) {
        Ok((chosen, message)) => {
            assert_eq!(Message::parse(body).expect("it was taken"), message);
            // What is no UUID is data.
            let stated: Option<JobId> = message.get("id").and_then(|value| {
                let text: String = serde_json::from_str(value.text()).ok()?;
                text.parse().ok()
            });
            let asked: Option<JobId> = id.map(|text| text.parse().expect("an id is a UUID"));
            assert!(stated.is_none() || asked.is_none() || stated == asked);
            assert_eq!(chosen, asked.or(stated));
        }
        Err(problem) => refused(&problem),
    }
    match WorkflowCursor::parse(&cursor) {
        Ok(read) => assert_eq!(WorkflowCursor::parse(&read.to_text()).expect("its own text"), read),
        Err(problem) => refused(&problem),
    }
}

fn refused(problem: &Problem) {
    assert_eq!(problem.status_code(), StatusCode::BAD_REQUEST);
}
