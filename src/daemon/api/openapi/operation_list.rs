//! The operations of the API, in the order of docs/http-api.md.

use super::operation_spec::{OperationSpec, Schemas};
use super::parameters::*;
use crate::api::{
    children, definitions, history, items, jobs, manager, operations, principal, queues,
    redispatch, search, why, worker, workflows,
};
use crate::reload::Reloaded;
use crate::settings::Sourced;
use crate::view::{ItemsView, JobView, StepDetail};
use serde_json::{Value, json};

/// The groups of operations.
pub(super) const TAGS: [(&str, &str); 6] = [
    ("workflows", "What can be run"),
    ("jobs", "What runs and has run"),
    ("operations", "What can be done with jobs"),
    ("workers", "Messages and replies of workers without a broker"),
    ("events", "What happens, as it happens"),
    ("manager", "The manager itself"),
];

/// The operations on a job, with a summary of each.
const OPERATIONS: [(&str, &str); 5] = [
    ("cancel", "Ends it"),
    ("pause", "Dispatches nothing new; replies are taken"),
    ("resume", "Goes on after a pause"),
    ("retry", "Goes on from the failed steps"),
    ("rerun", "Does a step again, and all that depends on it"),
];

/// The parameters that select jobs, for a list or for a bulk operation.
const SEARCH_PARAMETERS: [Parameter; 11] = [
    WORKFLOW,
    VHOST_OF_WORKFLOW,
    STATES,
    ID_PREFIX,
    CREATED_AFTER,
    CREATED_BEFORE,
    ENDED_AFTER,
    ENDED_BEFORE,
    ORDER,
    LIMIT,
    CURSOR,
];

/// The path of a message that a worker has leased.
const MESSAGE_PATH: &str = "/api/queue/{queue}/message/{message}/{delivery}";
const REPLY_DESCRIPTION: &str = "The step's output, or `{\"error\":…}`, or progress";

const TEXT_CONTENT_TYPE: &str = "text/plain; charset=utf-8";

pub(super) fn all_operations(schemas: &mut Schemas) -> Vec<OperationSpec> {
    let mut specs = workflow_operations(schemas);
    specs.extend(job_operations(schemas));
    specs.extend(step_operations(schemas));
    specs.extend(control_operations(schemas));
    specs.extend(worker_operations(schemas));
    specs.extend(event_operations());
    specs.extend(manager_operations(schemas));
    specs
}

fn workflow_operations(schemas: &mut Schemas) -> Vec<OperationSpec> {
    let get = |path, id, summary| OperationSpec::new("get", path, id, "workflows", summary);
    vec![
        get("/api/workflows", "listWorkflows", "The loaded workflows")
            .with_parameters(&[ALL, STATS])
            .with_json_response(
                200,
                "The workflows",
                schemas.list_of::<workflows::WorkflowRow<'_>>(),
            ),
        get("/api/definitions", "listDefinitions", "The definitions of a workflow that jobs run")
            .with_parameters(&[WORKFLOW.required(), VHOST])
            .with_json_response(
                200,
                "The definitions",
                schemas.reference::<definitions::Definitions>(),
            )
            .with_problems(&[404]),
        get("/api/definition/{hash}", "getDefinition", "A definition by the hash of its content")
            .with_json_response(
                200,
                "The definition",
                schemas.reference::<definitions::Named<'_>>(),
            )
            .with_problems(&[404]),
        get(
            "/api/status/{name}",
            "listStatuses",
            "The status of every step of a workflow's jobs; any other parameter is the name of a \
             step, with the status that it must have",
        )
        .with_parameters(&[VHOST, JOB, STATE, LIMIT, CURSOR])
        .with_json_response(200, "The rows", statuses_schema())
        .with_response(
            200,
            "The rows",
            "text/csv; charset=utf-8; header=present",
            json!({ "type": "string" }),
        )
        .with_problems(&[404]),
    ]
}

