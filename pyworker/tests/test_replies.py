"""What becomes of a message: the reply, the error reply, the rejection."""

import json

import pytest
from conftest import eventually


def test_result_goes_to_reply_to_with_the_correlation_id_persistent(manager, start_worker):
    queue = manager.queue()
    worker = start_worker({queue: "echo"})
    correlation_id = manager.send(queue, {"n": 1, "title": "Straße \u2019 \U0001f40b", "big": 2**200})

    properties, body = manager.receive()

    assert json.loads(body) == {"echo": {"n": 1, "title": "Straße \u2019 \U0001f40b", "big": 2**200}}
    assert properties.correlation_id == correlation_id
    assert properties.content_type == "application/json"
    assert properties.delivery_mode == 2
    assert properties.type is None
    assert worker.terminate() == 0
    assert manager.is_empty(queue), "the message was acknowledged"


def test_a_message_waits_in_the_durable_queue_for_the_worker(manager, start_worker):
    queue = manager.declare(manager.queue())
    manager.send(queue, {"n": 1})
    start_worker({queue: "echo"})
    manager.receive()


def test_none_is_an_empty_object(manager, start_worker):
    queue = manager.queue()
    start_worker({queue: "nothing"})
    manager.send(queue, {})
    assert manager.receive()[1] == b"{}"


def test_a_lone_surrogate_passes_as_it_came(manager, start_worker):
    queue = manager.queue()
    start_worker({queue: "echo"})
    manager.send(queue, rb'{"text":"\ud800"}')
    assert manager.receive()[1] == rb'{"echo":{"text":"\ud800"}}'


def test_current_names_the_step(manager, start_worker):
    queue = manager.queue()
    start_worker({queue: "describe"})
    manager.send(queue, {}, correlation_id="c0ffee:count", headers={"attempt": 2, "job": "b00c", "workflow": "books"})
    assert json.loads(manager.receive()[1]) == {"id": "c0ffee", "name": "count", "attempt": 2, "job": "b00c", "workflow": "books"}


@pytest.mark.parametrize("function, kinds", [("echo", [None]), ("fails", ["error"]), ("progress", ["progress", None])])
def test_the_attempt_is_given_back_with_all_that_is_said(manager, start_worker, function, kinds):
    queue = manager.queue()
    start_worker({queue: function})
    manager.send(queue, {}, headers={"attempt": 3, "job": "b00c", "traceparent": "00-1-2-01"})
    for kind in kinds:
        properties, _ = manager.receive()
        assert (properties.type, properties.headers) == (kind, {"attempt": 3})


def test_without_an_attempt_none_is_made_up(manager, start_worker):
    queue = manager.queue()
    start_worker({queue: "echo"})
    manager.send(queue, {})
    assert manager.receive()[0].headers is None


def test_progress_comes_before_the_result(manager, start_worker):
    queue = manager.queue()
    start_worker({queue: "progress"})
    correlation_id = manager.send(queue, {})

    properties, body = manager.receive()
    assert (properties.type, properties.correlation_id) == ("progress", correlation_id)
    assert json.loads(body) == {"progress": 0.5, "message": "half way"}
    properties, body = manager.receive()
    assert (properties.type, body) == (None, b"{}")


@pytest.mark.parametrize(
    "function, error, retryable",
    [("fails", "no such book", False), ("fails_for_now", "the disk is full", True)],
)
def test_failed_and_retryable_are_error_replies(manager, start_worker, function, error, retryable):
    queue = manager.queue()
    worker = start_worker({queue: function})
    correlation_id = manager.send(queue, {})

    properties, body = manager.receive()

    assert (properties.type, properties.correlation_id) == ("error", correlation_id)
    assert json.loads(body) == {"error": error, "retryable": retryable}
    assert worker.terminate() == 0
    assert manager.is_empty(queue), "the message was acknowledged"


