"""The three steps: csv_steps.py split|sum|total. Parts are ranges of bytes, so that nobody reads what is not theirs."""

import csv
import json
import sys

LINES = 1000


def split(message: dict) -> dict:
    parts = []
    with open(message["file"], "rb") as file:
        file.readline()  # the head
        start = file.tell()
        while file.readline():
            for _ in range(LINES - 1):
                file.readline()
            parts.append({"start": start, "end": file.tell()})
            start = file.tell()
    return {"file": message["file"], "parts": parts}


def sum_part(message: dict) -> dict:
    part = message["part"]
    with open(message["file"], "rb") as file:
        file.seek(part["start"])
        lines = file.read(part["end"] - part["start"]).decode().splitlines()
    cents = [int(row[1]) for row in csv.reader(lines)]
    return {"part": {"lines": len(cents), "cents": sum(cents)}}


def total(message: dict) -> dict:
    return {key: sum(part[key] for part in message["parts"]) for key in ("lines", "cents")}


json.dump({"split": split, "sum": sum_part, "total": total}[sys.argv[1]](json.load(sys.stdin)), sys.stdout)
