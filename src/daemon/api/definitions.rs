//! Lists the definitions of a workflow, and shows a definition by the hash of its content.

use super::problem::Problem;
use super::query::Query;
use super::reads::read_small;
use super::resolve::resolve_workflow;
use super::route::*;
use crate::api::state::ApiState;
use crate::view::DefinitionView;
use actix_web::http::header;
use actix_web::{HttpResponse, web};
use base::times::Rfc3339Time;
use engine::{DefinitionHash, InvalidHash};
use serde::Serialize;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] = &[
    ApiRoute::get("/api/definitions", || web::to(list_definitions)).operation(|schemas| {
        let summary = "The definitions of a workflow that jobs run";
        OperationSpec::new("listDefinitions", "workflows", summary)
            .with_parameters(&[WORKFLOW.required(), VHOST])
            .with_json_response(200, "The definitions", schemas.reference::<DefinitionListView>())
            .with_problems(&[404])
    }),
    ApiRoute::get("/api/definition/{hash}", || web::to(get_definition)).operation(|schemas| {
        OperationSpec::new("getDefinition", "workflows", "A definition by the hash of its content")
            .with_json_response(200, "The definition", schemas.reference::<NamedDefinition<'_>>())
            .with_problems(&[404])
    }),
];

/// The cache policy of a definition. It may be cached, because its hash names its content.
const CACHE_FOR_A_DAY: &str = "private, max-age=86400, immutable";

#[derive(Serialize, ToSchema)]
#[schema(as = Definition)]
struct NamedDefinition<'d> {
    hash: DefinitionHash,
    #[serde(flatten)]
    definition: DefinitionView<'d>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Definitions)]
struct DefinitionListView {
    definitions: Vec<DefinitionUseView>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = DefinitionUse)]
struct DefinitionUseView {
    hash: DefinitionHash,
    /// Whether new jobs run it.
    loaded: bool,
    running: i64,
    ended: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_ended: Option<Rfc3339Time>,
}

/// Lists the loaded definition, which new jobs run, and the definitions of jobs in the journal.
async fn list_definitions(api: web::Data<ApiState>, query: Query) -> Result<HttpResponse, Problem> {
    let [workflow, vhost] = query.extract(["workflow", "vhost"])?;
    let name = workflow.ok_or_else(|| Problem::malformed("workflow=NAME is missing".to_owned()))?;
    let workflow = resolve_workflow(&api, &name, vhost.as_deref()).await?;
    let loaded_hash = api.definitions().get(&workflow).map(|definition| definition.hash());
    let uses = read_small(&api, move |reader| reader.load_definition_uses(&workflow)).await?;
    let unused_hash =
        loaded_hash.filter(|hash| uses.iter().all(|definition_use| definition_use.hash != *hash));
    let unused_definition = unused_hash.map(|hash| DefinitionUseView {
        hash,
        loaded: true,
        running: 0,
        ended: 0,
        last_ended: None,
    });
    let used_definitions = uses.into_iter().map(|definition_use| DefinitionUseView {
        hash: definition_use.hash,
        loaded: Some(definition_use.hash) == loaded_hash,
        running: definition_use.running,
        ended: definition_use.ended,
        last_ended: definition_use.last_ended.map(Rfc3339Time),
    });
    let definitions = unused_definition.into_iter().chain(used_definitions).collect();
    Ok(HttpResponse::Ok().json(DefinitionListView { definitions }))
}

/// Shows a definition that is loaded, or that a job in the journal runs.
async fn get_definition(
    api: web::Data<ApiState>,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    query.check_empty()?;
    let hash: DefinitionHash =
        path.parse().map_err(|error: InvalidHash| Problem::malformed(error.to_string()))?;
    let definitions = api.definitions();
    let loaded_definition =
        definitions.values().find(|definition| definition.hash() == hash).cloned();
    let definition = match loaded_definition {
        Some(definition) => Some(definition),
        None => read_small(&api, move |reader| reader.load_definition(hash)).await?,
    };
    let definition = definition.ok_or_else(|| {
        Problem::not_found(format!(
            "no definition {hash} is loaded, and no job that is kept runs it; the light view of a \
             job names its definition"
        ))
    })?;
    Ok(HttpResponse::Ok()
        .insert_header((header::CACHE_CONTROL, CACHE_FOR_A_DAY))
        .json(NamedDefinition { hash, definition: DefinitionView::from_definition(&definition) }))
}
