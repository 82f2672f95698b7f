//! Middleware for all requests: decides which origins may send them, and sets the headers of all
//! responses.
//!
//! A browser lets any page send requests to a manager on loopback, but says so in `Sec-Fetch-Site`
//! and `Origin`. A page whose name was pointed at loopback (DNS rebinding) is recognised by its
//! `Host`. Programs send neither of the first two headers.

use super::connection_slots::{CallGuard, ConnectionSlot};
use super::problem::Problem;
use super::route::Access;
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

/// The header in which a browser says where a request comes from. Programs leave it out.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// Headers of every response: no sniffing, no caching, no scripts, no framing.
const HEADERS: [(HeaderName, HeaderValue); 3] = [
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"),
    ),
];

/// Rejects requests from pages of other sites, and, where no token is required, requests that are
/// sent to a host name that is not the manager's.
pub(super) async fn reject_foreign_origins(
    access: Access,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
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
    // The browser has compared the names itself, as the page and it know them, whatever a proxy in
    // between makes of the Host.
    let is_compared = headers.contains_key(SEC_FETCH_SITE)
        && headers.get_all(SEC_FETCH_SITE).all(|site| site.as_bytes() == b"same-origin");
    let origins = headers.get_all(header::ORIGIN).filter(|_| !is_compared);
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
        Some(host) if access != Access::Health => check_own_name(&host, http, http.listen),
        Some(_) | None => Ok(()),
    }
}

/// Returns whether a request is sent to a host name of the manager. With tokens any name will do.
pub(super) fn is_sent_to_own_name(request: &HttpRequest, http: &HttpSettings) -> bool {
    match parse_host(request) {
        Ok(Some(host)) => check_own_name(&host, http, http.listen).is_ok(),
        Ok(None) => true,
        Err(_) => false,
    }
}

/// Checks the host name of a request: where no token is required, it must be the manager's.
fn check_own_name(host: &Host, http: &HttpSettings, listen: SocketAddr) -> Result<(), Problem> {
    if http.requires_token() || is_manager_name(host, http, listen) {
        return Ok(());
    }
    Err(Problem::forbidden(format!(
        "this manager does not go by the name {} (header Host): add it to the setting http.hosts, \
         or set http.token",
        quote(&host.text)
    )))
}

/// Checks the `:authority` of a gRPC request, which listens on its own address.
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
    check_own_name(&host, http, listen)
}

fn quote_header(value: &HeaderValue) -> String {
    quote(&String::from_utf8_lossy(value.as_bytes()))
}

/// A host name or address, with its port.
#[derive(Debug)]
struct Host {
    text: String,
    name: String,
    port: Option<u16>,
}

impl Host {
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
            .map(|rest| rest.strip_prefix(':').unwrap_or(rest))
        {
            None | Some("") => None,
            Some(port) => Some(port.parse().ok()?),
        };
        (!has_user && !name.is_empty()).then(|| Host { text: text.to_owned(), name, port })
    }

    fn address(&self) -> Option<IpAddr> {
        self.name.parse().ok().map(|address: IpAddr| address.to_canonical())
    }
}

/// Parses the host that the request is sent to. Returns `None` for a request of HTTP/1.0 without
/// one, which no browser sends.
fn parse_host(request: &HttpRequest) -> Result<Option<Host>, Problem> {
    let unclear = |text: String| {
        Problem::malformed(format!(
            "the header Host is {text}, expected one name or address, such as localhost:8088"
        ))
    };
    // The request line takes precedence over the header (RFC 9112, section 3.2.2).
    if let Some(authority) = request.uri().authority() {
        return Host::parse(authority.as_str())
            .map(Some)
            .ok_or_else(|| unclear(quote(authority.as_str())));
    }
    let mut values = request.headers().get_all(header::HOST);
    match (values.next(), values.next()) {
        (None, _) if request.version() < Version::HTTP_11 => Ok(None),
        (None, _) => Err(unclear("missing".to_owned())),
        (Some(one), None) => one
            .to_str()
            .ok()
            .and_then(Host::parse)
            .map(Some)
            .ok_or_else(|| unclear(quote_header(one))),
        (Some(_), Some(_)) => Err(unclear("there twice".to_owned())),
    }
}

fn is_same_host(origin: &HeaderValue, host: Option<&Host>) -> bool {
    let (Some(origin), Some(host)) = (Origin::parse(origin), host) else { return false };
    origin.has_host(host)
}

/// Returns whether a page's origin is the manager's own by the settings, for a proxy that changes
/// the Host. The port counts, as it does between origins: another service on the same machine is
/// not part of the manager.
fn is_manager_origin(origin: &HeaderValue, http: &HttpSettings) -> bool {
    let Some(origin) = Origin::parse(origin) else { return false };
    let public = parse_web_address(&http.public_url).ok();
    let is_public = public.is_some_and(|url| {
        url.scheme() == origin.scheme
            && url.host_str().is_some_and(|name| name.eq_ignore_ascii_case(&origin.host.name))
            && url.port_or_known_default() == Some(origin.port())
    });
    is_public
        || http.hosts.iter().filter_map(|own| Host::parse(own)).any(|own| origin.has_host(&own))
}

/// The origin of a page: scheme, host and port.
struct Origin {
    scheme: &'static str,
    default_port: u16,
    host: Host,
}

