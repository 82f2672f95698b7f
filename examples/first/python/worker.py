"""Runs once for each message: the step's input comes on standard input, its output goes to standard output."""

import json
import sys

message = json.load(sys.stdin)
if not message.get("name"):
    sys.exit("nobody to greet: the message has no name")  # this fails the attempt, with these words
json.dump({"greeting": f"Hello, {message['name']}!"}, sys.stdout)
