//! Converts problems of the API to gRPC statuses.

use actix_web::ResponseError;
use actix_web::http::StatusCode;
use daemon::api::problem::Problem;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

/// The metadata key of the machine-readable reason of an error.
pub(super) const REASON_METADATA: &str = "reason";

/// Converts a problem to a status. Its HTTP status code determines the gRPC code.
pub(super) fn to_status(problem: &Problem) -> Status {
    let code = match problem.status_code() {
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::CONFLICT | StatusCode::GONE => Code::FailedPrecondition,
        StatusCode::REQUEST_TIMEOUT => Code::DeadlineExceeded,
        StatusCode::PAYLOAD_TOO_LARGE => Code::ResourceExhausted,
        StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
        StatusCode::INTERNAL_SERVER_ERROR => Code::Internal,
        _ => Code::InvalidArgument,
    };
    let mut metadata = MetadataMap::new();
    if let Some(reason) = problem.reason() {
        metadata.insert(REASON_METADATA, MetadataValue::from_static(reason));
    }
    Status::with_metadata(code, problem.detail(), metadata)
}

/// Returns the machine-readable reason why a worker's request is rejected.
pub(super) fn rejection_code(problem: &Problem) -> &'static str {
    match problem.status_code() {
        StatusCode::FORBIDDEN => "forbidden",
        StatusCode::PAYLOAD_TOO_LARGE => "too_large",
        _ => "malformed",
    }
}
