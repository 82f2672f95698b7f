//! Changes something for a time: pauses limits, queues and workflows, and gives limits other
//! values. Each change is in force until its time has come, or until it is ended.

use super::operations::parse_reason;
use super::principal::PrincipalName;
use super::problem::Problem;
use super::query::Query;
use super::redispatch;
use super::resolve::full_name;
use super::route::*;
use crate::actors::manager_handle::ManagerHandle;
use crate::api::state::ApiState;
use crate::load::{BURST_MAX, CONCURRENCY_MAX, DURATION_MAX, parse_duration, parse_rate_text};
use crate::settings::Scope;
use actix_web::{HttpResponse, web};
use base::clock;
use base::times::Rfc3339Time;
use bus::Address;
use engine::text::{did_you_mean, quote};
use engine::{Control, ControlKey, ControlKind, Definition, Millis, Rate, Timestamp};
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] = &[
    ApiRoute::get("/api/controls", || web::to(list_controls)).by_active().operation(|schemas| {
        let summary = "What operators have changed for a time: pauses, and other values of limits";
        OperationSpec::new("listControls", "operations", summary).with_json_response(
            200,
            "What is in force",
            schemas.reference::<ControlListView>(),
        )
    }),
    ApiRoute::post("/api/limits/{limit}", || web::to(change_limit)).operation(|schemas| {
        let summary = "Gives a limit another rate or concurrency, for a time";
        describe("changeLimit", summary, schemas)
            .with_parameters(&[VHOST, RATE, BURST, CONCURRENCY, FOR])
            .with_rule(CHANGE_RULE.to_owned())
    }),
    ApiRoute::delete("/api/limits/{limit}", || web::to(restore_limit))
        .needing(Access::Scope(Scope::Operate))
        .operation(|schemas| {
            let summary = "Ends the change of a limit: it allows again what its file says";
            describe("restoreLimit", summary, schemas)
                .with_parameters(&[VHOST])
                .with_problems(&[409])
        }),
    ApiRoute::post("/api/limits/{limit}/{operation}", || web::to(switch_limit)).operation_for_each(
        SWITCHES,
        |name, _, schemas| {
            let summary = match name {
                "pause" => "Pauses a limit: nobody is admitted to its places",
                _ => "Ends the pause of a limit",
            };
            describe_switch(name, "Limit", summary, schemas).with_parameters(&[VHOST])
        },
    ),
    ApiRoute::post("/api/queue/{queue}/pause", || web::to(pause_queue)).operation(|schemas| {
        let summary = "Pauses a queue: nothing new is sent to it, but replies are taken";
        describe_switch("pause", "Queue", summary, schemas).with_parameters(&[BUS, VHOST])
    }),
    ApiRoute::post("/api/queue/{queue}/resume", || web::to(resume_queue)).operation(|schemas| {
        describe_switch("resume", "Queue", "Ends the pause of a queue", schemas)
            .with_parameters(&[BUS, VHOST])
    }),
    ApiRoute::post("/api/workflows/{workflow}/{operation}", || web::to(switch_workflow))
        .operation_for_each(SWITCHES, |name, _, schemas| {
            let summary = match name {
                "pause" => "Pauses a workflow: jobs are taken and wait, and no step begins",
                _ => "Ends the pause of a workflow",
            };
            describe_switch(name, "Workflow", summary, schemas).with_parameters(&[VHOST])
        }),
];

/// What a change of a limit needs, in the words of the 400.
const CHANGE_RULE: &str =
    "say what the limit allows meanwhile: ?rate=20/s, ?concurrency=5, or both";

/// The operations that begin and end a pause.
const SWITCHES: &[(&str, &str)] = &[("pause", "Pauses it"), ("resume", "Ends its pause")];

