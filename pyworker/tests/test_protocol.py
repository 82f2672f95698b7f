"""The worker under ``workflow-manager worker-test``, which judges it by docs/reference/worker-protocol.md, over each transport."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import required

ADVISED = {"keeps every digit, escapes and the order of keys"}  # json rounds 0.10


# What a worker with the habits of the earlier system's libraries must be told, and what it is advised.
EARLIER_FAILS = {
    "comes back after a connection that was cut before the reply",
    "gives the same result after a connection that was cut between reply and ack",
    "bears a message that is not JSON",
    "bears a message that is an array",
    "bears an empty message",
    "bears a message without reply_to",
    "acknowledges only after the reply",
}
EARLIER_ADVISED = ADVISED | {
    "acknowledges only after the broker has confirmed the reply",
    "gives the header attempt back",
    "declares its queue again after it was deleted",
    "finishes what is in hand on SIGTERM, and ends with exit code 0",
}


def judged(queue, bus, amqp_server, worker, *options):
    done = subprocess.run(
        [required("WORKFLOW_MANAGER"), "worker-test", queue, "--bus", bus, "--message", '{"n": 1}', *options, "--", sys.executable, *worker],
        env={**os.environ, "AMQP_SERVER": amqp_server},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    failed = {line.split(" - ")[1] for line in done.stdout.splitlines() if line.startswith("not ok")}
    advised = {name.removesuffix(" # advice") for name in failed if name.endswith(" # advice")}
    return done, {name for name in failed if not name.endswith(" # advice")}, advised


@pytest.mark.parametrize("bus", ["amqp", "http", "grpc"])
def test_it_keeps_the_worker_protocol(bus, amqp_server, tmp_path):
    queue = f"pyworker-protocol-{os.getpid()}-{bus}"
    program = str(Path(__file__).with_name("worker_program.py"))
    # With several in hand, so that over HTTP they come and go together. jsworker is judged with one at a time.
    worker = [program, str(tmp_path), f"{queue}=echo", "--prefetch=20"]
    done, _, advised = judged(queue, bus, amqp_server, worker)
    assert done.returncode == 0, done.stdout + done.stderr
    assert advised <= ADVISED, done.stdout


def test_the_habits_of_the_earlier_libraries_are_found(amqp_server):
    queue = f"pyworker-protocol-{os.getpid()}-earlier"
    program = str(Path(__file__).with_name("earlier_habits.py"))
    done, failed, advised = judged(queue, "amqp", amqp_server, [program, queue], "--within", "3s")
    assert done.returncode == 1, done.stdout + done.stderr
    assert (failed, advised) == (EARLIER_FAILS, EARLIER_ADVISED), done.stdout
