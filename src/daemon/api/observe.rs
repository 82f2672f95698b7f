//! The endpoints for health and metrics.

use super::guard;
use super::route::*;
use crate::access::{Principal, RequiredScope};
use crate::api::state::ApiState;
use crate::settings::Scope;
use actix_web::http::StatusCode;
use actix_web::{HttpMessage, HttpRequest, HttpResponse, web};
use engine::text::escape;
use std::fmt::Write;

const TEXT: &str = "text/plain; charset=utf-8";

pub(super) const ROUTES: &[ApiRoute] = &[
    ApiRoute::get("/livez", || web::to(liveness)).needing(Access::Health).operation(|_| {
        OperationSpec::new("live", "manager", "The process answers").with_response(
            200,
            "It does",
            TEXT,
            text_schema(),
        )
    }),
    ApiRoute::get("/readyz", || web::to(readiness)).needing(Access::Health).operation(|_| {
        OperationSpec::new("ready", "manager", "Work can be done")
            .with_response(200, "It can", TEXT, text_schema())
            .with_response(503, "It cannot", TEXT, text_schema())
    }),
    ApiRoute::get("/metrics", || web::to(get_metrics)).operation(|_| {
        OperationSpec::new("metrics", "manager", "The metrics, for Prometheus").with_response(
            200,
            "The metrics",
            "text/plain; version=0.0.4",
            text_schema(),
        )
    }),
];

/// What a failed check says to a client without a token, or under a host name that is not the
/// manager's.
const HIDDEN_DETAIL: &str = "not good (a token with the scope read is told why; without tokens, \
                        who asks under a name of the manager, as http.hosts has it)";

async fn liveness() -> HttpResponse {
    HttpResponse::Ok().content_type(TEXT).body("ok\n")
}

/// Answers 200 if work can be done, 503 otherwise; with `verbose` a line for each check.
async fn readiness(request: HttpRequest, api: web::Data<ApiState>) -> HttpResponse {
    // Clients without the scope read learn no address and no name of a user. Where no token is
    // required, that goes for pages whose name was pointed here.
    let principal = request.extensions().get::<Principal>().cloned();
    let may_see_details = principal
        .is_some_and(|caller| caller.is_allowed(&RequiredScope::Scope(Scope::Read)))
        && guard::is_sent_to_own_name(&request, &api.settings.http);
    let checks = api.manager.health().checks();
    let ready = checks.iter().all(|(_, good, _)| *good);
    let verbose = request
        .query_string()
        .split('&')
        .any(|pair| pair == "verbose" || pair.starts_with("verbose="));
    let mut text = String::new();
    for (name, good, sentence) in checks.iter().filter(|(_, good, _)| verbose || !good) {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "[{}] {}: {}",
            if *good { "+" } else { "-" },
            escape(name),
            if may_see_details || *good { escape(sentence) } else { HIDDEN_DETAIL.into() }
        );
    }
    text.push_str(if ready { "ready\n" } else { "not ready\n" });
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    HttpResponse::build(status).content_type(TEXT).body(text)
}

async fn get_metrics(api: web::Data<ApiState>) -> HttpResponse {
    let sending = api.budgets.messages.used();
    api.metrics.messages_sending.set(i64::try_from(sending).unwrap_or(i64::MAX));
    HttpResponse::Ok()
        .content_type("text/plain; version=0.0.4; charset=utf-8")
        .body(api.metrics.render())
}
