//! Serves the endpoints for liveness, readiness and metrics.

use super::active_jobs;
use super::guard;
use super::route::*;
use crate::access::{Principal, RequiredScope};
use crate::actors::role::Role;
use crate::api::state::ApiState;
use crate::settings::Scope;
use actix_web::http::StatusCode;
use actix_web::{HttpMessage, HttpRequest, HttpResponse, web};
use engine::Gate;
use engine::text::escape;
use std::fmt::Write;

/// The content type of the responses about liveness and readiness.
const TEXT_TYPE: &str = "text/plain; charset=utf-8";

/// The content type of metrics in the text format of Prometheus.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) const ROUTES: &[ApiRoute] = &[
    ApiRoute::get("/livez", || web::to(liveness)).needing(Access::Health).operation(|_| {
        OperationSpec::new("live", "manager", "The process answers").with_response(
            200,
            "Alive",
            TEXT_TYPE,
            text_schema(),
        )
    }),
    ApiRoute::get("/readyz", || web::to(readiness)).needing(Access::Health).operation(|_| {
        OperationSpec::new("ready", "manager", "Work can be done")
            .with_response(200, "Ready", TEXT_TYPE, text_schema())
            .with_response(503, "Not ready", TEXT_TYPE, text_schema())
    }),
    ApiRoute::get("/metrics", || web::to(get_metrics)).operation(|_| {
        OperationSpec::new("metrics", "manager", "The metrics, for Prometheus").with_response(
            200,
            "The metrics",
            METRICS_TYPE,
            text_schema(),
        )
    }),
];

/// The text that replaces the message of a failed check for clients that may not see it.
const HIDDEN_MESSAGE: &str = "not good (a token with the scope read is told why; without tokens, \
                              who asks under a name of the manager, as http.hosts has it)";

/// Responds with 200: the server answers.
async fn liveness() -> HttpResponse {
    HttpResponse::Ok().content_type(TEXT_TYPE).body("ok\n")
}

/// Responds with 200 if all checks pass, and with 503 otherwise. The body has a line for each
/// failed check; with `verbose`, a line for each check.
async fn readiness(request: HttpRequest, api: web::Data<ApiState>) -> HttpResponse {
    // The messages of checks name addresses and users. They are hidden from clients without the
    // scope read and, where no token is required, from pages that use DNS rebinding.
    let principal = request.extensions().get::<Principal>().cloned();
    let can_see_messages = principal
        .is_some_and(|principal| principal.is_allowed(&RequiredScope::Scope(Scope::Read)))
        && guard::is_sent_to_manager_name(&request, &api.settings.http);
    let checks = api.checks();
    let is_ready = checks.iter().all(|check| check.is_passed);
    let is_verbose = request
        .query_string()
        .split('&')
        .any(|pair| pair == "verbose" || pair.starts_with("verbose="));
    let mut text = String::new();
    for check in checks.iter().filter(|check| is_verbose || !check.is_passed) {
        let mark = if check.is_passed { "+" } else { "-" };
        let is_message_visible = can_see_messages || check.is_passed;
        let message =
            if is_message_visible { escape(&check.message) } else { HIDDEN_MESSAGE.into() };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "[{mark}] {}: {message}", escape(&check.name));
    }
    text.push_str(if is_ready { "ready\n" } else { "not ready\n" });
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    HttpResponse::build(status).content_type(TEXT_TYPE).body(text)
}

/// Responds with all metrics. The gauges of the bytes that are being sent, and those of the
/// cluster and of the limits, are set only here.
async fn get_metrics(api: web::Data<ApiState>) -> HttpResponse {
    let bytes_sending = api.budgets.messages.used();
    api.metrics.messages_sending.set(i64::try_from(bytes_sending).unwrap_or(i64::MAX));
    if api.settings.shares_journal() {
        let is_active = matches!(api.role, Role::Active(_));
        api.metrics.cluster.set(is_active, api.reader.beat_age());
    }
    // A router that does not answer in time leaves them as they were.
    if let Some(counts) = active_jobs::inspect_gate(&api, Gate::count).await {
        api.metrics.limits.set_counts(&counts);
    }
    HttpResponse::Ok().content_type(METRICS_TYPE).body(api.metrics.render())
}
