//! The HTTP server of the stub manager: parses the requests of the worker, and forwards them to the
//! lease queue.

use super::replies::{StubReply, parse_replies, render_verdicts};
use actix_web::dev::ServerHandle;
use actix_web::http::StatusCode;
use actix_web::{App, HttpResponse, HttpServer, web};
use bytes::Bytes;
use daemon::settings::DurationSetting;
use serde_json::json;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// The capacity of the channel from the server to the lease queue, in requests.
pub(super) const PENDING_REQUESTS_MAX: usize = 256;

/// The maximum size of a reply, in bytes: a manager's default (`limits.reply_bytes_max`).
const BODY_BYTES_MAX: usize = 16 << 20;

/// The maximum number of open connections.
const CONNECTIONS_MAX: usize = 256;

/// How long a client may take to send the headers of a request.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(10);

/// The wait of a long poll if the request names none: the default of a manager.
const WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// The maximum wait of a long poll.
const WAIT_MAX: Duration = Duration::from_secs(50);

/// The maximum number of messages in the response to a long poll.
const MESSAGES_MAX: usize = 100;

/// The minimum and the maximum lease.
const LEASE_RANGE: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(12 * 60 * 60));

/// The maximum delay of a requeued message.
const DELAY_MAX: Duration = Duration::from_secs(60 * 60);

/// A call of the queue API.
pub(super) enum WorkerCall {
    /// A long poll. Without `max` it asks for one message that is not wrapped in an array. `vhost`
    /// is empty if the request names none.
    Receive { wait: Duration, lease: Option<Duration>, max: Option<usize>, vhost: String },
    /// A reply of the kind `result`, `error` or `progress`.
    Reply { kind: String, body: Bytes },
    /// An extension of the lease. Without `lease` its duration stays as it was.
    Extend { lease: Option<Duration> },
    /// A rejection. A requeued message is not delivered again before the delay has passed.
    Nack { requeue: bool, delay: Duration },
}

/// A call with the delivery that it is about, and the channel for the response.
pub(super) struct PendingRequest {
    pub(super) queue: String,
    /// The id of the message and the number of its delivery. `None` for a receive.
    pub(super) delivery: Option<(String, u32)>,
    pub(super) call: WorkerCall,
    pub(super) responder: oneshot::Sender<StubResponse>,
}

/// The response of the lease queue.
pub(super) struct StubResponse {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
}

impl StubResponse {
    /// Makes a response with a JSON body.
    pub(super) fn json(body: &serde_json::Value) -> StubResponse {
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

    fn into_http_response(self) -> HttpResponse {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = HttpResponse::build(status);
        for (name, value) in self.headers {
            response.insert_header((name, value.as_bytes()));
        }
        response.body(self.body)
    }
}

/// Starts a server in the background, and returns its address. With port 0 the system chooses a
/// port.
pub(super) fn serve(
    listen: SocketAddr,
    requests: mpsc::Sender<PendingRequest>,
) -> io::Result<(ServerHandle, SocketAddr)> {
    let app = move || {
        App::new()
            .app_data(web::Data::new(requests.clone()))
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

type RequestSender = web::Data<mpsc::Sender<PendingRequest>>;

/// The query parameters of a request.
type QueryParameters = web::Query<Vec<(String, String)>>;

async fn handle_receive(
    requests: RequestSender,
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
        Ok(WorkerCall::Receive {
            wait: parse_duration("wait", wait, (Duration::ZERO, WAIT_MAX))?.unwrap_or(WAIT_DEFAULT),
            lease: parse_duration("lease", lease, LEASE_RANGE)?,
            max,
            vhost: vhost.unwrap_or_default(),
        })
    };
    forward(&requests, path.into_inner(), None, parse_call()).await
}

async fn handle_message_call(
    requests: RequestSender,
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
    forward(&requests, queue, Some((message, delivery)), parse_call()).await
}

/// Takes many replies in one call. One follows the other, so that a cut connection leaves those
/// behind it unread.
async fn handle_replies(requests: RequestSender, body: Bytes) -> HttpResponse {
    let replies = match parse_replies(&body) {
        Ok(replies) => replies,
        Err(detail) => return StubResponse::problem(400, &detail).into_http_response(),
    };
    let mut responses = Vec::with_capacity(replies.len());
    for reply in replies {
        responses.push(match reply {
            Ok(StubReply { queue, delivery, kind, body }) => {
                forward_call(&requests, queue, Some(delivery), make_reply(kind, body)).await
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
        Ok(WorkerCall::Reply { kind, body })
    } else {
        Err(format!("type is {kind:?}, expected result, error or progress"))
    }
}

/// Forwards a call to the lease queue, and answers with its response.
async fn forward(
    requests: &RequestSender,
    queue: String,
    delivery: Option<(String, u32)>,
    call: Result<WorkerCall, String>,
) -> HttpResponse {
    forward_call(requests, queue, delivery, call).await.into_http_response()
}

/// Forwards a call to the lease queue, and waits for the response.
async fn forward_call(
    requests: &RequestSender,
    queue: String,
    delivery: Option<(String, u32)>,
    call: Result<WorkerCall, String>,
) -> StubResponse {
    let call = match call {
        Ok(call) => call,
        Err(detail) => return StubResponse::problem(400, &detail),
    };
    let (responder, response) = oneshot::channel();
    let unavailable =
        || StubResponse::problem(503, "worker-test does not take this now: try again");
    if requests.send(PendingRequest { queue, delivery, call, responder }).await.is_err() {
        return unavailable();
    }
    response.await.unwrap_or_else(|_| unavailable())
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