/// Describes an operation that begins or ends something for a time.
fn describe(id: &str, summary: &str, schemas: &mut Schemas) -> OperationSpec {
    OperationSpec::new(id, "operations", summary)
        .with_parameters(&[REASON])
        .with_json_response(
            200,
            "What is in force, or has ended",
            schemas.reference::<ControlView>(),
        )
        .with_problems(&[404])
}

fn describe_switch(name: &str, noun: &str, summary: &str, schemas: &mut Schemas) -> OperationSpec {
    let spec = describe(&format!("{name}{noun}"), summary, schemas);
    if name == "pause" { spec.with_parameters(&[FOR]) } else { spec.with_problems(&[409]) }
}

#[derive(Serialize, ToSchema)]
#[schema(as = Controls)]
struct ControlListView {
    controls: Vec<ControlView>,
}

/// What an operator has changed for a time.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Control)]
struct ControlView {
    /// `limitChange`, `limitPause`, `queuePause` or `workflowPause`.
    kind: &'static str,
    /// The bus of the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    bus: Option<Arc<str>>,
    #[schema(value_type = String)]
    vhost: Arc<str>,
    /// The name of the limit, queue or workflow.
    #[schema(value_type = String)]
    name: Arc<str>,
    /// The rate of the limit meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u32>,
    /// The concurrency of the limit meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    reason: Option<Arc<str>>,
    /// The name of the token of who changed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    by: Option<Arc<str>>,
    since: Rfc3339Time,
    /// When it ends by itself, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Rfc3339Time>,
    /// In the list, of the pause of a queue or workflow: how many steps it holds back.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<usize>,
}

impl ControlView {
    fn new(control: &Control) -> ControlView {
        let ControlKey { kind, bus, vhost, name } = control.key.clone();
        ControlView {
            kind: kind.as_str(),
            bus: Some(bus).filter(|bus| !bus.is_empty()),
            vhost,
            name,
            rate: control.rate.map(|rate| rate.to_string()),
            burst: control.rate.map(|rate| rate.burst),
            concurrency: control.concurrency,
            reason: control.reason.clone(),
            by: control.by.clone(),
            since: Rfc3339Time(control.since),
            until: control.until.map(Rfc3339Time),
            waiting: None,
        }
    }
}

/// Lists what is in force.
async fn list_controls(api: web::Data<ApiState>, query: Query) -> Result<HttpResponse, Problem> {
    query.check_empty()?;
    let manager = api.active()?;
    let controls = manager.controls().await;
    let held_back: HashMap<ControlKey, usize> =
        manager.count_held_back().await.into_iter().collect();
    let view = |control: &Control| ControlView {
        waiting: held_back.get(&control.key).copied(),
        ..ControlView::new(control)
    };
    let controls = controls.iter().map(view).collect();
    Ok(HttpResponse::Ok().json(ControlListView { controls }))
}

/// Gives a limit other values.
async fn change_limit(
    api: web::Data<ApiState>,
    path: web::Path<String>,
    query: Query,
    PrincipalName(by): PrincipalName,
) -> Result<HttpResponse, Problem> {
    let [vhost, rate, burst, concurrency, duration, reason] =
        query.extract(["vhost", "rate", "burst", "concurrency", "for", "reason"])?;
    let rate = rate.map(|text| parse_rate(&text)).transpose()?;
    let burst = burst.map(|text| parse_number("burst", &text, BURST_MAX)).transpose()?;
    let rate = match (rate, burst) {
        (Some(rate), Some(burst)) => Some(Rate { burst, ..rate }),
        (None, Some(_)) => {
            return Err(Problem::malformed("burst needs rate".to_owned()));
        }
        (rate, None) => rate,
    };
    let concurrency =
        concurrency.map(|text| parse_number("concurrency", &text, CONCURRENCY_MAX)).transpose()?;
    if rate.is_none() && concurrency.is_none() {
        return Err(Problem::malformed(CHANGE_RULE.to_owned()));
    }
    let manager = api.active()?;
    let key = find_limit(&api, manager, &path, vhost, ControlKind::LimitChange)?;
    let control = Control { rate, concurrency, ..new_control(key, duration, reason, by)? };
    begin(manager, control).await
}

