#!/usr/bin/env python3
"""What the worker libraries cost over their transports, beside each other, in one run with one manager program.

    benches/workers.py --manager target/release/workflow-manager http:OLD http:NEW grpc:NEW amqp:OLD amqp:NEW

Each case is a transport and the directory of a library: of pyworker, with `src/pyworker`, or of jsworker, with `dist/index.js`; for
example the one of a worktree of an earlier commit, and the one of this tree. Over HTTP and gRPC the manager is alone; amqp needs
`--amqp-server URL`, and the manager and the workers use that broker. gRPC in Python needs grpcio and protobuf: run this with the
Python of `tests/venv`.

`http+limit:DIRECTORY`: each step of the chain has a limit of concurrency with room for all.

Each round runs all cases, one after the other, in an order that alternates: a chain of five steps, all its jobs created before the
worker starts, so that there is always work; then, unless `--items 0`, fan-outs of so many items with a step each. Printed are
medians over the rounds: steps per second, and the CPU of the manager and of the worker per step; items per second, and the CPU of
the manager per item. The ratios are to the first case of the same library, and to its first one over the same transport. A figure
means something beside the others of its run alone.
"""

import argparse
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

STEPS = [f"bench-{number}" for number in range(5)]
ITEM = "bench-item"
FAN_OUTS = 4
DEADLINE_S = 300

PYTHON = """
import logging, sys
from pyworker import run
logging.basicConfig(level=logging.INFO)
logging.getLogger("pika").setLevel(logging.CRITICAL)
run({queue: (lambda message: {"ok": 1}) for queue in sys.argv[2].split(",")}, prefetch=int(sys.argv[3]), threads=4, argv=["--server", sys.argv[1]])
"""

NODE = """
const { run } = await import(process.argv[1]);
const [, , server, queues, prefetch] = process.argv;
await run(Object.fromEntries(queues.split(',').map((queue) => [queue, () => ({ ok: 1 })])), { prefetch: Number(prefetch), argv: ['--server', server] });
"""


class Case:
    def __init__(self, text):
        self.transport, colon, self.library = text.partition(":")
        self.transport, plus, option = self.transport.partition("+")
        self.is_limited = option == "limit"
        if not colon or self.transport not in ("amqp", "grpc", "http") or (plus and not self.is_limited):
            raise argparse.ArgumentTypeError(f"{text} should look like http:DIRECTORY, grpc:DIRECTORY or amqp:DIRECTORY, or http+limit:DIRECTORY")
        library = pathlib.Path(self.library)
        self.language = "python" if (library / "src/pyworker").is_dir() else "node" if (library / "dist/index.js").is_file() else None
        if self.language is None:
            raise argparse.ArgumentTypeError(f"{library} has neither src/pyworker nor dist/index.js")
        self.name = f"{self.language} {text}"


def worker_command(library, server, prefetch):
    """The program of a worker with this library, and what its environment has besides."""
    library = pathlib.Path(library).resolve()
    arguments = [server, ",".join([*STEPS, ITEM]), str(prefetch)]
    if (library / "src/pyworker").is_dir():
        return [sys.executable, "-c", PYTHON, *arguments], {"PYTHONPATH": str(library / "src")}
    if (library / "dist/index.js").is_file():
        return ["node", "--input-type=module", "-e", NODE, str(library / "dist/index.js"), *arguments], {}
    raise AssertionError(library)


def cpu_seconds(process):
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def until(probe, what):
    end = time.monotonic() + DEADLINE_S
    while not (seen := probe()):
        if time.monotonic() > end:
            sys.exit(f"not within {DEADLINE_S} s: {what}")
        time.sleep(0.05)
    return seen


