"""Plays worker and caller on a real broker, and writes down every message of the manager, for asyncapi.test.js.

    record.py PROGRAM FILE      AMQP_SERVER names the broker
"""
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from pathlib import Path

import pika

DEADLINE_SECONDS = 60
EVENTS = "asyncapi-test.events"
REPLIES = "asyncapi-test-replies"
QUEUES = (
    REPLIES, REPLIES + ".unreadable", "asyncapi-work", "asyncapi-child-work",
    "workflow.asyncapi-parent", "workflow.asyncapi-child", "workflow.asyncapi-elsewhere",
)
WORKFLOWS = """
workflows:
  - name: asyncapi-parent
    steps:
      - { name: asyncapi-work, retry: { attempts: 2, backoff: 1ms } }
      - { name: call, queue: workflow.asyncapi-elsewhere, depends: [ asyncapi-work ] }
  - name: asyncapi-child
    steps:
      - name: asyncapi-child-work
        priority: 3
        statuses: [ OPEN, PACKING ]
"""


class Recorder:
    def __init__(self, file):
        self.file = file
        self.channel = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_SERVER"])).channel()
        self.channel.confirm_delivery()

    def take(self, queue, message=None):
        """The next message; written down under its name in the document."""
        end = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < end:
            method, properties, body = self.channel.basic_get(queue, auto_ack=True)
            if method:
                self.write(message, properties, body)
                return properties, body
            self.channel.connection.sleep(0.02)
        sys.exit(f"no message came to {queue}")

    def write(self, message, properties, body):
        told = {key: value for key, value in vars(properties).items() if value is not None}
        headers = told.pop("headers", {})
        try:
            payload = json.loads(body)
        except ValueError:
            payload = body.decode("latin-1")
        if message == "answer" and told.get("type") == "error":
            message = "refusal"
        print(json.dumps({"message": message, "headers": headers, "payload": payload, "properties": told}), file=self.file)

    def reply(self, to, body, **properties):
        echo = pika.BasicProperties(
            correlation_id=to.correlation_id, headers={"attempt": to.headers["attempt"]}, delivery_mode=2, **properties)
        self.channel.basic_publish("", to.reply_to, json.dumps(body), echo, mandatory=True)


def main(program, file):
    with tempfile.TemporaryDirectory() as folder, open(file, "w", encoding="utf-8") as out:
        recorder = Recorder(out)
        channel = recorder.channel
        forget(channel)     # what a run left that was broken off
        answers = channel.queue_declare("", exclusive=True).method.queue
        events = channel.queue_declare("", exclusive=True).method.queue
        with Manager(program, Path(folder)) as manager:
            channel.queue_bind(events, EVENTS, "#")
            manager.create("asyncapi-parent")
            first, _ = recorder.take("asyncapi-work", "step")
            recorder.reply(first, {"error": "not yet"}, type="error")
            second, _ = recorder.take("asyncapi-work", "step")
            recorder.reply(second, {"progress": 0.5, "message": "half of it"}, type="progress")
            recorder.reply(second, {"done": True})
            # The next step calls a workflow that another manager would have.
            called, _ = recorder.take("workflow.asyncapi-elsewhere", "step")
            assert called.headers["depth"] == 0
            recorder.reply(called, {"packed": True})
            # This one has a workflow of its own, which any client can call.
            for reply in ({"packed": True}, None):
                call = pika.BasicProperties(reply_to=answers, correlation_id="order 4711", message_id=str(uuid.uuid4()))
                channel.basic_publish("", "workflow.asyncapi-child", b"{}", call, mandatory=True)
                step, _ = recorder.take("asyncapi-child-work", "step")
                if reply:
                    recorder.reply(step, reply)
                else:
                    recorder.reply(step, {"error": "no parcel", "retryable": False}, type="error")
                recorder.take(answers, "answer")
            channel.basic_publish("", "workflow.asyncapi-child", b"no JSON", pika.BasicProperties(reply_to=answers, correlation_id="3"))
            recorder.take(answers, "answer")
            # A header that cannot be read: its correlation id is not UTF-8. The manager uses a queue that it finds.
            channel.queue_declare(REPLIES + ".unreadable", durable=True)
            channel.basic_publish("", REPLIES, b"{}", pika.BasicProperties(correlation_id=b"\xff\xfe"))
            recorder.take(REPLIES + ".unreadable", "unreadable")
            # The first job has ended meanwhile, and all its events are there.
            while True:
                _, event = recorder.take(events, "event")
                event = json.loads(event)
                if event["type"] == "workflow-manager.job.completed" and event["data"]["workflow"] == "asyncapi-parent":
                    break
        forget(channel)


def forget(channel):
    for queue in QUEUES:
        channel.queue_delete(queue)
    channel.exchange_delete(EVENTS)


class Manager:
    def __init__(self, program, folder):
        self.log = folder / "log"
        workflows = folder / "workflows.yaml"
        workflows.write_text(WORKFLOWS, encoding="utf-8")
        settings = {"EVENTS__EXCHANGE": EVENTS, "AMQP__REPLY_QUEUE": REPLIES}
        environment = {**os.environ, **{f"WORKFLOW_MANAGER__{key}": value for key, value in settings.items()}}
        arguments = [program, "serve", "--workflows", workflows, "--db", folder / "journal.db", "--listen", "127.0.0.1:0"]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(arguments, env=environment, stdin=subprocess.DEVNULL, stderr=log)

    def __enter__(self):
        try:
            self.url = f"http://{self.logged('listening')['address']}"
            self.logged("ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def logged(self, message):
        end = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            for line in self.log.read_text(encoding="utf-8").splitlines():
                if f'"message":"{message}"' in line:
                    return json.loads(line)
            time.sleep(0.05)
        sys.exit(f"the manager does not say {message!r}: {self.log.read_text(encoding='utf-8')}")

    def create(self, workflow):
        request = urllib.request.Request(f"{self.url}/api/workflow/{workflow}", data=b'{"customer":"Ada"}', method="POST")
        with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as answer:
            return json.load(answer)["id"]


main(*sys.argv[1:])