/// Ends the change of a limit.
async fn restore_limit(
    api: web::Data<ApiState>,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let [vhost, reason] = query.extract(["vhost", "reason"])?;
    parse_reason(reason)?;
    let manager = api.active()?;
    end(manager, find_limit(&api, manager, &path, vhost, ControlKind::LimitChange)?).await
}

/// Pauses a limit, or ends its pause.
async fn switch_limit(
    api: web::Data<ApiState>,
    path: web::Path<(String, String)>,
    query: Query,
    principal: PrincipalName,
) -> Result<HttpResponse, Problem> {
    let (limit, switch) = path.into_inner();
    let must_pause = parse_switch(&switch)?;
    let ([vhost], time) = extract_switch(query, must_pause, ["vhost"])?;
    let manager = api.active()?;
    let key = find_limit(&api, manager, &limit, vhost, ControlKind::LimitPause)?;
    switch_to(must_pause, manager, key, time, principal).await
}

/// Pauses a queue.
async fn pause_queue(
    api: web::Data<ApiState>,
    path: web::Path<String>,
    query: Query,
    principal: PrincipalName,
) -> Result<HttpResponse, Problem> {
    let ([bus, vhost], time) = extract_switch(query, true, ["bus", "vhost"])?;
    let key = find_queue(&api, &path, bus, vhost).await?;
    switch_to(true, api.active()?, key, time, principal).await
}

/// Ends the pause of a queue.
async fn resume_queue(
    api: web::Data<ApiState>,
    path: web::Path<String>,
    query: Query,
    principal: PrincipalName,
) -> Result<HttpResponse, Problem> {
    let ([bus, vhost], time) = extract_switch(query, false, ["bus", "vhost"])?;
    let key = find_queue(&api, &path, bus, vhost).await?;
    switch_to(false, api.active()?, key, time, principal).await
}

/// Pauses a workflow, or ends its pause.
async fn switch_workflow(
    api: web::Data<ApiState>,
    path: web::Path<(String, String)>,
    query: Query,
    principal: PrincipalName,
) -> Result<HttpResponse, Problem> {
    let (workflow, switch) = path.into_inner();
    let must_pause = parse_switch(&switch)?;
    let ([vhost], time) = extract_switch(query, must_pause, ["vhost"])?;
    let manager = api.active()?;
    let full_name = full_name(&workflow, vhost.as_deref());
    let known: BTreeSet<String> =
        all_definitions(&api, manager).iter().map(|definition| definition.full_name()).collect();
    if !known.contains(&full_name) {
        let hint = did_you_mean(&full_name, known.iter().map(String::as_str));
        return Err(Problem::not_found(format!("unknown workflow {full_name}{hint}")));
    }
    let (vhost, name) = Definition::split_full_name(&full_name);
    let kind = ControlKind::WorkflowPause;
    let key = ControlKey { kind, bus: "".into(), vhost: vhost.into(), name: name.into() };
    switch_to(must_pause, manager, key, time, principal).await
}

/// Parses the last segment of a path. Returns whether it begins a pause.
fn parse_switch(switch: &str) -> Result<bool, Problem> {
    match switch {
        "pause" => Ok(true),
        "resume" => Ok(false),
        _ => Err(Problem::not_found(format!(
            "there is no operation {}; there are pause and resume",
            quote(switch)
        ))),
    }
}

/// How long something lasts, and why.
type TimeAndReason = (Option<String>, Option<String>);

