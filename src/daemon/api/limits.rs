//! Shows the limits of loaded workflows, and of unloaded definitions that active jobs still run:
//! what each allows, who holds its places, and who waits.

use super::active_jobs;
use super::problem::Problem;
use super::query::Query;
use super::route::*;
use crate::api::state::ApiState;
use actix_web::{HttpResponse, web};
use base::clock;
use base::times::Rfc3339Time;
use engine::{Definition, Gate, LimitDefinition, LimitView, PlaceView};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] =
    &[ApiRoute::get("/api/limits", || web::to(list_limits)).by_active().operation(|schemas| {
        let summary = "The limits of rate and concurrency, who holds them, and who waits";
        let operation = OperationSpec::new("listLimits", "manager", summary);
        operation.with_json_response(200, "The limits", schemas.reference::<LimitListView<'_>>())
    })];

/// The most keys of a limit that a response lists.
const KEYS_MAX: usize = 100;

#[derive(Serialize, ToSchema)]
#[schema(as = Limits)]
struct LimitListView<'a> {
    limits: Vec<LimitStateView<'a>>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Limit)]
struct LimitStateView<'a> {
    limit: &'a str,
    vhost: &'a str,
    /// How many messages may be sent in each period, such as `100/s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<String>,
    /// How many messages the rate lets through at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u32>,
    /// How many steps may hold a place at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency: Option<u32>,
    /// The expression that gives the key: the limit counts for each key by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    /// The expression whose values take turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    fair: Option<&'a str>,
    /// Whether nobody is admitted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    paused: bool,
    /// How many steps hold a place, of all keys together.
    held: usize,
    /// How many steps wait for a place, of all keys together.
    waiting: usize,
    /// The keys that are in use, those with the most waiting steps first: the first 100 of them. A
    /// limit without keys has one entry at most, without `key`.
    keys: Vec<LimitKeyView<'a>>,
    /// The full names of the loaded workflows that use it.
    used_by: BTreeSet<String>,
    /// Whether no loaded workflow has the limit, but only active jobs that were created before a
    /// reload.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    no_longer_in_files: bool,
}

#[derive(Serialize, ToSchema)]
#[schema(as = LimitKey)]
struct LimitKeyView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    held: u32,
    waiting: usize,
    /// When the rate lets the next message through, if not now.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<Rfc3339Time>,
}

/// A limit of definitions, and the workflows that use it.
struct DefinedLimit<'a> {
    vhost: &'a str,
    definition: &'a LimitDefinition,
    used_by: BTreeSet<String>,
    is_loaded: bool,
}

/// Lists all limits.
async fn list_limits(api: web::Data<ApiState>, query: Query) -> Result<HttpResponse, Problem> {
    query.check_empty()?;
    let manager = api.active()?;
    let loaded_definitions = api.definitions();
    let unloaded_definitions = manager.unloaded_definitions();
    let mut defined = BTreeMap::new();
    for definition in loaded_definitions.values() {
        collect_limits(&mut defined, definition, true);
    }
    for definition in &unloaded_definitions {
        collect_limits(&mut defined, definition, false);
    }
    let inspect = |gate: &Gate| gate.view(KEYS_MAX, clock::now());
    let states = active_jobs::inspect_gate(&api, inspect).await;
    let states = states.ok_or_else(|| {
        Problem::overloaded("the router of this manager does not answer; try again".to_owned())
    })?;
    // The gate also knows limits that nobody defines any more, until the next start.
    let limits = states.iter().filter_map(|state| {
        let defined_limit = defined.get(&state.name)?;
        Some(LimitStateView::new(state, defined_limit))
    });
    Ok(HttpResponse::Ok().json(LimitListView { limits: limits.collect() }))
}

/// Adds the limits of a definition to `defined`, by their full names. A loaded definition of a
/// limit precedes all that are not loaded.
fn collect_limits<'a>(
    defined: &mut BTreeMap<Arc<str>, DefinedLimit<'a>>,
    definition: &'a Definition,
    is_loaded: bool,
) {
    for limit in &definition.limits {
        let entry = defined.entry(definition.full_limit_name(&limit.name));
        let entry = entry.or_insert_with(|| DefinedLimit {
            vhost: &definition.vhost,
            definition: limit,
            used_by: BTreeSet::new(),
            is_loaded,
        });
        if is_loaded {
            entry.used_by.insert(definition.full_name());
        }
    }
}

impl<'a> LimitStateView<'a> {
    fn new(state: &'a LimitView, defined: &'a DefinedLimit<'a>) -> LimitStateView<'a> {
        let LimitDefinition { name, key, fair, .. } = defined.definition;
        let is_keyed = key.is_some();
        LimitStateView {
            limit: name,
            vhost: defined.vhost,
            rate: state.setting.rate.map(|rate| rate.to_string()),
            burst: state.setting.rate.map(|rate| rate.burst),
            concurrency: state.setting.concurrency,
            key: key.as_ref().map(|key| key.text()),
            fair: fair.as_ref().map(|fair| fair.text()),
            paused: state.setting.is_paused,
            held: state.held,
            waiting: state.waiting,
            keys: state.places.iter().map(|place| LimitKeyView::new(place, is_keyed)).collect(),
            used_by: defined.used_by.clone(),
            no_longer_in_files: !defined.is_loaded,
        }
    }
}

impl<'a> LimitKeyView<'a> {
    fn new(place: &'a PlaceView, is_keyed: bool) -> LimitKeyView<'a> {
        LimitKeyView {
            key: is_keyed.then_some(&*place.key),
            held: place.held,
            waiting: place.waiting,
            next: place.next.map(Rfc3339Time),
        }
    }
}
