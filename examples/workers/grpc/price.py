# The worker for `price` of docs/learn/1-first-workflow.md, over gRPC, without a library for it:
# pip install -r requirements.txt && python3 price.py [HOST:PORT]; WORKFLOW_MANAGER_TOKEN is sent if it is set.
import grpc, json, os, pathlib, queue, signal, sys, time

sys.path.append(str(pathlib.Path(__file__).parents[3] / "proto"))
wire, services = grpc.protos_and_services("workers.proto")
CENTS = {"pen": 250, "ink": 990}

def reply(message):
    line = json.loads(message.body)["line"]
    if line["article"] not in CENTS:
        return wire.ERROR, {"error": f"there is no price for {line['article']}", "retryable": False}
    return wire.RESULT, {"line": {**line, "cents": CENTS[line["article"]] * line["count"]}}

def work(channel, say, metadata):
    say.put(wire.FromWorker(hello=wire.Hello(queues=["price"], worker="price.py")))
    say.put(wire.FromWorker(want=wire.Want(messages=1)))
    for heard in services.WorkersStub(channel).Work(iter(say.get, None), metadata=metadata):
        if heard.WhichOneof("say") == "message":
            kind, body = reply(heard.message)
            answer = wire.ReplyRequest(receipt=heard.message.receipt, kind=kind, body=json.dumps(body).encode())
            say.put(wire.FromWorker(reply=answer))
            say.put(wire.FromWorker(want=wire.Want(messages=1)))

token = os.environ.get("WORKFLOW_MANAGER_TOKEN")
metadata = [("authorization", f"Bearer {token}")] if token else []
said, stopped = [queue.SimpleQueue()], []
signal.signal(signal.SIGTERM, lambda *_: (stopped.append(True), said[-1].put(None)))  # farewell: what it has goes back
address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8089"
with grpc.insecure_channel(address, options=[("grpc.max_reconnect_backoff_ms", 5000)]) as channel:
    while not stopped:
        try:
            work(channel, said[-1], metadata)
        except grpc.RpcError as error:
            print(f"{error.code().name}: {error.details()}", file=sys.stderr)
        said.append(queue.SimpleQueue())
        time.sleep(0 if stopped else 1)