fn job_operations(schemas: &mut Schemas) -> Vec<OperationSpec> {
    let get = |path, id, summary| OperationSpec::new("get", path, id, "jobs", summary);
    vec![
        OperationSpec::new(
            "post",
            "/api/workflow/{name}",
            "createJob",
            "jobs",
            "Creates a job; answered once it is committed",
        )
        .with_parameters(&[NEW_ID, VHOST, TRACE_PARENT, TRACE_STATE])
        .with_body(false, new_message_schema())
        .with_json_response(201, "It exists", schemas.reference::<jobs::CreatedJob>())
        .with_problems(&[404, 409, 422]),
        get(
            "/api/workflow/{name}",
            "listJobsOfWorkflow",
            "The jobs of a workflow, under way and ended",
        )
        .with_parameters(&[VHOST, INTERVAL, LIMIT, DOUBLE_CURSOR, WITH_STATES])
        .with_json_response(200, "The jobs", schemas.reference::<jobs::WorkflowPage>())
        .with_problems(&[404]),
        get("/api/jobs", "listRunningJobs", "All jobs and child jobs under way")
            .with_parameters(&[LIMIT, CURSOR])
            .with_json_response(200, "The jobs", schemas.reference::<jobs::JobsPage>()),
        get(
            "/api/jobs/search",
            "searchJobs",
            "Jobs that a filter finds; also by `status.STEP=WORD`, for each step",
        )
        .with_parameters(&SEARCH_PARAMETERS)
        .with_parameters(&[WITH_COUNT, PARENT])
        .with_json_response(200, "The jobs", schemas.reference::<search::SearchAnswer<'_>>())
        .with_problems(&[404]),
        get("/api/job/{id}", "getJob", "A job or child job")
            .with_parameters(&[VIEW, AT])
            .with_json_response(200, "The job", schemas.reference::<JobView<'_>>())
            .with_empty_response(304, "The light view that the client has is the newest")
            .with_problems(&[404]),
        get("/api/job/{id}/children", "listChildJobs", "Its child jobs, by step and item")
            .with_parameters(&[STATE, STEP, LIMIT, CHILD_AFTER])
            .with_json_response(200, "The child jobs", schemas.reference::<children::Page<'_>>())
            .with_problems(&[404]),
        get("/api/job/{id}/entries", "listEntries", "Its record, entry by entry")
            .with_parameters(&[ENTRY_AFTER, LIMIT])
            .with_json_response(200, "The entries", schemas.reference::<history::Page<'_>>())
            .with_problems(&[404]),
        payload_operation(
            "/api/job/{id}/message",
            "getMessage",
            "The message that it was created with",
        ),
        get("/api/job/{id}/result", "getResult", "The result of a completed job")
            .with_json_response(200, "The result", message_schema())
            .with_problems(&[404, 409]),
        get("/api/job/{id}/why", "why", "Why it does not move")
            .with_json_response(200, "The reason", schemas.reference::<why::Why>())
            .with_problems(&[404]),
    ]
}

fn step_operations(schemas: &mut Schemas) -> Vec<OperationSpec> {
    let get = |path, id, summary| OperationSpec::new("get", path, id, "jobs", summary);
    vec![
        get("/api/job/{id}/step/{step}", "getStep", "A step with its attempts")
            .with_parameters(&[AT])
            .with_json_response(200, "The step", schemas.reference::<StepDetail<'_>>())
            .with_problems(&[404]),
        payload_operation(
            "/api/job/{id}/step/{step}/input",
            "getInput",
            "What its worker is given",
        ),
        payload_operation("/api/job/{id}/step/{step}/output", "getOutput", "What its worker gave"),
        get("/api/job/{id}/step/{step}/items", "getItems", "The items of a fan-out")
            .with_parameters(&[FORMAT])
            .with_json_response(
                200,
                "Counts or reasons, or the map or times",
                json!({ "anyOf": [
                    schemas.reference::<ItemsView>(),
                    schemas.reference::<items::Reasons>(),
                ] }),
            )
            .with_response(
                200,
                "",
                "application/octet-stream",
                json!({ "type": "string", "format": "binary" }),
            )
            .with_problems(&[404]),
    ]
}

fn control_operations(schemas: &mut Schemas) -> Vec<OperationSpec> {
    let operated = schemas.reference::<operations::Operated<'_>>();
    let post = |path: &str, id: &str, summary: &str| {
        OperationSpec::new("post", path, id, "operations", summary)
    };
    let one = |path: &str, id: &str, summary: &str| {
        let call = post(path, id, summary).with_parameters(&[REASON]);
        call.with_json_response(200, "What has become of it", operated.clone())
            .with_problems(&[404, 409])
    };
    let mut specs = vec![
        OperationSpec::new(
            "delete",
            "/api/job/{id}",
            "endJob",
            "operations",
            "Cancels a job; with `erase` erases one that has ended",
        )
        .with_parameters(&[ERASE])
        .with_json_response(200, "What has become of it", operated.clone())
        .with_problems(&[404, 409]),
        one("/api/job/{id}/step/{step}", "replyByHand", "Replies in place of a worker")
            .with_parameters(&[REPLY_TYPE])
            .with_body(
                true,
                json!({ "anyOf": [message_schema()], "description": REPLY_DESCRIPTION }),
            )
            .with_problems(&[422]),
        one(
            "/api/job/{id}/step/{step}/redispatch",
            "redispatchStep",
            "Sends a running step's message once more",
        ),
        post(
            "/api/queue/{queue}/redispatch",
            "redispatchQueue",
            "Sends the messages of all steps that wait on a queue once more",
        )
        .with_parameters(&[BUS, VHOST, DRY_RUN, REASON])
        .with_json_response(200, "How many", schemas.reference::<redispatch::Redispatched>())
        .with_problems(&[404]),
    ];
    let bulk = json!({
        "anyOf": [
            schemas.reference::<operations::Bulk<'_>>(),
            schemas.reference::<operations::Dry<'_>>(),
        ],
    });
    for (operation_name, about) in
        OPERATIONS.iter().copied().chain([("delete", "Erases ended jobs")])
    {
        let step: &[Parameter] = if operation_name == "rerun" { &[FROM_STEP] } else { &[] };
        if operation_name != "delete" {
            specs.push(
                one(
                    &format!("/api/job/{{id}}/{operation_name}"),
                    &format!("{operation_name}Job"),
                    about,
                )
                .with_parameters(step),
            );
        }
        let reason: &[Parameter] = if operation_name == "delete" { &[] } else { &[REASON] };
        specs.push(
            post(
                &format!("/api/jobs/{operation_name}"),
                &format!("{operation_name}Jobs"),
                &format!("{about}: all that a filter finds, a page at a time"),
            )
            .with_parameters(&SEARCH_PARAMETERS)
            .rule(operations::needs_filter(operation_name))
            .with_parameters(&[DRY_RUN])
            .with_parameters(step)
            .with_parameters(reason)
            .with_json_response(200, "What was done, or would be", bulk.clone())
            .with_problems(&[404]),
        );
    }
    specs
}

fn worker_operations(schemas: &mut Schemas) -> Vec<OperationSpec> {
    let post = |path: &str, id, summary| {
        let call =
            OperationSpec::new("post", path, id, "workers", summary).with_parameters(&[VHOST]);
        call.with_problems(&[404, 409])
    };
    let on = |action: &str| format!("{MESSAGE_PATH}/{action}");
    let settled = schemas.reference::<worker::Taken>();
    let messages = schemas.list_of::<worker::MessageView>();
    vec![
        post(
            "/api/queue/{queue}/receive",
            "receive",
            "The next message of a queue of the embedded bus; all but the input stands in headers",
        )
        .with_parameters(&[WAIT, LEASE, MAX_MESSAGES, WORKER])
        .with_json_response(
            200,
            "The step's input; with `max` a list",
            json!({ "anyOf": [message_schema(), messages] }),
        )
        .with_empty_response(204, "None came"),
        post(&on("reply"), "reply", "The worker's reply; answered once it is committed")
            .with_parameters(&[REPLY_TYPE, SERVICE_BUS])
            // Any body is accepted: one that is no JSON object fails the attempt.
            .with_body(false, json!({ "description": REPLY_DESCRIPTION }))
            .with_json_response(200, "What became of it", settled.clone()),
        post(&on("extend"), "extend", "The worker has it in hand still")
            .with_parameters(&[LEASE])
            .with_json_response(200, "Until when", schemas.reference::<worker::Extended>())
            .with_problems(&[410]),
        post(&on("nack"), "nack", "The worker does not do it")
            .with_parameters(&[REQUEUE, DELAY])
            .with_json_response(200, "What became of it", settled)
            .with_problems(&[410]),
    ]
}

fn event_operations() -> Vec<OperationSpec> {
    let stream = |path, id, summary| {
        let call = OperationSpec::new("get", path, id, "events", summary);
        call.with_response(
            200,
            "Server-sent events, each a CloudEvent",
            "text/event-stream",
            json!({ "type": "string" }),
        )
        .with_problems(&[404])
    };
    vec![
        stream("/api/events", "followAll", "What happens to all jobs, from now on")
            .with_parameters(&[WORKFLOW, VHOST_OF_WORKFLOW, EVENT_KIND]),
        stream("/api/job/{id}/events", "followJob", "What happens to a job, until it has ended")
            .with_parameters(&[EVENTS_OF_CHILDREN])
            .with_empty_response(204, "It has ended, and the client has its last event"),
    ]
}

fn manager_operations(schemas: &mut Schemas) -> Vec<OperationSpec> {
    let get = |path, id, summary| OperationSpec::new("get", path, id, "manager", summary);
    let text = || json!({ "type": "string" });
    vec![
        get(
            "/api/queues",
            "listQueues",
            "The queues of the loaded workflows, what they hold, and who uses them",
        )
        .with_json_response(200, "The queues", schemas.reference::<queues::Queues<'_>>()),
        get("/api/queue/{queue}", "getQueue", "A queue, and who has messages of it")
            .with_parameters(&[BUS, VHOST])
            .with_json_response(200, "The queue", schemas.reference::<queues::OneQueue<'_>>())
            .with_problems(&[404]),
        get("/api/manager", "getManager", "The manager: its version, its checks, its mailboxes")
            .with_json_response(200, "The manager", schemas.reference::<manager::ManagerView>()),
        get("/api/whoami", "whoami", "Who sends this, and what the token allows")
            .with_json_response(200, "The token", schemas.reference::<principal::WhoamiView>()),
        get("/api/settings", "getSettings", "Its settings, without secrets")
            .with_parameters(&[SOURCES])
            .with_json_response(
                200,
                "The settings; with `sources` a list",
                json!({ "anyOf": [any_object(), schemas.list_of::<Sourced<'_>>()] }),
            ),
        OperationSpec::new(
            "post",
            "/api/reload",
            "reload",
            "manager",
            "Reads the workflow files, and the file of tokens, again, all or nothing",
        )
        .with_json_response(200, "What has changed", schemas.reference::<Reloaded>())
        .with_problems(&[422]),
        get("/livez", "live", "The process answers").with_response(
            200,
            "It does",
            TEXT_CONTENT_TYPE,
            text(),
        ),
        get("/readyz", "ready", "Work can be done")
            .with_response(200, "It can", TEXT_CONTENT_TYPE, text())
            .with_response(503, "It cannot", TEXT_CONTENT_TYPE, text()),
        get("/metrics", "metrics", "The metrics, for Prometheus").with_response(
            200,
            "The metrics",
            "text/plain; version=0.0.4",
            text(),
        ),
        get("/openapi.json", "openapi", "This document").with_json_response(
            200,
            "The document",
            any_object(),
        ),
    ]
}

/// Describes the operation that returns a payload as the text that was sent.
fn payload_operation(path: &str, id: &str, summary: &str) -> OperationSpec {
    OperationSpec::new("get", path, id, "jobs", summary)
        .with_json_response(200, "The text", message_schema())
        // A part of a JSON text is no JSON.
        .with_json_response(206, "The part of it that was asked for", json!({}))
        .with_empty_response(416, "It has no such part")
        .with_problems(&[404])
}

fn any_object() -> Value {
    json!({ "type": "object", "additionalProperties": true })
}

/// Returns the schema of a JSON object, as it was sent.
fn message_schema() -> Value {
    json!({ "$ref": "#/components/schemas/Message" })
}

/// Returns the schema of a new job's message. Nothing, or null, is an empty message.
fn new_message_schema() -> Value {
    json!({
        "anyOf": [message_schema(), { "type": "null" }],
        "description": "The job's message. If it has an `id`, that is a UUID, and the new job's id",
    })
}

/// Returns the schema of a status sheet, whose rows are written as they are read.
fn statuses_schema() -> Value {
    let row = json!({
        "type": "object",
        "required": ["job", "state", "created", "updated", "steps"],
        "properties": {
            "job": { "type": "string", "format": "uuid" },
            "state": { "$ref": "#/components/schemas/JobState" },
            "created": { "type": "string", "format": "date-time" },
            "updated": { "type": "string", "format": "date-time" },
            "steps": { "type": "object", "additionalProperties": { "type": "string" } },
        },
    });
    json!({
        "type": "object",
        "required": ["rows"],
        "properties": { "rows": { "type": "array", "items": row }, "next": { "type": "string" } },
    })
}
