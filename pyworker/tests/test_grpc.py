"""What is of gRPC alone: several addresses, the stop with room for more, what goes over the wire, and wrong use."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from conftest import assert_works, eventually

from pyworker import _grpc_wire as wire
from pyworker._addresses import Addresses
from pyworker._grpc import Feed
from pyworker._grpc_outbox import Outbox
from pyworker._grpc_session import End

STANDS_BY = "stands by; active is http://elsewhere:8088"


class Front:
    """A manager's other process: passes streams on to the real manager, or refuses them."""

    def __init__(self, daemon, credentials=None):
        #: Code and text of a refusal. None: streams are passed on.
        self.refusal = None
        self.is_silent = False
        #: As a manager that does not know batches.
        self.is_earlier = False
        self.hellos = []
        #: What workers have said, by its kind.
        self.said = []
        self.ended = threading.Event()
        self.channel = grpc.insecure_channel(f"127.0.0.1:{daemon.grpc_port}")
        front = self

        class Handler(grpc.GenericRpcHandler):
            def service(self, call):
                return grpc.stream_stream_rpc_method_handler(front.work)

        self.server = grpc.server(ThreadPoolExecutor(20), options=[("grpc.so_reuseport", 0)])
        self.server.add_generic_rpc_handlers([Handler()])
        if credentials:
            self.url = f"grpcs://127.0.0.1:{self.server.add_secure_port('127.0.0.1:0', credentials)}"
        else:
            self.url = f"grpc://127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def work(self, requests, context):
        self.hellos.append(dict(context.invocation_metadata()).get("authorization"))
        if self.refusal:
            context.abort(*self.refusal)

        def passed():
            for request in requests:
                if self.is_silent:
                    self.ended.wait()
                said = wire.FromWorker.FromString(request)
                kind = said.WhichOneof("say")
                self.said.append(kind)
                if self.is_earlier and kind == "hello":
                    said.hello.ClearField("batches")
                yield said.SerializeToString()

        call = self.channel.stream_stream(wire.WORK)(passed())
        context.add_callback(call.cancel)
        try:
            for answer in call:
                if self.is_silent:
                    self.ended.wait()
                yield answer
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())

    def die(self):
        """Its streams break off, and no other one is taken."""
        self.ended.set()
        self.server.stop(0).wait()
        self.channel.close()


def test_an_address_that_cannot_be_reached_is_left_at_once(daemon, start_worker_at):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = f"grpc://127.0.0.1:{free.getsockname()[1]}"
    running = start_worker_at(f"{dead}, {daemon.servers['grpc']}", {"price": "echo"})
    assert_works(daemon, 1)
    assert f"goes on at {daemon.servers['grpc']}, after {dead}: UNAVAILABLE" in running.log
    assert "trying again" not in running.log
    assert running.terminate() == 0


def test_one_that_stands_by_is_left_at_once(daemon, fronts, start_worker_at):
    fronts[0].refusal = grpc.StatusCode.UNAVAILABLE, STANDS_BY
    running = start_worker_at(f"{fronts[0].url},{fronts[1].url}", {"price": "echo"}, WORKFLOW_MANAGER_TOKEN="secret")
    assert_works(daemon, 1)
    assert "trying again" not in running.log
    assert fronts[0].hellos == fronts[1].hellos == ["Bearer secret"]


def test_while_all_stand_by_each_is_asked_once_in_a_turn(daemon, fronts, start_worker_at):
    for front in fronts:
        front.refusal = grpc.StatusCode.UNAVAILABLE, STANDS_BY
    running = start_worker_at(f"{fronts[0].url},{fronts[1].url}", {"price": "echo"}, ready=False)
    running.await_log("trying again in", times=2)
    assert len(fronts[0].hellos) <= running.log.count("trying again in") + 1
    assert f"no connection to {fronts[0].url}: UNAVAILABLE {STANDS_BY}; {fronts[1].url}: UNAVAILABLE {STANDS_BY}" in running.log
    fronts[1].refusal = None
    assert_works(daemon, 1)


