//! Shows the queues of loaded workflows, and of unloaded definitions that active jobs still run:
//! the messages of each queue, and the steps that use it.

use super::leases::to_wall_clock;
use super::problem::Problem;
use super::query::Query;
use super::redispatch;
use super::route::*;
use crate::actors::bulk_requests::WaitingStep;
use crate::api::state::ApiState;
use actix_web::{HttpResponse, web};
use base::times::Rfc3339Time;
use bus::{Address, BusKey, QueueStatus};
use engine::{Definition, JobId, Step};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] = &[
    ApiRoute::get("/api/queues", || web::to(list_queues)).by_active().operation(|schemas| {
        let summary = "The queues of the loaded workflows, what they hold, and who uses them";
        let operation = OperationSpec::new("listQueues", "manager", summary);
        operation.with_json_response(200, "The queues", schemas.reference::<QueueListView<'_>>())
    }),
    ApiRoute::get("/api/queue/{queue}", || web::to(get_queue)).by_active().operation(|schemas| {
        OperationSpec::new("getQueue", "manager", "A queue with its leases")
            .with_parameters(&[BUS, VHOST])
            .with_json_response(200, "The queue", schemas.reference::<QueueWithLeasesView<'_>>())
            .with_problems(&[404])
    }),
];

/// The most leases that a response lists.
const LEASES_MAX: usize = 100;

#[derive(Serialize, ToSchema)]
#[schema(as = Queues)]
struct QueueListView<'a> {
    /// When the brokers were queried.
    looked: Rfc3339Time,
    queues: Vec<QueueView<'a>>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Queue)]
struct QueueView<'a> {
    queue: &'a str,
    vhost: &'a str,
    bus: &'a str,
    /// Messages that wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<u32>,
    /// Messages that workers have; for a web service, active calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    unacknowledged: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    consumers: Option<u32>,
    /// Why nothing is delivered to the web service behind the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<&'a str>,
    /// When that service is called again.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_call: Option<Rfc3339Time>,
    /// Whether the queue is full: the broker accepts no further message.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    full: bool,
    /// Whether the queue does not exist.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    missing: bool,
    /// Why nothing is known about the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown: Option<&'a str>,
    /// The step that has waited longest for a reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest: Option<QueueWaitView<'a>>,
    /// Whether no loaded workflow uses the queue, but only active jobs that were created before a
    /// reload.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    no_longer_in_files: bool,
    used_by: Vec<QueueUseView<'a>>,
}

/// A step that waits for a reply.
#[derive(Serialize, ToSchema)]
#[schema(as = QueueWait)]
struct QueueWaitView<'a> {
    job: JobId,
    step: &'a str,
    /// When its attempt began.
    since: Rfc3339Time,
}

/// A step whose messages go to a queue.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = QueueUse)]
struct QueueUseView<'a> {
    workflow: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a str>,
    step: &'a str,
    /// Whether only active jobs have this step on this queue, but no loaded workflow.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    no_longer_in_files: bool,
}

/// A queue, with its leased messages.
#[derive(Serialize, ToSchema)]
#[schema(as = OneQueue)]
struct QueueWithLeasesView<'a> {
    /// When the brokers were queried.
    looked: Rfc3339Time,
    #[serde(flatten)]
    queue: QueueView<'a>,
    /// The leased messages, ordered by the end of the lease. Only for queues of the embedded bus
    /// and of web services.
    leases: Vec<LeaseView>,
}

/// A message that a worker has leased.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Lease)]
struct LeaseView {
    #[schema(value_type = String)]
    message_id: Arc<str>,
    /// The name that the worker gave itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    worker: Option<Arc<str>>,
    /// The number of the delivery of the message, from 1.
    delivery: u32,
    /// When the message is given to another worker.
    lease_until: Rfc3339Time,
}

/// Shows one queue with its leases.
async fn get_queue(
    api: web::Data<ApiState>,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let [bus, vhost] = query.extract(["bus", "vhost"])?;
    let address = redispatch::find_queue(&api, &path.into_inner(), bus, vhost).await?;
    let manager = api.active()?;
    let scan = manager.queue_report().await;
    let loaded_definitions = api.definitions();
    let unloaded_definitions = with_full_names(manager.unloaded_definitions());
    let used_by = collect_uses(&api, &loaded_definitions, &unloaded_definitions)
        .remove(&address)
        .unwrap_or_default();
    let queue_key = (address.bus.clone(), address.queue.clone());
    let queue = QueueView {
        oldest: scan.oldest.get(&address).map(QueueWaitView::from_wait),
        ..QueueView::new(&address.bus, &address.queue, scan.queues.get(&queue_key), used_by)
    };
    let lease_queue = manager.lease_queues().find(&address.bus);
    let leases = lease_queue.map(|lease_queue| lease_queue.leases(&address.queue, LEASES_MAX));
    let leases = leases.into_iter().flatten().map(|lease| LeaseView {
        message_id: lease.id,
        worker: lease.worker,
        delivery: lease.delivery,
        lease_until: to_wall_clock(lease.until),
    });
    let scanned_at = Rfc3339Time(scan.at);
    Ok(HttpResponse::Ok().json(QueueWithLeasesView {
        looked: scanned_at,
        queue,
        leases: leases.collect(),
    }))
}

