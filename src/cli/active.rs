//! Tells from responses and errors whether another address must be asked: a manager that stands by,
//! or that does not have the workflow's name, refuses a request and may name the active one.

use super::addresses::display_address;
use engine::text::escape;
use std::io::ErrorKind;
use ureq::http::{Response, StatusCode};
use ureq::{Body, Timeout};

/// The header with the address of the active manager.
const ACTIVE_HEADER: &str = "Workflow-Manager-Active";

/// The beginning of the detail of a refusal by a manager that stands by. It need not know the
/// address of the active one.
const STANDS_BY: &str = "stands by";

/// The maximum size of a refusal, in bytes.
const REFUSAL_BYTES_MAX: u64 = 1 << 20;

/// Whose response one is. `detail` is that of a refusal, for people.
pub(super) enum Responder {
    /// That of the manager to ask, whatever the status is.
    Right(Response<Body>),
    /// Another one. It names the address of the one to ask.
    Named { named: String, detail: String },
    /// Another one. It does not know the one to ask.
    Unnamed { response: Response<Body>, detail: String },
}

/// Finds out whose response this is. A refusal that is not read whole counts as one without an
/// address.
pub(super) fn find_responder(response: Response<Body>) -> Responder {
    let status = response.status();
    if !matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::MISDIRECTED_REQUEST) {
        return Responder::Right(response);
    }
    let (parts, mut body) = response.into_parts();
    let text = body.with_config().limit(REFUSAL_BYTES_MAX).read_to_string().unwrap_or_default();
    let problem: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let member = |name: &str| problem.get(name).and_then(|value| value.as_str());
    let header = parts.headers.get(ACTIVE_HEADER).and_then(|value| value.to_str().ok());
    let named = header.or_else(|| member("active")).map(str::to_owned);
    let stands_by = member("detail").is_some_and(|detail| detail.starts_with(STANDS_BY));
    let detail = format!("{status}: {}", escape(member("detail").unwrap_or(&text)));
    let response = Response::from_parts(parts, Body::builder().data(text));
    match named {
        Some(named) => Responder::Named { named, detail },
        None if stands_by || status == StatusCode::MISDIRECTED_REQUEST => {
            Responder::Unnamed { response, detail }
        }
        None => Responder::Right(response),
    }
}

/// Returns whether a request was certainly not sent: there was no connection.
pub(super) fn is_unsent(error: &ureq::Error) -> bool {
    let is_unconnected = |kind: ErrorKind| {
        matches!(
            kind,
            ErrorKind::ConnectionRefused
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkUnreachable
                | ErrorKind::AddrNotAvailable
        )
    };
    if let ureq::Error::Io(error) = error {
        return is_unconnected(error.kind());
    }
    matches!(
        error,
        ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed
            | ureq::Error::Timeout(Timeout::Resolve | Timeout::Connect)
    )
}

/// The addresses that one request has tried, each with what went wrong there.
#[derive(Default)]
pub(super) struct Round(Vec<(String, String)>);

impl Round {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether an address was tried.
    pub(super) fn has(&self, address: &str) -> bool {
        self.0.iter().any(|(tried, _)| tried == address)
    }

    pub(super) fn add(&mut self, address: String, problem: String) {
        self.0.push((address, problem));
    }

    /// Returns the addresses, and what went wrong at each, for people.
    pub(super) fn describe(&self) -> (String, String) {
        let displayed = |address: &str| escape(&display_address(address)).into_owned();
        match &*self.0 {
            [(address, problem)] => (displayed(address), problem.clone()),
            tried => {
                let servers: Vec<_> = tried.iter().map(|(address, _)| displayed(address)).collect();
                let problems: Vec<_> = tried
                    .iter()
                    .map(|(address, problem)| format!("{}: {problem}", displayed(address)))
                    .collect();
                (servers.join(", "), problems.join("; "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuse(status: u16, header: Option<&str>, body: &str) -> Result<(), Option<String>> {
        let builder = Response::builder().status(status);
        let builder = match header {
            Some(address) => builder.header(ACTIVE_HEADER, address),
            None => builder,
        };
        let response = builder.body(Body::builder().data(body.to_owned())).expect("a response");
        match find_responder(response) {
            Responder::Right(_) => Ok(()),
            Responder::Named { named, .. } => Err(Some(named)),
            Responder::Unnamed { .. } => Err(None),
        }
    }

    #[test]
    fn a_refusal_names_the_active_one_by_its_header_or_its_body() {
        let there = Err(Some("http://b".to_owned()));
        assert_eq!(refuse(503, Some("http://b"), "{}"), there);
        assert_eq!(refuse(421, Some("http://b"), ""), there);
        assert_eq!(refuse(503, None, r#"{"active":"http://b"}"#), there);
        assert_eq!(refuse(503, None, r#"{"detail":"stands by"}"#), Err(None));
        assert_eq!(refuse(421, None, "{}"), Err(None));
    }

    #[test]
    fn an_overload_or_a_success_is_no_reason_to_go_elsewhere() {
        assert_eq!(refuse(503, None, r#"{"detail":"too many jobs"}"#), Ok(()));
        assert_eq!(refuse(503, None, "busy"), Ok(()));
        assert_eq!(refuse(500, Some("http://b"), "{}"), Ok(()));
        assert_eq!(refuse(200, Some("http://b"), "{}"), Ok(()));
    }
}
