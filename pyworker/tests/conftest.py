"""Real worker processes. Over AMQP with a real broker, where the tests play the manager; over HTTP and gRPC with a real manager."""

import itertools
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import pika
import pytest

DEADLINE_SECONDS = 30


def eventually(condition, what, deadline=DEADLINE_SECONDS):
    """The first true value of ``condition()``; fails when there is none before the deadline."""
    end = time.monotonic() + deadline
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            pytest.fail(f"not within {deadline} s: {what}")
        time.sleep(0.02)


def required(variable):
    if not os.environ.get(variable):
        pytest.fail(f"{variable} is not set: these tests need a broker; start one with tests/rabbitmq start DIR && . DIR/env")
    return os.environ[variable]


@pytest.fixture
def amqp_server():
    return required("AMQP_SERVER")


@pytest.fixture
def rabbitmqctl():
    prefix = shlex.split(required("RABBITMQCTL"))

    def call(*arguments):
        done = subprocess.run([*prefix, "--quiet", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"rabbitmqctl {arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    return call


@pytest.fixture
def connections(rabbitmqctl):
    """The broker's connections whose client names itself with the given text in it: their Erlang pids."""

    def find(text):
        rows = [row.split("\t") for row in rabbitmqctl("--no-table-headers", "list_connections", "pid", "client_properties").splitlines()]
        return [pid for pid, properties in rows if text in properties]

    return find


class Manager:
    """Sends step messages and takes replies, as workflow-manager does."""

    def __init__(self, amqp_server):
        self.connection = pika.BlockingConnection(pika.URLParameters(amqp_server))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.name = f"pyworker-test-{uuid.uuid4().hex[:12]}"
        self.reply_queue = self.declare(f"{self.name}-replies")
        self.names = itertools.count()
        self.queues = [self.reply_queue]

    def queue(self):
        """A queue name that nobody has used; it is deleted when the test ends."""
        name = f"{self.name}-{next(self.names)}"
        self.queues.append(name)
        return name

    def declare(self, name, **arguments):
        self.channel.queue_declare(name, durable=True, arguments=arguments or None)
        return name

    def send(self, queue, body, **properties):
        """Publishes a step message; gives its correlation id. A body that is no dict is sent as it is."""
        correlation_id = f"{uuid.uuid4()}:{queue}"
        values = {
            "correlation_id": correlation_id,
            "reply_to": self.reply_queue,
            "content_type": "application/json",
            "delivery_mode": 2,
            "message_id": f"{correlation_id}:1",
            **properties,
        }
        payload = json.dumps(body).encode() if isinstance(body, dict) else body
        self.channel.basic_publish("", queue, payload, pika.BasicProperties(**values), mandatory=True)
        return values["correlation_id"]

    def receive(self, queue=None, what="a message", deadline=DEADLINE_SECONDS):
        """The next message of a queue (the reply queue unless another is named): properties and body."""

        def get():
            method, properties, body = self.channel.basic_get(queue or self.reply_queue, auto_ack=True)
            return method and (properties, body)

        return eventually(get, f"{what} in {queue or 'the reply queue'}", deadline)

    def is_empty(self, queue=None):
        return self.ready(queue or self.reply_queue) == 0

    def ready(self, queue):
        return self.channel.queue_declare(queue, passive=True).method.message_count

    def consumers(self, queue):
        return self.channel.queue_declare(queue, passive=True).method.consumer_count

    def close(self):
        for queue in self.queues:
            self.channel.queue_delete(queue)
        self.connection.close()


@pytest.fixture
def manager(amqp_server):
    manager = Manager(amqp_server)
    yield manager
    manager.close()


class WorkerProcess:
    def __init__(self, process, directory, log_path):
        self.process = process
        self.directory = directory
        self.log_path = log_path

    @property
    def log(self):
        return self.log_path.read_text()

    def calls(self):
        path = self.directory / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def release(self):
        (self.directory / "release").touch()

    def alive(self):
        return self.process.poll() is None

    def kill(self):
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)

    def terminate(self):
        """SIGTERM; gives the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_SECONDS)

    def await_log(self, text, times=1):
        return eventually(lambda: self.log.count(text) >= times, f'"{text}" {times}x in the worker\'s log:\n{self.log}')


@pytest.fixture
def start_worker(amqp_server, start_worker_at):
    """The same with the broker's address."""

    def start(functions, *options, server=amqp_server, ready=True):
        return start_worker_at(server, functions, *options, ready=ready)

    return start


@pytest.fixture
def start_worker_at(tmp_path):
    """Starts a worker process for ``{queue: function of worker_program.py}`` and waits until it consumes."""
    started = []

    def start(server, functions, *options, ready=True, **environment):
        log_path = tmp_path / f"worker-{len(started)}.log"
        arguments = [f"{queue}={function}" for queue, function in functions.items()]
        with log_path.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("worker_program.py")), str(tmp_path), *arguments, *options],
                env={**os.environ, "AMQP_SERVER": server, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        worker = WorkerProcess(process, tmp_path, log_path)
        started.append(worker)
        if ready:
            worker.await_log("consuming from", times=1 if server.startswith("amqp") else len(functions))
        return worker

    yield start
    for worker in started:
        if worker.alive():
            worker.kill()
        print(f"--- log of worker {worker.process.pid}\n{worker.log}")


class Daemon:
    """A manager without a broker."""

    def __init__(self, program, directory, workflows, environment):
        self.directory = directory
        self.program = program
        self.environment = environment
        with socket.socket() as free, socket.socket() as other:
            free.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
            self.grpc_port = other.getsockname()[1]
        self.url = f"http://{self.address}"
        #: Where its workers go, by transport.
        self.servers = {"http": self.url, "grpc": f"grpc://127.0.0.1:{self.grpc_port}"}
        (directory / "workflows.yaml").write_text(workflows)
        self.process = None
        self.start()

    def start(self):
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("AMQP", "WORKFLOW_MANAGER"))}
        with (self.directory / "manager.log").open("a") as log:
            self.process = subprocess.Popen(
                [self.program, "serve", "--workflows", "workflows.yaml", "--db", "journal.db", "--listen", self.address],
                cwd=self.directory,
                env={**environment, "WORKFLOW_MANAGER__GRPC__LISTEN": f"127.0.0.1:{self.grpc_port}", **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        eventually(self.is_ready, "the manager to be ready")

    def is_ready(self):
        assert self.process.poll() is None, self.log
        try:
            socket.create_connection(("127.0.0.1", self.grpc_port), 5).close()
            return urllib.request.urlopen(f"{self.url}/readyz", timeout=5).status == 200
        except OSError:
            return False

    @property
    def log(self):
        return (self.directory / "manager.log").read_text()

    def kill(self):
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)

    def text(self, path, body=None, method=None):
        request = urllib.request.Request(self.url + path, data=body, method=method)
        token = self.environment.get("WORKFLOW_MANAGER__HTTP__TOKEN")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as answer:
            return answer.read().decode()

    def ask(self, path, body=None):
        return json.loads(self.text(path, body))

    def create(self, workflow, message):
        """Creates a job; gives its id. A message that is no dict is sent as it is."""
        body = json.dumps(message).encode() if isinstance(message, dict) else message
        return self.ask(f"/api/workflow/{workflow}", body)["id"]

    def job(self, job):
        return self.ask(f"/api/job/{job}")

    def ended(self, job, state="completed"):
        """The job, once it has ended."""
        seen = eventually(lambda: (seen := self.job(job))["state"] != "running" and seen, f"the end of job {job}")
        assert seen["state"] == state, seen
        return seen

    def result(self, job):
        """The result as it was written, once the job is completed."""
        self.ended(job)
        return self.text(f"/api/job/{job}/result")


@pytest.fixture
def start_daemon(tmp_path):
    program = os.environ.get("WORKFLOW_MANAGER")
    if not program:
        pytest.fail("WORKFLOW_MANAGER is not set: these tests need the manager's program, for example target/debug/workflow-manager")
    started = []

    def start(workflows, **environment):
        directory = tmp_path / f"manager-{len(started)}"
        directory.mkdir()
        started.append(Daemon(program, directory, workflows, environment))
        return started[-1]

    yield start
    for daemon in started:
        daemon.kill()
        print(f"--- log of the manager\n{daemon.log}")


@pytest.fixture
def daemon(start_daemon):
    """One step is enough, unless the module of the test has another one."""
    return start_daemon("workflows: [{ name: orders, steps: [{ name: price }] }]")


@pytest.fixture
def fronts(daemon, request):
    """Two other processes of the manager, of the class that the module of the test has for them."""
    fronts = [request.module.Front(daemon) for _ in range(2)]
    yield fronts
    for front in fronts:
        front.die()


def assert_works(daemon, n):
    assert json.loads(daemon.result(daemon.create("orders", {"n": n}))) == {"echo": {"n": n}}
