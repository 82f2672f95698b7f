"""Keeps the calls that the document allows to its rules between parameters, which no schema can say.

A parameter has `x-needs` if it means nothing without another; a call with such a parameter alone is refused, and the
document says so. Operations on many jobs need a filter, a change of a limit needs a value, a job begins after a time
or at one, and a backfill is of slots that have passed.
"""
import schemathesis

# Values for the parameters that others need.
NEEDED = {"workflow": "orders", "limit": 10, "requeue": "true", "rate": "20/s"}
# The slots of a backfill: few of them, and in the past.
SLOTS = {"from": "2020-01-01T00:00:00Z", "to": "2025-06-01T00:00:00Z"}
# Those of an operation on many jobs that find no job.
NO_FILTERS = {"vhost", "order", "limit", "cursor", "dryRun", "step", "items", "reason"}


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    asked = case.query or {}
    described = case.operation.definition.raw.get("parameters", [])
    operation = case.operation.definition.raw["operationId"]
    for parameter in described:
        other = parameter.get("x-needs")
        if other and parameter["name"] in asked and asked.get(other) in (None, "", "false", False):
            case.query[other] = NEEDED[other]
    if case.operation.path.startswith("/api/jobs/") and case.method.upper() == "POST" and not set(asked) - NO_FILTERS:
        case.query["workflow"] = NEEDED["workflow"]
    if operation == "changeLimit" and not {"rate", "concurrency"} & set(asked):
        case.query["rate"] = NEEDED["rate"]
    if operation == "createJob" and "at" in asked:
        case.query.pop("after", None)
        # The years that are made up are too far ahead, most of them.
        case.query["at"] = SLOTS["to"]
    if operation == "backfillSchedule":
        case.query.update({name: time for name, time in SLOTS.items() if name in asked})
