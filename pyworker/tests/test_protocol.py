"""The worker under ``workflow-manager worker-test``, which judges it by docs/worker-protocol.md, over both buses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import required

ADVISED = {"keeps every digit, escapes and the order of keys"}  # json rounds 0.10


@pytest.mark.parametrize("bus", ["amqp", "http"])
def test_it_keeps_the_worker_protocol(bus, amqp_server, tmp_path):
    queue = f"pyworker-protocol-{os.getpid()}-{bus}"
    program = str(Path(__file__).with_name("worker_program.py"))
    worker = [sys.executable, program, str(tmp_path), f"{queue}=echo"]
    done = subprocess.run(
        [required("WORKFLOW_MANAGER"), "worker-test", queue, "--bus", bus, "--message", '{"n": 1}', "--", *worker],
        env={**os.environ, "AMQP_SERVER": amqp_server},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    advised = {line.split(" - ")[1].removesuffix(" # advice") for line in done.stdout.splitlines() if line.endswith(" # advice")}
    assert advised <= ADVISED, done.stdout
