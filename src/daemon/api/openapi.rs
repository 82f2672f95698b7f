//! The OpenAPI 3.1 document of the API, served at `/openapi.json`. The routes describe their
//! operations; the schemas come from the types of the responses.

pub(super) mod operation_spec;
pub(super) mod parameters;

use super::problem::ProblemDetails;
use super::route::{Access, ApiRoute, RouteMethod, Schemas};
use crate::settings::Scope;
use serde_json::{Map, Value, json};

/// The groups of operations.
const TAGS: [(&str, &str); 6] = [
    ("workflows", "What can be run"),
    ("jobs", "What runs and has run"),
    ("operations", "What can be done with jobs"),
    ("workers", "Messages and replies of workers without a broker"),
    ("events", "What happens, as it happens"),
    ("manager", "The manager itself"),
];

/// Builds the document of these routes.
pub(super) fn build_document(routes: &[ApiRoute]) -> Value {
    let mut schemas = Schemas::default();
    schemas.reference::<ProblemDetails<'_>>();
    let mut paths: Map<String, Value> = Map::new();
    let mut for_admins = Vec::new();
    for route in routes {
        if route.method == RouteMethod::Post && route.access == Access::Scope(Scope::Admin) {
            for_admins.push(route.path);
        }
        let (key, ..) = route.method.properties();
        for (path, operation) in route.describe(&mut schemas) {
            let operation = operation.to_openapi(&path);
            paths.entry(path).or_insert_with(|| json!({}))[key] = operation;
        }
    }
    for_admins.sort_unstable();
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
                        for_admins.join(" and ")
                    ),
                },
            },
        },
    })
}
