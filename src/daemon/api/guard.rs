//! The middleware of all requests: rejects requests from foreign origins, and completes responses.
//!
//! A browser lets any page send requests to a manager on loopback, but marks them with the headers
//! `Sec-Fetch-Site` and `Origin`. Programs send neither. A page that uses DNS rebinding is of the
//! same origin for the browser, so it is recognised by the header `Host`.

use super::compression;
use super::connection_slots::{CallGuard, ConnectionSlot};
use super::problem::Problem;
use super::route::{Access, ApiRoute, Server};
use crate::api::state::ApiState;
use crate::settings::HttpSettings;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{Payload, ServiceRequest, ServiceResponse};
use actix_web::error::PayloadError;
use actix_web::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use actix_web::http::uri::{Authority, Uri};
use actix_web::http::{Method, Version};
use actix_web::middleware::Next;
use actix_web::{Error, HttpMessage, HttpRequest, ResponseError, web};
use base::web_address::parse_web_address;
use bytes::Bytes;
use engine::text::quote;
use futures_util::Stream;
use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The header in which a browser states how the origin of a request relates to its target. Programs
/// do not send it.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// Security headers of every response: no MIME sniffing, no caching, no scripts, no framing.
const HEADERS: [(HeaderName, HeaderValue); 3] = [
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"),
    ),
];

/// The most bytes of a head (docs/reference/security.md). The HTTP library refuses a larger one
/// only if it does not arrive in one piece.
const HEAD_BYTES_MAX: usize = 128 << 10;

/// Rejects requests with heads that are too large, requests from pages of other sites, and, where
/// no token is required, requests that are sent to a host name that is not the manager's.
pub(super) async fn reject_foreign_origins(
    access: Access,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    if let Err(problem) = check_head_size(&request) {
        return Ok(request.into_response(problem.error_response()).map_into_right_body());
    }
    let Some(api) = request.app_data::<web::Data<ApiState>>() else {
        return Ok(next.call(request).await?.map_into_left_body());
    };
    let Err(problem) = check_origin(access, &request, &api.settings.http) else {
        return Ok(next.call(request).await?.map_into_left_body());
    };
    if api.log_limiter.may_log("stranger") {
        let peer = request.peer_addr().map(|peer| peer.to_string());
        tracing::warn!(
            peer,
            reason = problem.detail(),
            "a request is refused because of where it comes from (logged once a minute)"
        );
    }
    Ok(request.into_response(problem.error_response()).map_into_right_body())
}

/// Checks the size of a request's head: its target and its headers.
fn check_head_size(request: &ServiceRequest) -> Result<(), Problem> {
    let header_bytes = request.headers().iter().map(|(name, value)| {
        // A colon, a space and the end of the line.
        name.as_str().len() + value.len() + 4
    });
    let target_bytes = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let bytes = target_bytes + header_bytes.sum::<usize>();
    if bytes <= HEAD_BYTES_MAX {
        return Ok(());
    }
    Err(Problem::head_too_large(format!(
        "the head of the request has {bytes} bytes, at most {HEAD_BYTES_MAX} are taken: send fewer \
         or shorter headers"
    )))
}

/// Checks that a request does not come from a foreign page, and is sent to a name of the manager.
fn check_origin(
    access: Access,
    request: &ServiceRequest,
    http: &HttpSettings,
) -> Result<(), Problem> {
    let headers = request.headers();
    if access == Access::Page {
        return Ok(());
    }
    if let Some(site) = headers
        .get_all(SEC_FETCH_SITE)
        .find(|site| !matches!(site.as_bytes(), b"same-origin" | b"none"))
    {
        return Err(Problem::forbidden(format!(
            "a page of another site sent this (Sec-Fetch-Site: {}): only this manager's own pages \
             may; programs leave the header out",
            quote_header(site)
        )));
    }
    let host = parse_host(request.request())?;
    // For `same-origin` the browser has compared the origins itself. That holds even if a proxy
    // rewrites the Host.
    let is_same_origin = headers.contains_key(SEC_FETCH_SITE)
        && headers.get_all(SEC_FETCH_SITE).all(|site| site.as_bytes() == b"same-origin");
    let origins = headers.get_all(header::ORIGIN).filter(|_| !is_same_origin);
    for origin in origins {
        if !is_same_host(origin, host.as_ref()) && !is_manager_origin(origin, http) {
            let host = host.as_ref().map_or_else(|| "missing".to_owned(), |host| quote(&host.text));
            return Err(Problem::forbidden(format!(
                "a page of another site sent this: its Origin is {}, the Host is {host}; a proxy \
                 in between must pass the Host on as it came, or http.public_url or http.hosts \
                 must have the name of the page",
                quote_header(origin)
            )));
        }
    }
    match host {
        Some(host) if access != Access::Health => check_manager_name(&host, http, http.listen),
        Some(_) | None => Ok(()),
    }
}

