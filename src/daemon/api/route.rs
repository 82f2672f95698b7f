//! Defines API routes: path, method, handler, required access, and description for the OpenAPI
//! document.

pub(super) use super::openapi::operation_spec::*;
pub(super) use super::openapi::parameters::*;
use super::problem::Problem;
use crate::settings::Scope;
use actix_web::http::Method;
use actix_web::{HttpRequest, Route, guard, web};

/// A path pattern and a method, with the handler, the access that a request requires, and the
/// operations that the route serves.
#[derive(Clone, Copy)]
pub(super) struct ApiRoute {
    pub(super) method: RouteMethod,
    pub(super) path: &'static str,
    pub(super) access: Access,
    handler: fn() -> Route,
    /// Whether the path also matches with a slash at its end.
    allows_slash: bool,
    pub(super) operations: Operations,
    pub(super) server: Server,
}

/// Which processes serve a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    /// The active one alone: it needs jobs, buses or workers. A standby answers 503.
    Active,
    /// A standby too, from the database.
    Any,
}

/// The method of a route.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RouteMethod {
    /// GET and HEAD. [`super::guard::finish_response`] removes the body for HEAD.
    Get,
    Post,
    Delete,
    /// Every method, for a path that is always answered 404.
    Any,
}

/// The properties of a route that follow from its method.
pub(super) struct MethodProperties {
    /// The key of the method in the OpenAPI document.
    pub(super) key: &'static str,
    /// The names of the method for the header `Allow`.
    pub(super) allow: &'static str,
    /// The scope that a request requires, unless the route sets another access.
    scope: Scope,
    /// Who serves a request, unless the route sets it.
    server: Server,
}

/// Who may call a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Anybody, and under any host name. For probes.
    Health,
    /// Anybody, and from pages of other sites. For the files of the page.
    Page,
    /// Any token.
    AnyToken,
    /// A token for the queue in the path.
    Queue,
    /// A token with this scope.
    Scope(Scope),
}

/// The operations of a route in the OpenAPI document.
#[derive(Clone, Copy)]
pub(super) enum Operations {
    /// The document does not have the route.
    None,
    One(fn(&mut Schemas) -> OperationSpec),
    /// One for each of these names in place of `{operation}`. Each name has a summary.
    Each(&'static [(&'static str, &'static str)], DescribeNamed),
}

/// Describes the operation with this name and summary.
pub(super) type DescribeNamed = fn(&str, &str, &mut Schemas) -> OperationSpec;

/// A route whose operations are not described yet.
pub(super) struct UndescribedRoute(ApiRoute);

impl ApiRoute {
    /// Makes a route for GET and HEAD.
    pub(super) const fn get(path: &'static str, handler: fn() -> Route) -> UndescribedRoute {
        UndescribedRoute::new(RouteMethod::Get, path, handler)
    }

    /// Makes a route for POST.
    pub(super) const fn post(path: &'static str, handler: fn() -> Route) -> UndescribedRoute {
        UndescribedRoute::new(RouteMethod::Post, path, handler)
    }

    /// Makes a route for DELETE.
    pub(super) const fn delete(path: &'static str, handler: fn() -> Route) -> UndescribedRoute {
        UndescribedRoute::new(RouteMethod::Delete, path, handler)
    }

    /// Makes a route that is answered 404, but only to requests with this access.
    pub(super) const fn unassigned(path: &'static str, access: Access) -> ApiRoute {
        UndescribedRoute::new(RouteMethod::Any, path, || web::to(not_found))
            .needing(access)
            .without_operation()
    }

    /// Describes the operations of the route. Returns each with its path.
    pub(super) fn describe(&self, schemas: &mut Schemas) -> Vec<(String, OperationSpec)> {
        let path = self.path.replace(":.*}", "}");
        match self.operations {
            Operations::None => Vec::new(),
            Operations::One(describe) => vec![(path, describe(schemas))],
            Operations::Each(names, describe) => names
                .iter()
                .map(|(name, summary)| {
                    (path.replace("{operation}", name), describe(name, summary, schemas))
                })
                .collect(),
        }
    }

    /// Returns how general each segment of the path is: 0 for a fixed segment, 1 for a parameter, 2
    /// for a wildcard.
    pub(super) fn generality(&self) -> Vec<u8> {
        let segments = self.path.split('/');
        segments
            .map(|segment| segment.starts_with('{') as u8 + segment.ends_with(".*}") as u8)
            .collect()
    }

    /// Returns the patterns that the router matches: the path, with and without a slash at its end.
    pub(super) fn patterns(&self) -> Vec<String> {
        // The handler of a path that ends in a wildcard removes the slash itself.
        if self.allows_slash && !self.path.ends_with(".*}") && self.path != "/" {
            vec![self.path.to_owned(), format!("{}/", self.path)]
        } else {
            vec![self.path.to_owned()]
        }
    }

