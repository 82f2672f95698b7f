"""Workers over gRPC by Python's own client, and the example worker in Python."""

import json
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

import grpc

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "proto"))
wire, services = grpc.protos_and_services("workers.proto")

DEADLINE_S = 60
TOKEN = "secret-of-these-tests"
METADATA = [("authorization", f"Bearer {TOKEN}")]
LARGE = [("grpc.max_receive_message_length", -1)]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def until(probe):
    """What `probe` gives, as soon as that is something."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        if seen := probe():
            return seen
        time.sleep(0.02)
    raise AssertionError("not in time")


class Manager:
    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.http, self.grpc = free_port(), free_port()
        self.log = open(pathlib.Path(self.folder.name) / "log", "w+")
        self.start()

    def start(self):
        prefix = "WORKFLOW_MANAGER__"
        settings = {"HTTP__TOKEN": TOKEN, "GRPC__LISTEN": f"127.0.0.1:{self.grpc}", "GRPC__DRAIN": "10s"}
        environment = {name: value for name, value in os.environ.items() if name != "AMQP_SERVER"}
        environment |= {prefix + name: value for name, value in settings.items()}
        command = [os.environ["WORKFLOW_MANAGER"], "serve", "--listen", f"127.0.0.1:{self.http}"]
        command += ["--db", f"{self.folder.name}/journal.db", "--workflows", str(ROOT / "tests/grpc/manager.yaml")]
        self.process = subprocess.Popen(command, env=environment, stderr=self.log, stdout=self.log)
        until(self.is_ready)

    def is_ready(self):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.http}/readyz", timeout=DEADLINE_S).close()
            socket.create_connection(("127.0.0.1", self.grpc)).close()
            return True
        except OSError:
            return False

    def ask(self, path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}{path}", body, dict([("Authorization", f"Bearer {TOKEN}")]))
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return answer.read()

    def create(self, message):
        return json.loads(self.ask("/api/workflow/order", message))["id"]

    def result(self, job):
        until(lambda: json.loads(self.ask(f"/api/job/{job}"))["state"] == "completed")
        return self.ask(f"/api/job/{job}/result")

    def queue(self):
        return json.loads(self.ask("/api/queue/price"))

    def channel(self):
        return grpc.insecure_channel(f"127.0.0.1:{self.grpc}", options=LARGE)

    def kill(self):
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(DEADLINE_S)
        self.log.close()
        self.folder.cleanup()


class Worker:
    """A stream."""

    def __init__(self, channel, queues=("price",), metadata=METADATA):
        self.said = queue.SimpleQueue()
        self.say(hello=wire.Hello(queues=queues, worker="python"))
        self.heard = services.WorkersStub(channel).Work(iter(self.said.get, None), metadata=metadata, timeout=DEADLINE_S)

    def say(self, **what):
        self.said.put(wire.FromWorker(**what))

    def want(self, messages):
        self.say(want=wire.Want(messages=messages))

    def reply(self, receipt, body, kind=wire.RESULT):
        self.say(reply=wire.ReplyRequest(receipt=receipt, kind=kind, body=body))

    def hear(self, kind):
        heard = next(self.heard)
        assert heard.WhichOneof("say") == kind, heard
        return getattr(heard, kind)


class Streams(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.manager = Manager()
        cls.addClassCleanup(cls.manager.close)

    def test_every_digit_goes_both_ways(self):
        body = b'{"a":0.10,"long":12345678901234567890,"m":1e400}'
        with self.manager.channel() as channel:
            worker = Worker(channel)
            worker.want(1)
            job = self.manager.create(body)
            message = worker.hear("message")
            self.assertEqual((message.body, message.attempt, message.delivery), (body, 1, 1))
            self.assertFalse(message.HasField("priority"))
            worker.reply(message.receipt, b'{"progress":0.5}', wire.PROGRESS)
            self.assertTrue(worker.hear("taken").changed)
            worker.reply(message.receipt, body)
            self.assertTrue(worker.hear("taken").changed)
            self.assertEqual(self.manager.result(job), body)
            worker.reply(message.receipt, body)
            self.assertEqual(worker.hear("taken").why_not, "unknown_job")

    def test_large_messages(self):
        body = json.dumps({"text": "x" * (10 << 20)}, separators=(",", ":")).encode()
        with self.manager.channel() as channel:
            worker = Worker(channel)
            worker.want(1)
            job = self.manager.create(body)
            message = worker.hear("message")
            self.assertEqual(message.body, body)
            worker.reply(message.receipt, b"x" * (17 << 20))
            refused = worker.hear("taken")
            self.assertEqual((refused.changed, refused.why_not, refused.receipt), (False, "too_large", message.receipt))
            worker.reply(message.receipt, body)
            self.assertTrue(worker.hear("taken").changed)
            self.assertEqual(self.manager.result(job), body)

    def test_the_end_of_a_stream_gives_back(self):
        job = self.manager.create(b"{}")
        for delivery in (1, 2):
            with self.manager.channel() as channel:
                worker = Worker(channel)
                worker.want(5)
                self.assertEqual(worker.hear("message").delivery, delivery)
        for _ in range(2):
            with self.manager.channel() as channel:
                worker = Worker(channel)
                worker.want(5)
                self.assertEqual(worker.hear("message").delivery, 3, "a farewell costs no delivery")
                worker.said.put(None)
                self.assertEqual(list(worker.heard), [])
        with self.manager.channel() as channel:
            worker = Worker(channel)
            worker.want(1)
            worker.reply(worker.hear("message").receipt, b"{}")
            worker.hear("taken")
        self.manager.result(job)

    def test_gone_when_the_job_is_cancelled(self):
        with self.manager.channel() as channel:
            worker = Worker(channel)
            worker.want(1)
            job = self.manager.create(b"{}")
            message = worker.hear("message")
            self.manager.ask(f"/api/job/{job}/cancel", b"")
            gone = worker.hear("gone")
            self.assertEqual((gone.receipt, gone.reason), (message.receipt, "cancelled"))

    def test_refusals(self):
        with self.manager.channel() as channel:
            for metadata, queues, code in (
                ([], ["price"], grpc.StatusCode.UNAUTHENTICATED),
                ([("authorization", "Bearer other")], ["price"], grpc.StatusCode.UNAUTHENTICATED),
                (METADATA, ["prise"], grpc.StatusCode.NOT_FOUND),
            ):
                with self.assertRaises(grpc.RpcError) as refused:
                    Worker(channel, queues, metadata).hear("message")
                self.assertEqual(refused.exception.code(), code)
            self.assertIn('did you mean "price"?', refused.exception.details())

    def test_single_calls(self):
        with self.manager.channel() as channel:
            stub = services.WorkersStub(channel)
            job = self.manager.create(b'{"b":1.50}')
            received = stub.Receive(wire.ReceiveRequest(queue="price"), metadata=METADATA)
            [message] = received.messages
            lease = stub.Extend(wire.ExtendRequest(receipt=message.receipt), metadata=METADATA)
            self.assertGreaterEqual(lease.until.ToNanoseconds(), message.lease_until.ToNanoseconds())
            answer = wire.ReplyRequest(receipt=message.receipt, body=message.body)
            self.assertTrue(stub.Reply(answer, metadata=METADATA).changed)
            self.assertEqual(self.manager.result(job), b'{"b":1.50}')
            with self.assertRaises(grpc.RpcError) as over:
                stub.Extend(wire.ExtendRequest(receipt=message.receipt), metadata=METADATA)
            self.assertEqual(over.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
            self.assertIn(("reason", "settled"), [tuple(pair) for pair in over.exception.trailing_metadata()])


class Restarts(unittest.TestCase):
    def test_a_reply_counts_after_a_stop_and_after_a_kill(self):
        manager = Manager()
        self.addCleanup(manager.close)
        with manager.channel() as channel:
            worker = Worker(channel)
            worker.want(2)
            jobs = [manager.create(b"{}"), manager.create(b"{}")]
            messages = {message.job: message for message in (worker.hear("message"), worker.hear("message"))}
            manager.process.send_signal(signal.SIGTERM)
            worker.hear("drain")
            worker.reply(messages[jobs[0]].receipt, b'{"before":1}')
            self.assertTrue(worker.hear("taken").changed, "while it drains")
            manager.process.kill()
            manager.process.wait(DEADLINE_S)
        manager.start()
        with manager.channel() as channel:
            # It needs no lease, and no stream.
            answer = wire.ReplyRequest(receipt=messages[jobs[1]].receipt, body=b'{"after":1}')
            self.assertTrue(services.WorkersStub(channel).Reply(answer, metadata=METADATA).changed)
        self.assertEqual(manager.result(jobs[0]), b'{"before":1}')
        self.assertEqual(manager.result(jobs[1]), b'{"after":1}')


class Examples(unittest.TestCase):
    def test_the_example_does_a_job_and_says_farewell(self):
        manager = Manager()
        self.addCleanup(manager.close)
        program = ROOT / "examples/workers/grpc/price.py"
        environment = os.environ | {"WORKFLOW_MANAGER_TOKEN": TOKEN}
        worker = subprocess.Popen([sys.executable, program, f"127.0.0.1:{manager.grpc}"], env=environment)
        self.addCleanup(worker.kill)
        job = manager.create(b'{"line":{"article":"pen","count":3}}')
        self.assertEqual(json.loads(manager.result(job)), {"line": {"article": "pen", "count": 3, "cents": 750}})
        bad = manager.create(b'{"line":{"article":"cow","count":3}}')
        until(lambda: json.loads(manager.ask(f"/api/job/{bad}"))["state"] == "failed")
        worker.send_signal(signal.SIGTERM)
        self.assertEqual(worker.wait(DEADLINE_S), 0)
        until(lambda: manager.queue()["consumers"] == 0)


    def test_the_example_waits_for_a_manager_that_is_away(self):
        manager = Manager()
        self.addCleanup(manager.close)
        manager.kill()
        program = ROOT / "examples/workers/grpc/price.py"
        log = pathlib.Path(manager.folder.name) / "worker"
        environment = os.environ | {"WORKFLOW_MANAGER_TOKEN": TOKEN}
        with log.open("w") as output:
            worker = subprocess.Popen([sys.executable, program, f"127.0.0.1:{manager.grpc}"], env=environment, stderr=output)
        self.addCleanup(worker.kill)

        def is_away():
            before = log.read_text().count("UNAVAILABLE")
            until(lambda: log.read_text().count("UNAVAILABLE") > before + 2 or worker.poll() is not None)
            self.assertIsNone(worker.poll(), "it goes on trying")

        for _ in range(2):
            is_away()
            manager.start()
            job = manager.create(b'{"line":{"article":"ink","count":2}}')
            self.assertEqual(json.loads(manager.result(job))["line"]["cents"], 1980)
            manager.kill()
        is_away()
        worker.send_signal(signal.SIGTERM)
        self.assertEqual(worker.wait(DEADLINE_S), 0)
        manager.start()


if __name__ == "__main__":
    unittest.main(verbosity=2)
