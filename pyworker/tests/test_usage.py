"""Wrong use is told at once, in words that help."""

import subprocess
import sys

import pytest

from pyworker import Worker, current, run


def echo(message):
    return message


@pytest.mark.parametrize(
    "arguments, options, told",
    [
        (("a", echo), {"argv": ["--amqp-server", "localhost:5672"]}, "or amqp://user:password@host:5672"),
        (("a", echo), {"argv": ["--server", "ftp://localhost"]}, "should look like http://host:8088"),
        (("a", echo), {"argv": ["--server", "http://localhost:port"]}, "http://localhost:port"),
        (("a", echo), {"argv": ["--server", "http://localhost?queue=a"]}, "should look like http://host:8088"),
        (("a", echo), {"argv": ["--server", "http://localhost", "--lease", "0.5"]}, "lease is from 1 to 43200 seconds, not 0.5"),
        (("a", echo), {"argv": ["--server", "http://localhost"], "token": "two\nlines"}, "cannot stand in a header"),
        (("a", echo), {"argv": ["--prefetch", "0"], "amqp_server": "amqp://localhost"}, "prefetch is from 1 to 65535, not 0"),
        (("a", echo), {"argv": ["--threads", "0"], "amqp_server": "amqp://localhost"}, "threads is at least 1, not 0"),
        (({},), {"argv": [], "amqp_server": "amqp://localhost"}, "at least one queue"),
        (("a", echo), {"argv": ["--prefech", "2"], "amqp_server": "amqp://localhost"}, "unrecognized arguments: --prefech"),
    ],
)
def test_wrong_arguments_end_the_program_with_code_2(monkeypatch, capsys, arguments, options, told):
    monkeypatch.delenv("AMQP_SERVER", raising=False)
    with pytest.raises(SystemExit) as exit:
        run(*arguments, **options)
    assert exit.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("server", ["http://user:secret@host", "http://secret@host", "ftp://user:secret@host"])
def test_a_password_is_not_told(server):
    with pytest.raises(ValueError) as error:
        Worker({"a": echo}, server)
    assert "secret" not in str(error.value)


def test_over_http_pika_is_not_loaded():
    code = "import sys; from pyworker import Worker; Worker({'a': print}, 'http://localhost'); sys.exit('pika' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_queue_needs_a_function():
    with pytest.raises(TypeError, match="needs the function"):
        run("a")
    with pytest.raises(TypeError, match="not both"):
        run({"a": echo}, echo)


def test_current_outside_a_function():
    with pytest.raises(RuntimeError, match="outside a worker's function"):
        current()