@pytest.mark.parametrize(
    "function, error",
    [
        ("raises", "ZeroDivisionError: the function's own mistake"),
        ("raises_without_text", "KeyError"),
        ("raises_unreadably", "Unreadable: (its text cannot be read: RuntimeError)"),
        ("exits", "SystemExit: 3"),
        ("not_json", "ValueError: Out of range float values are not JSON compliant"),
        ("not_an_object", "TypeError: a worker's function returns a dict or None, not list"),
    ],
)
def test_an_exception_is_a_retryable_error_reply_and_the_worker_lives_on(manager, start_worker, function, error):
    queue, dead = rejecting_queue(manager)
    good = manager.queue()
    worker = start_worker({queue: function, good: "echo"})
    correlation_id = manager.send(queue, {"n": 1}, headers={"attempt": 2})

    properties, body = manager.receive(what="the error reply")

    assert (properties.type, properties.correlation_id, properties.headers) == ("error", correlation_id, {"attempt": 2})
    told = json.loads(body)
    assert told["error"].startswith(error) and told["retryable"] is True
    worker.await_log("Traceback")
    manager.send(good, {"n": 2})
    assert manager.receive()[0].type is None
    assert worker.terminate() == 0
    assert manager.is_empty(queue) and manager.is_empty(dead), "the message was acknowledged, not rejected"


@pytest.mark.parametrize("function, retryable", [("raises_at_length", True), ("fails_at_length", False)])
def test_a_long_text_of_an_error_is_cut_and_the_log_has_it_all(manager, start_worker, function, retryable):
    queue = manager.queue()
    worker = start_worker({queue: function})
    manager.send(queue, {})
    told = json.loads(manager.receive()[1])
    assert told["retryable"] is retryable
    assert len(told["error"]) < 4100 and "characters; the worker's log has all)" in told["error"]
    worker.await_log("x" * 100_000)


@pytest.mark.parametrize(
    "body, error",
    [
        (b"nonsense", "its body is not JSON"),
        (b"", "its body is not JSON"),
        (b"\xff\xfe\xfd", "its body is not JSON"),
        (b'{"n":NaN}', "NaN is not JSON"),
        (b"[1]", "its body is a JSON array, not an object"),
        (b"null", "its body is a JSON null, not an object"),
        (b"[" * 100_000, "its body is nested too deeply"),
    ],
)
def test_a_body_that_is_no_json_object_fails_for_good(manager, start_worker, body, error):
    queue, dead = rejecting_queue(manager)
    worker = start_worker({queue: "echo"})
    manager.send(queue, body)
    properties, told = manager.receive(what="the error reply")
    assert properties.type == "error"
    told = json.loads(told)
    assert told["retryable"] is False and error in told["error"]
    worker.await_log(error)
    assert worker.calls() == [], "the function was not called"
    manager.send(queue, {"n": 2})
    assert manager.receive(what="the reply to a good message afterwards")[0].type is None
    assert worker.terminate() == 0
    assert manager.is_empty(dead)


def test_a_message_without_reply_to_is_rejected(manager, start_worker):
    queue, dead = rejecting_queue(manager)
    worker = start_worker({queue: "echo"})
    manager.send(queue, {"n": 1}, reply_to=None)
    manager.receive(dead, "the rejected message")
    worker.await_log("it has no reply_to")
    assert worker.calls() == [], "the function was not called"


def test_several_queues_each_with_its_function(manager, start_worker):
    echo, nothing = manager.queue(), manager.queue()
    start_worker({echo: "echo", nothing: "nothing"})
    manager.send(nothing, {"n": 1})
    assert manager.receive()[1] == b"{}"
    manager.send(echo, {"n": 2})
    assert json.loads(manager.receive()[1]) == {"echo": {"n": 2}}


def test_prefetch_leaves_the_rest_for_others(manager, start_worker):
    queue = manager.queue()
    worker = start_worker({queue: "waits"}, "--prefetch=2")
    sent = [manager.send(queue, {"n": n}) for n in range(5)]
    eventually(lambda: manager.ready(queue) == 3, "three messages left in the queue")
    worker.release()
    assert {manager.receive()[0].correlation_id for _ in sent} == set(sent)


