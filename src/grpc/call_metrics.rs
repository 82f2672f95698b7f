//! Counts calls when they end, by status code, which gRPC sends after the response.

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

/// The methods that are counted by name. Callers choose the names of others.
const METHODS: [&str; 5] = ["Work", "Receive", "Reply", "Extend", "Nack"];

/// Returns the label by which a method is counted.
pub(super) fn metric_label(called: Option<&str>) -> &'static str {
    let known = METHODS.into_iter().find(|method| Some(*method) == called);
    known.unwrap_or("other")
}

/// Counts a call once its response has ended, or nobody waits for it any more. Until then it is
/// open on its connection.
pub(super) fn count_call(
    answer: Response<Body>,
    method: &'static str,
    api: &Arc<ApiState>,
    under_way: Option<CallGuard>,
) -> Response<Body> {
    let api = api.clone();
    let mut call = CountedCall { method, api, is_recorded: false, _under_way: under_way };
    // A response without a body has its code among the headers.
    if let Some(code) = code_in(answer.headers()) {
        call.record(code);
        return answer;
    }
    answer.map(|body| Body::new(CountedBody { body, call }))
}

fn code_in(headers: &HeaderMap) -> Option<Code> {
    Status::from_header_map(headers).map(|status| status.code())
}

/// A call that is counted when it ends.
struct CountedCall {
    method: &'static str,
    api: Arc<ApiState>,
    is_recorded: bool,
    _under_way: Option<CallGuard>,
}

impl CountedCall {
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

/// Returns the name of a code in gRPC.
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

/// The body of a response, after which its code follows.
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
                if let Some(code) = frame.trailers_ref().and_then(code_in) {
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
