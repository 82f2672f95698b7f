"""Over HTTP and gRPC, with a real manager that runs without a broker: the same functions, the same promises."""

import json
import signal

import pytest
from conftest import eventually

ORDERS = """
workflows:
  - name: orders
    steps:
      - name: price
        retry: { attempts: 2, backoff: 1ms }
"""


@pytest.fixture(params=["http", "grpc"])
def transport(request):
    return request.param


@pytest.fixture
def daemon(start_daemon):
    return start_daemon(ORDERS)


@pytest.fixture
def worker(daemon, transport, start_worker_at):
    """Starts a worker for the queue price."""
    return lambda function, *options, **more: start_worker_at(daemon.servers[transport], {"price": function}, *options, **more)


@pytest.mark.parametrize("prefetch", [1, 20])
@pytest.mark.parametrize("function", ["echo", "async_echo"])
def test_the_result_is_that_of_the_function_with_every_digit_of_integers(daemon, worker, function, prefetch):
    worker(function, f"--prefetch={prefetch}")
    message = {"n": 2**200, "long": 12345678901234567890, "title": "Straße \u2019 \U0001f40b"}
    assert json.loads(daemon.result(daemon.create("orders", message))) == {"echo": message}


def test_a_lone_surrogate_passes_as_it_came(daemon, worker):
    worker("echo")
    assert daemon.result(daemon.create("orders", rb'{"text":"\ud800"}')).strip() == r'{"echo":{"text":"\ud800"}}'


def test_none_is_an_empty_object(daemon, worker):
    worker("nothing")
    assert daemon.result(daemon.create("orders", {})).strip() == "{}"


def test_current_names_the_step(daemon, worker):
    worker("describe")
    job = daemon.create("orders", {})
    assert json.loads(daemon.result(job)) == {"id": job, "name": "price", "attempt": 1, "job": job, "workflow": "orders"}


@pytest.mark.parametrize("prefetch", [1, 20])
def test_the_headers_are_those_of_the_message(daemon, worker, prefetch):
    worker("redelivered", f"--prefetch={prefetch}")
    job = daemon.create("orders", {})
    told = json.loads(daemon.result(job))
    assert told["redelivered"] is False
    assert told["headers"].pop("traceparent").startswith("00-")
    assert told["headers"] == {"workflow": "orders", "job": job, "attempt": 1}


@pytest.mark.parametrize(
    "function, error, attempts",
    [
        ("fails", "no such book", 1),
        ("async_fails", "no such book", 1),
        ("fails_for_now", "the disk is full", 2),
        ("raises", "ZeroDivisionError: the function's own mistake", 2),
        ("async_exits", "SystemExit: 3", 2),
        ("not_an_object", "TypeError: a worker's function returns a dict or None, not list", 2),
    ],
)
def test_an_error_is_retried_unless_it_is_final(daemon, worker, function, error, attempts):
    running = worker(function)
    job = daemon.ended(daemon.create("orders", {}), "failed")
    assert error in job["reason"]
    assert job["steps"][0]["attempt"] == attempts
    assert running.terminate() == 0


@pytest.mark.parametrize("function", ["progress_and_waits", "async_waits"])
def test_progress_is_seen_while_the_function_runs(daemon, worker, function):
    running = worker(function)
    job = daemon.create("orders", {"n": 1})
    eventually(lambda: daemon.job(job)["steps"][0].get("progress") == 0.5, "the progress")
    running.release()
    assert json.loads(daemon.result(job)) == {"n": 1}


@pytest.mark.parametrize("function", ["waits_for_its_end", "async_waits_for_ever"])
def test_a_cancelled_job_reaches_the_function(daemon, worker, function):
    running = worker(function, "--lease=6")
    job = daemon.create("orders", {"n": 1})
    eventually(running.calls, "the function's call")
    daemon.ask(f"/api/job/{job}/cancel", b"")
    eventually(lambda: running.calls() == ["1", "over"], "the function to hear of it")
    running.await_log("stopped: ")
    assert running.terminate() == 0
    assert "Traceback" not in running.log


def test_a_lease_is_extended_while_the_function_runs(daemon, worker):
    first = worker("waits", "--lease=2")
    job = daemon.create("orders", {"n": 1})
    eventually(first.calls, "the function's call")
    # Asked for as long as three leases: what does not come has not been lent again.
    assert daemon.ask("/api/queue/price/receive?wait=6s&max=1", b"") == []
    assert first.calls() == ["1"], "one call, by the first worker"
    first.release()
    assert json.loads(daemon.result(job)) == {"n": 1}


