//! The HTTP API (docs/http-api.md): routes, authorisation, and the server. The handlers are in
//! modules such as [`jobs`], [`status`] and [`observe`].

mod active_jobs;
mod children;
mod connection;
mod connection_limits;
mod connection_slots;
mod definitions;
pub mod events;
mod first_head;
#[cfg(feature = "grpc")]
pub mod grpc;
mod guard;
mod history;
mod items;
pub mod jobs;
mod leases;
mod manager;
pub mod observe;
mod openapi;
pub mod operations;
mod page;
mod principal;
mod problem;
mod query;
mod queues;
mod reads;
pub mod redispatch;
mod request_body;
mod resolve;
mod search;
mod server;
mod socket;
pub mod status;
mod step;
mod token;
mod topic;
pub mod why;
mod why_text;
mod worker;
mod workflows;

use crate::actors::common::Common;
use crate::actors::handles::ActorHandles;
use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceFactory, ServiceRequest, ServiceResponse};
use actix_web::http::header;
use actix_web::middleware::{Next, from_fn};
use actix_web::{App, Error, HttpRequest, HttpResponse, Resource, Route};
use actix_web::{guard as method, web};
pub use problem::Problem;
pub use server::{bind, serve, serve_at};
use std::sync::Arc;

/// Makes the application. Requests pass its middleware in reverse order: the last `wrap` comes
/// first.
pub fn app(
    handles: Arc<ActorHandles>,
) -> App<
    impl ServiceFactory<
        ServiceRequest,
        Config = (),
        Response = ServiceResponse<BoxBody>,
        Error = Error,
        InitError = (),
    >,
> {
    let http = handles.common.settings.http.clone();
    App::new()
        .app_data(web::Data::from(handles.common.clone()))
        .app_data(web::Data::from(handles))
        .wrap(from_fn(token::authorise))
        .wrap(from_fn(guard::reject_foreign_origins))
        .wrap(from_fn(count_requests))
        .wrap(from_fn(guard::finish_response))
        .configure(move |config| {
            page::page_routes(&http).into_iter().for_each(|route| add_route(config, route))
        })
        .configure(add_routes)
}

fn add_route(config: &mut web::ServiceConfig, route: Resource) {
    config.service(route);
}

