"""A web service with one address, /price."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CENTS = {"pen": 250, "ink": 990}


class Prices(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        cents = CENTS.get(message.get("article"))
        if cents is None:
            # Another attempt would fail too.
            self.answer(422, {"error": f"no price for {message.get('article')}", "retryable": False})
        else:
            self.answer(200, {"cents": cents * message["count"]})

    def answer(self, status: int, body: dict) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


ThreadingHTTPServer(("127.0.0.1", 9080), Prices).serve_forever()
