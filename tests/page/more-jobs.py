"""Adds ended jobs to the journal of a manager that does not run: usage: more-jobs.py JOURNAL NUMBER

Only the table `entries` is written to, in which each job that is there has one row. Its copies have ids, numbers and checksums of
their own. All other tables follow from this one: the manager derives them at its next start, as after a crash."""

import json
import sqlite3
import struct
import sys
import uuid
import zlib


def copies(rows, number, seq, wanted):
    for n in range(wanted - len(rows)):
        first, at, body, origin = rows[n % len(rows)]
        number, seq = number + 1, seq + 1
        origin = json.loads(origin)
        origin[0], origin[3] = str(uuid.uuid4()), number
        origin = json.dumps(origin, separators=(",", ":"))
        checked = struct.pack("<qQq", number, first, at) + body.encode() + b"\xff" + origin.encode()
        yield seq, number, first, at, body, zlib.crc32(checked), origin


def main(journal, wanted):
    db = sqlite3.connect(journal)
    rows = db.execute("SELECT first, at, body, origin FROM entries").fetchall()
    assert all(origin for *_, origin in rows), "a job has more than one row"
    (number,), (seq,) = db.execute("SELECT max(job) FROM entries").fetchone(), db.execute("SELECT max(seq) FROM entries").fetchone()
    db.execute("PRAGMA synchronous=OFF")
    with db:
        db.executemany(
            "INSERT INTO entries(seq, job, first, at, body, checksum, origin) VALUES (?, ?, ?, ?, ?, ?, ?)",
            copies(rows, number, seq, wanted),
        )


main(sys.argv[1], int(sys.argv[2]))
