"""Looks at the reports of schemathesis: was every call answered well at least once, and badly often enough?

    answered.py openapi.json REPORT.ndjson…
"""
import json
import sys
from collections import Counter

# They are not called at all; see tests/api/run.
LEFT_OUT = {"followAll", "followJob", "reload"}
# On the embedded bus the manager never lets go of a message, so there is none to send once more. A manager with its
# journal in a file has no standby, so it does not step down.
NEVER_WELL = {"redispatchStep", "stepDown"}
# Malformed calls of each path that are answered with problem details, at least.
MALFORMED_MIN = 5


def main(document, *reports):
    with open(document, encoding="utf-8") as file:
        paths = json.load(file)["paths"]
    calls = {
        f"{method.upper()} {path}": call["operationId"]
        for path, methods in paths.items()
        for method, call in methods.items()
        if call["operationId"] not in LEFT_OUT
    }
    well, problems, broken = Counter(), Counter(), []
    for report in reports:
        for label, is_malformed, request, response in exchanges(report):
            status = response["status_code"]
            if status < 300:
                well[label] += 1
            elif status >= 500:
                broken.append(f"{request['method']} {request['uri']}: {status}")
            elif status >= 400 and response["headers"].get("content-type") != ["application/problem+json"]:
                broken.append(f"{request['method']} {request['uri']}: {status} without problem details")
            elif is_malformed:
                problems[label.split(" ", 1)[1]] += 1
    faults = broken[:10]
    faults += [f"{label}: never answered with 2xx" for label, name in calls.items() if name not in NEVER_WELL and not well[label]]
    for path in sorted({label.split(" ", 1)[1] for label in calls}):
        if problems[path] < MALFORMED_MIN:
            faults.append(f"{path}: only {problems[path]} malformed calls answered with problem details")
    if faults:
        sys.exit("\n".join(faults))
    fewest = min(problems.values())
    print(
        f"{len(calls)} calls answered with 2xx {well.total()} times; "
        f"{problems.total()} malformed ones answered with problem details, at least {fewest} of each path"
    )


def exchanges(report):
    with open(report, encoding="utf-8") as file:
        for line in file:
            scenario = json.loads(line).get("ScenarioFinished")
            recorder = (scenario or {}).get("recorder", {})
            for case, exchange in recorder.get("interactions", {}).items():
                if exchange.get("response"):
                    mode = recorder["cases"][case]["value"]["meta"]["generation"]["mode"]
                    yield recorder["label"], mode == "negative", exchange["request"], exchange["response"]


main(*sys.argv[1:])
