"""Replies that go together, and what the log says: without a manager."""

import json
import logging
import queue
import threading
from types import SimpleNamespace

import pytest
from conftest import eventually

from pyworker._http import Answer, HttpDelivery, Unreachable
from pyworker._replies import BYTES_MAX, Replier, Room
from pyworker._work import Performer, Reply

OK = {"status": 200, "taken": True}


class Manager:
    """Its answers are given by the test, one after the other; each call waits for its own."""

    def __init__(self):
        self.calls = queue.SimpleQueue()
        self.answers = queue.SimpleQueue()
        self.alone = []
        self.settled = []
        self.is_hopeless = False
        self.replier = Replier(lambda: self, self.send_alone, self.settle, lambda since: self.is_hopeless)
        self.replier.start()

    def ask(self, path, body):
        assert path == "/api/replies"
        self.calls.put([(part["reply_to"], part.get("type"), part["body"]) for part in json.loads(body)])
        answer = self.answers.get()
        if isinstance(answer, Exception):
            raise Unreachable(answer)
        return answer

    def close(self):
        pass

    def send_alone(self, delivery, reply):
        self.alone.append(delivery.path)

    def settle(self, deliveries):
        self.settled += [delivery.path for delivery in deliveries]

    def answer(self, status, value):
        self.answers.put(Answer(status, {}, json.dumps(value).encode()))

    def put(self, number, body=None, type=None):
        self.replier.put(SimpleNamespace(path=f"/{number}/reply"), Reply(body or b'{"n":%d}' % number, type))

    def has_settled(self, *numbers):
        paths = [f"/{number}/reply" for number in numbers]
        return lambda: self.settled == paths

    def call(self):
        return self.calls.get(timeout=30)


@pytest.fixture
def manager():
    manager = Manager()
    yield manager
    manager.replier.stop()
    manager.replier.join(30)
    assert not manager.replier.is_alive()


def test_what_comes_while_a_call_is_under_way_goes_with_the_next_up_to_a_hundred(manager):
    manager.put(0)
    assert manager.call() == [("/0/reply", None, {"n": 0})]
    for number in range(1, 103):
        manager.put(number, type="error" if number == 1 else None)
    manager.answer(200, [OK])
    call = manager.call()
    assert len(call) == 100
    assert call[:2] == [("/1/reply", "error", {"n": 1}), ("/2/reply", None, {"n": 2})]
    manager.answer(200, [OK] * 100)
    assert len(manager.call()) == 2
    manager.answer(200, [OK] * 2)
    eventually(manager.has_settled(*range(103)), "all to be settled")


def test_a_call_holds_no_more_than_its_bytes(manager):
    manager.put(0)
    manager.call()
    body = json.dumps("x" * (BYTES_MAX * 2 // 3)).encode()
    manager.put(1, body)
    manager.put(2, body)
    for _ in range(2):
        manager.answer(200, [OK])
        assert len(manager.call()) == 1
    manager.answer(200, [OK])
    eventually(manager.has_settled(0, 1, 2), "all to be settled")


def test_a_verdict_concerns_its_reply_alone(manager, caplog):
    caplog.set_level("INFO", "pyworker")
    manager.put(0)
    manager.call()
    for number in range(1, 5):
        manager.put(number)
    manager.answer(200, [OK])
    manager.call()
    manager.answer(200, [OK, {"status": 400, "detail": "no"}, {"status": 503, "detail": "later"}, {"status": 200, "taken": False, "reason": "duplicate"}])
    eventually(manager.has_settled(0, 1, 4), "those that are done to be settled")
    eventually(lambda: sorted(manager.alone) == ["/2/reply", "/3/reply"], "the others to be sent alone")
    assert "its reply changed nothing: duplicate" in caplog.text


def test_what_nobody_has_taken_is_sent_again_in_its_order(manager, caplog):
    manager.put(0)
    manager.call()
    manager.put(1)
    manager.answers.put(ConnectionRefusedError("refused"))
    assert [path for path, *_ in manager.call()] == ["/0/reply", "/1/reply"]
    assert "its reply was not taken: refused; trying again in" in caplog.text
    manager.answer(200, [{"status": 503, "detail": "later"}] * 2)
    manager.call()
    assert "its reply was not taken and 1 more: 503 later; trying again in" in caplog.text
    manager.answer(200, [OK] * 2)
    eventually(manager.has_settled(0, 1), "both to be settled")
    assert manager.alone == []


def test_a_manager_that_does_not_know_the_call_is_sent_one_reply_at_a_time(manager):
    manager.put(0)
    manager.call()
    manager.answer(404, {"detail": "there is nothing"})
    eventually(lambda: manager.alone == ["/0/reply"], "it to be sent alone")
    assert not manager.replier.is_usable


def test_a_worker_that_stops_gives_up_in_the_end(manager, caplog):
    manager.is_hopeless = True
    manager.put(0)
    manager.call()
    manager.answers.put(ConnectionRefusedError("refused"))
    eventually(manager.has_settled(0), "it to be given up")
    assert "its reply could not be sent while stopping: refused" in caplog.text


def test_room_is_taken_as_far_as_there_is_some():
    room = Room(5)
    assert room.take(3, 0) == 3
    assert room.take(3, 0) == 2
    assert room.take(3, 0) == 0
    threading.Timer(0.05, room.release, (2,)).start()
    assert room.take(100, 30) == 2


def test_a_message_that_is_done_is_told_at_debug(caplog):
    caplog.set_level("DEBUG", "pyworker")
    told = queue.SimpleQueue()
    transport = SimpleNamespace(reply=lambda delivery, reply: told.put(reply))
    performer = Performer({"price": lambda message: message}, 1)
    performer.start()
    headers = {"reply-to": "/reply", "message-id": "the message"}
    performer.put(HttpDelivery(transport, "price", Room(1), headers, b'{"n":1}'))
    assert told.get(timeout=30) == Reply(b'{"n":1}')
    performer.stop()
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()[:36]) == (logging.DEBUG, "price: message the message: done in ")
