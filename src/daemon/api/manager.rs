//! Shows the manager itself: its version, its checks, and its settings.

use super::cluster::{ClusterView, load_cluster};
use super::problem::Problem;
use super::query::{self, Query};
use super::route::*;
use crate::actors::health::HealthCheck;
use crate::api::state::ApiState;
use crate::settings::{JournalSettings, Sourced};
use crate::telemetry::ActorCounts;
use actix_web::{HttpResponse, web};
use base::times::Rfc3339Time;
use serde::Serialize;
use std::path::Path;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] = &[
    ApiRoute::get("/api/manager", || web::to(get_manager)).operation(|schemas| {
        let summary = "The manager: its version, its checks, its mailboxes";
        let operation = OperationSpec::new("getManager", "manager", summary);
        operation.with_json_response(200, "The manager", schemas.reference::<ManagerView>())
    }),
    ApiRoute::get("/api/settings", || web::to(get_settings)).operation(|schemas| {
        let settings = any_of([any_object_schema(), schemas.list_of::<Sourced<'_>>()]);
        OperationSpec::new(
            "getSettings",
            "manager",
            "The settings of the manager, with secrets masked",
        )
        .with_parameters(&[SOURCES])
        .with_json_response(200, "The settings; with `sources` a list", settings)
    }),
];

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Manager)]
struct ManagerView {
    version: &'static str,
    started: Rfc3339Time,
    /// Nanoseconds since the start.
    uptime: u64,
    /// Whether all checks pass.
    ready: bool,
    checks: Vec<CheckView>,
    journal: JournalView,
    actors: Vec<ActorCounts>,
    /// How many streams of events are open.
    streams: i64,
    /// How many notices the webhook has not delivered yet.
    webhook_waiting: i64,
    /// The processes that share the journal; missing if it is a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterView>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Check)]
struct CheckView {
    name: String,
    ok: bool,
    detail: String,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = JournalFile)]
struct JournalView {
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wal_bytes: Option<u64>,
}

/// Shows the version, the checks, the journal's files and the counts of the manager.
async fn get_manager(api: web::Data<ApiState>, query: Query) -> Result<HttpResponse, Problem> {
    query.check_empty()?;
    let settings = api.settings.journal.clone();
    // This runs on a blocking thread, because the disk may hang.
    let journal = web::block(move || JournalView::inspect(&settings))
        .await
        .map_err(|error| Problem::internal(error.to_string()))?;
    let checks = api.checks();
    let (started_at, start_instant) = api.started_at;
    Ok(HttpResponse::Ok().json(ManagerView {
        version: env!("CARGO_PKG_VERSION"),
        started: Rfc3339Time(started_at),
        uptime: u64::try_from(start_instant.elapsed().as_nanos()).unwrap_or(u64::MAX),
        ready: checks.iter().all(|check| check.is_passed),
        checks: checks
            .into_iter()
            .map(|HealthCheck { name, is_passed, message }| CheckView {
                name,
                ok: is_passed,
                detail: message,
            })
            .collect(),
        journal,
        actors: api.metrics.actor_counts(),
        streams: api.metrics.event_streams.get(),
        webhook_waiting: api.metrics.webhook_waiting.get(),
        cluster: load_cluster(&api).await,
    }))
}

impl JournalView {
    /// Looks up the sizes of the journal's file and of its WAL. A file that cannot be
    /// inspected has no size, nor has a database.
    fn inspect(settings: &JournalSettings) -> JournalView {
        if !settings.url.0.is_empty() {
            return JournalView { file: settings.location(), bytes: None, wal_bytes: None };
        }
        let file = settings.file.as_path();
        let find_size = |path: &Path| std::fs::metadata(path).ok().map(|metadata| metadata.len());
        let mut wal_path = file.as_os_str().to_owned();
        wal_path.push("-wal");
        JournalView {
            file: file.to_string_lossy().into_owned(),
            bytes: find_size(file),
            wal_bytes: find_size(Path::new(&wal_path)),
        }
    }
}

/// Shows the settings in force, with secrets masked.
async fn get_settings(api: web::Data<ApiState>, query: Query) -> Result<HttpResponse, Problem> {
    let [sources] = query.extract(["sources"])?;
    if sources.map_or(Ok(false), |value| query::parse_flag("sources", &value))? {
        return Ok(HttpResponse::Ok().json(api.settings.with_sources()));
    }
    Ok(HttpResponse::Ok().json(&api.settings))
}