/// Refuses what only the active process serves if this one stands by. The 503 names the active one.
pub(super) async fn refuse_on_standby(
    routes: &'static [ApiRoute],
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let api = request.app_data::<web::Data<ApiState>>();
    let standby = api.and_then(|api| api.role.standby());
    let problem = match (standby, Server::find(routes, request.method())) {
        (Some(standby), Server::Active) => Problem::standby(standby),
        (Some(_), Server::Any) | (None, _) => {
            return Ok(next.call(request).await?.map_into_left_body());
        }
    };
    Ok(request.into_response(problem.error_response()).map_into_right_body())
}

/// Returns whether a request is sent to a host name of the manager. If tokens are required, every
/// name is accepted.
pub(super) fn is_sent_to_manager_name(request: &HttpRequest, http: &HttpSettings) -> bool {
    match parse_host(request) {
        Ok(Some(host)) => check_manager_name(&host, http, http.listen).is_ok(),
        Ok(None) => true,
        Err(_) => false,
    }
}

/// Checks that a host name is the manager's. If tokens are required, every name is accepted: a page
/// that uses DNS rebinding has no token.
fn check_manager_name(host: &Host, http: &HttpSettings, listen: SocketAddr) -> Result<(), Problem> {
    if http.requires_token() || is_manager_name(host, http, listen) {
        return Ok(());
    }
    Err(Problem::forbidden(format!(
        "this manager does not go by the name {} (header Host): add it to the setting http.hosts, \
         or set http.token",
        quote(&host.text)
    )))
}

/// Checks the `:authority` of a gRPC request. `listen` is the address of the gRPC server.
///
/// # Errors
///
/// Returns a problem if the authority is malformed, or is not a name of the manager.
pub fn check_authority(
    authority: &str,
    http: &HttpSettings,
    listen: SocketAddr,
) -> Result<(), Problem> {
    let host = Host::parse(authority).ok_or_else(|| {
        Problem::malformed(format!(
            "the header :authority is {}, expected a name or address, such as localhost:8089",
            quote(authority)
        ))
    })?;
    check_manager_name(&host, http, listen)
}

/// Quotes the value of a header for an error.
fn quote_header(value: &HeaderValue) -> String {
    quote(&String::from_utf8_lossy(value.as_bytes()))
}

/// A host name or address, with its port.
#[derive(Debug)]
struct Host {
    /// The host and port as they were written.
    text: String,
    /// The name in lower case, without brackets and without the dot of a root domain.
    name: String,
    /// `None`: the default port of the scheme.
    port: Option<u16>,
}

impl Host {
    /// Parses `HOST` or `HOST:PORT`. Returns `None` for anything else, and for user information
    /// before the host.
    fn parse(text: &str) -> Option<Host> {
        let authority: Authority = text.parse().ok()?;
        let has_user = authority.as_str().contains('@');
        let name = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
            .trim_end_matches('.')
            .to_ascii_lowercase();
        let port = match text
            .strip_prefix(authority.host())
            .map(|suffix| suffix.strip_prefix(':').unwrap_or(suffix))
        {
            None | Some("") => None,
            Some(port) => Some(port.parse().ok()?),
        };
        (!has_user && !name.is_empty()).then(|| Host { text: text.to_owned(), name, port })
    }

    /// Returns the IP address, if the host is one.
    fn address(&self) -> Option<IpAddr> {
        self.name.parse().ok().map(|address: IpAddr| address.to_canonical())
    }
}

/// Parses the host to which a request is sent. Returns `None` for an HTTP/1.0 request without a
/// host, which no browser sends.
fn parse_host(request: &HttpRequest) -> Result<Option<Host>, Problem> {
    let invalid_host = |text: String| {
        Problem::malformed(format!(
            "the header Host is {text}, expected one name or address, such as localhost:8088"
        ))
    };
    // The request line takes precedence over the header (RFC 9112, section 3.2.2).
    if let Some(authority) = request.uri().authority() {
        return Host::parse(authority.as_str())
            .map(Some)
            .ok_or_else(|| invalid_host(quote(authority.as_str())));
    }
    let mut values = request.headers().get_all(header::HOST);
    match (values.next(), values.next()) {
        (None, _) if request.version() < Version::HTTP_11 => Ok(None),
        (None, _) => Err(invalid_host("missing".to_owned())),
        (Some(value), None) => value
            .to_str()
            .ok()
            .and_then(Host::parse)
            .map(Some)
            .ok_or_else(|| invalid_host(quote_header(value))),
        (Some(_), Some(_)) => Err(invalid_host("there twice".to_owned())),
    }
}