def test_a_killed_worker_s_message_comes_to_another(daemon, worker):
    first = worker("dies_once", "--lease=1")
    job = daemon.create("orders", {"n": 1})
    assert first.process.wait(30) == -signal.SIGKILL
    second = worker("dies_once")
    assert json.loads(daemon.result(job)) == {"died": True}
    assert second.calls() == ["1", "1"]


@pytest.mark.parametrize("prefetch", [1, 20])
@pytest.mark.parametrize("function", ["waits", "async_waits"])
def test_a_manager_that_is_killed_and_started_again_takes_the_reply(daemon, worker, function, prefetch):
    running = worker(function, "--lease=3", f"--prefetch={prefetch}")
    job = daemon.create("orders", {"n": 1})
    eventually(running.calls, "the function's call")
    daemon.kill()
    running.release()
    running.await_log("its reply was not taken")
    daemon.start()
    assert json.loads(daemon.result(job)) == {"n": 1}
    again = daemon.create("orders", {"n": 2})
    assert json.loads(daemon.result(again)) == {"n": 2}


def test_a_function_that_runs_over_a_restart_of_the_manager_is_not_run_twice_by_its_worker(daemon, worker):
    running = worker("waits", "--prefetch=2", "--threads=2", "--lease=6")
    job = daemon.create("orders", {"n": 1})
    eventually(running.calls, "the function's call")
    daemon.kill()
    daemon.start()
    running.await_log("consuming from", times=2)
    # Its message was given out again, to the same worker, before this one.
    later = daemon.create("orders", {"n": 2})
    eventually(lambda: "2" in running.calls(), "the call for the second job")
    running.release()
    assert json.loads(daemon.result(job)) == {"n": 1}
    assert json.loads(daemon.result(later)) == {"n": 2}
    assert running.calls() == ["1", "2"]
    assert running.terminate() == 0


def test_a_reply_that_comes_second_changes_nothing(daemon, worker):
    running = worker("waits", "--lease=6")
    job = daemon.create("orders", {"n": 1})
    eventually(running.calls, "the function's call")
    assert daemon.ask(f"/api/queue/price/message/{job}:price:1/1/reply", b'{"by":"another"}') == {"taken": True}
    running.release()
    assert json.loads(daemon.result(job)) == {"by": "another"}
    running.await_log("its reply changed nothing")
    assert running.terminate() == 0


def test_sigterm_finishes_the_message_in_hand_and_gives_back_the_other(daemon, worker):
    running = worker("waits", "--prefetch=2")
    first = daemon.create("orders", {"n": 1})
    eventually(running.calls, "the function's call")
    second = daemon.create("orders", {"n": 2})
    eventually(lambda: queue_of(daemon)["unacknowledged"] == 2, "the second message's delivery")

    running.process.send_signal(signal.SIGTERM)

    (given_back,) = eventually(lambda: daemon.ask("/api/queue/price/receive?max=1", b""), "the message that was not begun")
    assert given_back["job"] == second
    assert running.alive(), "it waits for its function"
    running.release()
    assert running.process.wait(30) == 0
    assert "run returned" in running.log
    assert json.loads(daemon.result(first)) == {"n": 1}
    assert running.calls() == ["1"]


def test_a_worker_that_waits_for_a_message_stops_at_once_and_takes_none_with_it(daemon, worker):
    running = worker("echo")
    eventually(lambda: queue_of(daemon)["consumers"] == 1, "the worker to wait")
    assert running.terminate() == 0
    job = daemon.create("orders", {"n": 1})
    (message,) = daemon.ask("/api/queue/price/receive?max=1", b"")
    assert (message["job"], message["delivery"]) == (job, 1)


def test_a_second_signal_ends_it_at_once(daemon, worker):
    running = worker("waits", "--lease=1")
    job = daemon.create("orders", {"n": 1})
    eventually(running.calls, "the function's call")
    running.process.send_signal(signal.SIGTERM)
    with pytest.raises(AssertionError):
        # Until the first has been noticed, further ones may be one signal.
        while True:
            running.process.send_signal(signal.SIGTERM)
            assert running.alive()
    assert running.process.wait(30) == 128 + signal.SIGTERM
    (message,) = daemon.ask("/api/queue/price/receive?max=1", b"")
    assert (message["job"], message["delivery"]) == (job, 2)


