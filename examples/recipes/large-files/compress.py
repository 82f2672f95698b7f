"""Compresses a file, and replies with where the result is."""

import gzip
import hashlib
import json
import os
import shutil
import sys

source = json.load(sys.stdin)["file"]
target = f"{source}.gz"
partial = f"{target}.{os.environ.get('WORKFLOW_MESSAGE_ID', 'try')}"
with open(source, "rb") as file, gzip.open(partial, "wb") as compressed:
    shutil.copyfileobj(file, compressed)
os.replace(partial, target)
with open(source, "rb") as file:
    checksum = hashlib.file_digest(file, "sha256").hexdigest()
json.dump({"file": target, "sha256": checksum}, sys.stdout)
