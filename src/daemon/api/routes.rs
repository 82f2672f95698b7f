//! The one list of the API's routes. Each stands beside its handler, in the `ROUTES` of its module.
//! From the list follow the routing, the methods that a 405 names, what a request needs, and the
//! OpenAPI document.

use super::problem::Problem;
use super::query::Query;
use super::route::{Access, ApiRoute, OperationSpec, any_object_schema, not_found};
use super::{
    children, definitions, events, guard, history, items, jobs, manager, observe, openapi,
    operations, page, principal, queues, redispatch, search, status, step, token, why, worker,
    workflows,
};
use crate::api::state::ApiState;
use crate::settings::HttpSettings;
use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header;
use actix_web::middleware::{Next, from_fn};
use actix_web::{Error, HttpRequest, HttpResponse, Route, web};
use bytes::Bytes;
use std::sync::LazyLock;

/// All routes, those of a path together. A path comes before those that match what it matches.
static ALL_ROUTES: LazyLock<Vec<ApiRoute>> = LazyLock::new(|| {
    let mut routes = [
        OTHER_ROUTES,
        children::ROUTES,
        definitions::ROUTES,
        events::ROUTES,
        history::ROUTES,
        items::ROUTES,
        jobs::ROUTES,
        manager::ROUTES,
        observe::ROUTES,
        operations::ROUTES,
        page::ROUTES,
        principal::ROUTES,
        queues::ROUTES,
        redispatch::ROUTES,
        search::ROUTES,
        status::ROUTES,
        step::ROUTES,
        why::ROUTES,
        worker::ROUTES,
        workflows::ROUTES,
    ]
    .concat();
    routes.sort_by_cached_key(|route| (route.generality(), route.path, route.method));
    routes
});

const OTHER_ROUTES: &[ApiRoute] = &[
    ApiRoute::get("/api", || web::to(redirect_to_api)).without_slash().without_operation(),
    ApiRoute::get("/openapi.json", || web::to(get_document)).operation(|_| {
        let operation = OperationSpec::new("openapi", "manager", "This document");
        operation.with_json_response(200, "The document", any_object_schema())
    }),
];

/// The OpenAPI document, serialised.
static DOCUMENT: LazyLock<Bytes> =
    LazyLock::new(|| openapi::build_document(&ALL_ROUTES).to_string().into());

/// Adds all routes, and what is answered on all other paths.
pub(super) fn add_routes(config: &mut web::ServiceConfig, http: &HttpSettings) {
    for routes in ALL_ROUTES.chunk_by(|one, next| one.path == next.path) {
        let [first, ..] = routes else { continue };
        if first.access == Access::Page && !http.page {
            continue;
        }
        let wrong_method =
            web::to(move |request: HttpRequest| async move { refuse_method(routes, &request) });
        let mut resource =
            web::resource(first.patterns()).default_service(wrap(wrong_method, routes));
        for route in routes {
            resource = resource.route(wrap(route.to_route(), routes));
        }
        config.service(resource);
    }
    config.default_service(wrap(web::to(not_found), &[]));
}

/// Wraps what answers on a path in the middleware. Requests pass it in reverse order: the last
/// `wrap` comes first.
fn wrap(route: Route, routes: &'static [ApiRoute]) -> Route {
    route
        .wrap(from_fn(move |request: ServiceRequest, next| {
            token::authorise(Access::find(routes, request.method()), request, next)
        }))
        .wrap(from_fn(move |request: ServiceRequest, next| {
            guard::reject_foreign_origins(Access::find(routes, request.method()), request, next)
        }))
        .wrap(from_fn(count_requests))
        .wrap(from_fn(move |request: ServiceRequest, next| {
            guard::finish_response(Access::find(routes, request.method()), request, next)
        }))
}

async fn get_document(query: Query) -> Result<HttpResponse, Problem> {
    query.check_empty()?;
    Ok(HttpResponse::Ok().content_type(mime::APPLICATION_JSON).body(DOCUMENT.clone()))
}

async fn redirect_to_api() -> HttpResponse {
    HttpResponse::MovedPermanently().insert_header((header::LOCATION, "/api/")).finish()
}

fn refuse_method(routes: &[ApiRoute], request: &HttpRequest) -> Problem {
    let methods: Vec<&str> = routes.iter().map(|route| route.method.properties().1).collect();
    let allowed = methods.join(", ");
    let detail =
        format!("{} is not possible on {}, only {allowed}", request.method(), request.path());
    Problem::method_not_allowed(allowed, detail)
}

async fn count_requests(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let api = request.app_data::<web::Data<ApiState>>().cloned();
    let response = next.call(request).await?;
    if let Some(api) = api {
        api.metrics.requests.with_label_values(&[response.status().as_str()]).inc();
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::super::route::Operations;
    use super::*;
    use crate::settings::Scope;
    use actix_web::dev::ResourceDef;
    use actix_web::http::Method;
    use std::collections::BTreeSet;

    #[test]
    fn what_erases_or_replaces_needs_more_than_what_does_not() {
        let (read, operate, admin) = (
            Access::Scope(Scope::Read),
            Access::Scope(Scope::Operate),
            Access::Scope(Scope::Admin),
        );
        for (method, path, expected) in [
            (Method::GET, "/readyz", Access::Health),
            (Method::GET, "/", Access::Page),
            (Method::GET, "/metrics", read),
            (Method::GET, "/api/settings", read),
            (Method::GET, "/api/whoami", Access::AnyToken),
            (Method::GET, "/nowhere", read),
            (Method::POST, "/api/workflow/chain", operate),
            (Method::POST, "/api/job/x/cancel", operate),
            (Method::POST, "/api/jobs/retry", operate),
            (Method::POST, "/api/queue/price/redispatch", operate),
            (Method::PUT, "/api/job/x", operate),
            (Method::POST, "/api/jobs/delete", admin),
            (Method::POST, "/api/jobs/delete/", admin),
            (Method::POST, "/api/reload", admin),
            (Method::PUT, "/api/reload", admin),
            (Method::DELETE, "/api/job/x", admin),
            (Method::POST, "/api/queue/price/receive", Access::Queue),
            (Method::GET, "/api/queue/price/receive/", Access::Queue),
            (Method::POST, "/api/queue/a%20b%2Fc/message/x/1/reply", Access::Queue),
            (Method::POST, "/api/queue/price/message/x", Access::Queue),
            (Method::POST, "/api/queue/price", operate),
            (Method::POST, "/api/queues", operate),
            (Method::POST, "/api/job/price/receive", operate),
            (Method::POST, "//api/queue/price/receive", operate),
        ] {
            let mut paths = ALL_ROUTES.chunk_by(|one, next| one.path == next.path);
            let routes = paths.find(|routes| ResourceDef::new(routes[0].patterns()).is_match(path));
            assert_eq!(Access::find(routes.unwrap_or_default(), &method), expected, "{path}");
        }
    }

    #[test]
    fn all_calls_but_these_are_described() {
        let without =
            ALL_ROUTES.iter().filter(|route| matches!(route.operations, Operations::None));
        let without: BTreeSet<&str> = without.map(|route| route.path).collect();
        let pages = ["/", "/assets/{path:.*}"];
        let other_names = ["/api", "/api/workflows/{rest:.*}"];
        let leading_nowhere = ["/assets/{name}/{path:.*}", "/api/queue/{queue}/message/{path:.*}"];
        let expected = [pages, other_names, leading_nowhere].into_iter().flatten();
        assert_eq!(without, expected.collect());
    }
}
