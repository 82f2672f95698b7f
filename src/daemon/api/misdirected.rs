//! Several names on one database: a request about a job or a workflow of another name is referred
//! to that name's active manager. Reads need no referral, because they are of all names.

use super::problem::Problem;
use super::reads::read_small;
use super::resolve::full_name;
use crate::api::state::ApiState;
use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::{Method, StatusCode};
use actix_web::middleware::Next;
use actix_web::{Error, ResponseError, web};
use engine::{CorrelationId, JobId};
use journal::ForeignName;
use std::sync::Arc;

/// What a request is about.
enum Subject {
    Job(JobId),
    /// A workflow, by its full name.
    Workflow(String),
}

impl Subject {
    /// Returns the subject of a request that changes something; `None` if it has none.
    fn of_request(request: &ServiceRequest) -> Option<Subject> {
        if matches!(*request.method(), Method::GET | Method::HEAD) {
            return None;
        }
        let part = |name| request.match_info().get(name).map(|text| text.trim_end_matches('/'));
        if let Some(id) = part("id") {
            return id.parse().ok().map(JobId).map(Subject::Job);
        }
        if let Some(message) = part("message") {
            // The id of a message is its correlation id and the number of its attempt.
            let (correlation_id, _) = message.rsplit_once(':')?;
            let place: CorrelationId = correlation_id.parse().ok()?;
            return Some(Subject::Job(place.job));
        }
        let query = web::Query::<Vec<(String, String)>>::from_query(request.query_string()).ok()?;
        let vhost = query.iter().find(|(name, _)| name == "vhost").map(|(_, vhost)| vhost.as_str());
        part("name").map(|name| Subject::Workflow(full_name(name, vhost)))
    }
}

/// Middleware: replaces the 404 of what another name has by a 421 that names its active manager.
pub(super) async fn refer_to_other_name(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let api = request.app_data::<web::Data<ApiState>>().map(|api| api.clone().into_inner());
    let subject = Subject::of_request(&request);
    let response = next.call(request).await?;
    let (Some(api), Some(subject), StatusCode::NOT_FOUND) = (api, subject, response.status())
    else {
        return Ok(response.map_into_left_body());
    };
    match find_foreign_name(&api, subject).await {
        Ok(Some(name)) => {
            let problem = Problem::misdirected(name);
            Ok(response.into_response(problem.error_response()).map_into_right_body())
        }
        // Whatever cannot be read now, the 404 is right for this manager.
        Ok(None) | Err(_) => Ok(response.map_into_left_body()),
    }
}

async fn find_foreign_name(
    api: &Arc<ApiState>,
    subject: Subject,
) -> Result<Option<ForeignName>, Problem> {
    read_small(api, move |reader| match subject {
        Subject::Job(id) => reader.find_foreign_name_of_job(id),
        Subject::Workflow(workflow) => reader.find_foreign_name_of_workflow(&workflow),
    })
    .await
}