/// Lists all queues.
async fn list_queues(api: web::Data<ApiState>, query: Query) -> Result<HttpResponse, Problem> {
    query.check_empty()?;
    let manager = api.active()?;
    let scan = manager.queue_report().await;
    let loaded_definitions = api.definitions();
    let unloaded_definitions = with_full_names(manager.unloaded_definitions());
    let mut uses = collect_uses(&api, &loaded_definitions, &unloaded_definitions);
    let queues = uses.iter_mut().map(|(address, used_by)| {
        let queue_key = (address.bus.clone(), address.queue.clone());
        let used_by = std::mem::take(used_by);
        QueueView {
            oldest: scan.oldest.get(address).map(QueueWaitView::from_wait),
            ..QueueView::new(&address.bus, &address.queue, scan.queues.get(&queue_key), used_by)
        }
    });
    Ok(HttpResponse::Ok()
        .json(QueueListView { looked: Rfc3339Time(scan.at), queues: queues.collect() }))
}

/// Pairs definitions with their full names, and sorts them by name.
fn with_full_names(definitions: Vec<Arc<Definition>>) -> Vec<(String, Arc<Definition>)> {
    let mut named_definitions: Vec<_> = definitions
        .into_iter()
        .map(|definition: Arc<Definition>| (definition.full_name(), definition))
        .collect();
    named_definitions.sort_by(|(left, _), (right, _)| left.cmp(right));
    named_definitions
}

/// Collects the queues of the loaded definitions, and of unloaded ones that active jobs still run,
/// each with the steps that use it.
fn collect_uses<'a>(
    api: &Arc<ApiState>,
    loaded_definitions: &'a BTreeMap<String, Arc<Definition>>,
    unloaded_definitions: &'a [(String, Arc<Definition>)],
) -> BTreeMap<Address, Vec<QueueUseView<'a>>> {
    let mut uses: BTreeMap<Address, Vec<QueueUseView<'a>>> = BTreeMap::new();
    for (name, definition) in loaded_definitions {
        for (step, current_use) in sending_steps(name, definition) {
            let address = api.buses.address(definition, step);
            uses.entry(address).or_default().push(current_use);
        }
    }
    for (name, definition) in unloaded_definitions {
        for (step, current_use) in sending_steps(name, definition) {
            let queue_uses = uses.entry(api.buses.address(definition, step)).or_default();
            let old_use = QueueUseView { no_longer_in_files: true, ..current_use };
            // The loaded definition may still have the step on this queue, and so may another
            // unloaded definition.
            if !queue_uses.contains(&current_use) && !queue_uses.contains(&old_use) {
                queue_uses.push(old_use);
            }
        }
    }
    uses
}

/// Returns the steps of a definition that send messages, each with its use of a queue.
fn sending_steps<'a>(
    workflow: &'a str,
    definition: &'a Definition,
) -> impl Iterator<Item = (&'a Step, QueueUseView<'a>)> {
    definition.graphs.iter().enumerate().flat_map(move |(index, graph)| {
        // The first graph is the workflow itself, the others are its tasks.
        let task = (index > 0).then_some(graph.name.as_str());
        let to_use = move |step: &'a Step| QueueUseView {
            workflow,
            task,
            step: &step.name,
            no_longer_in_files: false,
        };
        graph.steps.iter().filter(|step| step.has_queue()).map(move |step| (step, to_use(step)))
    })
}

impl<'a> QueueWaitView<'a> {
    fn from_wait(wait: &'a WaitingStep) -> QueueWaitView<'a> {
        QueueWaitView { job: wait.job, step: &wait.step, since: Rfc3339Time(wait.since) }
    }
}

impl<'a> QueueView<'a> {
    /// Makes the view of a queue, without the step that has waited longest. `status` is `None` for
    /// a queue that the latest scan of the brokers did not include.
    fn new(
        bus: &'a BusKey,
        queue: &'a str,
        status: Option<&'a QueueStatus>,
        used_by: Vec<QueueUseView<'a>>,
    ) -> QueueView<'a> {
        let view = QueueView {
            queue,
            vhost: &bus.vhost,
            bus: &bus.name,
            messages: None,
            unacknowledged: None,
            consumers: None,
            trouble: None,
            next_call: None,
            full: false,
            missing: false,
            unknown: None,
            oldest: None,
            no_longer_in_files: used_by.iter().all(|queue_use| queue_use.no_longer_in_files),
            used_by,
        };
        match status {
            Some(QueueStatus::Exists { messages, unacknowledged, consumers, is_full }) => {
                QueueView {
                    full: *is_full,
                    messages: Some(*messages),
                    unacknowledged: *unacknowledged,
                    consumers: Some(*consumers),
                    ..view
                }
            }
            Some(QueueStatus::Endpoint { waiting, calls, failure }) => QueueView {
                messages: Some(u32::try_from(*waiting).unwrap_or(u32::MAX)),
                unacknowledged: Some(*calls as u64),
                trouble: failure.as_ref().map(|failure| &*failure.reason),
                next_call: failure.as_ref().and_then(|failure| failure.retry_at).map(Rfc3339Time),
                ..view
            },
            Some(QueueStatus::Missing) => QueueView { missing: true, ..view },
            Some(QueueStatus::Unknown(reason)) => QueueView { unknown: Some(reason), ..view },
            None => QueueView { unknown: Some("it was loaded since the last look"), ..view },
        }
    }
}
