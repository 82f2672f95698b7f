//! The HTTP server of the stub manager: parses the requests of the worker, and forwards them to the
//! lease queue as calls.

use super::super::calls::{
    BODY_BYTES_MAX, CONNECTIONS_MAX, CallSender, DELAY_MAX, LEASE_RANGE, MESSAGES_MAX,
    WAIT_DEFAULT, WAIT_MAX, WorkerCall,
};
use super::super::event_log::ReplyKind;
use super::replies::{StubReply, parse_replies, render_verdicts};
use super::response::{Shape, StubResponse};
use actix_web::dev::ServerHandle;
use actix_web::{App, HttpResponse, HttpServer, web};
use bytes::Bytes;
use daemon::settings::DurationSetting;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// How long a client may take to send the headers of a request.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts a server in the background, and returns its address. With port 0 the system chooses a
/// port.
pub(super) fn serve(
    listen: SocketAddr,
    calls: CallSender,
) -> io::Result<(ServerHandle, SocketAddr)> {
    let app = move || {
        App::new()
            .app_data(web::Data::new(calls.clone()))
            .app_data(web::PayloadConfig::new(BODY_BYTES_MAX))
            .route("/livez", web::get().to(handle_probe))
            .route("/readyz", web::get().to(handle_probe))
            .route("/api/queue/{queue}/receive", web::post().to(handle_receive))
            .route(
                "/api/queue/{queue}/message/{message}/{delivery}/{action}",
                web::post().to(handle_message_call),
            )
            .route("/api/replies", web::post().to(handle_replies))
            .default_service(web::to(handle_unknown_path))
    };
    let server = HttpServer::new(app)
        .workers(1)
        .max_connections(CONNECTIONS_MAX)
        .client_request_timeout(HEADERS_TIMEOUT)
        .disable_signals()
        .bind(listen)?;
    let address = server.addrs().first().copied().unwrap_or(listen);
    let running_server = server.run();
    let handle = running_server.handle();
    actix_rt::spawn(running_server);
    Ok((handle, address))
}

async fn handle_probe() -> &'static str {
    "ok"
}

async fn handle_unknown_path() -> HttpResponse {
    StubResponse::problem(404, "worker-test has the calls of workers alone").into_http_response()
}

type Calls = web::Data<CallSender>;

/// The query parameters of a request.
type QueryParameters = web::Query<Vec<(String, String)>>;

async fn handle_receive(
    calls: Calls,
    path: web::Path<String>,
    query: QueryParameters,
) -> HttpResponse {
    let parse_call = || {
        let [wait, lease, max, vhost] =
            parse_parameters(&query, ["wait", "lease", "max", "vhost"])?;
        let max = match max {
            None => None,
            Some(text) => match text.parse::<usize>() {
                Ok(max) if (1..=MESSAGES_MAX).contains(&max) => Some(max),
                Ok(_) | Err(_) => {
                    return Err(format!("max is {text:?}, expected 1 to {MESSAGES_MAX}"));
                }
            },
        };
        let call = WorkerCall::Receive {
            wait: parse_duration("wait", wait, (Duration::ZERO, WAIT_MAX))?.unwrap_or(WAIT_DEFAULT),
            lease: parse_duration("lease", lease, LEASE_RANGE)?,
            max: max.unwrap_or(1),
        };
        let vhost = vhost.unwrap_or_default();
        Ok((call, if max.is_some() { Shape::Array { vhost } } else { Shape::Single { vhost } }))
    };
    let response = match parse_call() {
        Ok((call, shape)) => {
            StubResponse::of_answer(calls.send(path.into_inner(), None, None, call).await, &shape)
        }
        Err(detail) => StubResponse::problem(400, &detail),
    };
    response.into_http_response()
}

