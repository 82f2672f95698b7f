//! Reads and parses the bodies of requests. Each body is bounded in size and time, and a byte
//! budget bounds all of them together.

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

/// The memory that a key of a parsed message takes at least, in bytes: the key, its value, a slot
/// in the list of keys and one in the hash table.
const KEY_BYTES: usize = 192;

/// The body of a request before it is read.
pub(super) struct RequestBody {
    payload: Payload,
    /// The value of `Content-Length`. `None`: the header is missing or invalid.
    length: Option<usize>,
    /// The content encoding. `None`: there is none, or it is `identity`.
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
    /// Reads the whole body, within the time limit.
    pub(super) async fn read(self, api: &ApiState) -> Result<BufferedBody, Problem> {
        if let Some(encoding) = self.encoding {
            return Err(Problem::unsupported(format!(
                "the body is encoded (Content-Encoding: {}), which this API does not read: send \
                 it plain, without that header",
                quote(&encoding)
            )));
        }
        let timeout = api.settings.http.body_timeout;
        match tokio::time::timeout(timeout.0, self.collect(api)).await {
            Ok(result) => result,
            Err(_) => Err(Problem::timed_out(format!(
                "the body did not arrive whole within {timeout} (setting http.body_timeout)"
            ))),
        }
    }

    /// Reads the whole body, within its limit and the byte budget.
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
        // The permit for the whole body is acquired before any of it is read. Otherwise several
        // half-read bodies could exhaust the budget, and none could be completed.
        let announced = self.length.unwrap_or(0);
        let mut permit = budget_for(api, announced)
            .try_acquire(announced)
            .ok_or_else(|| bodies_overloaded(api))?;
        let mut bytes = BytesMut::with_capacity(announced);
        while let Some(chunk) = self.payload.next().await {
            let chunk = chunk.map_err(|error| {
                Problem::malformed(format!("the body could not be read: {error}"))
            })?;
            let (old_length, new_length) = (bytes.len(), bytes.len() + chunk.len());
            if new_length > max {
                return Err(too_large());
            }
            if self.length.is_none() {
                // A growing buffer exists twice while it is reallocated.
                permit = grow_permit(api, permit, old_length, new_length, 2 * new_length)
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

/// Grows the permit of a body, whose length grows from `old_length` to `new_length`, to `bytes`. A
/// body that is no longer small gets a permit of the other budget instead. Returns `None` if the
/// budget does not have that many bytes free.
fn grow_permit(
    api: &ApiState,
    mut permit: Permit,
    old_length: usize,
    new_length: usize,
    bytes: usize,
) -> Option<Permit> {
    let budget = budget_for(api, new_length);
    if old_length <= SMALL_BODY_BYTES_MAX && new_length > SMALL_BODY_BYTES_MAX {
        return budget.try_acquire(bytes);
    }
    budget.try_grow(&mut permit, bytes).then_some(permit)
}

/// Returns the 503 for a body that got no permit.
fn bodies_overloaded(api: &ApiState) -> Problem {
    let max = api.settings.http.bodies_bytes_max;
    Problem::overloaded(format!(
        "too many bytes of bodies at once: there is room for {max} (setting http.bodies_bytes_max)"
    ))
}

/// A body that was read completely, with the permit for its bytes.
pub(super) struct BufferedBody {
    bytes: Bytes,
    permit: Permit,
}

impl BufferedBody {
    /// Returns the bytes of the body. They share its memory: the caller must keep the body, which
    /// holds the permit, until the request is answered.
    pub(super) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Parses the body with `parse`. A large body is parsed on a blocking thread. Returns the
    /// result, and the body: the caller must hold its permit until the request is answered.
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
            let parsed_bytes = self.bytes.len().max(max_key_count(&self.bytes) * KEY_BYTES);
            if !budget_for(&api, self.bytes.len()).try_grow(&mut self.permit, parsed_bytes) {
                return Err(bodies_overloaded(&api));
            }
            Ok((parse(&self.bytes)?, self))
        });
        parsed.await.map_err(|_| Problem::internal("the parsing was cancelled".to_owned()))?
    }
}

/// Returns an upper bound of the number of keys of a JSON object, not counting nested objects. It
/// counts the commas at the outermost level, without parsing.
fn max_key_count(json: &[u8]) -> usize {
    let (mut key_count, mut depth, mut is_in_string, mut is_escaped) = (1, 0_usize, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_in_string => is_escaped = true,
            b'"' => is_in_string = !is_in_string,
            _ if is_in_string => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' if depth <= 1 => key_count += 1,
            _ => {}
        }
    }
    key_count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_of_the_outer_object_are_counted() {
        for (json, key_count) in [
            ("", 1),
            (r#"{"a":1}"#, 1),
            (r#"{"a":1,"b":[1,2,3],"c":{"d":1,"e":2}}"#, 3),
            (r#"{"a,b":",\",\\","c":"["}"#, 2),
            (r#"{"a":[[1,2],[3,4]],"b":"]"}"#, 2),
        ] {
            assert_eq!(max_key_count(json.as_bytes()), key_count, "{json}");
        }
    }
}
