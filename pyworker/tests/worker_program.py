"""The worker processes that the tests start: ``python worker_program.py DIRECTORY QUEUE=FUNCTION…``.

Each call of a function leaves a line in ``DIRECTORY/calls``, so that a test sees work begin, and how often.
"""

import asyncio
import logging
import os
import signal
import sys
import time
from pathlib import Path

if os.environ.get("OPENTELEMETRY") == "missing":
    sys.modules["opentelemetry"] = None

from pyworker import Failed, Retryable, current, run

DIRECTORY = Path(sys.argv[1])

if os.environ.get("OPENTELEMETRY") == "spans":
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

    spans = (DIRECTORY / "spans").open("a")
    exporter = ConsoleSpanExporter(out=spans, formatter=lambda span: span.to_json(indent=None) + "\n")
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def called(message):
    with (DIRECTORY / "calls").open("a") as calls:
        calls.write(f"{message.get('n')}\n")


def echo(message):
    called(message)
    return {"echo": message}


def nothing(message):
    called(message)


def describe(message):
    step = current()
    return {"id": step.id, "name": step.name, "attempt": step.attempt, "job": step.job, "workflow": step.workflow}


def progress(message):
    current().progress(0.5, message="half way")
    return {}


def raises(message):
    called(message)
    raise ZeroDivisionError("the function's own mistake")


def raises_without_text(message):
    raise KeyError


class Unreadable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def raises_unreadably(message):
    raise Unreadable


def raises_at_length(message):
    raise ValueError("x" * 100_000)


def fails_at_length(message):
    raise Failed("x" * 100_000)


def exits(message):
    sys.exit(3)


def not_json(message):
    return {"value": float("nan")}


def not_an_object(message):
    return [1]


def fails(message):
    raise Failed("no such book")


def fails_for_now(message):
    raise Retryable("the disk is full")


def dies_once(message):
    """Does its work and dies by SIGKILL before a reply can be sent; the second call returns."""
    called(message)
    if len((DIRECTORY / "calls").read_text().splitlines()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"died": True}


def waits(message):
    """Takes until the test says so."""
    called(message)
    while not (DIRECTORY / "release").exists():
        time.sleep(0.01)
    return {"n": message["n"]}


def waits_for_its_end(message):
    """Takes until the attempt is over, and says so."""
    called(message)
    step = current()
    while not step.cancelled:
        time.sleep(0.01)
    called({"n": "over"})
    step.raise_if_cancelled()


def progress_and_waits(message):
    current().progress(0.5, message="half way")
    return waits(message)


def redelivered(message):
    return {"redelivered": current().redelivered, "headers": dict(current().headers)}


def large(message):
    return {"text": "x" * message["bytes"]}


async def async_echo(message):
    await asyncio.sleep(0)
    return echo(message)


async def async_waits(message):
    called(message)
    step = current()
    step.progress(0.5)
    while not (DIRECTORY / "release").exists():
        await asyncio.sleep(0.01)
    assert current() is step
    return {"n": message["n"]}


async def async_fails(message):
    raise Failed("no such book")


async def async_exits(message):
    sys.exit(3)


async def async_waits_for_ever(message):
    called(message)
    try:
        await asyncio.Event().wait()
    finally:
        called({"n": "over"})


def takes_long(message):
    """Takes so long that a connection whose heartbeats wait for the function is lost."""
    called(message)
    time.sleep(message["seconds"])
    return {}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    functions = dict(argument.split("=") for argument in sys.argv[2:] if "=" in argument and not argument.startswith("-"))
    options = [argument for argument in sys.argv[2:] if argument.startswith("-")]
    run({queue: globals()[name] for queue, name in functions.items()}, argv=options)
    logging.info("run returned")