async fn handle_message_call(
    calls: Calls,
    path: web::Path<(String, String, String, String)>,
    query: QueryParameters,
    body: Bytes,
) -> HttpResponse {
    let (queue, message, delivery, action) = path.into_inner();
    let parse_call = || match action.as_str() {
        "reply" => {
            let [kind, _vhost] = parse_parameters(&query, ["type", "vhost"])?;
            make_reply(kind, body)
        }
        "extend" => {
            let [lease, _vhost] = parse_parameters(&query, ["lease", "vhost"])?;
            Ok(WorkerCall::Extend { lease: parse_duration("lease", lease, LEASE_RANGE)? })
        }
        "nack" => {
            let [requeue, delay, _vhost] = parse_parameters(&query, ["requeue", "delay", "vhost"])?;
            let delay =
                parse_duration("delay", delay, (Duration::ZERO, DELAY_MAX))?.unwrap_or_default();
            Ok(WorkerCall::Nack { requeue: requeue.as_deref() == Some("true"), delay })
        }
        other => Err(format!("there is no call {other:?} of a message")),
    };
    let Ok(delivery) = delivery.parse() else {
        return StubResponse::problem(400, "the delivery is not a number").into_http_response();
    };
    forward(&calls, queue, (message, delivery), parse_call()).await.into_http_response()
}

/// Takes many replies in one call. One follows the other, so that a cut connection leaves those
/// behind it unread.
async fn handle_replies(calls: Calls, body: Bytes) -> HttpResponse {
    let replies = match parse_replies(&body) {
        Ok(replies) => replies,
        Err(detail) => return StubResponse::problem(400, &detail).into_http_response(),
    };
    let mut responses = Vec::with_capacity(replies.len());
    for reply in replies {
        responses.push(match reply {
            Ok(StubReply { queue, delivery, kind, body }) => {
                forward(&calls, queue, delivery, make_reply(kind, body)).await
            }
            Err(detail) => StubResponse::problem(400, &detail),
        });
    }
    let verdicts =
        render_verdicts(responses.iter().map(|response| (response.status, &response.body[..])));
    StubResponse::json(&verdicts).into_http_response()
}

/// Makes the call of a reply of this kind. The default is a result.
fn make_reply(kind: Option<String>, body: Bytes) -> Result<WorkerCall, String> {
    let kind = kind.unwrap_or_else(|| "result".to_owned());
    if ["result", "error", "progress"].contains(&kind.as_str()) {
        Ok(WorkerCall::Reply { kind: ReplyKind::from_name(&kind), body })
    } else {
        Err(format!("type is {kind:?}, expected result, error or progress"))
    }
}

/// Forwards a call about a message to the lease queue, and waits for the response.
async fn forward(
    calls: &Calls,
    queue: String,
    delivery: (String, u32),
    call: Result<WorkerCall, String>,
) -> StubResponse {
    match call {
        Ok(call) => {
            let answer = calls.send(queue, Some(delivery), None, call).await;
            StubResponse::of_answer(answer, &Shape::Single { vhost: String::new() })
        }
        Err(detail) => StubResponse::problem(400, &detail),
    }
}

/// Returns the values of the parameters with these names, in the order of the names. Like a
/// manager, refuses every other parameter except `_`, which clients add to bypass caches.
fn parse_parameters<const N: usize>(
    query: &[(String, String)],
    names: [&str; N],
) -> Result<[Option<String>; N], String> {
    let mut values = [const { None }; N];
    for (name, value) in query.iter().filter(|(name, _)| name != "_") {
        let index = names.iter().position(|expected| expected == name);
        let index = index.ok_or_else(|| format!("there is no parameter {name:?}"))?;
        if values[index].replace(value.clone()).is_some() {
            return Err(format!("the parameter {name:?} is given twice"));
        }
    }
    Ok(values)
}

/// Parses a duration, and checks that it is within the range, which includes both bounds.
fn parse_duration(
    name: &str,
    text: Option<String>,
    (min, max): (Duration, Duration),
) -> Result<Option<Duration>, String> {
    let Some(text) = text else { return Ok(None) };
    match humantime::parse_duration(&text) {
        Ok(duration) if (min..=max).contains(&duration) => Ok(Some(duration)),
        Ok(_) | Err(_) => Err(format!(
            "{name} is {text:?}, expected a time from {} to {}",
            DurationSetting(min),
            DurationSetting(max)
        )),
    }
}