/// Returns whether a page's origin is the host to which its request was sent.
fn is_same_host(origin: &HeaderValue, host: Option<&Host>) -> bool {
    let (Some(origin), Some(host)) = (Origin::parse(origin), host) else { return false };
    origin.has_host(host)
}

/// Returns whether a page's origin is the manager's according to the settings, which matters behind
/// proxies that rewrite the Host. The port must match too: another service on the same machine has
/// another origin.
fn is_manager_origin(origin: &HeaderValue, http: &HttpSettings) -> bool {
    let Some(origin) = Origin::parse(origin) else { return false };
    let public_url = parse_web_address(&http.public_url).ok();
    let is_public_origin = public_url.is_some_and(|url| {
        url.scheme() == origin.scheme
            && url.host_str().is_some_and(|name| name.eq_ignore_ascii_case(&origin.host.name))
            && url.port_or_known_default() == Some(origin.port())
    });
    is_public_origin
        || http.hosts.iter().filter_map(|host| Host::parse(host)).any(|host| origin.has_host(&host))
}

/// The origin of a page: scheme, host and port.
struct Origin {
    scheme: &'static str,
    /// The default port of the scheme.
    default_port: u16,
    host: Host,
}

impl Origin {
    /// Parses the header `Origin`. Returns `None` for `null`, and for other schemes than HTTP(S).
    fn parse(header: &HeaderValue) -> Option<Origin> {
        let origin: Uri = header.to_str().ok()?.parse().ok()?;
        let (scheme, default_port) = match origin.scheme_str()? {
            "http" => ("http", 80),
            "https" => ("https", 443),
            _ => return None,
        };
        Some(Origin { scheme, default_port, host: Host::parse(origin.authority()?.as_str())? })
    }

    /// Returns the port of the origin, which may be the default port of its scheme.
    fn port(&self) -> u16 {
        self.host.port.unwrap_or(self.default_port)
    }

    /// Returns whether the origin has this host and port. A host without a port has the default
    /// port of the origin's scheme.
    fn has_host(&self, host: &Host) -> bool {
        self.host.name == host.name && self.port() == host.port.unwrap_or(self.default_port)
    }
}

/// Returns whether a host name is the manager's. Only ports in `http.hosts` are compared:
/// forwarding changes ports, and a page that uses DNS rebinding has a foreign name, whatever its
/// port.
fn is_manager_name(host: &Host, http: &HttpSettings, listen: SocketAddr) -> bool {
    // A web service sends a late reply to the name in `http.public_url`.
    let public_url = parse_web_address(&http.public_url).ok();
    let public_name = public_url.as_ref().and_then(|url| url.host_str());
    let is_listed = |listed: Host| {
        listed.name == host.name && listed.port.is_none_or(|port| host.port == Some(port))
    };
    host.name == "localhost"
        || host.address().is_some_and(|address| is_manager_address(address, listen))
        || public_name.is_some_and(|name| name.eq_ignore_ascii_case(&host.name))
        || http.hosts.iter().filter_map(|listed| Host::parse(listed)).any(is_listed)
}

/// Returns whether an address is the manager's: a loopback address, or the address that it listens
/// on. If it listens on all addresses, every address is accepted: DNS rebinding needs a name.
fn is_manager_address(address: IpAddr, listen: SocketAddr) -> bool {
    address.is_loopback() || address == listen.ip().to_canonical() || listen.ip().is_unspecified()
}

/// Completes every response: sets its headers, and removes the body for HEAD requests. The
/// connection stays busy, and the request's body is held, until the response is sent.
pub(super) async fn finish_response(
    access: Access,
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let is_head = request.method() == Method::HEAD;
    let slot = request.conn_data::<Arc<ConnectionSlot>>().cloned();
    let call = match slot.map(|slot| slot.begin_call(access == Access::Health)).transpose() {
        Ok(call) => call,
        Err(problem) => {
            let mut response = request.into_response(problem.error_response());
            set_headers(response.headers_mut());
            return Ok(response);
        }
    };
    if is_long_poll(request.path()) {
        shrink_headers(request.headers_mut());
    }
    let payload = has_body(request.headers()).then(|| hold_payload(&mut request));
    let api = request.app_data::<web::Data<ApiState>>().cloned();
    let api = api.filter(|_| request.method() == Method::GET);
    let accepts_gzip = compression::accepts_gzip(&request);
    let mut response = next.call(request).await?;
    set_headers(response.headers_mut());
    Ok(response.map_body(|head, body| {
        let body = if is_head { BoxBody::new(HeadOnly(body.size())) } else { body.boxed() };
        let body = match api {
            Some(api) => compression::compress(head, body, accepts_gzip, &api.budgets.compressors),
            None => body,
        };
        match (payload, call) {
            (None, None) => body,
            (payload, call) => BoxBody::new(HoldingBody { body, _payload: payload, _call: call }),
        }
    }))
}