#[allow(clippy::too_many_lines, reason = "one list of routes")]
fn add_routes(config: &mut web::ServiceConfig) {
    config
        .service(resource("/livez", "GET, HEAD").route(get().to(observe::liveness)))
        .service(resource("/readyz", "GET, HEAD").route(get().to(observe::readiness)))
        .service(resource("/metrics", "GET, HEAD").route(get().to(observe::get_metrics)))
        .service(resource("/openapi.json", "GET, HEAD").route(get().to(openapi::get_document)))
        .service(resource_at(vec!["/api".to_owned()], "GET, HEAD").route(get().to(redirect_to_api)))
        .service(resource("/api/workflows", "GET, HEAD").route(get().to(workflows::list_workflows)))
        .service(
            resource("/api/workflows/{rest:.*}", "GET, HEAD")
                .route(get().to(workflows::list_workflows)),
        )
        .service(
            resource("/api/definitions", "GET, HEAD")
                .route(get().to(definitions::list_definitions)),
        )
        .service(
            resource("/api/workflow/{name:.*}", "GET, HEAD, POST")
                .route(get().to(jobs::list_jobs_of_workflow))
                .route(web::post().to(jobs::create_job)),
        )
        .service(resource("/api/jobs", "GET, HEAD").route(get().to(jobs::list_running_jobs)))
        .service(resource("/api/events", "GET, HEAD").route(get().to(events::stream_all)))
        .service(resource("/api/queues", "GET, HEAD").route(get().to(queues::list_queues)))
        .service(resource("/api/queue/{queue}", "GET, HEAD").route(get().to(queues::get_queue)))
        .service(resource("/api/manager", "GET, HEAD").route(get().to(manager::get_manager)))
        .service(resource("/api/whoami", "GET, HEAD").route(get().to(principal::whoami)))
        .service(resource("/api/settings", "GET, HEAD").route(get().to(manager::get_settings)))
        .service(resource("/api/job/{id}/events", "GET, HEAD").route(get().to(events::stream_job)))
        .service(resource("/api/reload", "POST").route(web::post().to(operations::reload_files)))
        .service(resource("/api/jobs/search", "GET, HEAD").route(get().to(search::search_jobs)))
        .service(
            resource("/api/jobs/{operation}", "POST")
                .route(web::post().to(operations::operate_on_all)),
        )
        .service(
            resource("/api/job/{id}/children", "GET, HEAD")
                .route(get().to(children::list_children)),
        )
        .service(
            resource("/api/job/{id}/entries", "GET, HEAD").route(get().to(history::list_entries)),
        )
        .service(resource("/api/job/{id}/message", "GET, HEAD").route(get().to(step::get_message)))
        .service(
            resource("/api/job/{id}/result", "GET, HEAD").route(get().to(jobs::get_job_result)),
        )
        .service(resource("/api/job/{id}/why", "GET, HEAD").route(get().to(why::get_why)))
        .service(
            resource("/api/job/{id}/step/{step}/redispatch", "POST")
                .route(web::post().to(redispatch::redispatch_step)),
        )
        .service(
            resource("/api/queue/{queue}/redispatch", "POST")
                .route(web::post().to(redispatch::redispatch_queue)),
        )
        .service(
            resource("/api/queue/{queue}/receive", "POST")
                .route(web::post().to(worker::receive_messages)),
        )
        .service(
            resource("/api/queue/{queue}/message/{message}/{delivery}/reply", "POST")
                .route(web::post().to(worker::reply)),
        )
        .service(
            resource("/api/queue/{queue}/message/{message}/{delivery}/extend", "POST")
                .route(web::post().to(worker::extend)),
        )
        .service(
            resource("/api/queue/{queue}/message/{message}/{delivery}/nack", "POST")
                .route(web::post().to(worker::nack)),
        )
        .service(
            resource("/api/job/{id}/step/{step}", "GET, HEAD, POST")
                .route(get().to(step::get_step))
                .route(web::post().to(operations::reply_by_hand)),
        )
        .service(
            resource("/api/job/{id}/step/{step}/input", "GET, HEAD")
                .route(get().to(step::get_input)),
        )
        .service(
            resource("/api/job/{id}/step/{step}/output", "GET, HEAD")
                .route(get().to(step::get_output)),
        )
        .service(
            resource("/api/job/{id}/step/{step}/items", "GET, HEAD")
                .route(get().to(items::get_items)),
        )
        .service(
            resource("/api/definition/{hash}", "GET, HEAD")
                .route(get().to(definitions::get_definition)),
        )
        .service(
            resource("/api/job/{id}/{operation}", "POST")
                .route(web::post().to(operations::operate)),
        )
        .service(
            resource("/api/job/{id:.*}", "GET, HEAD, DELETE")
                .route(get().to(jobs::get_job))
                .route(web::delete().to(jobs::cancel_or_erase)),
        )
        .service(
            resource("/api/status/{name:.*}", "GET, HEAD").route(get().to(status::list_statuses)),
        )
        .default_service(web::to(not_found));
}

/// Makes a route for GET and for HEAD, whose responses [`guard::finish_response`] reduces to the
/// head.
fn get() -> Route {
    web::route().guard(method::Any(method::Get()).or(method::Head()))
}

/// Makes a resource for a path, with and without a slash at its end. Methods other than `allowed`
/// are answered 405.
fn resource(path: &str, allowed: &'static str) -> Resource {
    // The handler of a path that ends in a wildcard removes the slash itself.
    let paths = if path.ends_with(".*}") {
        vec![path.to_owned()]
    } else {
        vec![path.to_owned(), format!("{path}/")]
    };
    resource_at(paths, allowed)
}

/// Makes a resource for exactly these paths. Methods other than `allowed` are answered 405.
fn resource_at(paths: Vec<String>, allowed: &'static str) -> Resource {
    let wrong_method = move |request: HttpRequest| async move {
        Problem::method_not_allowed(
            allowed,
            format!("{} is not possible on {}, only {allowed}", request.method(), request.path()),
        )
    };
    web::resource(paths).default_service(web::to(wrong_method))
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

async fn count_requests(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let common = request.app_data::<web::Data<Common>>().cloned();
    let response = next.call(request).await?;
    if let Some(common) = common {
        common.metrics.requests.with_label_values(&[response.status().as_str()]).inc();
    }
    Ok(response)
}
