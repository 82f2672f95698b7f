//! The endpoints for health and metrics.

use super::guard;
use crate::access::{Holder, Needed};
use crate::actors::common::Common;
use crate::engine::words::escaped;
use crate::settings::Scope;
use actix_web::http::StatusCode;
use actix_web::{HttpMessage, HttpRequest, HttpResponse, web};
use std::fmt::Write;

/// What a failed check says to a client without a token, or under a host name that is not the
/// manager's.
const NOT_TOLD: &str = "not good (a token with the scope read is told why; without tokens, who \
                        asks under a name of the manager, as http.hosts has it)";

/// Handles `GET /livez`: the process answers.
pub async fn live() -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain; charset=utf-8").body("ok\n")
}

/// Handles `GET /readyz[?verbose]`: 200 if work can be done, 503 otherwise; with `verbose` a line
/// for each check.
pub async fn ready(request: HttpRequest, common: web::Data<Common>) -> HttpResponse {
    // Clients without the scope read learn no address and no name of a user. Where no token is
    // required, that goes for pages whose name was pointed here.
    let holder = request.extensions().get::<Holder>().cloned();
    let is_told = holder.is_some_and(|holder| holder.may(&Needed::Scope(Scope::Read)))
        && guard::goes_by(&request, &common.settings.http);
    let checks = common.health.checks();
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
            escaped(name),
            if is_told || *good { escaped(sentence) } else { NOT_TOLD.into() }
        );
    }
    text.push_str(if ready { "ready\n" } else { "not ready\n" });
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    HttpResponse::build(status).content_type("text/plain; charset=utf-8").body(text)
}

/// Handles `GET /metrics` in the Prometheus exposition format.
pub async fn metrics(common: web::Data<Common>) -> HttpResponse {
    let sending = common.rooms.messages.taken();
    common.metrics.messages_sending.set(i64::try_from(sending).unwrap_or(i64::MAX));
    HttpResponse::Ok()
        .content_type("text/plain; version=0.0.4; charset=utf-8")
        .body(common.metrics.render())
}
