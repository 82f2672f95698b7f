//! Shows the limits of loaded workflows, and of unloaded definitions that active jobs still run:
//! what each allows, who holds its places, and who waits.

use super::active_jobs;
use super::openapi::parameters::{KEY_CURSOR, LIMIT, VHOST};
use super::problem::Problem;
use super::query::{Query, parse_limit};
use super::route::*;
use crate::actors::loaded_definitions::Definitions;
use crate::api::state::ApiState;
use actix_web::{HttpResponse, web};
use base::clock;
use base::times::Rfc3339Time;
use engine::text::{did_you_mean, quote};
use engine::{Definition, Gate, LimitDefinition, LimitSetting, LimitView, PlaceView};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] = &[
    ApiRoute::get("/api/limits", || web::to(list_limits)).by_active().operation(|schemas| {
        let summary = "The limits of rate and concurrency, who holds them, and who waits";
        let operation = OperationSpec::new("listLimits", "manager", summary);
        operation.with_json_response(200, "The limits", schemas.reference::<LimitListView<'_>>())
    }),
    ApiRoute::get("/api/limits/{limit}", || web::to(get_limit)).by_active().operation(|schemas| {
        OperationSpec::new("getLimit", "manager", "A limit with all its keys, page by page")
            .with_parameters(&[VHOST, LIMIT, KEY_CURSOR])
            .with_json_response(200, "The limit", schemas.reference::<LimitPageView<'_>>())
            .with_problems(&[404])
    }),
];

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
    /// What it allows now.
    #[serde(flatten)]
    allowed: AllowedView,
    /// What its file says, if an operator has changed it for a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_file: Option<AllowedView>,
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

/// What a limit allows.
#[derive(PartialEq, Serialize, ToSchema)]
#[schema(as = Allowed)]
struct AllowedView {
    /// How many messages may be sent in each period, such as `100/s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<String>,
    /// How many messages the rate lets through at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u32>,
    /// How many steps may hold a place at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency: Option<u32>,
}

impl AllowedView {
    fn from_setting(setting: LimitSetting) -> AllowedView {
        AllowedView {
            rate: setting.rate.map(|rate| rate.to_string()),
            burst: setting.rate.map(|rate| rate.burst),
            concurrency: setting.concurrency,
        }
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = LimitWithKeys)]
struct LimitPageView<'a> {
    /// Its `keys` are in the order of their text.
    #[serde(flatten)]
    limit: LimitStateView<'a>,
    /// The cursor of the next page: the last key. Missing on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<&'a str>,
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
    let defined = collect_all(&loaded_definitions, &unloaded_definitions);
    let inspect = |gate: &Gate| gate.view(KEYS_MAX, clock::now());
    let states = active_jobs::inspect_gate(&api, inspect).await.ok_or_else(no_response)?;
    // The gate also knows limits that nobody defines any more, until the next start.
    let limits = states.iter().filter_map(|state| {
        let defined_limit = defined.get(&state.name)?;
        Some(LimitStateView::new(state, defined_limit))
    });
    Ok(HttpResponse::Ok().json(LimitListView { limits: limits.collect() }))
}

/// Responds with a limit and a page of its keys.
async fn get_limit(
    api: web::Data<ApiState>,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let [vhost, limit, cursor] = query.extract(["vhost", "limit", "cursor"])?;
    let keys_max = limit.as_deref().map_or(Ok(KEYS_MAX), |text| {
        parse_limit(text).map(|limit| usize::try_from(limit).unwrap_or(KEYS_MAX))
    })?;
    let manager = api.active()?;
    let name = match vhost.as_deref() {
        None | Some("") => path.into_inner(),
        Some(vhost) => format!("{vhost}/{path}"),
    };
    let loaded_definitions = api.definitions();
    let unloaded_definitions = manager.unloaded_definitions();
    let defined = collect_all(&loaded_definitions, &unloaded_definitions);
    let Some(defined_limit) = defined.get(&*name) else {
        return Err(unknown_limit(&name, defined.keys().map(|name| &**name)));
    };
    let inspect =
        move |gate: &Gate| gate.view_page(&name, cursor.as_deref(), keys_max, clock::now());
    let page = active_jobs::inspect_gate(&api, inspect).await.ok_or_else(no_response)?;
    // The router has not heard yet of a reload that brought the limit.
    let (state, has_more) = page.ok_or_else(no_response)?;
    let last_key = state.places.last().map(|place| &*place.key);
    Ok(HttpResponse::Ok().json(LimitPageView {
        limit: LimitStateView::new(&state, defined_limit),
        next: last_key.filter(|_| has_more),
    }))
}

/// Returns the 503 for a router that does not respond in time.
fn no_response() -> Problem {
    Problem::overloaded("the router of this manager does not answer; try again".to_owned())
}

/// Returns the 404 for a limit that no definition has. `known` are those that there are.
fn unknown_limit<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Problem {
    let hint = did_you_mean(name, known);
    Problem::not_found(format!("no workflow has a limit {}{hint}", quote(name)))
}

/// Collects the limits of all definitions, by their full names.
fn collect_all<'a>(
    loaded_definitions: &'a Definitions,
    unloaded_definitions: &'a [Arc<Definition>],
) -> BTreeMap<Arc<str>, DefinedLimit<'a>> {
    let mut defined = BTreeMap::new();
    for definition in loaded_definitions.values() {
        collect_limits(&mut defined, definition, true);
    }
    for definition in unloaded_definitions {
        collect_limits(&mut defined, definition, false);
    }
    defined
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
        let allowed = AllowedView::from_setting(state.setting);
        LimitStateView {
            limit: name,
            vhost: defined.vhost,
            in_file: Some(AllowedView::from_setting(defined.definition.setting()))
                .filter(|file| *file != allowed),
            allowed,
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
