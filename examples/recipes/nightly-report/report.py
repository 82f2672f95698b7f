"""The two steps: report.py figures|report."""

import json
import sys


def figures(message: dict) -> dict:
    region = message["region"]  # here a query of your database, in place of the length of the name
    return {"region": {"name": region, "orders": len(region)}}


def report(message: dict) -> dict:
    regions = [region for region in message["regions"] if region]
    lines = [f"{region['name']}: {region['orders']}" for region in regions]
    return {"report": lines, "total": sum(region["orders"] for region in regions)}


json.dump({"figures": figures, "report": report}[sys.argv[1]](json.load(sys.stdin)), sys.stdout)