impl Origin {
    fn parse(header: &HeaderValue) -> Option<Origin> {
        let origin: Uri = header.to_str().ok()?.parse().ok()?;
        let (scheme, usual_port) = match origin.scheme_str()? {
            "http" => ("http", 80),
            "https" => ("https", 443),
            _ => return None,
        };
        Some(Origin {
            scheme,
            default_port: usual_port,
            host: Host::parse(origin.authority()?.as_str())?,
        })
    }

    fn port(&self) -> u16 {
        self.host.port.unwrap_or(self.default_port)
    }

    /// Returns whether the origin has that host. A host without a port has the default port.
    fn has_host(&self, host: &Host) -> bool {
        self.host.name == host.name && self.port() == host.port.unwrap_or(self.default_port)
    }
}

/// Returns whether a host name is the manager's. Ports do not matter, except those in `http.hosts`:
/// forwarding changes them, and a page that was rebound has a name of its own whatever its port.
fn is_manager_name(host: &Host, http: &HttpSettings, listen: SocketAddr) -> bool {
    // Web services reply to this name later.
    let public = parse_web_address(&http.public_url).ok();
    let public = public.as_ref().and_then(|url| url.host_str());
    let is_listed = |listed: Host| {
        listed.name == host.name && listed.port.is_none_or(|port| host.port == Some(port))
    };
    host.name == "localhost"
        || host.address().is_some_and(|address| is_own_address(address, listen))
        || public.is_some_and(|name| name.eq_ignore_ascii_case(&host.name))
        || http.hosts.iter().filter_map(|listed| Host::parse(listed)).any(is_listed)
}

/// Returns whether an address is this machine's: a loopback address, or the one that the manager
/// listens on. If it listens on all addresses, any will do: a page's name can be pointed elsewhere,
/// an address cannot.
fn is_own_address(address: IpAddr, listen: SocketAddr) -> bool {
    address.is_loopback() || address == listen.ip().to_canonical() || listen.ip().is_unspecified()
}

/// Finishes every response: sets its headers, and reduces it to the head for HEAD requests. Holds
/// the call's slot and the request's body until the response is sent.
pub(super) async fn finish_response(
    access: Access,
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let is_head = request.method() == Method::HEAD;
    let slot = request.conn_data::<Arc<ConnectionSlot>>().cloned();
    let begun = slot.map(|place| place.begin_call(access == Access::Health)).transpose();
    let call = match begun {
        Ok(under_way) => under_way,
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
    let mut response = next.call(request).await?;
    set_headers(response.headers_mut());
    Ok(response.map_body(|_, body| {
        let body = match is_head {
            true => BoxBody::new(HeadOnly(body.size())),
            false => body.boxed(),
        };
        match (payload, call) {
            (None, None) => body,
            (payload, under_way) => {
                BoxBody::new(HoldingBody { body, _payload: payload, _call: under_way })
            }
        }
    }))
}

/// Sets the headers that every response has.
fn set_headers(headers: &mut HeaderMap) {
    for (name, value) in HEADERS {
        // A handler may have set a better one: content that is named by its hash may be cached.
        if !headers.contains_key(&name) {
            headers.insert(name, value);
        }
    }
}

/// Returns whether requests to a path may wait for long, and many at once: those of workers that
/// ask for messages.
fn is_long_poll(path: &str) -> bool {
    path.trim_end_matches('/').ends_with("/receive")
}

/// Moves headers into a map of the right size. The server's map has room for 28 headers, takes 6.7
/// kB, and lives as long as the request.
fn shrink_headers(headers: &mut HeaderMap) {
    let mut packed = HeaderMap::with_capacity(headers.len_keys());
    for (name, value) in std::mem::take(headers) {
        packed.append(name, value);
    }
    *headers = packed;
}

fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(header::TRANSFER_ENCODING)
        || headers.get(header::CONTENT_LENGTH).is_some_and(|length| length.as_bytes() != b"0")
}

/// Holds the request's body until the response is sent. If a body is dropped before it is read to
/// its end, the server waits for the rest without a limit; if it is still held, the server closes
/// the connection.
fn hold_payload(request: &mut ServiceRequest) -> Rc<RefCell<Payload>> {
    let payload = Rc::new(RefCell::new(request.take_payload()));
    request.set_payload(Payload::Stream { payload: Box::pin(SharedPayload(payload.clone())) });
    payload
}

struct SharedPayload(Rc<RefCell<Payload>>);

impl Stream for SharedPayload {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_next(context)
    }
}

/// A response body that holds the request's body and the call's slot until it is sent.
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

/// A body that only reports its size.
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

    #[actix_rt::test]
    async fn a_long_poll_request_keeps_capacity_for_its_headers_alone() {
        let finish = |request, next| finish_response(Access::Queue, request, next);
        let app = App::new().wrap(from_fn(finish)).default_service(web::to(echo_headers));
        let app = init_service(app).await;
        for (path, is_packed) in
            [("/api/queue/q/receive", true), ("/api/queue/q/receive/", true), ("/api/jobs", false)]
        {
            let mut request = TestRequest::post().uri(path);
            for value in ["1", "2"] {
                let (name, value) = (HeaderName::from_static("x"), HeaderValue::from_static(value));
                request = request.append_header((name, value));
            }
            let mut request = request.to_request();
            // As the server makes its maps.
            request.headers_mut().reserve(16);
            let found = call_and_read_body(&app, request).await;
            let found = String::from_utf8(found.to_vec()).expect("UTF-8");
            let (capacity_text, values) = found.split_once(' ').expect("two");
            let capacity: usize = capacity_text.parse().expect("a number");
            assert_eq!((capacity < 8, values), (is_packed, r#"["1", "2"]"#), "{path}: {capacity}");
        }
    }
}
