//! Shows the principal of a request, which [`super::token`] has authenticated.

use super::problem::Problem;
use super::query::Query;
use super::route::*;
use crate::access::Principal;
use crate::api::state::ApiState;
use crate::settings::Scope;
use actix_web::dev::Payload;
use actix_web::{Error, FromRequest, HttpMessage, HttpRequest, HttpResponse, web};
use serde::Serialize;
use std::future::{Ready, ready};
use std::sync::Arc;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] = &[ApiRoute::get("/api/whoami", || web::to(whoami))
    .needing(Access::AnyToken)
    .operation(|schemas| {
        OperationSpec::new(
            "whoami",
            "manager",
            "The principal of the request, and what its token allows",
        )
        .with_json_response(200, "The token", schemas.reference::<WhoamiView>())
    })];

/// The name of a request's token, which job records keep. `None`: requests need no token.
pub(super) struct PrincipalName(pub Option<Arc<str>>);

impl FromRequest for PrincipalName {
    type Error = Error;
    type Future = Ready<Result<PrincipalName, Error>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let name =
            request.extensions().get::<Principal>().and_then(|principal| principal.name.clone());
        ready(Ok(PrincipalName(name)))
    }
}

/// Who sends a request, and what the token allows.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Whoami)]
struct WhoamiView {
    /// Whether requests need a token.
    asks_for_token: bool,
    /// The name of the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    name: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<Scope>,
    /// The queues whose messages the token allows to lease and settle, besides those that its
    /// scope allows.
    #[schema(value_type = Vec<String>)]
    queues: Arc<[String]>,
    /// The virtual host of these queues. Absent: the one of workflows that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    vhost: Option<Arc<str>>,
}

/// Shows who the sender of the request is.
async fn whoami(
    api: web::Data<ApiState>,
    request: HttpRequest,
    query: Query,
) -> Result<HttpResponse, Problem> {
    query.check_empty()?;
    let principal = request.extensions().get::<Principal>().cloned();
    let Principal { name, scope, queues, vhost, .. } =
        principal.ok_or_else(|| Problem::internal("nobody has sent this".to_owned()))?;
    let asks_for_token = api.access.tokens().is_token_required();
    let vhost = Some(vhost).filter(|vhost| !vhost.is_empty());
    Ok(HttpResponse::Ok().json(WhoamiView { asks_for_token, name, scope, queues, vhost }))
}