def test_a_refusal_is_told_and_waited_for_at_the_same_address(daemon, fronts, start_worker_at):
    fronts[0].refusal = grpc.StatusCode.PERMISSION_DENIED, "not for this worker"
    running = start_worker_at(f"{fronts[0].url},{fronts[1].url}", {"price": "echo"}, ready=False)
    running.await_log("ERROR pyworker: price: PERMISSION_DENIED not for this worker; trying again in", times=2)
    fronts[0].refusal = None
    assert_works(daemon, 1)
    assert fronts[1].hellos == []


@pytest.mark.parametrize("ends", ["dies", "is silent"])
@pytest.mark.parametrize("function", ["waits", "async_waits"])
def test_what_is_in_hand_stays_in_hand_and_is_replied_to_the_next(daemon, fronts, start_worker_at, function, ends):
    first, second = fronts
    running = start_worker_at(f"{first.url},{second.url}", {"price": function}, "--lease=3")
    job = daemon.create("orders", {"n": 1})
    eventually(running.calls, "the function's call")
    if ends == "dies":
        first.die()
    else:
        # Nothing is heard any more, and no connection ends.
        first.is_silent = True
    # Its lease is lengthened there, for longer than it is.
    eventually(lambda: second.said.count("extend") > 9, "the lease to be lengthened")
    running.release()
    assert json.loads(daemon.result(job)) == {"n": 1}
    assert running.calls() == ["1"]
    assert running.terminate() == 0


def test_sigterm_finishes_what_is_in_hand_at_the_next(daemon, fronts, start_worker_at):
    first, second = fronts
    second.refusal = grpc.StatusCode.UNAVAILABLE, STANDS_BY
    running = start_worker_at(f"{first.url},{second.url}", {"price": "waits"})
    job = daemon.create("orders", {"n": 1})
    eventually(running.calls, "the function's call")
    first.die()
    running.await_log("trying again in")
    running.process.send_signal(signal.SIGTERM)
    running.release()
    running.await_log("its reply was not taken")
    second.refusal = None
    assert running.process.wait(30) == 0
    assert json.loads(daemon.result(job)) == {"n": 1}
    assert running.calls() == ["1"]


def test_sigterm_lets_go_of_what_comes_and_keeps_what_is_in_hand(daemon, start_worker_at):
    """With room for more: nothing comes any more, although it was wanted, and no delivery is lost by it."""
    running = start_worker_at(daemon.servers["grpc"], {"price": "progress_and_waits"}, "--prefetch=10", "--threads=2", "--lease=2")
    jobs = [daemon.create("orders", {"n": n}) for n in range(2)]
    eventually(lambda: len(running.calls()) == 2, "two calls of the function")
    not_begun = daemon.create("orders", {"n": 2})
    eventually(lambda: queue_of(daemon)["unacknowledged"] == 3, "a message that is not begun")

    running.process.send_signal(signal.SIGTERM)

    (given_back,) = eventually(lambda: daemon.ask("/api/queue/price/receive?max=1", b""), "the message that was not begun")
    assert (given_back["job"], given_back["delivery"]) == (not_begun, 1)
    later = daemon.create("orders", {"n": 3})
    # Asked for as long as three leases: what is worked on has not been lent again.
    (other,) = daemon.ask("/api/queue/price/receive?max=1", b"")
    assert (other["job"], other["delivery"]) == (later, 1)
    assert daemon.ask("/api/queue/price/receive?wait=6s&max=1", b"") == []
    assert running.alive(), "it waits for its functions"
    running.release()
    assert running.process.wait(30) == 0
    assert [json.loads(daemon.result(job)) for job in jobs] == [{"n": 0}, {"n": 1}]
    assert sorted(running.calls()) == ["0", "1"]


