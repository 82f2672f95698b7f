//! Redispatches step messages: sends them again, for the same attempts
//! (docs/reference/http-api-operations.md). It sends the message of one step, or the messages of
//! all steps that wait on a queue.

use super::operations::{build_request, describe_operation, parse_reason, respond, to_problem};
use super::principal::PrincipalName;
use super::problem::Problem;
use super::query::{self, Query};
use super::resolve::parse_job_id;
use super::route::*;
use crate::actors::bulk_requests::BulkRedispatch;
use crate::api::state::ApiState;
use actix_web::{HttpResponse, web};
use bus::Address;
use engine::text::{did_you_mean, quote};
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
                .with_json_response(
                    200,
                    "The number of messages",
                    schemas.reference::<RedispatchView>(),
                )
                .with_problems(&[404])
        },
    ),
];

/// Sends the message of a running step again.
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
    respond(id, api.active()?.operate(id, request).await)
}

/// Sends the messages of all steps that wait on a queue again. Responds once everything is
/// committed.
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
        .active()?
        .redispatch(bulk)
        .await
        .map_err(|error| to_problem(error, || format!("unknown queue {queue}")))?;
    if steps == 0 {
        check_queue_is_known(&api, &address, |other_bus| {
            Problem::not_found(format!(
                "no step waits on queue {queue} of the bus {}; loaded workflows have it on the bus \
                 {other_bus}: ask with ?bus={other_bus}",
                address.bus.name
            ))
        })
        .await?;
    }
    Ok(HttpResponse::Ok().json(RedispatchView {
        dry_run: is_dry_run,
        jobs,
        operation: "redispatch",
        bus: address.bus.name.to_string(),
        queue,
        steps,
        vhost,
    }))
}

/// Parses the address of the queue that a request names. Without `bus` the queue is on the default
/// bus. Returns a 404 if the settings do not have the bus.
pub(super) fn parse_address(
    api: &Arc<ApiState>,
    queue: &str,
    bus: Option<String>,
    vhost: Option<String>,
) -> Result<Address, Problem> {
    if let Some(error) = bus.as_ref().and_then(|bus| api.settings.unknown_bus_error(bus)) {
        return Err(Problem::not_found(format!("bus is {error}")));
    }
    let bus = api.buses.resolve(bus.map(Into::into).as_ref(), &vhost.unwrap_or_default());
    Ok(Address { bus, queue: queue.into() })
}

/// The messages that were sent again, or that would be.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Redispatched)]
struct RedispatchView {
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

/// Finds a queue of loaded workflows, or of jobs under way, that a query names.
///
/// # Errors
///
/// Returns a 404 if the settings do not have the bus, or it does not have the queue.
pub(super) async fn find_queue(
    api: &Arc<ApiState>,
    queue: &str,
    bus: Option<String>,
    vhost: Option<String>,
) -> Result<Address, Problem> {
    let address = parse_address(api, queue, bus, vhost)?;
    check_queue_is_known(api, &address, |other_bus| {
        Problem::not_found(format!(
            "loaded workflows have the queue {} on the bus {other_bus}, not on {}: ask with \
             ?bus={other_bus}",
            quote(&address.queue),
            address.bus.name
        ))
    })
    .await?;
    Ok(address)
}

/// Checks that a queue belongs to a loaded workflow, or to an active job, which keeps the
/// definition that it was created with. Otherwise the name of the queue is most likely misspelt.
///
/// # Errors
///
/// Returns a 404 if no bus has the queue. If another bus has it, returns the problem that
/// `on_other_bus` makes from the name of that bus.
pub(super) async fn check_queue_is_known(
    api: &Arc<ApiState>,
    address: &Address,
    on_other_bus: impl FnOnce(&str) -> Problem,
) -> Result<(), Problem> {
    let step_queues = |definition: &Arc<Definition>| {
        let steps = definition.sending_steps();
        steps.map(|step| api.buses.address(definition, step)).collect::<Vec<Address>>()
    };
    let loaded_addresses: Vec<Address> = api.definitions().values().flat_map(step_queues).collect();
    if loaded_addresses.contains(address) {
        return Ok(());
    }
    let manager = api.active()?;
    // The router may not yet know a job that was just created, or recovered after a start.
    manager.wait_for_router().await;
    let unloaded_definitions = manager.unloaded_definitions();
    let candidates: Vec<Address> = loaded_addresses
        .into_iter()
        .chain(unloaded_definitions.iter().flat_map(step_queues))
        .filter(|candidate| candidate.bus.vhost == address.bus.vhost)
        .collect();
    if candidates.contains(address) {
        return Ok(());
    }
    if let Some(other_address) =
        candidates.iter().find(|candidate| candidate.queue == address.queue)
    {
        return Err(on_other_bus(&other_address.bus.name));
    }
    let on_same_bus = candidates.iter().filter(|candidate| candidate.bus == address.bus);
    let hint = did_you_mean(&address.queue, on_same_bus.map(|candidate| &*candidate.queue));
    let (queue, vhost) = (&address.queue, &address.bus.vhost);
    let suffix = if vhost.is_empty() { String::new() } else { format!(" of virtual host {vhost}") };
    Err(Problem::not_found(format!(
        "no step waits on queue {queue}{suffix}, and neither a loaded workflow nor a job under way \
         has it{hint}"
    )))
}
