#!/usr/bin/env python3
"""A worker over Kafka: worker.py SERVERS QUEUE. It commits a message only when its reply is confirmed, so a worker that dies
has it given out again. Needs the package confluent-kafka."""

import json
import sys

from confluent_kafka import Consumer, KafkaException, Producer


def work(message: dict) -> dict:
    return {**message, "worked": True}


def commit(record) -> None:
    try:
        consumer.commit(record, asynchronous=False)
    except KafkaException as error:
        # The group has given its messages to another worker in the meantime: this one comes again.
        print(f"not committed: {error}", file=sys.stderr)


servers, queue = sys.argv[1:]
producer = Producer({"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True})
# A worker that dies is noticed after the session's time-out: 45 s, if nothing is said.
consumer = Consumer({"bootstrap.servers": servers, "group.id": queue, "enable.auto.commit": False,
                     "auto.offset.reset": "earliest", "topic.metadata.refresh.interval.ms": 5000,
                     "session.timeout.ms": 6000, "heartbeat.interval.ms": 2000})
consumer.subscribe([queue])
while True:
    record = consumer.poll(1)
    if record is None or record.error():
        continue
    headers = dict(record.headers() or [])
    if "reply_to" not in headers:
        commit(record)
        continue
    back = [(name, headers[name]) for name in ("correlation_id", "attempt") if name in headers]
    try:
        reply = json.dumps(work(json.loads(record.value() or b"{}")), separators=(",", ":"))
    except Exception as error:
        reply = json.dumps({"error": str(error)})
        back.append(("type", b"error"))
    failed = []
    producer.produce(headers["reply_to"].decode(), reply, record.key(), headers=back,
                     on_delivery=lambda error, _: failed.append(error) if error else None)
    producer.flush()
    if failed:
        sys.exit(f"the reply was not taken: {failed[0]}")  # not committed: the message comes again
    commit(record)
