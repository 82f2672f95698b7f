#!/usr/bin/env python3
"""What two versions of a worker library cost beside each other, in one run with one manager program.

    benches/workers.py --manager target/release/workflow-manager OLD NEW

OLD and NEW are directories of a library: of pyworker, with `src/pyworker`, or of jsworker, with `dist/index.js`; for example
the one of a worktree of an earlier commit, and the one of this tree. Over HTTP the manager is alone; with `--amqp-server URL`
it and the workers use that broker. Each round runs both versions, one after the other, in an order that alternates: a chain of
five steps, all its jobs created before the worker starts, so that there is always work. Printed are medians over the rounds:
steps per second, and the CPU of the manager and of the worker per step. A figure means something beside the other one alone.
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


def worker_command(library, server, prefetch):
    """The program of a worker with this library, and what its environment has besides."""
    library = pathlib.Path(library).resolve()
    arguments = [server, ",".join(STEPS), str(prefetch)]
    if (library / "src/pyworker").is_dir():
        return [sys.executable, "-c", PYTHON, *arguments], {"PYTHONPATH": str(library / "src")}
    if (library / "dist/index.js").is_file():
        return ["node", "--input-type=module", "-e", NODE, str(library / "dist/index.js"), *arguments], {}
    sys.exit(f"{library} has neither src/pyworker nor dist/index.js")


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
    def __init__(self, program, folder, amqp_server):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        steps = [{"name": "first", "queue": STEPS[0]}]
        steps += [{"name": f"next{n}", "queue": STEPS[n], "depends": [steps_before(n)]} for n in range(1, len(STEPS))]
        (folder / "workflows.yaml").write_text(json.dumps({"workflows": [{"name": "chain", "steps": steps}]}))
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("AMQP", "WORKFLOW_MANAGER"))}
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


def measure(library, given):
    """Steps per second; CPU of the manager and of the worker per step, in µs."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bench-workers-"))
    manager = worker = None
    try:
        manager = Manager(os.path.abspath(given.manager), folder, given.amqp_server)
        for number in range(given.jobs):
            manager.ask("POST", "/api/workflow/chain", json.dumps({"n": number}))
        server = given.amqp_server or f"http://{manager.address}"
        command, environment = worker_command(library, server, given.prefetch)
        before, started = cpu_seconds(manager.process), time.monotonic()
        worker = subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=(folder / "worker.log").open("w"))
        until(lambda: manager.ended() == given.jobs or worker.poll() is not None, f"the jobs to end; logs are in {folder}")
        if worker.poll() is not None:
            sys.exit((folder / "worker.log").read_text())
        seconds = time.monotonic() - started
        steps = given.jobs * len(STEPS)
        managers, workers = cpu_seconds(manager.process) - before, cpu_seconds(worker)
        return steps / seconds, managers / steps * 1e6, workers / steps * 1e6
    finally:
        for process in filter(None, (worker, manager and manager.process)):
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", metavar="OLD NEW", nargs=2)
    parser.add_argument("--manager", required=True, help="the program")
    parser.add_argument("--amqp-server", help="a broker, for the manager and the workers")
    parser.add_argument("--jobs", type=int, default=800)
    parser.add_argument("--prefetch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    measured = ([], [])
    for number in range(given.rounds):
        for index in (0, 1) if number % 2 == 0 else (1, 0):
            measured[index].append(measure(given.libraries[index], given))
    old, new = ([statistics.median(figures) for figures in zip(*rounds)] for rounds in measured)
    print(f"{'':24}{'old':>10}{'new':>10}{'new / old':>12}")
    for name, before, after in zip(("steps/s", "manager, µs of CPU/step", "worker, µs of CPU/step"), old, new):
        print(f"{name:24}{before:10.0f}{after:10.0f}{after / before:12.2f}")


if __name__ == "__main__":
    main()
