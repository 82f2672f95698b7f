"""Confirms over AMQP come when they come: without a broker."""

from types import SimpleNamespace

import pika
import pytest

from pyworker._amqp import _Delivery, _Done, _Publisher
from pyworker._work import Reply


class Channel:
    """What lies beneath pika's blocking channel."""

    def __init__(self):
        self.published = []
        self.acks = []

    def add_on_return_callback(self, callback):
        self.on_return = callback

    def confirm_delivery(self, on_confirm, on_selected):
        self.on_confirm = on_confirm
        on_selected("selected")

    def basic_publish(self, exchange, queue, body, properties, mandatory):
        assert (exchange, mandatory) == ("", True)
        self.published.append(body)

    def ack(self, number, multiple=False):
        self.on_confirm(SimpleNamespace(method=pika.spec.Basic.Ack(number, multiple)))

    def nack(self, number, multiple=False):
        self.on_confirm(SimpleNamespace(method=pika.spec.Basic.Nack(number, multiple)))


@pytest.fixture
def channel():
    return Channel()


@pytest.fixture
def publisher(channel):
    connection = SimpleNamespace(add_callback_threadsafe=lambda callback: None)
    return _Publisher(connection, SimpleNamespace(_impl=channel, is_open=True))


@pytest.fixture
def told(publisher):
    """What was told of each of five messages, which are all published."""
    told = []
    for number in range(1, 6):
        properties = pika.BasicProperties(correlation_id=f"id-{min(number, 4)}")
        publisher.publish("replies", b"the same", properties, lambda problem, number=number: told.append((number, problem)))
    return told


def test_all_are_published_before_any_is_confirmed(channel, told):
    assert len(channel.published) == 5
    assert told == []


def test_each_is_told_of_its_own_confirm(channel, told):
    channel.ack(2)
    channel.nack(1)
    channel.ack(2)
    assert told == [(2, None), (1, "refuses messages")]


def test_a_confirm_of_several_is_told_of_each_in_order(channel, told):
    channel.ack(3)
    channel.ack(4, multiple=True)
    assert told == [(3, None), (1, None), (2, None), (4, None)]


def test_what_was_returned_is_told_with_its_confirm(channel, told):
    def come_back(number):
        channel.on_return(None, SimpleNamespace(routing_key="replies"), pika.BasicProperties(correlation_id=f"id-{number}"), b"the same")

    come_back(2)
    come_back(4)
    come_back(4)
    assert told == []
    channel.ack(5, multiple=True)
    gone = "does not exist"
    assert told == [(1, None), (2, gone), (3, None), (4, gone), (5, gone)]


def test_the_replies_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr("pyworker._amqp.DONE_MAX", 3)
    monkeypatch.setattr("pyworker._amqp.DONE_BYTES_MAX", 100)
    done = _Done()
    reply = Reply(b"x" * 10)
    for number in range(5):
        done.add(str(number), reply)
    assert [done.find(str(number)) for number in range(5)] == [None, None, reply, reply, reply]
    done.add("large", Reply(b"x" * 90))
    assert [done.find(key) is None for key in ("3", "4", "large")] == [True, False, False]
    done.add("too large", Reply(b"x" * 101))
    assert done.find("too large") is None


def test_a_message_that_has_no_id_is_not_remembered():
    done = _Done()
    delivery = _Delivery(None, None, "price", [1], False, pika.BasicProperties(correlation_id="id"), b"{}")
    assert delivery.key is delivery
    done.add(delivery.key, Reply(b"{}"))
    assert done.find(delivery) is None
    named = _Delivery(None, None, "price", [1], False, pika.BasicProperties(message_id="message", correlation_id="id"), b"{}")
    done.add(named.key, Reply(b"{}"))
    assert done.find(named.key) == Reply(b"{}")