    /// Makes the actix-web route.
    pub(super) fn to_route(self) -> Route {
        let route = (self.handler)();
        match self.method {
            RouteMethod::Get => route.guard(guard::Any(guard::Get()).or(guard::Head())),
            RouteMethod::Post => route.guard(guard::Post()),
            RouteMethod::Delete => route.guard(guard::Delete()),
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
        let access = Access::Scope(method.properties().scope);
        let (operations, server) = (Operations::None, method.properties().server);
        let allows_slash = true;
        UndescribedRoute(ApiRoute {
            method,
            path,
            access,
            handler,
            allows_slash,
            operations,
            server,
        })
    }

    /// Makes the route one that only the active process serves, although it changes nothing.
    pub(super) const fn by_active(self) -> UndescribedRoute {
        UndescribedRoute(ApiRoute { server: Server::Active, ..self.0 })
    }

    /// Makes the route one that a standby serves too, although it is no read: it changes nothing.
    pub(super) const fn by_any(self) -> UndescribedRoute {
        UndescribedRoute(ApiRoute { server: Server::Any, ..self.0 })
    }

    /// Sets who may call the route. The default follows from the method.
    pub(super) const fn needing(self, access: Access) -> UndescribedRoute {
        UndescribedRoute(ApiRoute { access, ..self.0 })
    }

    /// Makes the path match only without a slash at its end.
    pub(super) const fn without_slash(self) -> UndescribedRoute {
        UndescribedRoute(ApiRoute { allows_slash: false, ..self.0 })
    }

    /// Sets the function that describes the operation.
    pub(super) const fn operation(self, describe: fn(&mut Schemas) -> OperationSpec) -> ApiRoute {
        ApiRoute { operations: Operations::One(describe), ..self.0 }
    }

    /// Sets the function that describes an operation for each of these names in place of
    /// `{operation}`. Each name has a summary.
    pub(super) const fn operation_for_each(
        self,
        names: &'static [(&'static str, &'static str)],
        describe: DescribeNamed,
    ) -> ApiRoute {
        ApiRoute { operations: Operations::Each(names, describe), ..self.0 }
    }

    /// Leaves the route out of the OpenAPI document: it is not an operation, or only an alias of
    /// one.
    pub(super) const fn without_operation(self) -> ApiRoute {
        self.0
    }
}

impl RouteMethod {
    /// Returns the method of routes that decides which access a request with this method requires.
    fn from_request(method: &Method) -> RouteMethod {
        match *method {
            Method::GET | Method::HEAD | Method::OPTIONS => RouteMethod::Get,
            Method::DELETE => RouteMethod::Delete,
            _ => RouteMethod::Post,
        }
    }

    /// Returns the properties that follow from the method.
    pub(super) const fn properties(self) -> MethodProperties {
        let (key, allow, scope, server) = match self {
            RouteMethod::Get => ("get", "GET, HEAD", Scope::Read, Server::Any),
            RouteMethod::Post => ("post", "POST", Scope::Operate, Server::Active),
            // An erased job cannot be restored.
            RouteMethod::Delete => ("delete", "DELETE", Scope::Admin, Server::Active),
            RouteMethod::Any => ("", "", Scope::Admin, Server::Any),
        };
        MethodProperties { key, allow, scope, server }
    }
}

impl Access {
    /// Returns the access that a request requires, from its method and the routes of its path. If
    /// no route of the path has the method, the access of the first route applies, unless that is a
    /// scope. Otherwise the request requires the scope of its method.
    pub(super) fn find(routes: &[ApiRoute], method: &Method) -> Access {
        let method = RouteMethod::from_request(method);
        let fallback = routes.first().filter(|route| !matches!(route.access, Access::Scope(_)));
        let route = routes.iter().find(|route| route.method == method).or(fallback);
        route.map_or(Access::Scope(method.properties().scope), |route| route.access)
    }
}

impl Server {
    /// Finds who serves a request with this method, among the routes of its path. A method that no
    /// route has is refused by any process.
    pub(super) fn find(routes: &[ApiRoute], method: &Method) -> Server {
        let method = RouteMethod::from_request(method);
        let route = routes.iter().find(|route| route.method == method);
        route.map_or(Server::Any, |route| route.server)
    }
}

/// Returns the 404 for a path without a route.
pub(super) async fn not_found(request: HttpRequest) -> Problem {
    Problem::not_found(format!(
        "there is nothing at {}; the API is described in docs/reference/http-api.md",
        request.path()
    ))
}
