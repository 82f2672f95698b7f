"""Nothing is lost: workers are killed and stopped, connections are closed, the broker stops reading."""

import json
import signal

from conftest import eventually


def test_killed_between_function_and_reply_the_message_comes_again(manager, start_worker):
    queue = manager.queue()
    first = start_worker({queue: "dies_once"})
    correlation_id = manager.send(queue, {"n": 1})
    assert first.process.wait(30) == -signal.SIGKILL
    assert manager.is_empty(), "it died before its reply"

    second = start_worker({queue: "dies_once"})

    properties, body = manager.receive()
    assert (properties.correlation_id, json.loads(body)) == (correlation_id, {"died": True})
    assert second.calls() == ["1", "1"]
    assert second.terminate() == 0
    assert manager.is_empty(queue) and manager.is_empty(), "one reply, and the message is acknowledged"


def test_killed_between_reply_and_confirm_the_message_comes_again(manager, start_worker, rabbitmqctl):
    queue = manager.queue()
    first = start_worker({queue: "waits"})
    manager.send(queue, {"n": 1})
    eventually(first.calls, "the function's call")

    # A broker under memory alarm no longer reads from connections that publish: the reply leaves the worker,
    # and no confirm comes back.
    rabbitmqctl("set_vm_memory_high_watermark", "0.00001")
    try:
        eventually(lambda: "memory" in rabbitmqctl("eval", "rabbit_alarm:get_alarms()."), "the memory alarm")
        first.release()
        eventually(lambda: connection_state(rabbitmqctl, queue) == "blocked", "the broker to stop reading the reply")
        assert unacknowledged(rabbitmqctl, queue) == 1, "not acknowledged before the confirm"
        first.kill()
    finally:
        rabbitmqctl("set_vm_memory_high_watermark", "0.4")

    second = start_worker({queue: "waits"})
    eventually(lambda: len(second.calls()) == 2, "the message's second delivery")
    manager.receive()
    assert second.terminate() == 0
    assert manager.is_empty(queue)


def test_reconnects_when_the_broker_closes_the_connection(manager, start_worker, rabbitmqctl, connections):
    queue = manager.queue()
    worker = start_worker({queue: "echo"})
    (connection,) = connections(queue)
    rabbitmqctl("close_connection", connection, "closed by a test")
    worker.await_log("closed by a test")
    worker.await_log("consuming from", times=2)
    manager.send(queue, {"n": 1})
    manager.receive()


def test_a_message_in_hand_when_the_connection_is_closed_is_not_begun_again(manager, start_worker, rabbitmqctl, connections):
    queue = manager.queue()
    worker = start_worker({queue: "waits"})
    correlation_id = manager.send(queue, {"n": 1})
    eventually(worker.calls, "the function's call")
    (connection,) = connections(queue)
    rabbitmqctl("close_connection", connection, "closed by a test")
    worker.await_log("it came again, and is in hand already")
    worker.release()
    assert manager.receive()[0].correlation_id == correlation_id
    assert worker.terminate() == 0
    assert worker.calls() == ["1"]
    assert manager.is_empty(queue) and manager.is_empty()


def test_a_result_is_told_whatever_has_become_of_its_delivery(manager, start_worker, rabbitmqctl, connections):
    """As behind the broker's consumer_timeout, when the message has gone to somebody else."""
    queue = manager.queue()
    worker = start_worker({queue: "waits"})
    correlation_id = manager.send(queue, {"n": 1})
    eventually(worker.calls, "the function's call")
    (connection,) = connections(queue)
    rabbitmqctl("close_connection", connection, "closed by a test")
    assert manager.receive(queue, "the message that nobody has acknowledged")[0].correlation_id == correlation_id
    worker.await_log("consuming from", times=2)
    worker.release()
    properties, body = manager.receive()
    assert (properties.correlation_id, json.loads(body)) == (correlation_id, {"n": 1})
    assert worker.terminate() == 0
    assert worker.calls() == ["1"]


def test_a_result_that_was_made_without_a_connection_is_told_on_the_next(manager, start_worker, rabbitmqctl, connections):
    queue = manager.queue()
    worker = start_worker({queue: "waits"}, "--prefetch=2", "--threads=2")
    correlation_ids = {manager.send(queue, {"n": n}) for n in (1, 2)}
    eventually(lambda: len(worker.calls()) == 2, "both calls")
    (connection,) = connections(queue)
    rabbitmqctl("close_connection", connection, "closed by a test")
    worker.await_log("closed by a test")
    worker.release()
    told = set()
    while told != correlation_ids:
        # One may come twice: the broker may deliver its message once more although its reply is there.
        told.add(manager.receive()[0].correlation_id)
    assert worker.terminate() == 0
    assert sorted(worker.calls()) == ["1", "2"]
    assert manager.is_empty(queue), "both are acknowledged"


def test_two_messages_are_not_taken_for_one_by_an_id_alone(manager, start_worker):
    queue = manager.queue()
    start_worker({queue: "echo"}, "--prefetch=2")
    sent = [manager.send(queue, {"n": n}, message_id="the same") for n in (1, 2)]
    replies = [manager.receive() for _ in range(2)]
    assert [(properties.correlation_id, json.loads(body)) for properties, body in replies] == [(sent[n - 1], {"echo": {"n": n}}) for n in (1, 2)]


