"""Spans of workers' functions: inside those of the manager's attempts, where OpenTelemetry is installed."""

import http.server
import json
import threading

import pytest
from conftest import eventually

ORDERS = """
workflows:
  - name: orders
    steps: [ { name: price, queue: prices } ]
"""

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
TRACESTATE = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"


def spans(worker, count=1):
    path = worker.directory / "spans"

    def written():
        lines = path.read_text().splitlines() if path.exists() else []
        return len(lines) >= count and [json.loads(line) for line in lines]

    found = eventually(written, f"{count} spans")
    assert len(found) == count, found
    return found


@pytest.fixture
def receiver():
    """The bodies of what was posted to a receiver of OTLP; it has its address as ``endpoint``."""

    class Bodies(list):
        endpoint = ""

    bodies = Bodies()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    bodies.endpoint = f"http://127.0.0.1:{server.server_port}"
    yield bodies
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("function", ["echo", "async_echo"])
def test_over_http_the_span_is_inside_the_attempt_that_the_manager_tells_of(start_daemon, start_worker_at, receiver, function):
    daemon = start_daemon(ORDERS, WORKFLOW_MANAGER__TRACES__ENDPOINT=receiver.endpoint, WORKFLOW_MANAGER__TRACES__DELAY="10ms")
    worker = start_worker_at(daemon.url, {"prices": function}, OPENTELEMETRY="spans")
    job = daemon.create("orders", {})
    daemon.ended(job)
    [span] = spans(worker)
    assert (span["name"], span["kind"]) == ("process prices", "SpanKind.CONSUMER")
    assert span["context"]["trace_id"] == f"0x{job.replace('-', '')}"
    attributes = span["attributes"]
    assert (attributes["messaging.system"], attributes["messaging.destination.name"]) == ("workflow_manager", "prices")
    assert attributes["messaging.message.conversation_id"] == f"{job}:price"
    assert (attributes["workflow.name"], attributes["workflow.attempt"]) == ("orders", 1)
    parent = bytes.fromhex(span["parent_id"].removeprefix("0x"))
    eventually(lambda: any(parent in body and b"send prices" in body for body in receiver), "the span of the attempt")


@pytest.mark.parametrize(
    "function, exception", [("fails", "pyworker._step.Failed"), ("async_fails", "pyworker._step.Failed"), ("raises", "ZeroDivisionError")]
)
def test_over_amqp_the_span_has_the_messages_parent_and_the_exception(manager, start_worker, start_worker_at, amqp_server, function, exception):
    queue = manager.queue()
    worker = start_worker_at(amqp_server, {queue: function}, OPENTELEMETRY="spans")
    manager.send(queue, {}, headers={"traceparent": TRACEPARENT, "tracestate": TRACESTATE})
    assert manager.receive()[0].type == "error"
    [span] = spans(worker)
    assert all(part in span["context"]["trace_state"] for part in ("rojo", "00f067aa0ba902b7", "congo", "t61rcWkgMzE"))
    assert (span["context"]["trace_id"], span["parent_id"]) == (f"0x{TRACE}", f"0x{PARENT}")
    assert span["attributes"]["messaging.system"] == "rabbitmq"
    assert span["status"]["status_code"] == "ERROR"
    [event] = span["events"]
    assert (event["name"], event["attributes"]["exception.type"]) == ("exception", exception)


def test_an_exception_whose_text_cannot_be_read_is_told_as_without_a_span(manager, start_worker_at, amqp_server):
    queue = manager.queue()
    worker = start_worker_at(amqp_server, {queue: "raises_unreadably"}, OPENTELEMETRY="spans")
    manager.send(queue, {}, headers={"traceparent": TRACEPARENT})
    assert "Unreadable: (its text cannot be read: RuntimeError)" in manager.receive()[1].decode()
    assert [span["status"]["status_code"] for span in spans(worker)] == ["ERROR"]


def test_a_message_that_is_not_sampled_or_has_no_parent_is_worked_on_all_the_same(manager, start_worker_at, amqp_server):
    queue = manager.queue()
    worker = start_worker_at(amqp_server, {queue: "echo"}, OPENTELEMETRY="spans")
    for traceparent in [TRACEPARENT.replace("-01", "-00"), 7, "nonsense"]:
        manager.send(queue, {}, headers={"traceparent": traceparent})
        assert manager.receive()[0].type is None
    assert all(span["parent_id"] is None for span in spans(worker, 2))


def test_without_the_package_nothing_changes(manager, start_worker_at, amqp_server):
    queue = manager.queue()
    worker = start_worker_at(amqp_server, {queue: "echo"}, OPENTELEMETRY="missing")
    manager.send(queue, {"n": 1}, headers={"traceparent": TRACEPARENT})
    assert json.loads(manager.receive()[1]) == {"echo": {"n": 1}}
    assert worker.calls() == ["1"]
