"""segment-word-counts: counts the words of one section into a file, and passes on the file's name."""

import collections
import itertools
import json
import re

from pyworker import current, run
from shared import book_lines, write_file

WORD = re.compile(r"[^\W\d_]+")


def count(message: dict) -> dict:
    section = message["section"]
    lines = itertools.islice(book_lines(message["filename"]), section["start"], section["end"])
    counts = collections.Counter(word.lower() for line in lines for word in WORD.findall(line))
    # Each section is a child job with an id of its own, so no two sections write to the same file.
    return {"section": write_file(f"{current().id}_counts.json", json.dumps(counts))}


run("segment-word-counts", count)
