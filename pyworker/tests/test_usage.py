"""Wrong use is told at once, in words that help."""

import pytest

from pyworker import Worker, current, run


def echo(message):
    return message


@pytest.mark.parametrize(
    "arguments, options, told",
    [
        (("a", echo), {"argv": []}, "Set AMQP_SERVER or give --amqp-server"),
        (("a", echo), {"argv": ["--amqp-server", "localhost:5672"]}, "should look like amqp://"),
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


def test_a_password_is_not_told():
    with pytest.raises(ValueError) as error:
        Worker({"a": echo}, "http://user:secret@host")
    assert "secret" not in str(error.value)


def test_a_queue_needs_a_function():
    with pytest.raises(TypeError, match="needs the function"):
        run("a")
    with pytest.raises(TypeError, match="not both"):
        run({"a": echo}, echo)


def test_current_outside_a_function():
    with pytest.raises(RuntimeError, match="outside a worker's function"):
        current()
