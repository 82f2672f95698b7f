//! Bodies of requests: each is bounded in size and time, and all of them together by a byte budget.

use super::problem::Problem;
use crate::api::state::ApiState;
use actix_web::dev::Payload;
use actix_web::http::header;
use actix_web::{FromRequest, HttpRequest, web};
use base::budget::{Permit, ResourceBudget, SMALL_BODY_BYTES_MAX};
use bytes::{Bytes, BytesMut};
use engine::text::quote;
use futures_util::StreamExt;
use std::sync::Arc;

/// What an entry of a parsed message takes, however short it is, in bytes: its key, its value, a
/// place in the list and one in the table.
const ENTRY_BYTES: usize = 192;

/// A request's body that is still to be read.
pub(super) struct RequestBody {
    payload: Payload,
    /// The length that the request's header gives.
    length: Option<usize>,
    /// The content encoding, other than `identity`.
    encoding: Option<String>,
}

impl FromRequest for RequestBody {
    type Error = Problem;
    type Future = std::future::Ready<Result<Self, Problem>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let headers = request.headers();
        let encodings = headers
            .get_all(header::CONTENT_ENCODING)
            .map(|value| String::from_utf8_lossy(value.as_bytes()).trim().to_owned());
        let encoding = encodings
            .into_iter()
            .find(|encoding| !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity"));
        let length = headers
            .get(header::CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok())
            .and_then(|text| text.parse().ok());
        std::future::ready(Ok(RequestBody { payload: payload.take(), length, encoding }))
    }
}

impl RequestBody {
    /// Reads the whole body.
    pub(super) async fn read(self, api: &ApiState) -> Result<BufferedBody, Problem> {
        if let Some(encoding) = self.encoding {
            return Err(Problem::unsupported(format!(
                "the body is encoded (Content-Encoding: {}), which this API does not read: send \
                 it plain, without that header",
                quote(&encoding)
            )));
        }
        let limit = api.settings.http.body_timeout;
        match tokio::time::timeout(limit.0, self.collect(api)).await {
            Ok(body) => body,
            Err(_) => Err(Problem::timed_out(format!(
                "the body did not arrive whole within {limit} (setting http.body_timeout)"
            ))),
        }
    }

    async fn collect(mut self, api: &ApiState) -> Result<BufferedBody, Problem> {
        let max = api.settings.http.body_bytes_max;
        let too_large = || {
            Problem::too_large(format!(
                "the body is larger than {max} bytes (setting http.body_bytes_max)"
            ))
        };
        if self.length.is_some_and(|length| length > max) {
            return Err(too_large());
        }
        // Acquires a permit for all of it before reading any of it: otherwise bodies that arrive
        // side by side would block one another half-way.
        let announced = self.length.unwrap_or(0);
        let mut permit = budget_for(api, announced)
            .try_acquire(announced)
            .ok_or_else(|| bodies_overloaded(api))?;
        let mut bytes = BytesMut::with_capacity(announced);
        while let Some(chunk) = self.payload.next().await {
            let chunk = chunk.map_err(|error| {
                Problem::malformed(format!("the body could not be read: {error}"))
            })?;
            let (before, length) = (bytes.len(), bytes.len() + chunk.len());
            if length > max {
                return Err(too_large());
            }
            if self.length.is_none() {
                // A growing buffer exists twice while it is moved.
                permit = grow_permit(api, permit, before, length, 2 * length)
                    .ok_or_else(|| bodies_overloaded(api))?;
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(BufferedBody { bytes: bytes.freeze(), permit })
    }
}

/// Returns the byte budget for a body of this length.
fn budget_for(api: &ApiState, length: usize) -> &ResourceBudget {
    if length <= SMALL_BODY_BYTES_MAX {
        &api.budgets.small_bodies
    } else {
        &api.budgets.large_bodies
    }
}

/// Grows the permit of a body to `bytes`; a body that is no longer small moves to the other budget.
fn grow_permit(
    api: &ApiState,
    mut permit: Permit,
    before: usize,
    length: usize,
    bytes: usize,
) -> Option<Permit> {
    let was_small = before <= SMALL_BODY_BYTES_MAX;
    if was_small && length > SMALL_BODY_BYTES_MAX {
        return budget_for(api, length).try_acquire(bytes);
    }
    budget_for(api, length).try_grow(&mut permit, bytes).then_some(permit)
}

fn bodies_overloaded(api: &ApiState) -> Problem {
    let max = api.settings.http.bodies_bytes_max;
    Problem::overloaded(format!(
        "too many bytes of bodies at once: there is room for {max} (setting http.bodies_bytes_max)"
    ))
}

/// A whole body, with its permit.
pub(super) struct BufferedBody {
    bytes: Bytes,
    permit: Permit,
}

impl BufferedBody {
    pub(super) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Parses the body with `parse`, and returns it together with the result: its permit must be
    /// held until the request is answered. A large body is parsed on a blocking thread.
    pub(super) async fn parse_with<T: Send + 'static>(
        mut self,
        api: &Arc<ApiState>,
        parse: impl FnOnce(&[u8]) -> Result<T, Problem> + Send + 'static,
    ) -> Result<(T, BufferedBody), Problem> {
        if self.bytes.len() <= SMALL_BODY_BYTES_MAX {
            return Ok((parse(&self.bytes)?, self));
        }
        let api = api.clone();
        let parsed = web::block(move || {
            let needed = self.bytes.len().max(max_entries(&self.bytes) * ENTRY_BYTES);
            if !budget_for(&api, self.bytes.len()).try_grow(&mut self.permit, needed) {
                return Err(bodies_overloaded(&api));
            }
            Ok((parse(&self.bytes)?, self))
        });
        parsed.await.map_err(|_| Problem::internal("the parsing was cancelled".to_owned()))?
    }
}

/// Returns an upper bound of the number of entries of the JSON object in a text.
fn max_entries(text: &[u8]) -> usize {
    let (mut entries, mut depth, mut in_string, mut escaped) = (1, 0_usize, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' if depth <= 1 => entries += 1,
            _ => {}
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_counted_and_what_lies_deeper_is_not() {
        for (text, entries) in [
            ("", 1),
            (r#"{"a":1}"#, 1),
            (r#"{"a":1,"b":[1,2,3],"c":{"d":1,"e":2}}"#, 3),
            (r#"{"a,b":",\",\\","c":"["}"#, 2),
            (r#"{"a":[[1,2],[3,4]],"b":"]"}"#, 2),
        ] {
            assert_eq!(max_entries(text.as_bytes()), entries, "{text}");
        }
    }
}