def test_a_stream_that_ends_while_another_is_to_take_over_leaves_the_leases_to_that():
    class Said:
        """A stream, with what is said on it."""

        address = Addresses("grpc://a").current
        is_draining = is_established = False
        credit = 0
        silent_since = farewell_at = None

        def __init__(self):
            self.words, self.extending, self.tried = [], set(), {}

        def __getattr__(self, word):
            return lambda *_: self.words.append(word)

    performer = SimpleNamespace(put=lambda delivery: None)
    feed = Feed(SimpleNamespace(lease=0.0, performer=performer), "price", 2)
    first, second = Said(), Said()
    feed.begin(first)
    feed.hear(first, wire.ToWorker(message={"receipt": "/reply", "message_id": "m"}))
    feed.take_no_more()
    feed._prepare()
    feed._ended(first, End(None, "it ended"))
    feed.begin(second)
    second.words.clear()
    feed.extend_due()
    assert second.words == ["extend"]


def test_a_manager_that_drains_is_left_and_found_again(daemon, start_worker_at):
    running = start_worker_at(daemon.servers["grpc"], {"price": "waits"}, "--prefetch=2")
    job = daemon.create("orders", {"n": 1})
    eventually(running.calls, "the function's call")
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(30) == 0
    daemon.start()
    running.await_log("consuming from", times=2)
    running.release()
    assert json.loads(daemon.result(job)) == {"n": 1}
    assert running.calls() == ["1"]


def test_over_tls_only_authorities_of_the_machine_or_its_environment_are_believed(daemon, start_worker_at, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    make += ["-subj", "/CN=manager", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(make, check=True, capture_output=True, timeout=60)
    front = Front(daemon, grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())]))
    try:
        wary = start_worker_at(front.url, {"price": "echo"}, ready=False)
        wary.await_log("trying again in")
        start_worker_at(front.url, {"price": "echo"}, SSL_CERT_FILE=str(certificate))
        assert_works(daemon, 1)
        assert len(front.hellos) == 1
        assert wary.calls() == ["1"], "the other's call, in their folder"
    finally:
        front.die()


def test_what_waits_goes_together_if_the_manager_takes_batches(daemon, fronts, start_worker_at):
    running = start_worker_at(fronts[0].url, {"price": "echo"}, "--prefetch=40", "--threads=8")
    done = []

    def has_said_a_batch():
        jobs = [daemon.create("orders", {"n": len(done) + n}) for n in range(40)]
        done.extend(json.loads(daemon.result(job))["echo"]["n"] for job in jobs)
        return "batch" in fronts[0].said

    # What waits while something else is on its way goes together: with so many at once that comes soon.
    eventually(has_said_a_batch, "a batch")
    assert done == list(range(len(done)))
    assert running.terminate() == 0
    assert sorted(map(int, running.calls())) == done


def test_a_manager_that_does_not_know_batches_hears_one_thing_at_a_time(daemon, fronts, start_worker_at):
    fronts[0].is_earlier = True
    jobs = [daemon.create("orders", {"n": n}) for n in range(40)]
    running = start_worker_at(fronts[0].url, {"price": "echo"}, "--prefetch=40", "--threads=8")
    assert [json.loads(daemon.result(job))["echo"]["n"] for job in jobs] == list(range(40))
    assert "batch" not in fronts[0].said
    assert running.terminate() == 0


def said_together(said, *, replies_max=100, bytes_max=1 << 20, batches=True):
    """What an outbox makes of what was said before anything went out: for each that goes out, its receipts and what it wants."""
    outbox = Outbox()
    if batches:
        outbox.allow_batches(wire.ToWorker(batches={"replies_max": replies_max, "bytes_max": bytes_max}).batches)
    for kind, what in said:
        outbox.put(kind, what)
    outbox.end()
    sizes, told = [], []
    for out in outbox:
        sizes.append(out.ByteSize())
        if out.WhichOneof("say") == "batch":
            told.append(([reply.receipt for reply in out.batch.replies], out.batch.want))
        else:
            told.append((out.WhichOneof("say"), out.want.messages))
    return told, sizes


def a_reply(receipt, size=2):
    return "reply", {"receipt": receipt, "kind": wire.RESULT, "body": b"x" * size}


