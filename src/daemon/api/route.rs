//! What a route of the API is: path, method, handler, who may call it, and its description.

pub(super) use super::openapi::operation_spec::*;
pub(super) use super::openapi::parameters::*;
use super::problem::Problem;
use crate::settings::Scope;
use actix_web::http::Method;
use actix_web::{HttpRequest, Route, guard, web};

/// A method of a path, with its handler, who may call it, and its description.
#[derive(Clone, Copy)]
pub(super) struct ApiRoute {
    pub(super) method: RouteMethod,
    pub(super) path: &'static str,
    pub(super) access: Access,
    handler: fn() -> Route,
    takes_slash: bool,
    pub(super) operations: Operations,
}

/// The method of a route.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RouteMethod {
    /// GET and HEAD: [`super::guard::finish_response`] reduces responses to HEAD to the head.
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
pub(super) enum Operations {
    None,
    One(fn(&mut Schemas) -> OperationSpec),
    /// One for each of these words in place of `{operation}`, with a summary.
    Each(&'static [(&'static str, &'static str)], DescribeWord),
}

pub(super) type DescribeWord = fn(&str, &str, &mut Schemas) -> OperationSpec;

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
    pub(super) fn generality(&self) -> Vec<u8> {
        let parts = self.path.split('/');
        parts.map(|part| part.starts_with('{') as u8 + part.ends_with(".*}") as u8).collect()
    }

    /// Returns what the router matches: the path, with and without a slash at its end.
    pub(super) fn patterns(&self) -> Vec<String> {
        // The handler of a path that ends in a wildcard removes the slash itself.
        if self.takes_slash && !self.path.ends_with(".*}") && self.path != "/" {
            vec![self.path.to_owned(), format!("{}/", self.path)]
        } else {
            vec![self.path.to_owned()]
        }
    }

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
        let access = Access::Scope(method.properties().2);
        let operations = Operations::None;
        UndescribedRoute(ApiRoute { method, path, access, handler, takes_slash: true, operations })
    }

    /// Sets who may call the route, if the method alone does not tell.
    pub(super) const fn needing(self, access: Access) -> UndescribedRoute {
        UndescribedRoute(ApiRoute { access, ..self.0 })
    }

    /// Matches the path only without a slash at its end.
    pub(super) const fn without_slash(self) -> UndescribedRoute {
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

/// Answers that there is nothing at a path.
pub(super) async fn not_found(request: HttpRequest) -> Problem {
    Problem::not_found(format!(
        "there is nothing at {}; the API is described in docs/http-api.md",
        request.path()
    ))
}
