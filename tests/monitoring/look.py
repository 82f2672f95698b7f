"""Keeps the manager busy, over each of its ways, and asks Prometheus what the dashboard and the alerts ask."""

import json
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WITHIN = 120
# Nothing of the kind happens to a manager that is well; their names are checked all the same.
SILENT = (
    "workflow_steps_redispatched_total",
    "workflow_replies_rejected_total",
    "workflow_calls_refused_total",
    "workflow_column_errors_total",
    "workflow_bus_notices_total",
    "workflow_bus_blocked",
    "workflow_queue_messages_lost",
    "workflow_schedule_failures_total",
    "workflow_messages_unreadable_total",
    "workflow_events_dropped_total",
    "workflow_webhook_waiting",
    "workflow_traces_jobs_dropped_total",
    "workflow_traces_spans_dropped_total",
    # The manager that is looked at has a file.
    "workflow_cluster_active",
    "workflow_cluster_takeovers_total",
    "workflow_cluster_beat_age_seconds",
    "workflow_journal_synchronous_standby",
)
# While a dashboard is tried, what happens is seconds old.
SPANS = (("$__rate_interval", "10s"), ("$instance", ".*"))

root, manager, prometheus, service, grpc = Path(sys.argv[1]), *sys.argv[2:6]


class Service(BaseHTTPRequestHandler):
    """A web service that a step calls, and a receiver of traces: its answer is empty."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        """Nobody reads it."""


def get(url, body=None):
    with urllib.request.urlopen(url, body, timeout=30) as answer:
        return json.load(answer)


def ask(query):
    """What Prometheus knows now: a list of series. A query that it cannot read is an error."""
    for written, put in SPANS:
        query = query.replace(written, put)
    try:
        answer = get(f"{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": query}))
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{query}: {error.read().decode()}") from error
    return [series for series in answer["data"]["result"] if series["value"][1] != "NaN"]


def create(workflow, message):
    get(f"{manager}/api/workflow/{workflow}", json.dumps(message).encode())


def work():
    """Jobs that end well, that fail, that wait for somebody; and child jobs that fail."""
    for number in range(6):
        create("simple", {"name": "bad" if number % 3 == 0 else "pen"})
    create("called", {})
    # A call over gRPC with an empty message, which names nothing.
    call = ["curl", "-s", "--http2-prior-knowledge", "-H", "content-type: application/grpc", "-H", "te: trailers"]
    call += ["--data-binary", "@-", f"http://{grpc}/workflow_manager.v1.Workers/Extend"]
    subprocess.run(call, input=bytes(5), stdout=subprocess.DEVNULL, check=True)
    create("orders", {"lines": [{"name": name} for name in ("pen", "bad", "ink")]})


def queries():
    board = json.loads((root / "monitoring/dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def names(text):
    """The metrics in a text, without what Prometheus makes of a histogram."""
    found = re.findall(r"\b(?:workflow|process)_[a-z_]+\b", text)
    histograms = ("_bucket", "_count", "_sum")
    return {next((name.removesuffix(end) for end in histograms if name.endswith(end)), name) for name in found}


def check_names():
    documented = names((root / "docs/reference/metrics.md").read_text())
    alerts = (root / "monitoring/alerts.yaml").read_text()
    used = {name for _, query in queries() for name in names(query)} | names("\n".join(re.findall(r"expr: (.*)", alerts)))
    scraped = names(urllib.request.urlopen(f"{manager}/metrics").read().decode())
    unknown = {name for name in used if name not in (scraped if name.startswith("process_") else documented)}
    assert not unknown, f"not in docs/reference/metrics.md, or not in /metrics: {unknown}"
    assert set(SILENT) <= documented, "a metric that is expected to be silent is not documented"


def check_dashboard():
    waiting = dict.fromkeys(queries())
    end = time.monotonic() + WITHIN
    while waiting and time.monotonic() < end:
        work()
        time.sleep(0.5)
        for title, query in list(waiting):
            if ask(query) or any(name in query for name in SILENT):
                del waiting[title, query]
    assert not waiting, "nothing is shown by:\n" + "\n".join(f"{title}: {query}" for title, query in waiting)
    total = sum(1 for _ in queries())
    print(f"{total} queries of the dashboard are answered")


def check_alerts():
    """Every rule has been evaluated, and none that matters fires."""
    end = time.monotonic() + WITHIN
    while True:
        rules = [rule for group in get(f"{prometheus}/api/v1/rules")["data"]["groups"] for rule in group["rules"]]
        if rules and all(rule["health"] != "unknown" for rule in rules):
            break
        assert time.monotonic() < end, "the rules are not evaluated"
        time.sleep(0.2)
    wrong = [f"{rule['name']}: {rule.get('lastError')}" for rule in rules if rule["health"] != "ok"]
    assert not wrong, wrong
    firing = {rule["name"] for rule in rules if rule["state"] == "firing"}
    assert not firing, f"on a manager that is well: {firing}"
    print(f"{len(rules)} alerts are evaluated, none fires")


def check_metrics_are_good():
    """The manager's page of metrics is what Prometheus expects."""
    up = ask('up{job="workflow-manager"}')
    assert [series["value"][1] for series in up] == ["1"], up


threading.Thread(target=ThreadingHTTPServer(("127.0.0.1", int(service)), Service).serve_forever, daemon=True).start()
check_names()
check_dashboard()
check_alerts()
check_metrics_are_good()
