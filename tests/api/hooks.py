"""Keeps the calls that the document allows to its rules between parameters, which no schema can say.

A parameter has `x-needs` if it means nothing without another; a call with such a parameter alone is refused, and the
document says so. Operations on many jobs need a filter.
"""
import schemathesis

# Values for the parameters that others need.
NEEDED = {"workflow": "orders", "limit": 10, "requeue": "true"}
# Those of an operation on many jobs that find no job.
NO_FILTERS = {"vhost", "order", "limit", "cursor", "dryRun", "step", "reason"}


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    asked = case.query or {}
    described = case.operation.definition.raw.get("parameters", [])
    for parameter in described:
        other = parameter.get("x-needs")
        if other and parameter["name"] in asked and asked.get(other) in (None, "", "false", False):
            case.query[other] = NEEDED[other]
    if case.operation.path.startswith("/api/jobs/") and case.method.upper() == "POST" and not set(asked) - NO_FILTERS:
        case.query["workflow"] = NEEDED["workflow"]
