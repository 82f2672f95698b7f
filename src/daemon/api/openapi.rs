//! The OpenAPI 3.1 document of the API, served at `/openapi.json`. [`operation_list`] describes the
//! operations; the schemas come from the types of the responses.

mod operation_list;
mod operation_spec;
mod parameters;

use super::problem::{Problem, ProblemDetails};
use super::query::Query;
use actix_web::HttpResponse;
use bytes::Bytes;
use operation_spec::Schemas;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// The serialised document.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| build_document().to_string().into());

/// Handles `GET /openapi.json`.
pub(super) async fn get_document(query: Query) -> Result<HttpResponse, Problem> {
    query.check_empty()?;
    Ok(HttpResponse::Ok().content_type(mime::APPLICATION_JSON).body(DOCUMENT.clone()))
}

fn build_document() -> Value {
    let mut schemas = Schemas::default();
    schemas.reference::<ProblemDetails<'_>>();
    let mut paths: Map<String, Value> = Map::new();
    for operation in operation_list::all_operations(&mut schemas) {
        let path = paths.entry(operation.path.clone()).or_insert_with(|| json!({}));
        path[operation.method] = operation.to_openapi();
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "workflow-manager",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "Coordinates jobs over independent services through a message bus",
            "description": "Every call refuses parameters that it does not know, but for `_`, \
                            which is ignored. A key that means nothing in an answer is left out. \
                            Errors are problem details (RFC 9457).",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        // Only the manager itself, whatever its address is.
        "servers": [{ "url": "/" }],
        // A token is required only if one is set.
        "security": [{}, { "token": [] }],
        "tags": operation_list::TAGS
            .map(|(name, description)| json!({ "name": name, "description": description })),
        "paths": paths,
        "components": {
            "schemas": schemas.into_components(),
            "responses": operation_spec::problem_responses(),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "One of the settings http.token, http.tokens, http.tokens_file \
                                    and http.workers. GET needs the scope read; DELETE, \
                                    /api/jobs/delete and /api/reload need admin; the calls of \
                                    workers need their queue; others need operate",
                },
            },
        },
    })
}