def test_threads_run_functions_at_the_same_time(daemon, worker):
    running = worker("waits", "--prefetch=3", "--threads=3")
    jobs = [daemon.create("orders", {"n": n}) for n in range(3)]
    eventually(lambda: set(running.calls()) == {"0", "1", "2"}, "three calls at the same time")
    running.release()
    assert [json.loads(daemon.result(job)) for job in jobs] == [{"n": n} for n in range(3)]


def test_async_functions_run_at_the_same_time_in_one_thread(daemon, worker):
    running = worker("async_waits", "--prefetch=20")
    jobs = [daemon.create("orders", {"n": n}) for n in range(20)]
    eventually(lambda: len(running.calls()) == 20, "twenty calls at the same time")
    running.release()
    assert [json.loads(daemon.result(job)) for job in jobs] == [{"n": n} for n in range(20)]
    assert running.terminate() == 0


def test_several_queues_each_with_its_function(transport, start_daemon, start_worker_at):
    daemon = start_daemon("workflows: [{ name: two, steps: [{ name: a }, { name: b, depends: [ a ] }] }]")
    start_worker_at(daemon.servers[transport], {"a": "echo", "b": "describe"})
    assert json.loads(daemon.result(daemon.create("two", {"n": 1})))["name"] == "b"


def test_a_virtual_host_and_a_queue_of_any_name(transport, start_daemon, start_worker_at):
    daemon = start_daemon("workflows: [{ name: w, vhosts: [ 'shop one' ], steps: [{ name: a, queue: 'a/b ü' }] }]")
    start_worker_at(f"{daemon.servers[transport]}?vhost=shop%20one", {"a/b ü": "describe"})
    job = daemon.ask("/api/workflow/w?vhost=shop%20one", b"{}")["id"]
    assert json.loads(daemon.result(job))["workflow"] == "shop one/w"


def test_the_same_program_takes_a_token_from_the_environment_and_does_not_tell_it(transport, start_daemon, start_worker_at):
    daemon = start_daemon(ORDERS, WORKFLOW_MANAGER__HTTP__TOKEN="a-secret-word-of-ours")
    wrong = start_worker_at(daemon.servers[transport], {"price": "echo"}, ready=False, WORKFLOW_MANAGER_TOKEN="another-secret")
    wrong.await_log({"http": "401", "grpc": "UNAUTHENTICATED"}[transport])
    start_worker_at(daemon.servers[transport], {"price": "echo"}, WORKFLOW_MANAGER_TOKEN="a-secret-word-of-ours")
    job = daemon.create("orders", {"n": 1})
    assert json.loads(daemon.result(job)) == {"echo": {"n": 1}}
    assert "secret" not in wrong.log


def test_a_wrong_queue_name_is_told_with_a_guess(daemon, transport, start_worker_at):
    running = start_worker_at(daemon.servers[transport], {"prise": "echo"}, ready=False)
    running.await_log('did you mean "price"')
    running.await_log("ERROR")
    assert running.terminate() == 0


def test_a_manager_that_is_not_there_is_waited_for(daemon, transport, start_worker_at):
    daemon.kill()
    running = start_worker_at(daemon.servers[transport], {"price": "echo"}, ready=False)
    running.await_log("trying again in", times=2)
    assert "refused" in running.log.lower()
    daemon.start()
    job = daemon.create("orders", {"n": 1})
    assert json.loads(daemon.result(job)) == {"echo": {"n": 1}}


@pytest.mark.parametrize("prefetch", [1, 20])
def test_a_reply_that_is_too_large_fails_the_step_for_good(transport, start_daemon, start_worker_at, prefetch):
    daemon = start_daemon(ORDERS, WORKFLOW_MANAGER__HTTP__BODY_BYTES_MAX="1000000")
    start_worker_at(daemon.servers[transport], {"price": "large"}, f"--prefetch={prefetch}")
    job = daemon.ended(daemon.create("orders", {"bytes": 2_000_000}), "failed")
    assert "the reply has 2000011 bytes" in job["reason"]
    assert job["steps"][0]["attempt"] == 1


def test_messages_and_replies_go_together(daemon, worker):
    """Those that wait come with one call, and each has its own result."""
    jobs = [daemon.create("orders", {"n": n}) for n in range(150)]
    running = worker("echo", "--prefetch=100", "--threads=4")
    assert [json.loads(daemon.result(job)) for job in jobs] == [{"echo": {"n": n}} for n in range(150)]
    assert sorted(running.calls(), key=int) == [str(n) for n in range(150)]
    assert running.terminate() == 0


def queue_of(daemon):
    (queue,) = daemon.ask("/api/queues")["queues"]
    return queue
