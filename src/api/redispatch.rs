//! Sends step messages again, as the same attempts (docs/http-api.md): those of one step, or of all
//! steps that wait on a queue.

use super::holder::By;
use super::named::job_id;
use super::operations::{refused, request, respond, why};
use super::problem::Problem;
use super::query::{self, Query};
use crate::actors::bulk::Bulk;
use crate::actors::door;
use crate::actors::ways::Ways;
use crate::bus::Address;
use crate::engine::words::did_you_mean;
use crate::engine::{Definition, Operation};
use actix_web::{HttpResponse, web};
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

/// Handles `POST /api/job/{id}/step/{step}/redispatch[?reason=TEXT]`.
pub async fn one(
    ways: web::Data<Ways>,
    path: web::Path<(String, String)>,
    query: Query,
    by: By,
) -> Result<HttpResponse, Problem> {
    let (id, step) = path.into_inner();
    let [reason] = query.of(["reason"])?;
    let id = job_id(&id)?;
    let request = request(Operation::Redispatch { step }, reason, by)?;
    respond(id, door::operate(&ways, id, request).await)
}

/// Handles `POST /api/queue/{queue}/redispatch[?bus=B][&vhost=V][&dryRun=true][&reason=TEXT]`;
/// answers once all is committed.
pub async fn by_queue(
    ways: web::Data<Ways>,
    path: web::Path<String>,
    query: Query,
    By(by): By,
) -> Result<HttpResponse, Problem> {
    let [bus, vhost, dry_run, reason] = query.of(["bus", "vhost", "dryRun", "reason"])?;
    let queue = path.into_inner();
    let address = address(&ways, &queue, bus, vhost)?;
    let vhost = address.bus.vhost.to_string();
    let is_dry_run = dry_run.map_or(Ok(false), |value| query::flag("dryRun", &value))?;
    let bulk = Bulk::new(address.clone()).dry_run(is_dry_run).asked(why(reason)?, by);
    let (steps, jobs) = door::redispatch(&ways, bulk)
        .await
        .map_err(|refusal| refused(refusal, || format!("unknown queue {queue}")))?;
    if steps == 0 {
        known(&ways, &address, |other| {
            Problem::not_found(format!(
                "no step waits on queue {queue} of the bus {}; loaded workflows have it on the bus \
                 {other}: ask with ?bus={other}",
                address.bus.bus
            ))
        })
        .await?;
    }
    let operation = "redispatch";
    Ok(HttpResponse::Ok().json(Redispatched {
        dry_run: is_dry_run,
        jobs,
        operation,
        bus: address.bus.bus.to_string(),
        queue,
        steps,
        vhost,
    }))
}

/// Parses the queue that a request names. Without a bus it is on the default one.
pub(super) fn address(
    ways: &Ways,
    queue: &str,
    bus: Option<String>,
    vhost: Option<String>,
) -> Result<Address, Problem> {
    if let Some(objection) = bus.as_ref().and_then(|bus| ways.common.settings.unknown_bus(bus)) {
        return Err(Problem::not_found(format!("bus is {objection}")));
    }
    let bus = ways.buses.named(bus.map(Into::into).as_ref(), &vhost.unwrap_or_default());
    Ok(Address { bus, queue: queue.into() })
}

/// The messages that were sent again, or that would be.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Redispatched {
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
pub(super) async fn known(
    ways: &Ways,
    queue: &Address,
    elsewhere: impl FnOnce(&str) -> Problem,
) -> Result<(), Problem> {
    let of_steps = |definition: &Arc<Definition>| {
        let steps = definition.sending_steps();
        steps.map(|step| ways.buses.address(definition, step)).collect::<Vec<Address>>()
    };
    let loaded: Vec<Address> = ways.common.definitions().values().flat_map(of_steps).collect();
    if loaded.contains(queue) {
        return Ok(());
    }
    // The job may have just been created, or be one of the journal's after a start.
    door::routed(ways).await;
    let kept = ways.kept_definitions();
    let there: Vec<Address> = loaded
        .into_iter()
        .chain(kept.iter().flat_map(of_steps))
        .filter(|known| known.bus.vhost == queue.bus.vhost)
        .collect();
    if there.contains(queue) {
        return Ok(());
    }
    if let Some(other) = there.iter().find(|known| known.queue == queue.queue) {
        return Err(elsewhere(&other.bus.bus));
    }
    let here = there.iter().filter(|known| known.bus == queue.bus);
    let hint = did_you_mean(&queue.queue, here.map(|known| &*known.queue));
    let (name, vhost) = (&queue.queue, &queue.bus.vhost);
    let place = if vhost.is_empty() { String::new() } else { format!(" of virtual host {vhost}") };
    Err(Problem::not_found(format!(
        "no step waits on queue {name}{place}, and neither a loaded workflow nor a job under way \
         has it{hint}"
    )))
}
