//! The one list of the API's routes. Each stands beside its handler, in the `ROUTES` of its module.
//! From the list follow the routing, the methods that a 405 names, what a request needs, and the
//! OpenAPI document.

pub(super) use super::openapi::{
    OperationSpec, Schemas, any_object_schema, any_of, message_schema, parameters::*, text_schema,
};
use super::problem::Problem;
use super::{
    children, definitions, events, guard, history, items, jobs, manager, observe, openapi,
    operations, page, principal, queues, redispatch, search, status, step, token, why, worker,
    workflows,
};
use crate::api::state::ApiState;
use crate::settings::{HttpSettings, Scope};
use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::{Method, header};
use actix_web::middleware::{Next, from_fn};
use actix_web::{Error, HttpRequest, HttpResponse, Route, guard as method, web};
use std::sync::LazyLock;

/// All routes, those of a path together. A path comes before those that match what it matches.
pub(super) static ALL_ROUTES: LazyLock<Vec<ApiRoute>> = LazyLock::new(|| {
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
        openapi::ROUTES,
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

const OTHER_ROUTES: &[ApiRoute] =
    &[ApiRoute::get("/api", || web::to(redirect_to_api)).without_slash().without_operation()];

/// A method of a path, with its handler, who may call it, and its description.
#[derive(Clone, Copy)]
pub(super) struct ApiRoute {
    pub(super) method: RouteMethod,
    pub(super) path: &'static str,
    pub(super) access: Access,
    handler: fn() -> Route,
    takes_slash: bool,
    operations: Operations,
}

/// The method of a route.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RouteMethod {
    /// GET and HEAD: [`guard::finish_response`] reduces responses to HEAD to the head.
    Get,
    Post,
    Delete,
    /// Every method, of a path that leads nowhere.
    Any,
}

/// Who may call a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Anybody, under any host name: the manager's health.
    Health,
    /// Anybody, also by a link on another site: the files of the page.
    Page,
    /// Any token.
    AnyToken,
    /// A token for the queue in the path.
    Queue,
    /// A token with this scope.
    Scope(Scope),
}

/// The operations of a route in the document.
#[derive(Clone, Copy)]
enum Operations {
    None,
    One(fn(&mut Schemas) -> OperationSpec),
    /// One for each of these words in place of `{operation}`, with a summary.
    Each(&'static [(&'static str, &'static str)], DescribeWord),
}

type DescribeWord = fn(&str, &str, &mut Schemas) -> OperationSpec;

/// A route whose operation is still to be described.
pub(super) struct UndescribedRoute(ApiRoute);

impl ApiRoute {
    /// Makes a route that reads.
    pub(super) const fn get(path: &'static str, handler: fn() -> Route) -> UndescribedRoute {
        UndescribedRoute::new(RouteMethod::Get, path, handler)
    }

    /// Makes a route that changes something.
    pub(super) const fn post(path: &'static str, handler: fn() -> Route) -> UndescribedRoute {
        UndescribedRoute::new(RouteMethod::Post, path, handler)
    }

    /// Makes a route that ends something.
    pub(super) const fn delete(path: &'static str, handler: fn() -> Route) -> UndescribedRoute {
        UndescribedRoute::new(RouteMethod::Delete, path, handler)
    }

    /// Makes a route for paths at which there is nothing, but not for everybody.
    pub(super) const fn nothing(path: &'static str, access: Access) -> ApiRoute {
        UndescribedRoute::new(RouteMethod::Any, path, || web::to(not_found))
            .needing(access)
            .without_operation()
    }

    /// Describes the operations of the route, each with its path.
    pub(super) fn describe(&self, schemas: &mut Schemas) -> Vec<(String, OperationSpec)> {
        let path = self.path.replace(":.*}", "}");
        match self.operations {
            Operations::None => Vec::new(),
            Operations::One(describe) => vec![(path, describe(schemas))],
            Operations::Each(words, describe) => words
                .iter()
                .map(|(word, about)| {
                    (path.replace("{operation}", word), describe(word, about, schemas))
                })
                .collect(),
        }
    }

