"""A worker with the habits of the earlier system's libraries: it acknowledges before it replies, waits for no confirm, and puts back what
fails. ``worker-test`` is tried on it: it must find all of that."""

import json
import os
import sys

import pika

queue = sys.argv[1]
connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_SERVER"]))
channel = connection.channel()
channel.queue_declare(queue, durable=True)


def take(channel, method, properties, body):
    try:
        result = dict(json.loads(body))
        channel.basic_ack(method.delivery_tag)
        answer = pika.BasicProperties(content_type="application/json", correlation_id=properties.correlation_id, delivery_mode=2)
        channel.basic_publish("", properties.reply_to, json.dumps(result), answer)
    except (TypeError, ValueError):
        channel.basic_nack(method.delivery_tag, requeue=True)


channel.basic_consume(queue, take)
channel.start_consuming()