def test_threads_run_functions_at_the_same_time(manager, start_worker):
    queue = manager.queue()
    worker = start_worker({queue: "waits"}, "--prefetch=3", "--threads=3")
    sent = [manager.send(queue, {"n": n}) for n in range(3)]
    eventually(lambda: set(worker.calls()) == {"0", "1", "2"}, "three calls at the same time")
    worker.release()
    assert {manager.receive()[0].correlation_id for _ in sent} == set(sent)


def test_async_functions_run_at_the_same_time(manager, start_worker):
    queue = manager.queue()
    worker = start_worker({queue: "async_waits"}, "--prefetch=20")
    sent = [manager.send(queue, {"n": n}) for n in range(20)]
    eventually(lambda: len(worker.calls()) == 20, "twenty calls at the same time")
    worker.release()
    said = [manager.receive()[0] for _ in range(40)]
    assert sorted(properties.correlation_id for properties in said if properties.type is None) == sorted(sent)
    assert [properties.type for properties in said].count("progress") == 20
    assert worker.terminate() == 0
    assert manager.is_empty(queue)


@pytest.mark.parametrize("function, error, retryable", [("async_fails", "no such book", False), ("async_exits", "SystemExit: 3", True)])
def test_errors_of_async_functions_are_error_replies(manager, start_worker, function, error, retryable):
    queue = manager.queue()
    worker = start_worker({queue: function})
    manager.send(queue, {})
    properties, body = manager.receive()
    assert (properties.type, json.loads(body)) == ("error", {"error": error, "retryable": retryable})
    assert worker.terminate() == 0


def test_heartbeats_survive_a_long_function(manager, start_worker, amqp_server):
    queue = manager.queue()
    # The broker drops a connection that is silent for two heartbeats, here 2 s.
    worker = start_worker({queue: "takes_long"}, server=f"{amqp_server}?heartbeat=1")
    manager.send(queue, {"n": 1, "seconds": 5})
    manager.receive()
    assert worker.calls() == ["1"]
    assert "no connection" not in worker.log


def test_a_missing_reply_queue_is_waited_for(manager, start_worker):
    queue, late = manager.queue(), manager.queue()
    worker = start_worker({queue: "echo"})
    manager.send(queue, {"n": 1}, reply_to=late)
    worker.await_log("does not exist; trying again")
    manager.declare(late)
    manager.receive(late)
    assert worker.terminate() == 0
    assert worker.calls() == ["1"], "the function was not called again"
    assert manager.is_empty(queue)


def test_a_message_whose_reply_cannot_be_sent_goes_back_when_the_worker_stops(manager, start_worker):
    queue, missing = manager.queue(), manager.queue()
    worker = start_worker({queue: "echo"})
    manager.send(queue, {"n": 1}, reply_to=missing)
    worker.await_log("does not exist; trying again")
    assert worker.terminate() == 0
    manager.receive(queue, "the message given back")


def test_a_queue_with_other_arguments_is_used_as_it_is(manager, start_worker):
    queue = manager.declare(manager.queue(), **{"x-max-priority": 9})
    worker = start_worker({queue: "echo"})
    manager.send(queue, {"n": 1})
    manager.receive()
    assert "exists with other arguments" in worker.log


def test_a_deleted_queue_is_declared_again(manager, start_worker):
    queue = manager.queue()
    worker = start_worker({queue: "echo"})
    manager.channel.queue_delete(queue)
    worker.await_log("was deleted; declaring it again")
    eventually(lambda: manager.consumers(manager.declare(queue)), "a consumer on the new queue")
    manager.send(queue, {"n": 1})
    manager.receive()


def rejecting_queue(manager):
    """A queue whose rejected messages can be seen, in a second one."""
    dead = manager.declare(manager.queue())
    queue = manager.declare(manager.queue(), **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    return queue, dead
