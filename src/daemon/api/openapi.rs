//! Builds the OpenAPI 3.1 document of the API, which is served at `/openapi.json`. The routes
//! describe their operations, and the schemas are derived from the types of the responses.

pub(super) mod operation_spec;
pub(super) mod parameters;

use super::problem::ProblemDetails;
use super::route::{Access, ApiRoute, RouteMethod, Schemas};
use crate::settings::Scope;
use serde_json::{Map, Value, json};

/// The groups of operations, each with a description.
const TAGS: [(&str, &str); 6] = [
    ("workflows", "Workflows and their definitions"),
    ("jobs", "Active and ended jobs"),
    ("operations", "Operations on jobs"),
    ("workers", "Messages and replies of workers without a broker"),
    ("events", "Streams of events"),
    ("manager", "The manager itself"),
];

/// Builds the OpenAPI document of these routes.
pub(super) fn build_document(routes: &[ApiRoute]) -> Value {
    let mut schemas = Schemas::default();
    schemas.reference::<ProblemDetails<'_>>();
    let mut paths: Map<String, Value> = Map::new();
    let mut admin_paths = Vec::new();
    for route in routes {
        if route.method == RouteMethod::Post && route.access == Access::Scope(Scope::Admin) {
            admin_paths.push(route.path);
        }
        let key = route.method.properties().key;
        for (path, operation) in route.describe(&mut schemas) {
            let operation = operation.to_openapi(&path);
            paths.entry(path).or_insert_with(|| json!({}))[key] = operation;
        }
    }
    admin_paths.sort_unstable();
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
        // The manager itself: the URL is relative to the address of the document.
        "servers": [{ "url": "/" }],
        // A token is optional, because the manager may be configured without tokens.
        "security": [{}, { "token": [] }],
        "tags": TAGS
            .map(|(name, description)| json!({ "name": name, "description": description })),
        "paths": paths,
        "components": {
            "schemas": schemas.into_components(),
            "responses": operation_spec::problem_responses(),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": format!(
                        "One of the settings http.token, http.tokens, http.tokens_file and \
                         http.workers. GET needs the scope read; DELETE, {} need admin; the calls \
                         of workers need their queue; others need operate",
                        admin_paths.join(" and ")
                    ),
                },
            },
        },
    })
}
