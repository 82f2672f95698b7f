//! The HTTP server: parses the requests of workers, and passes them to the lease queue.

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

/// The maximum number of requests that wait for the lease queue.
pub(super) const PENDING_REQUESTS_MAX: usize = 256;

/// The largest reply, in bytes: a manager's default (`limits.reply_bytes_max`).
const BODY_BYTES_MAX: usize = 16 << 20;

const CONNECTIONS_MAX: usize = 256;

/// How long the head of a request may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

const WAIT_MAX: Duration = Duration::from_secs(50);

const LEASE_RANGE: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(12 * 60 * 60));

const DELAY_MAX: Duration = Duration::from_secs(60 * 60);

/// A call of the queue API.
pub(super) enum WorkerCall {
    Receive { wait: Duration, lease: Option<Duration>, max: Option<usize>, vhost: String },
    Reply { kind: String, body: Bytes },
    Extend { lease: Option<Duration> },
    Nack { requeue: bool, delay: Duration },
}

/// A call, the delivery that it is about, and where the response goes.
pub(super) struct PendingRequest {
    pub(super) queue: String,
    /// The message's id and the number of its delivery.
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
    pub(super) fn json(body: &serde_json::Value) -> StubResponse {
        let headers = vec![("content-type", "application/json".to_owned())];
        StubResponse { status: 200, headers, body: body.to_string().into_bytes() }
    }

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

/// Starts a server in the background. With port 0 the system chooses the port.
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
                "/api/queue/{queue}/message/{message}/{delivery}/{word}",
                web::post().to(handle_message_call),
            )
            .default_service(web::to(handle_unknown_path))
    };
    let server = HttpServer::new(app)
        .workers(1)
        .max_connections(CONNECTIONS_MAX)
        .client_request_timeout(HEAD_TIMEOUT)
        .disable_signals()
        .bind(listen)?;
    let address = server.addrs().first().copied().unwrap_or(listen);
    let server = server.run();
    let handle = server.handle();
    actix_rt::spawn(server);
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
                Ok(max) if (1..=100).contains(&max) => Some(max),
                Ok(_) | Err(_) => return Err(format!("max is {text:?}, expected 1 to 100")),
            },
        };
        Ok(WorkerCall::Receive {
            wait: parse_span("wait", wait, (Duration::ZERO, WAIT_MAX))?
                .unwrap_or(Duration::from_secs(30)),
            lease: parse_span("lease", lease, LEASE_RANGE)?,
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
            let kind = kind.unwrap_or_else(|| "result".to_owned());
            if ["result", "error", "progress"].contains(&kind.as_str()) {
                Ok(WorkerCall::Reply { kind, body })
            } else {
                Err(format!("type is {kind:?}, expected result, error or progress"))
            }
        }
        "extend" => {
            let [lease, _vhost] = parse_parameters(&query, ["lease", "vhost"])?;
            Ok(WorkerCall::Extend { lease: parse_span("lease", lease, LEASE_RANGE)? })
        }
        "nack" => {
            let [requeue, delay, _vhost] = parse_parameters(&query, ["requeue", "delay", "vhost"])?;
            let delay =
                parse_span("delay", delay, (Duration::ZERO, DELAY_MAX))?.unwrap_or_default();
            Ok(WorkerCall::Nack { requeue: requeue.as_deref() == Some("true"), delay })
        }
        other => Err(format!("there is no call {other:?} of a message")),
    };
    let Ok(delivery) = delivery.parse() else {
        return StubResponse::problem(400, "the delivery is not a number").into_http_response();
    };
    forward(&requests, queue, Some((message, delivery)), parse_call()).await
}

async fn forward(
    requests: &RequestSender,
    queue: String,
    delivery: Option<(String, u32)>,
    call: Result<WorkerCall, String>,
) -> HttpResponse {
    let call = match call {
        Ok(call) => call,
        Err(why) => return StubResponse::problem(400, &why).into_http_response(),
    };
    let (responder, response) = oneshot::channel();
    let unavailable =
        || StubResponse::problem(503, "worker-test does not take this now: try again");
    if requests.send(PendingRequest { queue, delivery, call, responder }).await.is_err() {
        return unavailable().into_http_response();
    }
    response.await.unwrap_or_else(|_| unavailable()).into_http_response()
}

/// Returns the parameters of these names. Any other parameter is refused, as by a manager.
fn parse_parameters<const N: usize>(
    query: &[(String, String)],
    names: [&str; N],
) -> Result<[Option<String>; N], String> {
    let mut found = [const { None }; N];
    for (name, value) in query.iter().filter(|(name, _)| name != "_") {
        let at = names.iter().position(|known| known == name);
        let at = at.ok_or_else(|| format!("there is no parameter {name:?}"))?;
        if found[at].replace(value.clone()).is_some() {
            return Err(format!("the parameter {name:?} is given twice"));
        }
    }
    Ok(found)
}

fn parse_span(
    name: &str,
    text: Option<String>,
    (min, max): (Duration, Duration),
) -> Result<Option<Duration>, String> {
    let Some(text) = text else { return Ok(None) };
    match humantime::parse_duration(&text) {
        Ok(span) if (min..=max).contains(&span) => Ok(Some(span)),
        Ok(_) | Err(_) => Err(format!(
            "{name} is {text:?}, expected a time from {} to {}",
            DurationSetting(min),
            DurationSetting(max)
        )),
    }
}
