//! Step messages sent once more, as the same attempts (SPEC §6): of one step, or of all that wait
//! on a queue.

use super::named::job_id;
use super::operations::{refused, respond};
use super::problem::Problem;
use super::query::{self, Query};
use crate::actors::common::Common;
use crate::actors::door;
use crate::actors::ways::Ways;
use crate::engine::Operation;
use crate::engine::words::did_you_mean;
use actix_web::{HttpResponse, web};
use std::sync::Arc;

/// `POST /api/job/{id}/step/{step}/redispatch`
pub async fn one(
    ways: web::Data<Ways>,
    path: web::Path<(String, String)>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let (id, step) = path.into_inner();
    query.none()?;
    let id = job_id(&id)?;
    respond(id, door::operate(&ways, id, Operation::Redispatch { step }).await)
}

/// `POST /api/queue/{queue}/redispatch[?vhost=V][&dryRun=true]`: answered once all is committed.
pub async fn by_queue(
    ways: web::Data<Ways>,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let [vhost, dry_run] = query.of(["vhost", "dryRun"])?;
    let (queue, vhost) = (path.into_inner(), vhost.unwrap_or_default());
    let is_dry_run = dry_run.map_or(Ok(false), |value| query::flag("dryRun", &value))?;
    let (steps, jobs) = door::redispatch(&ways, &vhost, &queue, is_dry_run)
        .await
        .map_err(|refusal| refused(refusal, || format!("unknown queue {queue}")))?;
    if steps == 0 {
        known(&ways.common, &queue, &vhost)?;
    }
    let mut told = serde_json::json!({ "operation": "redispatch", "queue": queue, "vhost": vhost, "steps": steps, "jobs": jobs });
    if is_dry_run {
        told["dryRun"] = true.into();
    }
    Ok(HttpResponse::Ok().json(told))
}

/// A queue on which nothing waits must belong to a loaded workflow; otherwise its name is most
/// likely misspelt.
fn known(common: &Common, queue: &str, vhost: &str) -> Result<(), Problem> {
    let definitions = common.definitions();
    let queues: Vec<Arc<str>> = definitions
        .values()
        .filter(|definition| definition.vhost == vhost)
        .flat_map(|definition| definition.queues())
        .collect();
    if queues.iter().any(|known| **known == *queue) {
        return Ok(());
    }
    let hint = did_you_mean(queue, queues.iter().map(|queue| &**queue));
    let place = if vhost.is_empty() { String::new() } else { format!(" of virtual host {vhost}") };
    Err(Problem::not_found(format!(
        "no step waits on queue {queue}{place}, and no loaded workflow has it{hint}"
    )))
}