def test_what_was_said_goes_out_in_its_order():
    want, extend = ("want", {"messages": 3}), ("extend", {"receipt": "e"})
    said = [a_reply("a"), want, a_reply("b"), want, extend, a_reply("c"), want]
    told, _ = said_together(said)
    assert told == [(["a", "b"], 6), ("extend", 0), (["c"], 3)]
    told, _ = said_together(said, batches=False)
    assert told == [("reply", 0), ("want", 3), ("reply", 0), ("want", 3), ("extend", 0), ("reply", 0), ("want", 3)]
    for batches in (False, True):
        told, _ = said_together([want, want], batches=batches)
        assert told == [("want", 6)], "no batch is needed for it"
        told, _ = said_together([a_reply("a")], batches=batches)
        assert told == [("reply", 0)], "alone as ever"


def test_a_batch_is_bounded_in_replies_and_in_bytes():
    told, _ = said_together([a_reply(str(n)) for n in range(7)], replies_max=3)
    assert told == [(["0", "1", "2"], 0), (["3", "4", "5"], 0), ("reply", 0)]
    # A reply that is too large for the manager goes alone, so that its verdict is for no other one.
    sizes = [400, 400, 400, 2000, 10]
    told, bytes_out = said_together([a_reply(str(n), size) for n, size in enumerate(sizes)], bytes_max=1000)
    assert told == [(["0", "1"], 0), ("reply", 0), ("reply", 0), ("reply", 0)]
    assert [size <= 1000 for size in bytes_out] == [True, True, False, True]
    told, bytes_out = said_together([a_reply("r" * 40, 0) for _ in range(90)], bytes_max=1000)
    assert max(bytes_out) <= 1000 and sum(len(receipts) for receipts, _ in told) == 90


def test_what_goes_over_the_wire_is_what_the_file_says():
    text = Path(__file__).parents[2].joinpath("proto/workers.proto").read_text()
    assert f"package {wire.PACKAGE};" in text
    rules = re.sub(r"//.*", "", text)
    for name, fields in wire.MESSAGES.items():
        (body,) = re.findall(rf"^message {name} {{(.*?)^}}|^message {name} {{}}", rules, re.MULTILINE | re.DOTALL)
        found = re.findall(r"((?:repeated |optional )?[\w.]+) (\w+) = (\d+);", body)
        declared = {field: (int(number), kind) for kind, field, number in found}
        assert fields.items() <= declared.items(), name
        assert (name in wire.CHOICES) == ("oneof" in body)
    (kinds,) = re.findall(r"^enum Kind {(.*?)^}", rules, re.MULTILINE | re.DOTALL)
    assert {name: int(number) for name, number in re.findall(r"(\w+) = (\d+);", kinds)} == wire.KINDS
    assert "rpc Work(stream FromWorker) returns (stream ToWorker);" in rules


@pytest.mark.parametrize(
    "text, words",
    [
        ("grpc://a,grpcs://b", "mix grpc:// and grpcs://: the token would go both in clear and encrypted"),
        ("grpc://a,http://b", "mix grpc:// and http://: they need the same scheme"),
        ("grpc://a/path", "should look like grpc://host:8089"),
        ("grpc://me:pw@a", "has no user"),
        ("grpc://a?vhost=v,grpc://b", "the same vhost"),
    ],
)
def test_a_wrong_address_is_refused(text, words):
    with pytest.raises(ValueError, match=re.escape(words)) as raised:
        Addresses(text)
    assert "pw" not in str(raised.value)


def test_an_address_has_a_port_and_may_be_of_ipv6():
    assert Addresses("grpc://a").current.target == "a:8089"
    assert Addresses("grpcs://[::1]:7").current.target == "[::1]:7"


@pytest.mark.parametrize("missing", ["grpc", "google.protobuf"])
def test_without_its_packages_the_program_says_what_to_install(missing):
    code = f"import sys; sys.modules[{missing!r}] = None\nfrom pyworker import run; run('a', print, argv=['--server', 'grpc://localhost'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert 'pip install "pyworker[grpc]"' in done.stderr


def test_over_http_grpc_is_not_loaded():
    code = "import sys; from pyworker import Worker; Worker({'a': print}, 'http://localhost'); sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def queue_of(daemon):
    (queue,) = daemon.ask("/api/queues")["queues"]
    return queue
