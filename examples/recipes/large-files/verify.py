"""Checks that a compressed file has what it should."""

import gzip
import hashlib
import json
import sys

message = json.load(sys.stdin)
with gzip.open(message["file"], "rb") as file:
    checksum = hashlib.file_digest(file, "sha256").hexdigest()
if checksum != message["sha256"]:
    sys.exit(f"{message['file']} is damaged")
json.dump({"file": message["file"], "intact": True}, sys.stdout)