/// Extracts the parameters with these names, how long a pause lasts, and the reason. The end of a
/// pause has only a reason.
fn extract_switch<const N: usize>(
    query: Query,
    must_pause: bool,
    names: [&'static str; N],
) -> Result<([Option<String>; N], TimeAndReason), Problem> {
    let mut accepted = names.to_vec();
    if must_pause {
        accepted.push("for");
    }
    accepted.push("reason");
    let mut values = query.extract_listed(&accepted)?;
    let reason = values.pop().flatten();
    let duration = if must_pause { values.pop().flatten() } else { None };
    let mut values = values.into_iter();
    Ok((names.map(|_| values.next().flatten()), (duration, reason)))
}

/// Begins a pause, or ends it.
async fn switch_to(
    must_pause: bool,
    manager: &ManagerHandle,
    key: ControlKey,
    (duration, reason): TimeAndReason,
    PrincipalName(by): PrincipalName,
) -> Result<HttpResponse, Problem> {
    if must_pause {
        return begin(manager, new_control(key, duration, reason, by)?).await;
    }
    parse_reason(reason)?;
    end(manager, key).await
}

/// Makes a control that begins now, without other values of a limit.
fn new_control(
    key: ControlKey,
    duration: Option<String>,
    reason: Option<String>,
    by: Option<Arc<str>>,
) -> Result<Control, Problem> {
    let since = clock::now();
    let until = duration.map(|text| parse_for(&text)).transpose()?;
    let until = until.map(|duration| since.plus(duration));
    let reason = parse_reason(reason)?;
    Ok(Control { key, rate: None, concurrency: None, reason, by, since, until })
}

/// Puts a control in force, and responds with it.
async fn begin(manager: &ManagerHandle, control: Control) -> Result<HttpResponse, Problem> {
    let view = ControlView::new(&control);
    manager.set_control(control).await.map_err(Problem::overloaded)?;
    Ok(HttpResponse::Ok().json(view))
}

/// Ends a control, and responds with what it was.
async fn end(manager: &ManagerHandle, key: ControlKey) -> Result<HttpResponse, Problem> {
    let controls = manager.controls().await;
    let Some(control) = controls.iter().find(|control| control.key == key) else {
        let state = if key.kind.is_pause() { "paused" } else { "changed" };
        return Err(Problem::conflict(format!("nothing to end: {key} is not {state}")));
    };
    manager.end_control(key).await.map_err(Problem::overloaded)?;
    Ok(HttpResponse::Ok().json(ControlView::new(control)))
}

/// Returns the loaded definitions, and those that active jobs still run.
fn all_definitions(api: &ApiState, manager: &ManagerHandle) -> Vec<Arc<Definition>> {
    let loaded = api.definitions();
    loaded.values().cloned().chain(manager.unloaded_definitions()).collect()
}

/// Finds a limit of loaded workflows, or of jobs under way.
fn find_limit(
    api: &ApiState,
    manager: &ManagerHandle,
    name: &str,
    vhost: Option<String>,
    kind: ControlKind,
) -> Result<ControlKey, Problem> {
    let vhost = vhost.unwrap_or_default();
    let definitions = all_definitions(api, manager);
    let limits: BTreeSet<(&str, &str)> = definitions
        .iter()
        .flat_map(|definition| {
            let vhost = definition.vhost.as_str();
            definition.limits.iter().map(move |limit| (vhost, &*limit.name))
        })
        .collect();
    if limits.contains(&(vhost.as_str(), name)) {
        let (bus, vhost) = ("".into(), vhost.into());
        return Ok(ControlKey { kind, bus, vhost, name: name.into() });
    }
    let in_vhost = limits.iter().filter(|(other, _)| *other == vhost).map(|(_, name)| *name);
    let hint = match limits.iter().find(|(_, other)| *other == name) {
        Some((other, _)) => format!("; the virtual host {} has it: ask with ?vhost", quote(other)),
        None => did_you_mean(name, in_vhost),
    };
    Err(Problem::not_found(format!("unknown limit {name}{hint}")))
}

/// Finds a queue of loaded workflows, or of jobs under way.
async fn find_queue(
    api: &Arc<ApiState>,
    queue: &str,
    bus: Option<String>,
    vhost: Option<String>,
) -> Result<ControlKey, Problem> {
    let Address { bus, queue } = redispatch::find_queue(api, queue, bus, vhost).await?;
    let kind = ControlKind::QueuePause;
    Ok(ControlKey { kind, bus: bus.name, vhost: bus.vhost, name: queue })
}

/// Parses how long a control lasts.
fn parse_for(text: &str) -> Result<Millis, Problem> {
    let duration = parse_duration(text);
    duration.filter(|duration| *duration > Millis(0) && *duration <= DURATION_MAX).ok_or_else(
        || {
            Problem::malformed(format!(
                "for is {}, expected how long it lasts, such as 90s, 30m, 1h or 2d; without it, it \
             lasts until it is ended",
                quote(text)
            ))
        },
    )
}

fn parse_rate(text: &str) -> Result<Rate, Problem> {
    parse_rate_text(text).ok_or_else(|| {
        let hint = if text.starts_with('0') {
            "; a rate of 0 would send nothing: pause the limit"
        } else if text.bytes().all(|byte| byte.is_ascii_digit()) {
            "; write its unit: 100/s, 100/m or 100/h"
        } else {
            ""
        };
        Problem::malformed(format!(
            "rate is {}, expected a number of messages in a period, such as 100/s, 20/m or \
             1/15m{hint}",
            quote(text)
        ))
    })
}

fn parse_number(name: &str, text: &str, max: u64) -> Result<u32, Problem> {
    let number = text.parse::<u32>().ok().filter(|number| (1..=max).contains(&(*number).into()));
    number.ok_or_else(|| {
        let hint = if text == "0" { "; to admit nobody, pause the limit" } else { "" };
        Problem::malformed(format!(
            "{name} is {}, expected a number from 1 to {max}{hint}",
            quote(text)
        ))
    })
}

/// Returns the pause that keeps a step back: of its workflow, its queue, or one of its limits.
/// `address`: the queue of the step, if it has one. `limits`: the full names of its limits.
pub(super) fn find_pause<'a>(
    controls: &'a [Control],
    definition: &Definition,
    address: Option<&Address>,
    limits: &[Arc<str>],
) -> Option<&'a Control> {
    controls.iter().find(|Control { key, .. }| match key.kind {
        ControlKind::LimitChange => false,
        ControlKind::LimitPause => limits.contains(&key.full_name()),
        ControlKind::QueuePause => address.is_some_and(|Address { bus, queue }| {
            (&bus.name, &bus.vhost, queue) == (&key.bus, &key.vhost, &key.name)
        }),
        ControlKind::WorkflowPause => *key.full_name() == *definition.full_name(),
    })
}