def test_a_message_that_is_done_and_comes_again_is_answered_from_memory(manager, start_worker):
    queue = manager.queue()
    worker = start_worker({queue: "waits"})
    worker.release()
    first = manager.send(queue, {"n": 1}, message_id="the first")
    assert manager.receive()[0].correlation_id == first
    (worker.directory / "release").unlink()
    second = manager.send(queue, {"n": 2}, message_id="the second")
    eventually(lambda: worker.calls() == ["1", "2"], "the second call")
    # As the broker delivers it when the acknowledgement was lost.
    manager.send(queue, {"n": 1}, message_id="the first", correlation_id=first)
    method, _, _ = manager.channel.basic_get(queue)
    manager.channel.basic_nack(method.delivery_tag, requeue=True)
    worker.release()
    replies = [manager.receive() for _ in range(2)]
    assert [(properties.correlation_id, json.loads(body)) for properties, body in replies] == [(second, {"n": 2}), (first, {"n": 1})]
    assert worker.terminate() == 0
    assert worker.calls() == ["1", "2"]
    assert manager.is_empty(queue)


def test_keeps_trying_with_growing_pauses_and_says_why(start_worker, amqp_server):
    wrong = amqp_server.replace("guest:guest@", "guest:wrong-secret@")
    worker = start_worker({"pyworker-test-unused": "echo"}, server=wrong, ready=False)
    worker.await_log("trying again in", times=2)
    assert "ACCESS_REFUSED" in worker.log or "authentication" in worker.log.lower()
    assert "wrong-secret" not in worker.log
    first, second = (float(line.split("trying again in ")[1].split()[0]) for line in worker.log.splitlines() if "trying again in" in line)
    assert 0.8 <= first <= 1.2 and 1.6 <= second <= 2.4
    assert worker.terminate() == 0


def test_sigterm_finishes_the_message_in_hand_and_takes_no_other(manager, start_worker):
    queue = manager.queue()
    worker = start_worker({queue: "waits"}, "--prefetch=2")
    in_hand = manager.send(queue, {"n": 1})
    eventually(worker.calls, "the function's call")
    not_begun = manager.send(queue, {"n": 2})
    eventually(lambda: manager.ready(queue) == 0, "the second message's delivery")

    worker.process.send_signal(signal.SIGTERM)

    eventually(lambda: manager.ready(queue) == 1, "the message that was not begun to be back in the queue")
    assert manager.consumers(queue) == 0
    assert worker.alive(), "it waits for its function"
    worker.release()
    assert manager.receive()[0].correlation_id == in_hand
    assert worker.process.wait(30) == 0
    assert "run returned" in worker.log
    assert worker.calls() == ["1"]
    properties, _ = manager.receive(queue, "the message that was not begun")
    assert properties.correlation_id == not_begun
    assert manager.is_empty(queue), "the finished message was acknowledged"


def test_sigterm_finishes_async_functions(manager, start_worker):
    queue = manager.queue()
    worker = start_worker({queue: "async_waits"})
    correlation_id = manager.send(queue, {"n": 1})
    eventually(worker.calls, "the function's call")
    worker.process.send_signal(signal.SIGTERM)
    eventually(lambda: manager.consumers(queue) == 0, "the worker to stop consuming")
    worker.release()
    said = [manager.receive()[0] for _ in range(2)]
    assert [(properties.type, properties.correlation_id) for properties in said] == [("progress", correlation_id), (None, correlation_id)]
    assert worker.process.wait(30) == 0


def test_an_idle_worker_stops_on_sigint(manager, start_worker):
    worker = start_worker({manager.queue(): "echo"})
    worker.process.send_signal(signal.SIGINT)
    assert worker.process.wait(30) == 0


def test_a_second_signal_ends_it_at_once_and_loses_nothing(manager, start_worker):
    queue = manager.queue()
    worker = start_worker({queue: "waits"})
    correlation_id = manager.send(queue, {"n": 1})
    eventually(worker.calls, "the function's call")
    worker.process.send_signal(signal.SIGTERM)
    eventually(lambda: manager.consumers(queue) == 0, "the worker to stop consuming")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(30) == 128 + signal.SIGTERM
    assert manager.receive(queue, "the unacknowledged message")[0].correlation_id == correlation_id


def test_a_broker_that_is_not_there_is_waited_for(start_worker):
    worker = start_worker({"pyworker-test-unused": "echo"}, server="amqp://guest:guest@127.0.0.1:1/%2f", ready=False)
    worker.await_log("trying again in")
    assert "refused" in worker.log.lower()
    assert worker.terminate() == 0


def connection_state(rabbitmqctl, name):
    rows = json.loads(rabbitmqctl("list_connections", "state", "client_properties", "--formatter", "json"))
    return next((row["state"] for row in rows if name in str(row["client_properties"])), None)


def unacknowledged(rabbitmqctl, queue):
    rows = json.loads(rabbitmqctl("list_queues", "name", "messages_unacknowledged", "--formatter", "json"))
    return next(row["messages_unacknowledged"] for row in rows if row["name"] == queue)
