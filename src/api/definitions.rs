//! Definitions of workflows, by their content.

use super::problem::Problem;
use super::query::Query;
use super::reads::read;
use crate::actors::common::Common;
use crate::engine::{DefinitionHash, InvalidHash};
use crate::view::DefinitionView;
use actix_web::http::header;
use actix_web::{HttpResponse, web};
use serde::Serialize;

/// What a hash names never changes, so a reader may keep it: a day.
const KEPT: &str = "private, max-age=86400, immutable";

#[derive(Serialize)]
struct Named<'d> {
    hash: DefinitionHash,
    #[serde(flatten)]
    definition: DefinitionView<'d>,
}

/// `GET /api/definition/{hash}`: a definition that is loaded, or that a kept job runs.
pub(super) async fn by_hash(
    common: web::Data<Common>,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    query.none()?;
    let hash: DefinitionHash =
        path.parse().map_err(|error: InvalidHash| Problem::malformed(error.to_string()))?;
    let loaded = common.definitions().values().find(|loaded| loaded.hash() == hash).cloned();
    let kept = match loaded {
        Some(loaded) => Some(loaded),
        None => read(&common, move |reader| reader.definition(hash)).await?,
    };
    let definition = kept.ok_or_else(|| {
        Problem::not_found(format!(
            "no definition {hash} is loaded, and no job that is kept runs it; the light view of a \
             job names its definition"
        ))
    })?;
    Ok(HttpResponse::Ok()
        .insert_header((header::CACHE_CONTROL, KEPT))
        .json(Named { hash, definition: DefinitionView::of(&definition) }))
}