class Manager:
    def __init__(self, program, folder, amqp_server, is_limited):
        with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as other:
            self.address, self.grpc = (f"127.0.0.1:{server.getsockname()[1]}" for server in (free, other))
        steps = [{"name": "first", "queue": STEPS[0]}]
        steps += [{"name": f"next{n}", "queue": STEPS[n], "depends": [steps_before(n)]} for n in range(1, len(STEPS))]
        # It has room for all steps: measured is what it costs, not what it holds back.
        limit = {"name": "wide", "concurrency": 1_000_000}
        if is_limited:
            steps = [{**step, "limit": limit["name"]} for step in steps]
        task = {"name": "each", "itemListKey": "items", "steps": [{"name": "item", "queue": ITEM}]}
        fan_out = {"name": "fan-out", "steps": [{"name": "all", "task": "each"}], "tasks": [task]}
        (folder / "workflows.yaml").write_text(json.dumps({"workflows": [{"name": "chain", "steps": steps}, fan_out], **({"limits": [limit]} if is_limited else {})}))
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("AMQP", "WORKFLOW_MANAGER"))}
        environment["WORKFLOW_MANAGER__GRPC__LISTEN"] = self.grpc
        if amqp_server:
            environment["AMQP_SERVER"] = amqp_server
            environment["WORKFLOW_MANAGER__AMQP__REPLY_QUEUE"] = f"bench-replies-{os.getpid()}"
        command = [program, "serve", "--workflows", "workflows.yaml", "--db", "journal.db", "--listen", self.address]
        self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=(folder / "log").open("w"))
        until(self.is_ready, f"the manager to be ready; its log is {folder}/log")
        self.connection = http.client.HTTPConnection(self.address, timeout=DEADLINE_S)

    def is_ready(self):
        try:
            connection = http.client.HTTPConnection(self.address, timeout=5)
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except OSError:
            return False

    def ask(self, method, path, body=None):
        self.connection.request(method, path, body)
        answer = self.connection.getresponse()
        text = answer.read().decode()
        assert answer.status < 300, text
        return text

    def ended(self):
        counts = re.findall(r"^workflow_jobs_ended_total\{[^}]*\} (\d+)", self.ask("GET", "/metrics"), re.MULTILINE)
        return sum(map(int, counts))

    def stop(self):
        self.process.terminate()
        self.process.wait(DEADLINE_S)


def steps_before(number):
    return "first" if number == 1 else f"next{number - 1}"


def measure(case, given):
    """The figures of FIGURES, in µs where they are of CPU."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bench-workers-"))
    manager = worker = None
    try:
        manager = Manager(os.path.abspath(given.manager), folder, given.amqp_server if case.transport == "amqp" else None, case.is_limited)
        for number in range(given.jobs):
            manager.ask("POST", "/api/workflow/chain", json.dumps({"n": number}))
        server = {"amqp": given.amqp_server, "http": f"http://{manager.address}", "grpc": f"grpc://{manager.grpc}"}[case.transport]
        command, environment = worker_command(case.library, server, given.prefetch)
        before, started = cpu_seconds(manager.process), time.monotonic()
        worker = subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=(folder / "worker.log").open("w"))

        def have_ended(jobs):
            until(lambda: manager.ended() >= jobs or worker.poll() is not None, f"the jobs to end; logs are in {folder}")
            if worker.poll() is not None:
                sys.exit((folder / "worker.log").read_text())

        have_ended(given.jobs)
        seconds = time.monotonic() - started
        steps = given.jobs * len(STEPS)
        managers, workers = cpu_seconds(manager.process) - before, cpu_seconds(worker)
        figures = [steps / seconds, managers / steps * 1e6, workers / steps * 1e6]
        if given.items:
            before, started = cpu_seconds(manager.process), time.monotonic()
            body = json.dumps({"items": [{"n": number} for number in range(given.items)]})
            for _ in range(FAN_OUTS):
                manager.ask("POST", "/api/workflow/fan-out", body)
            have_ended(given.jobs + FAN_OUTS)
            items = FAN_OUTS * given.items
            figures += [items / (time.monotonic() - started), (cpu_seconds(manager.process) - before) / items * 1e6]
        return figures
    finally:
        for process in filter(None, (worker, manager and manager.process)):
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


FIGURES = ["steps/s", "manager µs/step", "worker µs/step", "items/s", "manager µs/item"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", metavar="TRANSPORT:DIRECTORY", nargs="+", type=Case)
    parser.add_argument("--manager", required=True, help="the program")
    parser.add_argument("--amqp-server", help="a broker, for the cases over AMQP")
    parser.add_argument("--jobs", type=int, default=800)
    parser.add_argument("--items", type=int, default=1000, help="of each fan-out (default %(default)s; 0: no fan-outs)")
    parser.add_argument("--prefetch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if not given.amqp_server and any(case.transport == "amqp" for case in given.cases):
        parser.error("cases over amqp need --amqp-server")
    measured = {case: [] for case in given.cases}
    for number in range(given.rounds):
        for case in given.cases if number % 2 == 0 else reversed(given.cases):
            measured[case].append(measure(case, given))
    medians = {case: [statistics.median(figures) for figures in zip(*rounds)] for case, rounds in measured.items()}
    width = max(len(case.name) for case in given.cases)
    names = FIGURES[: len(medians[given.cases[0]])]
    print(f"{'':{width}}" + "".join(f"{name:>17}" for name in names) + f"{'× its first':>14}{'× so':>8}")
    for case, figures in medians.items():
        of_language = [other for other in given.cases if other.language == case.language]
        first, so = of_language[0], next(other for other in of_language if other.transport == case.transport)
        ratios = [figures[0] / medians[other][0] for other in (first, so)]
        print(f"{case.name:{width}}" + "".join(f"{figure:17.0f}" for figure in figures) + f"{ratios[0]:14.2f}{ratios[1]:8.2f}")


if __name__ == "__main__":
    main()
