//! Counts calls by method and status code when they end. gRPC sends the code in the trailers, after
//! the body of the response.

use bytes::Bytes;
use daemon::api::connection_slots::CallGuard;
use daemon::api::state::ApiState;
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tonic::Code;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Response};

/// The methods that are counted by name. All others share one label, because clients choose their
/// names.
const METHODS: [&str; 5] = ["Work", "Receive", "Reply", "Extend", "Nack"];

/// Returns the metric label of a method; `None`: the call is for another service.
pub(super) fn metric_label(called_method: Option<&str>) -> &'static str {
    METHODS.into_iter().find(|method| Some(*method) == called_method).unwrap_or("other")
}

/// Wraps a response, so that its call is counted once the response has ended or is dropped.
/// `call_guard` is held until then.
pub(super) fn count_call(
    response: Response<Body>,
    method: &'static str,
    api: &Arc<ApiState>,
    call_guard: Option<CallGuard>,
) -> Response<Body> {
    let api = api.clone();
    let mut call = CountedCall { method, api, is_recorded: false, _guard: call_guard };
    // A response without a body has its code in the headers.
    if let Some(code) = find_code(response.headers()) {
        call.record(code);
        return response;
    }
    response.map(|body| Body::new(CountedBody { body, call }))
}

/// Finds the gRPC status code in headers or trailers.
fn find_code(headers: &HeaderMap) -> Option<Code> {
    Status::from_header_map(headers).map(|status| status.code())
}

/// A call that is counted when it ends. If it is dropped before that, it counts as cancelled.
struct CountedCall {
    method: &'static str,
    api: Arc<ApiState>,
    is_recorded: bool,
    /// Registers the call on its connection until it is dropped.
    _guard: Option<CallGuard>,
}

impl CountedCall {
    /// Counts the call, unless it was counted before.
    fn record(&mut self, code: Code) {
        if !std::mem::replace(&mut self.is_recorded, true) {
            self.api.metrics.grpc_calls.with_label_values(&[self.method, code_name(code)]).inc();
        }
    }
}

impl Drop for CountedCall {
    fn drop(&mut self) {
        self.record(Code::Cancelled);
    }
}

/// Returns the name of a code in the gRPC specification.
const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// The body of a response, whose trailers contain the status code.
struct CountedBody {
    body: Body,
    call: CountedCall,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let next = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &next {
            Some(Ok(frame)) => {
                if let Some(code) = frame.trailers_ref().and_then(find_code) {
                    self.call.record(code);
                }
            }
            Some(Err(status)) => self.call.record(status.code()),
            None => {}
        }
        Poll::Ready(next)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