/// Sets the headers that every response has.
fn set_headers(headers: &mut HeaderMap) {
    for (name, value) in HEADERS {
        // The header of a handler wins: content that is addressed by its hash may be cached.
        if !headers.contains_key(&name) {
            headers.insert(name, value);
        }
    }
}

/// Returns whether requests to a path are long polls of workers. Many of them may wait at once.
fn is_long_poll(path: &str) -> bool {
    path.trim_end_matches('/').ends_with("/receive")
}

/// Moves headers into a map of the right size, to save memory. The server's map has a capacity of
/// 28 headers, takes 6.7 kB, and exists until the request has ended.
fn shrink_headers(headers: &mut HeaderMap) {
    let mut packed = HeaderMap::with_capacity(headers.len_keys());
    for (name, value) in std::mem::take(headers) {
        packed.append(name, value);
    }
    *headers = packed;
}

/// Returns whether the headers announce a request body.
fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(header::TRANSFER_ENCODING)
        || headers.get(header::CONTENT_LENGTH).is_some_and(|length| length.as_bytes() != b"0")
}

/// Shares the request's body, so that the caller can hold it until the response is sent. If an
/// unread body is dropped before the response ends, the server waits for the rest of the body
/// without a time limit. If it is still held then, the server closes the connection.
fn hold_payload(request: &mut ServiceRequest) -> Rc<RefCell<Payload>> {
    let payload = Rc::new(RefCell::new(request.take_payload()));
    request.set_payload(Payload::Stream { payload: Box::pin(SharedPayload(payload.clone())) });
    payload
}

/// A request body that its handler reads and [`HoldingBody`] holds.
struct SharedPayload(Rc<RefCell<Payload>>);

impl Stream for SharedPayload {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_next(context)
    }
}

/// A response body that holds the request's body and the call's guard until the response is sent.
struct HoldingBody {
    body: BoxBody,
    _payload: Option<Rc<RefCell<Payload>>>,
    _call: Option<CallGuard>,
}

impl MessageBody for HoldingBody {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.body).poll_next(context)
    }
}

/// The body of a response to a HEAD request. It reports the size of the omitted body.
struct HeadOnly(BodySize);

impl MessageBody for HeadOnly {
    type Error = std::convert::Infallible;

    fn size(&self) -> BodySize {
        self.0
    }

    fn poll_next(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Poll::Ready(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::http::StatusCode;
    use actix_web::http::header::{HeaderName, HeaderValue};
    use actix_web::middleware::from_fn;
    use actix_web::test::{TestRequest, call_and_read_body, init_service};
    use actix_web::{App, HttpRequest, web};

    /// Responds with the capacity of the request's header map, and the values of one header.
    async fn echo_headers(request: HttpRequest) -> String {
        let values = request.headers().get_all("x");
        let values: Vec<&str> = values.filter_map(|value| value.to_str().ok()).collect();
        format!("{} {values:?}", request.headers().capacity())
    }

    #[test]
    fn a_head_that_arrives_in_one_piece_is_measured_too() {
        let check = |length: usize| {
            let request = TestRequest::get().uri("/livez").append_header(("x", "a".repeat(length)));
            check_head_size(&request.to_srv_request()).map_err(|problem| problem.status_code())
        };
        assert_eq!(check(HEAD_BYTES_MAX - 100), Ok(()));
        assert_eq!(check(HEAD_BYTES_MAX), Err(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
    }

    #[actix_rt::test]
    async fn the_header_map_of_a_long_poll_is_shrunk() {
        let finish = |request, next| finish_response(Access::Queue, request, next);
        let app = App::new().wrap(from_fn(finish)).default_service(web::to(echo_headers));
        let app = init_service(app).await;
        for (path, is_shrunk) in
            [("/api/queue/q/receive", true), ("/api/queue/q/receive/", true), ("/api/jobs", false)]
        {
            let mut request = TestRequest::post().uri(path);
            for value in ["1", "2"] {
                let (name, value) = (HeaderName::from_static("x"), HeaderValue::from_static(value));
                request = request.append_header((name, value));
            }
            let mut request = request.to_request();
            // The server makes its maps with this capacity.
            request.headers_mut().reserve(16);
            let body = call_and_read_body(&app, request).await;
            let body = String::from_utf8(body.to_vec()).expect("the body is UTF-8");
            let (capacity, values) = body.split_once(' ').expect("the body has two parts");
            let capacity: usize = capacity.parse().expect("the capacity is a number");
            assert_eq!((capacity < 8, values), (is_shrunk, r#"["1", "2"]"#), "{path}: {capacity}");
        }
    }
}
