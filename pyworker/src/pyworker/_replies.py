"""Over HTTP: replies that go to the manager together, and the room that they make for new messages.

One thread sends. Replies that come while a call is under way go with the next one, so that a worker with much to do makes few
calls, and one with little to do waits for nobody. Each is sent until the manager has committed it.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable

from ._work import RECONNECT_SECONDS_MAX, RECONNECT_SECONDS_MIN, Reply, sleep

if TYPE_CHECKING:
    from ._http import Connection, HttpDelivery

log = logging.getLogger("pyworker")

#: As many the manager takes in one call.
REPLIES_MAX = 100
#: The bodies of one call, together. A larger reply goes alone.
BYTES_MAX = 1 << 20

_PATH = "/api/replies"
#: The answers of a manager that does not know the call.
_UNKNOWN = (404, 405)
_LATER = 500


class Room:
    """How many more messages of a queue may be in hand."""

    def __init__(self, messages: int) -> None:
        self._messages = messages
        self._changed = threading.Condition()

    def take(self, at_most: int, seconds_max: float) -> int:
        """Waits for room, and takes what there is; 0 if there is none in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._messages > 0, seconds_max)
            taken = min(self._messages, at_most)
            self._messages -= taken
            return taken

    def release(self, messages: int = 1) -> None:
        if messages > 0:
            with self._changed:
                self._messages += messages
                self._changed.notify()


@dataclass
class Pending:
    """A reply that is not committed yet."""

    delivery: HttpDelivery
    reply: Reply
    since: float = field(default_factory=time.monotonic)

    def part(self) -> bytes:
        kind = f',"type":"{self.reply.type}"' if self.reply.type else ""
        return f'{{"reply_to":{json.dumps(self.delivery.path)}{kind},"body":'.encode("ascii") + self.reply.body + b"}"


class Replier(threading.Thread):
    """Sends replies, and settles their deliveries.

    ``alone`` sends one by itself, until it is settled: one that the manager does not take with others. ``is_hopeless`` says of a
    time since when a reply waits that it is no more worth trying.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        alone: Callable[[HttpDelivery, Reply], None],
        settled: Callable[[Iterable[HttpDelivery]], None],
        is_hopeless: Callable[[float], bool],
    ) -> None:
        super().__init__(name="pyworker-replies", daemon=True)
        self._connect = connect
        self._alone = alone
        self._settled = settled
        self._is_hopeless = is_hopeless
        self._pending: deque[Pending] = deque()
        self._changed = threading.Condition()
        self._is_over = False
        #: Not with a manager that is older than the call.
        self.is_usable = True

    def put(self, delivery: HttpDelivery, reply: Reply) -> None:
        with self._changed:
            self._pending.append(Pending(delivery, reply))
            self._changed.notify()

    def stop(self) -> None:
        """Nothing is pending any more."""
        with self._changed:
            self._is_over = True
            self._changed.notify()

    def run(self) -> None:
        connection = self._connect()
        delay = RECONNECT_SECONDS_MIN
        while parts := self._next():
            told, retry_after, again = self._send(connection, parts)
            if not again:
                delay = RECONNECT_SECONDS_MIN
                continue
            pause = max(delay, min(retry_after, RECONNECT_SECONDS_MAX)) * random.uniform(0.8, 1.2)
            again = self._give_up(again, told)
            if not again:
                continue
            others = f" and {len(again) - 1} more" if len(again) > 1 else ""
            log.warning("%s: its reply was not taken%s: %s; trying again in %.1f s", again[0].delivery, others, told, pause)
            with self._changed:
                self._pending.extendleft(reversed(again))
            sleep(pause, lambda: self._is_hopeless(again[0].since))
            delay = min(delay * 2, RECONNECT_SECONDS_MAX)
        connection.close()

    def _next(self) -> list[Pending]:
        """What goes with the next call; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._is_over)
            parts: list[Pending] = []
            size = 0
            while self._pending and len(parts) < REPLIES_MAX:
                size += len(self._pending[0].reply.body)
                if parts and size > BYTES_MAX:
                    break
                parts.append(self._pending.popleft())
            return parts

    def _send(self, connection: Connection, parts: list[Pending]) -> tuple[object, float, list[Pending]]:
        """Sends these. Gives those that must be sent again, with the reason and the seconds that the manager wants."""
        from ._http import Unreachable

        try:
            answer = connection.ask(_PATH, b"[" + b",".join(pending.part() for pending in parts) + b"]")
        except Unreachable as error:
            return error, 0.0, parts
        if answer.status >= _LATER:
            return answer, answer.retry_after, parts
        verdicts = answer.list() if answer.is_ok else []
        if len(verdicts) != len(parts):
            if answer.status in _UNKNOWN:
                self.is_usable = False
            self._send_alone(parts)
            return None, 0.0, []
        settled: list[HttpDelivery] = []
        alone: list[Pending] = []
        again: list[Pending] = []
        told: object = None
        for pending, verdict in zip(parts, verdicts):
            status = verdict.get("status")
            if status == 200:
                if verdict.get("taken") is not True:
                    log.info("%s: its reply changed nothing: %s", pending.delivery, verdict.get("reason"))
                settled.append(pending.delivery)
            elif isinstance(status, int) and status >= _LATER:
                told = f"{status} {verdict.get('detail')}"
                again.append(pending)
            else:
                alone.append(pending)
        self._settled(settled)
        if len(again) < len(parts):
            # The manager takes others: those behind these are not to wait for them.
            alone, again = alone + again, []
        self._send_alone(alone)
        return told, 0.0, again

    def _send_alone(self, parts: list[Pending]) -> None:
        """Each by itself, so that what holds up one holds up no other."""
        for pending in parts:
            threading.Thread(target=self._alone, args=(pending.delivery, pending.reply), name="pyworker-reply", daemon=True).start()

    def _give_up(self, parts: list[Pending], told: object) -> list[Pending]:
        """Gives those that are worth another try."""
        worthwhile: list[Pending] = []
        hopeless: list[Pending] = []
        for pending in parts:
            (hopeless if self._is_hopeless(pending.since) else worthwhile).append(pending)
        for pending in hopeless:
            log.error("%s: its reply could not be sent while stopping: %s; the message will be given out again", pending.delivery, told)
        self._settled(pending.delivery for pending in hopeless)
        return worthwhile


def release(rooms: Iterable[Room]) -> None:
    """Gives back all room at once, so that the next call for messages asks for all of it."""
    for room, messages in Counter(rooms).items():
        room.release(messages)
