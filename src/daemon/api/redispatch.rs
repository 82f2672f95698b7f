//! Sends step messages again, as the same attempts (docs/http-api.md): those of one step, or of all
//! steps that wait on a queue.

use super::operations::{
    build_request, describe_operation, parse_reason, refusal_problem, respond,
};
use super::principal::PrincipalName;
use super::problem::Problem;
use super::query::{self, Query};
use super::resolve::parse_job_id;
use super::route::*;
use crate::actors::bulk_requests::BulkRedispatch;
use crate::api::state::ApiState;
use actix_web::{HttpResponse, web};
use bus::Address;
use engine::text::did_you_mean;
use engine::{Definition, Operation};
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] = &[
    ApiRoute::post("/api/job/{id}/step/{step}/redispatch", || web::to(redispatch_step)).operation(
        |schemas| {
            let summary = "Sends a running step's message once more";
            describe_operation("redispatchStep", summary, schemas)
        },
    ),
    ApiRoute::post("/api/queue/{queue}/redispatch", || web::to(redispatch_queue)).operation(
        |schemas| {
            let summary = "Sends the messages of all steps that wait on a queue once more";
            OperationSpec::new("redispatchQueue", "operations", summary)
                .with_parameters(&[BUS, VHOST, DRY_RUN, REASON])
                .with_json_response(200, "How many", schemas.reference::<Redispatched>())
                .with_problems(&[404])
        },
    ),
];

async fn redispatch_step(
    api: web::Data<ApiState>,
    path: web::Path<(String, String)>,
    query: Query,
    principal: PrincipalName,
) -> Result<HttpResponse, Problem> {
    let (id, step) = path.into_inner();
    let [reason] = query.extract(["reason"])?;
    let id = parse_job_id(&id)?;
    let request = build_request(Operation::Redispatch { step }, reason, principal)?;
    respond(id, api.manager.operate(id, request).await)
}

/// Answers once all is committed.
async fn redispatch_queue(
    api: web::Data<ApiState>,
    path: web::Path<String>,
    query: Query,
    PrincipalName(name): PrincipalName,
) -> Result<HttpResponse, Problem> {
    let [bus, vhost, dry_run, reason] = query.extract(["bus", "vhost", "dryRun", "reason"])?;
    let queue = path.into_inner();
    let address = parse_address(&api, &queue, bus, vhost)?;
    let vhost = address.bus.vhost.to_string();
    let is_dry_run = dry_run.map_or(Ok(false), |value| query::parse_flag("dryRun", &value))?;
    let bulk = BulkRedispatch::new(address.clone())
        .with_dry_run(is_dry_run)
        .with_reason(parse_reason(reason)?, name);
    let (steps, jobs) = api
        .manager
        .redispatch(bulk)
        .await
        .map_err(|refusal| refusal_problem(refusal, || format!("unknown queue {queue}")))?;
    if steps == 0 {
        check_known(&api, &address, |other| {
            Problem::not_found(format!(
                "no step waits on queue {queue} of the bus {}; loaded workflows have it on the bus \
                 {other}: ask with ?bus={other}",
                address.bus.name
            ))
        })
        .await?;
    }
    let operation = "redispatch";
    Ok(HttpResponse::Ok().json(Redispatched {
        dry_run: is_dry_run,
        jobs,
        operation,
        bus: address.bus.name.to_string(),
        queue,
        steps,
        vhost,
    }))
}

/// Parses the queue that a request names. Without a bus it is on the default one.
pub(super) fn parse_address(
    api: &Arc<ApiState>,
    queue: &str,
    bus: Option<String>,
    vhost: Option<String>,
) -> Result<Address, Problem> {
    if let Some(objection) = bus.as_ref().and_then(|bus| api.settings.unknown_bus_error(bus)) {
        return Err(Problem::not_found(format!("bus is {objection}")));
    }
    let bus = api.manager.buses().resolve(bus.map(Into::into).as_ref(), &vhost.unwrap_or_default());
    Ok(Address { bus, queue: queue.into() })
}

/// The messages that were sent again, or that would be.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Redispatched {
    /// Whether nothing was sent, because it was a dry run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
    /// How many jobs and child jobs these steps belong to.
    jobs: usize,
    operation: &'static str,
    bus: String,
    queue: String,
    steps: usize,
    vhost: String,
}

/// Checks that a queue on which nothing waits belongs to a loaded workflow, or to a job under way,
/// which keeps the definition that it began with. Otherwise its name is most likely misspelt.
/// `elsewhere` makes the problem for a queue of another bus.
pub(super) async fn check_known(
    api: &Arc<ApiState>,
    queue: &Address,
    elsewhere: impl FnOnce(&str) -> Problem,
) -> Result<(), Problem> {
    let of_steps = |definition: &Arc<Definition>| {
        let steps = definition.sending_steps();
        steps.map(|step| api.manager.buses().address(definition, step)).collect::<Vec<Address>>()
    };
    let loaded: Vec<Address> = api.manager.definitions().values().flat_map(of_steps).collect();
    if loaded.contains(queue) {
        return Ok(());
    }
    // The job may have just been created, or be one of the journal's after a start.
    api.manager.wait_for_router().await;
    let in_use = api.manager.unloaded_definitions();
    let candidates: Vec<Address> = loaded
        .into_iter()
        .chain(in_use.iter().flat_map(of_steps))
        .filter(|known| known.bus.vhost == queue.bus.vhost)
        .collect();
    if candidates.contains(queue) {
        return Ok(());
    }
    if let Some(other) = candidates.iter().find(|known| known.queue == queue.queue) {
        return Err(elsewhere(&other.bus.name));
    }
    let here = candidates.iter().filter(|known| known.bus == queue.bus);
    let hint = did_you_mean(&queue.queue, here.map(|known| &*known.queue));
    let (name, vhost) = (&queue.queue, &queue.bus.vhost);
    let suffix = if vhost.is_empty() { String::new() } else { format!(" of virtual host {vhost}") };
    Err(Problem::not_found(format!(
        "no step waits on queue {name}{suffix}, and neither a loaded workflow nor a job under way \
         has it{hint}"
    )))
}
