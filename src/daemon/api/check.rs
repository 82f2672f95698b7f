//! Checks the text of a workflow file against the settings of this manager. Nothing is saved, and
//! no file is read.

use super::problem::Problem;
use super::query::Query;
use super::reads;
use super::request_body::RequestBody;
use super::route::*;
use crate::api::state::ApiState;
use crate::load::{Diagnostic, LoadErrors, LoadedWorkflows, load_bytes_for_manager};
use crate::settings::Scope;
use crate::view::DefinitionView;
use actix_web::{HttpResponse, web};
use serde::Serialize;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] = &[ApiRoute::post("/api/check", || web::to(check_text))
    .needing(Access::Scope(Scope::Read))
    .by_any()
    .operation(|schemas| {
        let summary = "Checks a workflow file, and saves nothing";
        OperationSpec::new("checkWorkflows", "workflows", summary)
            .with_yaml_body("A workflow file: YAML, or JSON")
            .with_json_response(
                200,
                "Its workflows, or its errors",
                schemas.reference::<CheckView<'_>>(),
            )
    })];

/// The outcome of a check. If the files are not valid, there are errors only.
#[derive(Serialize, ToSchema)]
#[schema(as = FileCheck)]
pub struct CheckView<'l> {
    valid: bool,
    workflows: Vec<DefinitionView<'l>>,
    #[schema(value_type = Vec<Diagnostic>)]
    warnings: &'l [Diagnostic],
    #[schema(value_type = Vec<Diagnostic>)]
    errors: &'l [Diagnostic],
}

impl<'l> CheckView<'l> {
    /// Creates the view of what was loaded, or of all errors.
    pub fn new(load_result: &'l Result<LoadedWorkflows, LoadErrors>) -> CheckView<'l> {
        match load_result {
            Ok(LoadedWorkflows { definitions, warnings, .. }) => CheckView {
                valid: true,
                workflows: definitions
                    .iter()
                    .map(|definition| DefinitionView::from_definition(definition))
                    .collect(),
                warnings,
                errors: &[],
            },
            Err(LoadErrors(errors)) => {
                CheckView { valid: false, workflows: Vec::new(), warnings: &[], errors }
            }
        }
    }
}

/// The name of the checked text in diagnostics.
const TEXT_NAME: &str = "text";

/// The most memory that a check takes besides the text and the response, in bytes: the limits of
/// workflow files bound it, above all their values and what aliases repeat.
const CHECK_BYTES: usize = 64 * 1024 * 1024;

/// Responds with what the command `check` says about the text in the body.
async fn check_text(
    api: web::Data<ApiState>,
    query: Query,
    body: RequestBody,
) -> Result<HttpResponse, Problem> {
    query.check_empty()?;
    // `body` holds its permit until the response.
    let body = body.read(&api).await?;
    let (bytes, settings) = (body.bytes().clone(), api.settings.clone());
    reads::respond(&api, CHECK_BYTES, move |_, response| {
        let load_result = load_bytes_for_manager(TEXT_NAME, &bytes, &settings)
            .map(LoadedWorkflows::with_advice_as_warnings);
        response.write_json(&CheckView::new(&load_result))
    })
    .await
}
