//! The responses of the stub manager over HTTP.

use super::super::calls::{CallAnswer, DeliveredMessage, NoAnswer};
use super::super::messages::WORKFLOW;
use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use base::times::format_rfc3339;
use serde_json::{Value, json, value::RawValue};

/// The shape of the response to a receive. `vhost` is the virtual host, which `Reply-To` must
/// repeat; empty if the request names none.
pub(super) enum Shape {
    /// One message: its body as it is, and everything else in headers.
    Single { vhost: String },
    /// A JSON array of messages.
    Array { vhost: String },
}

/// A response.
pub(super) struct StubResponse {
    pub(super) status: u16,
    headers: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
}

impl StubResponse {
    /// Makes a response with a JSON body.
    pub(super) fn json(body: &Value) -> StubResponse {
        let headers = vec![("content-type", "application/json".to_owned())];
        StubResponse { status: 200, headers, body: body.to_string().into_bytes() }
    }

    /// Makes a refusal, as problem details (RFC 9457).
    pub(super) fn problem(status: u16, detail: &str) -> StubResponse {
        let title = StatusCode::from_u16(status).ok().and_then(|code| code.canonical_reason());
        let body =
            json!({ "detail": detail, "status": status, "title": title, "type": "about:blank" });
        let headers = vec![("content-type", "application/problem+json".to_owned())];
        StubResponse { status, headers, body: body.to_string().into_bytes() }
    }

    /// Makes the response of an answer of the lease queue. Without one it is a 503.
    pub(super) fn of_answer(answer: Result<CallAnswer, NoAnswer>, shape: &Shape) -> StubResponse {
        match answer {
            Ok(CallAnswer::Messages(messages)) => match (shape, &messages[..]) {
                (Shape::Array { vhost }, messages) => render_batch(messages, vhost),
                (Shape::Single { vhost }, [message, ..]) => render_message(message, vhost),
                (Shape::Single { .. }, []) => {
                    StubResponse { status: 204, headers: Vec::new(), body: Vec::new() }
                }
            },
            Ok(CallAnswer::Taken(Ok(()))) => StubResponse::json(&json!({ "taken": true })),
            Ok(CallAnswer::Taken(Err(reason))) => {
                StubResponse::json(&json!({ "taken": false, "reason": reason }))
            }
            Ok(CallAnswer::Extended(until)) => {
                StubResponse::json(&json!({ "until": format_rfc3339(until) }))
            }
            Ok(CallAnswer::Gone { reason, consequence }) => {
                StubResponse::problem(410, &format!("{reason}: {consequence}"))
            }
            Ok(CallAnswer::UnknownQueue(detail)) => StubResponse::problem(404, &detail),
            Err(NoAnswer) => {
                StubResponse::problem(503, "worker-test does not take this now: try again")
            }
        }
    }

    pub(super) fn into_http_response(self) -> HttpResponse {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = HttpResponse::build(status);
        for (name, value) in self.headers {
            response.insert_header((name, value.as_bytes()));
        }
        response.body(self.body)
    }
}

/// Renders one message: its body, with everything else in headers.
fn render_message(delivered: &DeliveredMessage, vhost: &str) -> StubResponse {
    let message = &delivered.message;
    let mut headers = vec![
        ("content-type", "application/json".to_owned()),
        ("Correlation-Id", message.correlation_id()),
        ("Message-Id", message.id()),
        ("workflow", WORKFLOW.to_owned()),
        ("job", message.job.to_string()),
        ("attempt", message.attempt.to_string()),
        ("traceparent", message.traceparent()),
        ("Delivery", delivered.delivery.to_string()),
        ("Lease-Until", format_rfc3339(delivered.until)),
        ("Reply-To", delivered.reply_path(vhost)),
    ];
    if message.has_extra_headers {
        headers.push(("X-Worker-Test", "what nobody knows; a=\"b\"".to_owned()));
        headers.push(("worker-test-long", "x".repeat(2000)));
    }
    StubResponse { status: 200, headers, body: message.body.clone() }
}

/// Renders several messages: a JSON array of objects. A body that is not JSON becomes a JSON
/// string.
fn render_batch(messages: &[DeliveredMessage], vhost: &str) -> StubResponse {
    let views: Vec<String> = messages
        .iter()
        .map(|delivered| {
            let message = &delivered.message;
            let mut view = json!({
                "correlation_id": message.correlation_id(),
                "message_id": message.id(),
                "workflow": WORKFLOW,
                "job": message.job.to_string(),
                "attempt": message.attempt,
                "traceparent": message.traceparent(),
                "delivery": delivered.delivery,
                "lease_until": format_rfc3339(delivered.until),
                "reply_to": delivered.reply_path(vhost),
            });
            if message.has_extra_headers {
                view["x_worker_test"] = json!({ "what": ["nobody", "knows"] });
            }
            // The body is spliced in as text: parsing it would change its numbers and key order.
            let text = String::from_utf8_lossy(&message.body).into_owned();
            let body = match serde_json::from_str::<&RawValue>(&text) {
                Ok(_) => text,
                Err(_) => Value::String(text).to_string(),
            };
            let view = view.to_string();
            format!("{},\"body\":{body}}}", view.strip_suffix('}').unwrap_or(&view))
        })
        .collect();
    let headers = vec![("content-type", "application/json".to_owned())];
    StubResponse { status: 200, headers, body: format!("[{}]", views.join(",")).into_bytes() }
}
