"""Several addresses, with a real manager: the worker goes where the active one is, and keeps what it has in hand."""

import http.server
import json
import signal
import socket
import threading
import urllib.error
import urllib.request

import pytest
from conftest import assert_works, eventually

from pyworker._addresses import Address, Addresses



class Front:
    """A manager's other process, as a server: passes requests on to the real manager, or refuses them."""

    def __init__(self, daemon):
        self.daemon = daemon
        #: Status, headers and body of a refusal. None: requests are passed on.
        self.refusal = None
        self.requests = []
        self.is_dead = False
        self.is_silent = False
        self.ended = threading.Event()
        front = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if front.is_silent:
                    front.ended.wait()
                if front.is_dead:
                    self.close_connection = True
                    return
                front.requests.append((self.path, self.headers.get("Authorization")))
                status, headers, answer = front.refusal or front.pass_on(self.path, body)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                # Its worker has gone.
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    def pass_on(self, path, body):
        # Not held open, so that a refusal reaches the worker soon.
        request = urllib.request.Request(self.daemon.url + path.replace("wait=30s", "wait=0s"), data=body, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                status, headers, text = answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            status, headers, text = error.code, dict(error.headers), error.read()
        kept = {name: value for name, value in headers.items() if name.lower() not in ("content-length", "transfer-encoding", "connection", "date")}
        return status, kept, text

    def name(self, url, status=503, by_header=True):
        """Stand by, and name the active one."""
        headers = {"Retry-After": "1", **({"Workflow-Manager-Active": url} if by_header else {})}
        self.refusal = status, headers, json.dumps({"detail": f"stands by; active is {url}", "active": url}).encode()

    def die(self):
        """Its connections break off, and no other one is taken."""
        if not self.is_dead:
            self.is_dead = True
            self.ended.set()
            self.server.shutdown()
            self.server.server_close()


def free_url():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_an_address_that_cannot_be_reached_is_left_at_once(daemon, start_worker_at):
    dead = free_url()
    running = start_worker_at(f"{dead}, {daemon.url}", {"price": "echo"})
    assert_works(daemon, 1)
    assert f"goes on at {daemon.url}, after {dead}: " in running.log
    assert "trying again" not in running.log
    assert running.terminate() == 0


@pytest.mark.parametrize("status, by_header", [(503, True), (503, False), (421, True)])
def test_a_named_address_is_followed_even_if_it_is_not_of_the_list(daemon, fronts, start_worker_at, status, by_header):
    fronts[0].name(daemon.url, status, by_header)
    running = start_worker_at(fronts[0].url, {"price": "echo"}, WORKFLOW_MANAGER_TOKEN="secret")
    assert_works(daemon, 1)
    assert "trying again" not in running.log
    assert [token for _, token in fronts[0].requests] == ["Bearer secret"]


def test_one_that_stands_by_and_names_nobody_is_left(daemon, fronts, start_worker_at):
    fronts[0].refusal = 503, {"Retry-After": "1"}, b'{"detail":"stands by; the active one is unknown"}'
    running = start_worker_at(f"{fronts[0].url},{daemon.url}", {"price": "echo"})
    assert_works(daemon, 1)
    assert "trying again" not in running.log


def test_an_overload_is_waited_for_at_the_same_address(daemon, fronts, start_worker_at):
    fronts[0].refusal = 503, {"Retry-After": "1"}, b'{"detail":"too many wait already"}'
    running = start_worker_at(f"{fronts[0].url},{fronts[1].url}", {"price": "echo"}, ready=False)
    running.await_log("trying again in", times=2)
    fronts[0].refusal = None
    assert_works(daemon, 1)
    assert fronts[1].requests == []


@pytest.mark.parametrize("ends", ["refuses", "is gone"])
@pytest.mark.parametrize("function", ["waits", "async_waits"])
def test_what_is_in_hand_stays_in_hand_and_is_replied_to_the_new_active_one(daemon, fronts, start_worker_at, function, ends):
    first, second = fronts
    second.name(first.url)
    running = start_worker_at(f"{first.url},{second.url}", {"price": function}, "--prefetch=2", "--lease=2")
    job = daemon.create("orders", {"n": 1})
    eventually(running.calls, "the function's call")
    second.refusal = None
    if ends == "refuses":
        first.name(second.url)
    else:
        first.die()
    # Its lease is lengthened there, for longer than it is.
    eventually(lambda: sum("/extend" in path for path, _ in second.requests) > 9, "the lease to be lengthened")
    running.release()
    assert json.loads(daemon.result(job)) == {"n": 1}
    replies = [path for path, _ in second.requests if path == "/api/replies" or ("/reply" in path and "type=progress" not in path)]
    assert len(replies) == 1, replies
    assert running.calls() == ["1"]
    assert running.terminate() == 0


def test_sigterm_finishes_what_is_in_hand_at_the_new_active_one(daemon, fronts, start_worker_at):
    first, second = fronts
    running = start_worker_at(f"{first.url},{second.url}", {"price": "waits"})
    job = daemon.create("orders", {"n": 1})
    eventually(running.calls, "the function's call")
    second.name(first.url)
    first.name(second.url)
    running.process.send_signal(signal.SIGTERM)
    running.release()
    running.await_log("its reply was not taken")
    second.refusal = None
    assert running.process.wait(30) == 0
    assert json.loads(daemon.result(job)) == {"n": 1}
    assert running.calls() == ["1"]


def test_two_that_name_each_other_are_each_asked_once_in_a_turn(daemon, fronts, start_worker_at):
    first, second = fronts
    first.name(second.url)
    second.name(first.url)
    running = start_worker_at(f"{first.url},{second.url}", {"price": "echo"}, ready=False)
    running.await_log("trying again in", times=2)
    assert len(first.requests) <= running.log.count("trying again in") + 1
    assert f"no connection to {first.url}: 503 stands by; active is {second.url}; {second.url}: 503" in running.log
    second.refusal = None
    assert_works(daemon, 1)


def test_a_named_address_is_never_less_safe():
    addresses = Addresses("https://a:1/x,https://b")
    first = addresses.current
    assert "in clear" in addresses.follow(first, "http://b")
    assert addresses.current == Address.parse("https://b"), "the next of the list"
    for named in ["ftp://c", "c", "https://me:pw@c", "https://c?x=y", "https://c\r\nx: y", "https://c:port", "https://"]:
        before = addresses.current
        assert "which is not asked" in addresses.follow(before, named), named
        assert addresses.current != before
    before = addresses.current
    assert addresses.follow(before, "https://elsewhere/y/") == ""
    assert addresses.current.text == "https://elsewhere/y/"
    plain = Addresses("http://a?vhost=v")
    assert plain.follow(plain.current, "https://b") == ""
    assert plain.current.path("/p?q=1") == "/p?vhost=v&q=1"


@pytest.mark.parametrize(
    "text, words",
    [
        ("http://a,https://b", "mix http:// and https://"),
        ("http://a,", "should look like"),
        ("http://a,http://me:pw@b", "has no user"),
        ("http://a?vhost=v,http://b", "the same vhost"),
    ],
)
def test_a_wrong_list_is_refused(text, words):
    with pytest.raises(ValueError, match=words) as raised:
        Addresses(text)
    assert "pw" not in str(raised.value)


def test_a_machine_that_is_gone_costs_no_lease(daemon, fronts, start_worker_at):
    first, second = fronts
    running = start_worker_at(f"{first.url},{second.url}", {"price": "waits"}, "--lease=6")
    job = daemon.create("orders", {"n": 1})
    eventually(running.calls, "the function's call")
    # Nothing is answered any more, and no connection ends.
    first.is_silent = True
    eventually(lambda: sum("/extend" in path for path, _ in second.requests) > 2, "the lease to be lengthened")
    (queue,) = daemon.ask("/api/queues")["queues"]
    assert queue["unacknowledged"] == 1, "it is still lent"
    running.release()
    assert json.loads(daemon.result(job)) == {"n": 1}
    assert running.calls() == ["1"]