/// Describes a pause: what is paused, by whom, until when, and why.
pub(super) fn describe_pause(
    control: &Control,
    format_time: impl Fn(Timestamp) -> String,
) -> String {
    format!("{} is paused{}", control.key, describe_term(control, "resumed", format_time))
}

/// Returns the change of a limit, given by its full name.
pub(super) fn find_change<'c>(controls: &'c [Control], limit: &str) -> Option<&'c Control> {
    controls.iter().find(|control| {
        control.key.kind == ControlKind::LimitChange && *control.key.full_name() == *limit
    })
}

/// Describes the change of a limit in one clause.
pub(super) fn describe_change(
    control: &Control,
    format_time: impl Fn(Timestamp) -> String,
) -> String {
    format!("the limit is changed{}", describe_term(control, "ended", format_time))
}

/// Describes who has changed something, until when and why. `ended`: what an operator does to end
/// it.
fn describe_term(
    control: &Control,
    ended: &str,
    format_time: impl Fn(Timestamp) -> String,
) -> String {
    let Control { by, until, reason, .. } = control;
    let by = by.as_ref().map_or_else(String::new, |by| format!(" by {by}"));
    let until = until.map_or_else(
        || format!(" until it is {ended}"),
        |until| format!(" until {}", format_time(until)),
    );
    let reason = reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    format!("{by}{until}{reason}")
}
