//! Makes the manager leave its name to a standby.

use super::problem::Problem;
use super::query::{self, Query};
use super::route::*;
use crate::actors::manager_handle::StepDownError;
use crate::api::state::ApiState;
use crate::settings::Scope;
use actix_web::{HttpResponse, web};
use engine::text::quote;
use serde::Serialize;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] =
    &[ApiRoute::post("/api/manager/step-down", || web::to(step_down))
        .needing(Access::Scope(Scope::Admin))
        .operation(|schemas| {
            let summary = "Makes the manager end, and leave its name to a standby";
            OperationSpec::new("stepDown", "manager", summary)
                .with_parameters(&[MANAGER_NAME, FORCE])
                .with_json_response(202, "It ends now", schemas.reference::<StepDownView<'_>>())
                .with_problems(&[409])
        })];

/// What follows from a step-down.
#[derive(Serialize, ToSchema)]
#[schema(as = StepDown)]
struct StepDownView<'a> {
    /// The name that becomes free.
    name: &'a str,
    /// How many other processes of the name stand by.
    standbys: u32,
}

/// Starts an orderly stop that gives the name back. Without a standby it is refused, unless the
/// request has `force`.
async fn step_down(api: web::Data<ApiState>, query: Query) -> Result<HttpResponse, Problem> {
    let [name, force] = query.extract(["name", "force"])?;
    let force = force.map_or(Ok(false), |value| query::parse_flag("force", &value))?;
    let own_name = api.settings.cluster.name.as_str();
    if let Some(name) = name.filter(|name| name != own_name) {
        let (name, own_name) = (quote(&name), quote(own_name));
        return Err(Problem::conflict(format!(
            "this manager has the name {own_name}, not {name}: ask the active one of {name}"
        )));
    }
    let reason = "it was asked for (POST /api/manager/step-down)".to_owned();
    match api.active()?.step_down(reason, force).await {
        Ok(standbys) => {
            let view = StepDownView { name: own_name, standbys };
            Ok(HttpResponse::Accepted().json(view))
        }
        Err(error @ (StepDownError::NoCluster | StepDownError::NoStandby)) => {
            Err(Problem::conflict(error.to_string()))
        }
    }
}
