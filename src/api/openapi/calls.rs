//! The operations of the API, in the order of docs/http-api.md.

use super::call::{Call, Schemas};
use super::parameters::*;
use crate::api::{
    children, definitions, history, holder, items, jobs, manager, operations, queues, redispatch,
    search, why, worker, workflows,
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
const FOUND: [Parameter; 11] = [
    WORKFLOW,
    VHOST_OF_WORKFLOW,
    STATES,
    ID_BEGINS,
    CREATED_AFTER,
    CREATED_BEFORE,
    ENDED_AFTER,
    ENDED_BEFORE,
    ORDER,
    LIMIT,
    CURSOR,
];

/// The path of a message that a worker has leased.
const MESSAGE: &str = "/api/queue/{queue}/message/{message}/{delivery}";
const BY_HAND: &str = "The step's output, or `{\"error\":…}`, or progress";

const TEXT: &str = "text/plain; charset=utf-8";

pub(super) fn all(schemas: &mut Schemas) -> Vec<Call> {
    let mut calls = of_workflows(schemas);
    calls.extend(of_jobs(schemas));
    calls.extend(of_steps(schemas));
    calls.extend(operations(schemas));
    calls.extend(of_workers(schemas));
    calls.extend(events());
    calls.extend(of_manager(schemas));
    calls
}

fn of_workflows(schemas: &mut Schemas) -> Vec<Call> {
    let get = |path, id, summary| Call::new("get", path, id, "workflows", summary);
    vec![
        get("/api/workflows", "listWorkflows", "The loaded workflows").takes(&[ALL, STATS]).json(
            200,
            "The workflows",
            schemas.list::<workflows::WorkflowRow<'_>>(),
        ),
        get("/api/definitions", "listDefinitions", "The definitions of a workflow that jobs run")
            .takes(&[WORKFLOW.required(), VHOST])
            .json(200, "The definitions", schemas.of::<definitions::Definitions>())
            .refuses(&[404]),
        get("/api/definition/{hash}", "getDefinition", "A definition by the hash of its content")
            .json(200, "The definition", schemas.of::<definitions::Named<'_>>())
            .refuses(&[404]),
        get(
            "/api/status/{name}",
            "listStatuses",
            "The status of every step of a workflow's jobs; any other parameter is the name of a \
             step, with the status that it must have",
        )
        .takes(&[VHOST, ONE_JOB, STATE, LIMIT, CURSOR])
        .json(200, "The rows", statuses())
        .content(
            200,
            "The rows",
            "text/csv; charset=utf-8; header=present",
            json!({ "type": "string" }),
        )
        .refuses(&[404]),
    ]
}

fn of_jobs(schemas: &mut Schemas) -> Vec<Call> {
    let get = |path, id, summary| Call::new("get", path, id, "jobs", summary);
    vec![
        Call::new(
            "post",
            "/api/workflow/{name}",
            "createJob",
            "jobs",
            "Creates a job; answered once it is committed",
        )
        .takes(&[NEW_ID, VHOST, TRACE_PARENT, TRACE_STATE])
        .body(false, new_message())
        .json(201, "It exists", schemas.of::<jobs::CreatedJob>())
        .refuses(&[404, 409, 422]),
        get(
            "/api/workflow/{name}",
            "listJobsOfWorkflow",
            "The jobs of a workflow, under way and ended",
        )
        .takes(&[VHOST, INTERVAL, LIMIT, CURSOR_OF_TWO, STATES_TOO])
        .json(200, "The jobs", schemas.of::<jobs::WorkflowPage>())
        .refuses(&[404]),
        get("/api/jobs", "listRunningJobs", "All jobs and child jobs under way")
            .takes(&[LIMIT, CURSOR])
            .json(200, "The jobs", schemas.of::<jobs::JobsPage>()),
        get(
            "/api/jobs/search",
            "searchJobs",
            "Jobs that a filter finds; also by `status.STEP=WORD`, for each step",
        )
        .takes(&FOUND)
        .takes(&[COUNT, CHILDREN_OF])
        .json(200, "The jobs", schemas.of::<search::SearchAnswer<'_>>())
        .refuses(&[404]),
        get("/api/job/{id}", "getJob", "A job or child job")
            .takes(&[VIEW, AT])
            .json(200, "The job", schemas.of::<JobView<'_>>())
            .empty(304, "The light view that the client has is the newest")
            .refuses(&[404]),
        get("/api/job/{id}/children", "listChildJobs", "Its child jobs, by step and item")
            .takes(&[STATE, OF_STEP, LIMIT, CHILD_AFTER])
            .json(200, "The child jobs", schemas.of::<children::Page<'_>>())
            .refuses(&[404]),
        get("/api/job/{id}/entries", "listEntries", "Its record, entry by entry")
            .takes(&[ENTRY_AFTER, LIMIT])
            .json(200, "The entries", schemas.of::<history::Page<'_>>())
            .refuses(&[404]),
        payload("/api/job/{id}/message", "getMessage", "The message that it was created with"),
        get("/api/job/{id}/result", "getResult", "The result of a completed job")
            .json(200, "The result", message())
            .refuses(&[404, 409]),
        get("/api/job/{id}/why", "why", "Why it does not move")
            .json(200, "The reason", schemas.of::<why::Why>())
            .refuses(&[404]),
    ]
}

fn of_steps(schemas: &mut Schemas) -> Vec<Call> {
    let get = |path, id, summary| Call::new("get", path, id, "jobs", summary);
    vec![
        get("/api/job/{id}/step/{step}", "getStep", "A step with its attempts")
            .takes(&[AT])
            .json(200, "The step", schemas.of::<StepDetail<'_>>())
            .refuses(&[404]),
        payload("/api/job/{id}/step/{step}/input", "getInput", "What its worker is given"),
        payload("/api/job/{id}/step/{step}/output", "getOutput", "What its worker gave"),
        get("/api/job/{id}/step/{step}/items", "getItems", "The items of a fan-out")
            .takes(&[FORMAT])
            .json(
                200,
                "Counts or reasons, or the map or times",
                json!({ "anyOf": [schemas.of::<ItemsView>(), schemas.of::<items::Reasons>()] }),
            )
            .content(
                200,
                "",
                "application/octet-stream",
                json!({ "type": "string", "format": "binary" }),
            )
            .refuses(&[404]),
    ]
}

fn operations(schemas: &mut Schemas) -> Vec<Call> {
    let operated = schemas.of::<operations::Operated<'_>>();
    let post =
        |path: &str, id: &str, summary: &str| Call::new("post", path, id, "operations", summary);
    let one = |path: &str, id: &str, summary: &str| {
        let call = post(path, id, summary).takes(&[REASON]);
        call.json(200, "What has become of it", operated.clone()).refuses(&[404, 409])
    };
    let mut calls = vec![
        Call::new(
            "delete",
            "/api/job/{id}",
            "endJob",
            "operations",
            "Cancels a job; with `erase` erases one that has ended",
        )
        .takes(&[ERASE])
        .json(200, "What has become of it", operated.clone())
        .refuses(&[404, 409]),
        one("/api/job/{id}/step/{step}", "replyByHand", "Replies in place of a worker")
            .takes(&[REPLY])
            .body(true, json!({ "anyOf": [message()], "description": BY_HAND }))
            .refuses(&[422]),
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
        .takes(&[BUS, VHOST, DRY_RUN, REASON])
        .json(200, "How many", schemas.of::<redispatch::Redispatched>())
        .refuses(&[404]),
    ];
    let bulk = json!({
        "anyOf": [schemas.of::<operations::Bulk<'_>>(), schemas.of::<operations::Dry<'_>>()],
    });
    for (word, about) in OPERATIONS.iter().copied().chain([("delete", "Erases ended jobs")]) {
        let step: &[Parameter] = if word == "rerun" { &[FROM_STEP] } else { &[] };
        if word != "delete" {
            calls.push(
                one(&format!("/api/job/{{id}}/{word}"), &format!("{word}Job"), about).takes(step),
            );
        }
        let reason: &[Parameter] = if word == "delete" { &[] } else { &[REASON] };
        calls.push(
            post(
                &format!("/api/jobs/{word}"),
                &format!("{word}Jobs"),
                &format!("{about}: all that a filter finds, a page at a time"),
            )
            .takes(&FOUND)
            .rule(operations::needs_filter(word))
            .takes(&[DRY_RUN])
            .takes(step)
            .takes(reason)
            .json(200, "What was done, or would be", bulk.clone())
            .refuses(&[404]),
        );
    }
    calls
}

fn of_workers(schemas: &mut Schemas) -> Vec<Call> {
    let post = |path: &str, id, summary| {
        let call = Call::new("post", path, id, "workers", summary).takes(&[VHOST]);
        call.refuses(&[404, 409])
    };
    let on = |word: &str| format!("{MESSAGE}/{word}");
    let taken = schemas.of::<worker::Taken>();
    let messages = schemas.list::<worker::MessageView>();
    vec![
        post(
            "/api/queue/{queue}/receive",
            "receive",
            "The next message of a queue of the embedded bus; all but the input stands in headers",
        )
        .takes(&[WAIT, LEASE, MOST, WORKER])
        .json(200, "The step's input; with `max` a list", json!({ "anyOf": [message(), messages] }))
        .empty(204, "None came"),
        post(&on("reply"), "reply", "The worker's reply; answered once it is committed")
            .takes(&[REPLY, CALLING_BUS])
            // Any body is accepted: one that is no JSON object fails the attempt.
            .body(false, json!({ "description": BY_HAND }))
            .json(200, "What became of it", taken.clone()),
        post(&on("extend"), "extend", "The worker has it in hand still")
            .takes(&[LEASE])
            .json(200, "Until when", schemas.of::<worker::Extended>())
            .refuses(&[410]),
        post(&on("nack"), "nack", "The worker does not do it")
            .takes(&[REQUEUE, DELAY])
            .json(200, "What became of it", taken)
            .refuses(&[410]),
    ]
}

fn events() -> Vec<Call> {
    let stream = |path, id, summary| {
        let call = Call::new("get", path, id, "events", summary);
        call.content(
            200,
            "Server-sent events, each a CloudEvent",
            "text/event-stream",
            json!({ "type": "string" }),
        )
        .refuses(&[404])
    };
    vec![
        stream("/api/events", "followAll", "What happens to all jobs, from now on").takes(&[
            WORKFLOW,
            VHOST_OF_WORKFLOW,
            KIND,
        ]),
        stream("/api/job/{id}/events", "followJob", "What happens to a job, until it has ended")
            .takes(&[CHILDREN])
            .empty(204, "It has ended, and the client has its last event"),
    ]
}

fn of_manager(schemas: &mut Schemas) -> Vec<Call> {
    let get = |path, id, summary| Call::new("get", path, id, "manager", summary);
    let text = || json!({ "type": "string" });
    vec![
        get(
            "/api/queues",
            "listQueues",
            "The queues of the loaded workflows, what they hold, and who uses them",
        )
        .json(200, "The queues", schemas.of::<queues::Queues<'_>>()),
        get("/api/queue/{queue}", "getQueue", "A queue, and who has messages of it")
            .takes(&[BUS, VHOST])
            .json(200, "The queue", schemas.of::<queues::OneQueue<'_>>())
            .refuses(&[404]),
        get("/api/manager", "getManager", "The manager: its version, its checks, its mailboxes")
            .json(200, "The manager", schemas.of::<manager::ManagerView>()),
        get("/api/whoami", "whoami", "Who sends this, and what the token allows").json(
            200,
            "The token",
            schemas.of::<holder::WhoamiView>(),
        ),
        get("/api/settings", "getSettings", "Its settings, without secrets")
            .takes(&[SOURCES])
            .json(
                200,
                "The settings; with `sources` a list",
                json!({ "anyOf": [anything(), schemas.list::<Sourced<'_>>()] }),
            ),
        Call::new(
            "post",
            "/api/reload",
            "reload",
            "manager",
            "Reads the workflow files, and the file of tokens, again, all or nothing",
        )
        .json(200, "What has changed", schemas.of::<Reloaded>())
        .refuses(&[422]),
        get("/livez", "live", "The process answers").content(200, "It does", TEXT, text()),
        get("/readyz", "ready", "Work can be done").content(200, "It can", TEXT, text()).content(
            503,
            "It cannot",
            TEXT,
            text(),
        ),
        get("/metrics", "metrics", "The metrics, for Prometheus").content(
            200,
            "The metrics",
            "text/plain; version=0.0.4",
            text(),
        ),
        get("/openapi.json", "openapi", "This document").json(200, "The document", anything()),
    ]
}

/// Describes the operation that returns a payload as the text that was sent.
fn payload(path: &str, id: &str, summary: &str) -> Call {
    Call::new("get", path, id, "jobs", summary)
        .json(200, "The text", message())
        // A part of a JSON text is no JSON.
        .json(206, "The part of it that was asked for", json!({}))
        .empty(416, "It has no such part")
        .refuses(&[404])
}

fn anything() -> Value {
    json!({ "type": "object", "additionalProperties": true })
}

/// Returns the schema of a JSON object, as it was sent.
fn message() -> Value {
    json!({ "$ref": "#/components/schemas/Message" })
}

/// Returns the schema of a new job's message. Nothing, or null, is an empty message.
fn new_message() -> Value {
    json!({
        "anyOf": [message(), { "type": "null" }],
        "description": "The job's message. If it has an `id`, that is a UUID, and the new job's id",
    })
}

/// Returns the schema of a status sheet, whose rows are written as they are read.
fn statuses() -> Value {
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
