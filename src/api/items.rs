//! The items of a fan-out step: counts, and a map of all of them.

use super::live;
use super::named::job_id;
use super::problem::Problem;
use super::query::Query;
use super::reads;
use super::step::step_of;
use crate::actors::ways::Ways;
use crate::engine::words::quoted;
use crate::engine::{FanOut, ItemState, Job, JobId, JobState, StepIndex};
use crate::view::{ItemMap, ItemsView};
use actix_web::{HttpResponse, web};
use std::io::Write as _;

/// `GET /api/job/{id}/step/{step}/items[?format=counts|map]`
pub(super) async fn of_step(
    ways: web::Data<Ways>,
    path: web::Path<(String, String)>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let [format] = query.of(["format"])?;
    let (id, name) = path.into_inner();
    let id = job_id(&id)?;
    match format.as_deref().unwrap_or("counts") {
        "counts" => counts(&ways, id, name).await,
        "map" => map(&ways, id, name).await,
        other => Err(Problem::malformed(format!("format is {other:?}, expected counts or map"))),
    }
}

async fn counts(ways: &Ways, id: JobId, name: String) -> Result<HttpResponse, Problem> {
    let window = ways.common.limits.window;
    let asked = name.clone();
    let told = live::look(ways, id, move |job| {
        fan_out_of(job, &asked).map(|(step, fan_out)| ItemsView::of(job, step, fan_out, window))
    });
    if let Some(counts) = told.await {
        return Ok(HttpResponse::Ok().json(counts?));
    }
    let kept = reads::job(&ways.common, id, move |found, answer| {
        let (step, fan_out) = fan_out_of(&found.job, &name)?;
        answer.json(&ItemsView::of(&found.job, step, fan_out, window))
    });
    Ok(kept.await?.1.into_response())
}

async fn map(ways: &Ways, id: JobId, name: String) -> Result<HttpResponse, Problem> {
    let asked = name.clone();
    let told = live::look(ways, id, move |job| {
        fan_out_of(job, &asked)
            .map(|(_, fan_out)| fan_out.item_states().map(|states| states.collect::<ItemMap>()))
    });
    if let Some(Some(map)) = told.await.transpose()? {
        return Ok(HttpResponse::Ok()
            .content_type(mime::APPLICATION_OCTET_STREAM)
            .body(map.into_bytes()));
    }
    // Of a step that is over the job keeps counts alone: the child jobs tell the rest.
    let counted = reads::job(&ways.common, id, move |found, _| {
        fan_out_of(&found.job, &name).map(|(step, fan_out)| (step, fan_out.items()))
    });
    let (step, items) = counted.await?.0;
    let bytes = ItemMap::bytes_of(items);
    let map = reads::written(&ways.common, bytes, move |reader, answer| {
        let family = reader.family(id)?.ok_or_else(|| Problem::unknown_job(id))?;
        let mut map = ItemMap::of(items);
        reader.items(&family, step, &mut |item, state| map.set(item, item_state(state)))?;
        answer.write_all(&map.into_bytes()).map_err(|error| Problem::broken(error.to_string()))
    });
    Ok(map.await?.into_response_of(mime::APPLICATION_OCTET_STREAM))
}

/// What the end of its child job means for an item.
fn item_state(child: JobState) -> ItemState {
    match child {
        JobState::Running | JobState::Paused => ItemState::Running,
        JobState::Completed => ItemState::Completed,
        JobState::Failed | JobState::Cancelled => ItemState::Failed,
    }
}

fn fan_out_of<'j>(job: &'j Job, name: &str) -> Result<(StepIndex, &'j FanOut), Problem> {
    let step = step_of(job.graph(), job.id(), name)?;
    match &job.step(step).fan_out {
        Some(fan_out) => Ok((step, fan_out)),
        None if job.graph().step(step).task.is_some() => Err(Problem::not_found(format!(
            "step {} of job {} has no items yet: it is {}",
            quoted(name),
            job.id(),
            job.step_state(step).word()
        ))),
        None => Err(Problem::not_found(format!(
            "step {} of job {} has no items: it runs no task",
            quoted(name),
            job.id()
        ))),
    }
}