    /// Returns how general each part of the path is.
    fn generality(&self) -> Vec<u8> {
        let parts = self.path.split('/');
        parts.map(|part| part.starts_with('{') as u8 + part.ends_with(".*}") as u8).collect()
    }

    /// Returns what the router matches: the path, with and without a slash at its end.
    fn patterns(&self) -> Vec<String> {
        // The handler of a path that ends in a wildcard removes the slash itself.
        if self.takes_slash && !self.path.ends_with(".*}") && self.path != "/" {
            vec![self.path.to_owned(), format!("{}/", self.path)]
        } else {
            vec![self.path.to_owned()]
        }
    }

    fn to_route(self) -> Route {
        let route = (self.handler)();
        match self.method {
            RouteMethod::Get => route.guard(method::Any(method::Get()).or(method::Head())),
            RouteMethod::Post => route.guard(method::Post()),
            RouteMethod::Delete => route.guard(method::Delete()),
            RouteMethod::Any => route,
        }
    }
}

impl UndescribedRoute {
    const fn new(
        method: RouteMethod,
        path: &'static str,
        handler: fn() -> Route,
    ) -> UndescribedRoute {
        let access = Access::Scope(method.properties().2);
        let operations = Operations::None;
        UndescribedRoute(ApiRoute { method, path, access, handler, takes_slash: true, operations })
    }

    /// Sets who may call the route, if the method alone does not tell.
    pub(super) const fn needing(self, access: Access) -> UndescribedRoute {
        UndescribedRoute(ApiRoute { access, ..self.0 })
    }

    /// Matches the path only without a slash at its end.
    const fn without_slash(self) -> UndescribedRoute {
        UndescribedRoute(ApiRoute { takes_slash: false, ..self.0 })
    }

    /// Describes the operation.
    pub(super) const fn operation(self, describe: fn(&mut Schemas) -> OperationSpec) -> ApiRoute {
        ApiRoute { operations: Operations::One(describe), ..self.0 }
    }

    /// Describes an operation for each of these words in place of `{operation}`.
    pub(super) const fn operation_for_each(
        self,
        words: &'static [(&'static str, &'static str)],
        describe: DescribeWord,
    ) -> ApiRoute {
        ApiRoute { operations: Operations::Each(words, describe), ..self.0 }
    }

    /// Leaves the route out of the document: it is no operation, or another name of one.
    pub(super) const fn without_operation(self) -> ApiRoute {
        self.0
    }
}

impl RouteMethod {
    fn from_request(method: &Method) -> RouteMethod {
        match *method {
            Method::GET | Method::HEAD | Method::OPTIONS => RouteMethod::Get,
            Method::DELETE => RouteMethod::Delete,
            _ => RouteMethod::Post,
        }
    }

    /// Returns the key in the document, the methods of the header `Allow`, and the scope that is
    /// needed.
    pub(super) const fn properties(self) -> (&'static str, &'static str, Scope) {
        match self {
            RouteMethod::Get => ("get", "GET, HEAD", Scope::Read),
            RouteMethod::Post => ("post", "POST", Scope::Operate),
            // What was deleted cannot be looked at any more.
            RouteMethod::Delete => ("delete", "DELETE", Scope::Admin),
            RouteMethod::Any => ("", "", Scope::Admin),
        }
    }
}

impl Access {
    /// Returns what a request needs, by its method and the routes of its path. A path without a
    /// route for the method needs what its method needs anywhere, unless the scopes do not count
    /// there.
    pub(super) fn find(routes: &[ApiRoute], method: &Method) -> Access {
        let method = RouteMethod::from_request(method);
        let other = routes.first().filter(|other| !matches!(other.access, Access::Scope(_)));
        let route = routes.iter().find(|route| route.method == method).or(other);
        route.map_or(Access::Scope(method.properties().2), |route| route.access)
    }
}

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

async fn redirect_to_api() -> HttpResponse {
    HttpResponse::MovedPermanently().insert_header((header::LOCATION, "/api/")).finish()
}

async fn not_found(request: HttpRequest) -> Problem {
    Problem::not_found(format!(
        "there is nothing at {}; the API is described in docs/http-api.md",
        request.path()
    ))
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
    use super::*;
    use actix_web::dev::ResourceDef;

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
}
