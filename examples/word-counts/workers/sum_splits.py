"""sum-splits: adds up the sections' counts into a table, most frequent words first."""

import collections
import json
from pathlib import Path

from pyworker import current, run
from shared import write_file


def sum_splits(message: dict) -> dict:
    sums: collections.Counter[str] = collections.Counter()
    for filename in message["sections"]:
        sums.update(json.loads(Path(filename).read_text(encoding="utf-8")))
    rows = sorted(sums.items(), key=lambda row: (-row[1], row[0]))
    table = "".join(f"{word}\t{count}\n" for word, count in rows)
    return {"sum_splits": write_file(f"{current().id}_counts.tsv", table)}


run("sum-splits", sum_splits)
