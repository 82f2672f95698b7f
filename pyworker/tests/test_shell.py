"""The worker in shell, examples/workers/shell/worker.sh, with a real manager."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import eventually

WORKER = Path(__file__).parents[2] / "examples/workers/shell/worker.sh"
WORKFLOW = "workflows: [{ name: orders, steps: [{ name: price, retry: { attempts: 2, backoff: 1ms } }] }]"


@pytest.fixture
def start_shell(tmp_path):
    started = []

    def start(daemon, *command):
        log = tmp_path / f"shell-{len(started)}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [str(WORKER), "price", *command],
                cwd=tmp_path,
                env={**os.environ, "WORKFLOW_MANAGER_URL": daemon.url, "TMPDIR": str(tmp_path)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started.append((process, log))
        return log

    yield start
    for process, log in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        print(f"--- log of the shell\n{log.read_text()}")


def test_the_output_of_a_command_is_the_result_byte_for_byte(start_daemon, start_shell):
    daemon = start_daemon(WORKFLOW)
    start_shell(daemon, "cat")
    message = rb'{"cents":1740.50,"long":12345678901234567890,"text":"\ud800 a b"}'
    assert daemon.result(daemon.create("orders", message)).strip().encode() == message


def test_a_command_that_fails_fails_the_attempt(start_daemon, start_shell):
    daemon = start_daemon(WORKFLOW)
    start_shell(daemon, "false")
    job = daemon.ended(daemon.create("orders", {}), "failed")
    assert "the command failed" in job["reason"] and job["steps"][0]["attempt"] == 2


def test_a_reply_outlives_a_restart_of_the_manager(start_daemon, start_shell, tmp_path):
    daemon = start_daemon(WORKFLOW)
    start_shell(daemon, "sh", "-c", "touch begun; until [ -e release ]; do sleep 0.01; done; cat")
    job = daemon.create("orders", {"n": 1})
    eventually((tmp_path / "begun").exists, "the command to begin")
    daemon.kill()
    (tmp_path / "release").touch()
    daemon.start()
    assert json.loads(daemon.result(job)) == {"n": 1}


def test_a_wrong_queue_is_told(start_daemon, start_shell):
    daemon = start_daemon("workflows: [{ name: orders, steps: [{ name: prize }] }]")
    log = start_shell(daemon, "cat")
    eventually(lambda: 'did you mean \\"prize\\"' in log.read_text(), "the manager's word")
