//! Builds the actix-web application: the routes, each wrapped in its middleware.

use super::routes::add_routes;
use super::state::ApiState;
use actix_web::body::BoxBody;
use actix_web::dev::{ServiceFactory, ServiceRequest, ServiceResponse};
use actix_web::{App, Error, web};
use std::sync::Arc;

/// Builds the application. Each worker thread of the server needs one.
pub fn app(
    api: Arc<ApiState>,
) -> App<
    impl ServiceFactory<
        ServiceRequest,
        Config = (),
        Response = ServiceResponse<BoxBody>,
        Error = Error,
        InitError = (),
    >,
> {
    let http = api.settings.http.clone();
    App::new().app_data(web::Data::from(api)).configure(move |config| add_routes(config, &http))
}
