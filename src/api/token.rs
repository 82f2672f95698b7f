//! Tokens: who may send which call. The manager's token is for every call; a worker's for its queues
//! alone.

use super::problem::Problem;
use super::{guard, page};
use crate::actors::common::Common;
use crate::engine::words::{enumerated, quoted, shortened};
use crate::settings::{HttpSettings, WorkerToken};
use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header;
use actix_web::middleware::Next;
use actix_web::{Error, ResponseError, web};
use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};

/// Whom a token belongs to.
enum Holder<'s> {
    /// The manager's operators, or everybody where no token is set.
    All,
    /// The workers of this name.
    Worker(&'s str, &'s WorkerToken),
}

/// With a token configured every call but health needs one.
pub(super) async fn authorise(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let Some(common) = request.app_data::<web::Data<Common>>().cloned() else {
        return Ok(next.call(request).await?.map_into_left_body());
    };
    let Err(problem) = admitted(&request, &common) else {
        return Ok(next.call(request).await?.map_into_left_body());
    };
    Ok(request.into_response(problem.error_response()).map_into_right_body())
}

fn admitted(request: &ServiceRequest, common: &Common) -> Result<(), Problem> {
    let (http, path) = (&common.settings.http, request.path());
    if page::is_page(path, http) || guard::is_health(path) {
        return Ok(());
    }
    let given = request.headers().get(header::AUTHORIZATION);
    let given = given.and_then(|value| value.to_str().ok()).and_then(bearer);
    match holder(http, given) {
        Some(Holder::All) => Ok(()),
        Some(Holder::Worker(name, worker)) => of_worker(name, worker, path),
        None => {
            log_unauthorised(request, common, given.is_some());
            let detail = match given {
                None => "this manager needs a token: send it as \"Authorization: Bearer <token>\"",
                Some(_) => "the token is not the one in the setting http.token",
            };
            Err(Problem::unauthorized(detail.to_owned()))
        }
    }
}

fn holder<'s>(http: &'s HttpSettings, given: Option<&str>) -> Option<Holder<'s>> {
    if http.token.0.is_empty() {
        return Some(Holder::All);
    }
    // Digests are compared, each with every token, so that the time it takes tells nothing of them.
    let digest = |text: &str| Sha256::digest(text.as_bytes());
    let given = digest(given?);
    let is_all = given == digest(&http.token.0);
    let workers: Vec<(&String, &WorkerToken)> =
        http.workers.iter().filter(|(_, worker)| given == digest(&worker.token.0)).collect();
    match workers.first() {
        _ if is_all => Some(Holder::All),
        Some((name, worker)) => Some(Holder::Worker(name, worker)),
        None => None,
    }
}

/// A worker takes and settles the messages of its queues; nothing else is its business.
fn of_worker(name: &str, worker: &WorkerToken, path: &str) -> Result<(), Problem> {
    if queue_in(path).is_some_and(|queue| worker.queues.0.contains(&queue)) {
        return Ok(());
    }
    let queues = enumerated(worker.queues.0.iter().map(String::as_str), "and");
    let noun = if worker.queues.0.len() == 1 { "queue" } else { "queues" };
    Err(Problem::forbidden(format!(
        "the token of the worker {} is for messages of the {noun} {queues} alone (setting \
         http.workers)",
        quoted(name)
    )))
}

/// The queue of a call of a worker: `/api/queue/{queue}/receive` or `/api/queue/{queue}/message/…`.
fn queue_in(path: &str) -> Option<String> {
    let (queue, call) = path.strip_prefix("/api/queue/")?.split_once('/')?;
    let is_workers = matches!(call, "receive" | "receive/") || call.starts_with("message/");
    is_workers.then(|| percent_decode_str(queue).decode_utf8().ok().map(Into::into))?
}

/// Guessing at tokens shows in the log and cannot fill it; `workflow_api_requests_total` counts
/// every attempt.
fn log_unauthorised(request: &ServiceRequest, common: &Common, has_token: bool) {
    if common.throttle.may_log(if has_token { "wrong_token" } else { "no_token" }) {
        let (peer, path) =
            (request.peer_addr().map(|peer| peer.to_string()), shortened(request.path()));
        tracing::warn!(
            peer,
            path,
            has_token,
            "a request without the right token is refused (logged once a minute per kind)"
        );
    }
}

/// The token of an `Authorization` header; the scheme's name may be in upper or lower case (RFC
/// 9110, section 11.1).
fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("Bearer").then(|| token.trim_start_matches(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_calls_of_workers_name_a_queue() {
        for (path, queue) in [
            ("/api/queue/price/receive", Some("price")),
            ("/api/queue/price/receive/", Some("price")),
            ("/api/queue/a%20b%2Fc/message/x/1/reply", Some("a b/c")),
            ("/api/queue/price/redispatch", None),
            ("/api/queue/price", None),
            ("/api/queue/%FF/receive", None),
            ("/api/queues", None),
            ("/api/job/price/receive", None),
            ("//api/queue/price/receive", None),
        ] {
            assert_eq!(queue_in(path).as_deref(), queue, "{path}");
        }
    }
}
