//! Collects the routes of the API. Each route is defined beside its handler, in the `ROUTES` of its
//! module. The routing, the methods that a 405 names, the required access of a request, and the
//! OpenAPI document are derived from this list.

use super::problem::Problem;
use super::query::Query;
use super::route::{Access, ApiRoute, OperationSpec, any_object_schema, not_found};
use super::{
    check, children, controls, definitions, events, guard, history, inbox, items, jobs, limits,
    manager, misdirected, observe, openapi, operations, page, principal, queues, reasons,
    redispatch, refill, replies, schedules, search, status, step, step_down, token, trends, why,
    worker, workflows,
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

/// All routes, grouped by path. Specific paths precede general ones, because the router takes the
/// first match.
static ALL_ROUTES: LazyLock<Vec<ApiRoute>> = LazyLock::new(|| {
    let mut routes = [
        OTHER_ROUTES,
        check::ROUTES,
        children::ROUTES,
        controls::ROUTES,
        definitions::ROUTES,
        events::ROUTES,
        history::ROUTES,
        inbox::ROUTES,
        items::ROUTES,
        jobs::ROUTES,
        limits::ROUTES,
        manager::ROUTES,
        observe::ROUTES,
        operations::ROUTES,
        page::ROUTES,
        principal::ROUTES,
        queues::ROUTES,
        reasons::ROUTES,
        redispatch::ROUTES,
        refill::ROUTES,
        replies::ROUTES,
        schedules::ROUTES,
        search::ROUTES,
        status::ROUTES,
        step::ROUTES,
        step_down::ROUTES,
        trends::ROUTES,
        why::ROUTES,
        worker::ROUTES,
        workflows::ROUTES,
    ]
    .concat();
    routes.sort_by_cached_key(|route| (route.generality(), route.path, route.method));
    routes
});

/// The routes that belong to no other module.
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

/// Adds all routes, and the 404 for all other paths.
pub(super) fn add_routes(config: &mut web::ServiceConfig, http: &HttpSettings) {
    for routes in ALL_ROUTES.chunk_by(|route, next| route.path == next.path) {
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

/// Wraps a route in the middleware. A request passes the last `wrap` first.
fn wrap(route: Route, routes: &'static [ApiRoute]) -> Route {
    route
        .wrap(from_fn(misdirected::refer_to_other_name))
        .wrap(from_fn(move |request: ServiceRequest, next| {
            guard::refuse_on_standby(routes, request, next)
        }))
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

/// Serves the OpenAPI document.
async fn get_document(query: Query) -> Result<HttpResponse, Problem> {
    query.check_empty()?;
    Ok(HttpResponse::Ok().content_type(mime::APPLICATION_JSON).body(DOCUMENT.clone()))
}

/// Redirects `/api` to `/api/`.
async fn redirect_to_api() -> HttpResponse {
    HttpResponse::MovedPermanently().insert_header((header::LOCATION, "/api/")).finish()
}

/// Returns the 405 for a path that has only these routes.
fn refuse_method(routes: &[ApiRoute], request: &HttpRequest) -> Problem {
    let methods: Vec<&str> = routes.iter().map(|route| route.method.properties().allow).collect();
    let allowed = methods.join(", ");
    let detail =
        format!("{} is not possible on {}, only {allowed}", request.method(), request.path());
    Problem::method_not_allowed(allowed, detail)
}

/// Middleware that counts requests by the status of the response.
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
    use super::super::route::{Operations, RouteMethod, Server};
    use super::*;
    use crate::settings::Scope;
    use actix_web::dev::ResourceDef;
    use actix_web::http::Method;
    use std::collections::BTreeSet;

    #[test]
    fn each_request_requires_the_access_of_its_route() {
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
            (Method::POST, "/api/check", read),
            (Method::POST, "/api/workflow/chain", operate),
            (Method::POST, "/api/job/x/cancel", operate),
            (Method::POST, "/api/jobs/retry", operate),
            (Method::POST, "/api/queue/price/redispatch", operate),
            (Method::POST, "/api/queue/price/pause", operate),
            (Method::DELETE, "/api/limits/bank", operate),
            (Method::PUT, "/api/job/x", operate),
            (Method::POST, "/api/jobs/delete", admin),
            (Method::POST, "/api/jobs/delete/", admin),
            (Method::POST, "/api/reload", admin),
            (Method::POST, "/api/manager/step-down", admin),
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
            let mut routes_by_path = ALL_ROUTES.chunk_by(|route, next| route.path == next.path);
            let routes =
                routes_by_path.find(|routes| ResourceDef::new(routes[0].patterns()).is_match(path));
            assert_eq!(Access::find(routes.unwrap_or_default(), &method), expected, "{path}");
        }
    }

    #[test]
    fn a_standby_serves_all_reads_but_those_that_need_the_active_manager() {
        let changes = [RouteMethod::Post, RouteMethod::Delete];
        let (writes, reads): (Vec<&ApiRoute>, Vec<&ApiRoute>) =
            ALL_ROUTES.iter().partition(|route| changes.contains(&route.method));
        let harmless: Vec<&str> = writes
            .iter()
            .filter(|route| route.server == Server::Any)
            .map(|route| route.path)
            .collect();
        assert_eq!(harmless, ["/api/check"]);
        let refused: BTreeSet<&str> = reads
            .iter()
            .filter(|route| route.server == Server::Active)
            .map(|route| route.path)
            .collect();
        let events = ["/api/events", "/api/job/{id}/events"];
        let queues = ["/api/queue/{queue}", "/api/queues"];
        let others = events.into_iter().chain(queues);
        let limits = ["/api/controls", "/api/limits", "/api/limits/{limit}"];
        let others = others.chain(limits).chain(["/api/inbox", "/api/schedules"]);
        assert_eq!(refused, others.collect());
        for (method, expected) in [
            (Method::HEAD, Server::Any),
            (Method::POST, Server::Active),
            (Method::PUT, Server::Active),
        ] {
            let path = "/api/workflow/{name:.*}";
            let mut routes_by_path = ALL_ROUTES.chunk_by(|route, next| route.path == next.path);
            let routes = routes_by_path.find(|routes| routes[0].path == path);
            assert_eq!(Server::find(routes.unwrap_or_default(), &method), expected, "{method}");
        }
    }

    #[test]
    fn only_pages_aliases_and_unassigned_paths_are_undescribed() {
        let undescribed: BTreeSet<&str> = ALL_ROUTES
            .iter()
            .filter(|route| matches!(route.operations, Operations::None))
            .map(|route| route.path)
            .collect();
        let page = ["/", "/assets/{name}/{path:.*}"];
        let aliases = ["/api", "/api/workflows/{rest:.*}"];
        let unassigned = ["/assets/{path:.*}", "/api/queue/{queue}/message/{path:.*}"];
        let expected = [page, aliases, unassigned].into_iter().flatten();
        assert_eq!(undescribed, expected.collect());
    }
}
