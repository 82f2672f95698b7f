"""Puts gRPC before ``workflow-manager worker-test``, which speaks HTTP: ``python over_grpc.py WORKER…``.

It is the command that worker-test starts, and starts the worker, with the address of a server for streams in place of that of
worker-test. What the worker says on a stream becomes calls over HTTP, one for one; a connection that is cut ends the stream.
"""

import http.client
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import grpc

from pyworker import _grpc_wire as wire

URL = os.environ["WORKFLOW_MANAGER_URL"]
KINDS = {wire.RESULT: "result", wire.ERROR: "error", wire.PROGRESS: "progress"}
CUT = object()


def post(path, body=b""):
    """Status, headers and body; CUT if no answer came."""
    try:
        with urllib.request.urlopen(urllib.request.Request(URL + path, data=body, method="POST"), timeout=30) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()
    except (OSError, http.client.HTTPException):
        return CUT


def seconds(duration):
    return f"{round(duration.seconds * 1000 + duration.nanos / 1_000_000)}ms"


class Stream:
    def __init__(self, requests):
        self.requests = requests
        self.heard = queue.SimpleQueue()
        self.credit = threading.Semaphore(0)
        self.is_over = False
        self.hello = next(requests).hello

    def run(self, context):
        for target in (self.receive, self.settle):
            threading.Thread(target=target, daemon=True).start()
        context.add_callback(self.end)
        while (heard := self.heard.get()) is not None:
            if heard is CUT:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the connection was cut")
            yield wire.ToWorker(**heard)

    def end(self):
        self.is_over = True
        self.heard.put(None)

    def receive(self):
        (name,) = self.hello.queues
        while not self.is_over:
            if not self.credit.acquire(timeout=0.1):
                continue
            answer = post(f"/api/queue/{name}/receive?wait=1s&lease={seconds(self.hello.lease)}")
            if answer is CUT:
                self.heard.put(CUT)
                return
            status, headers, body = answer
            if status == 204:
                self.credit.release()
            elif self.is_over:
                post(headers["Reply-To"].replace("/reply", "/nack") + "?requeue=true")
            else:
                self.heard.put({"message": message_of(name, headers, body)})

    def settle(self):
        try:
            for request in self.requests:
                said = getattr(request, request.WhichOneof("say"))
                answered = self.answer(request.WhichOneof("say"), said)
                if answered is not None:
                    self.heard.put(answered)
        except Exception as error:
            # The worker has gone.
            print(f"the stream has ended: {error!r}", file=sys.stderr)
        self.end()

    def answer(self, word, said):
        if word == "want":
            self.credit.release(said.messages)
            return None
        if not said.receipt:
            return {"taken": {"why_not": "malformed"}}
        if word == "reply":
            answer = post(f"{said.receipt}?type={KINDS[said.kind]}", said.body)
        else:
            answer = post(f"{said.receipt.replace('/reply', '/extend')}?lease={seconds(said.lease)}")
        if answer is CUT or answer[0] == 503:
            return CUT
        status, _, body = answer
        told = json.loads(body)
        if status == 410:
            return {"gone": {"receipt": said.receipt, "reason": told["detail"].partition(":")[0]}}
        if word == "extend":
            return {"lease": {"receipt": said.receipt}}
        return {"taken": {"receipt": said.receipt, "changed": told.get("taken", False), "why_not": told.get("reason", "")}}


def message_of(name, headers, body):
    return {
        "receipt": headers["Reply-To"],
        "queue": name,
        "correlation_id": headers["Correlation-Id"],
        "message_id": headers["Message-Id"],
        "workflow": headers["workflow"],
        "job": headers["job"],
        "attempt": int(headers["attempt"]),
        "delivery": int(headers["Delivery"]),
        "traceparent": headers["traceparent"],
        "body": body,
    }


class Handler(grpc.GenericRpcHandler):
    def service(self, call):
        return grpc.stream_stream_rpc_method_handler(
            lambda requests, context: Stream(requests).run(context),
            request_deserializer=wire.FromWorker.FromString,
            response_serializer=wire.ToWorker.SerializeToString,
        )


def main():
    server = grpc.server(ThreadPoolExecutor(20), options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers([Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    worker = subprocess.Popen(sys.argv[1:], env={**os.environ, "WORKFLOW_MANAGER_URL": f"grpc://127.0.0.1:{port}"})
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: worker.send_signal(number))
    # Not wait(): a signal must be passed on meanwhile.
    while worker.poll() is None:
        time.sleep(0.02)
    server.stop(0)
    sys.exit(worker.returncode)


if __name__ == "__main__":
    main()
