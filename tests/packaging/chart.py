#!/usr/bin/env python3
"""The chart of packaging/chart: helm finds no fault in it, what it renders holds what the manifests hold, and its schema refuses what is wrong.

usage: tests/packaging/chart.py HELM PROGRAM
"""

import os
import subprocess
import sys
import tomllib
from collections import defaultdict

import kubernetes
import kubernetes_validate
import yaml

CHART = os.path.join(kubernetes.HERE, "..", "..", "packaging", "chart")
TOKEN = {"secret": {"token": "0123456789abcdef0123456789abcdef"}}
KEDA = {"name": "greet", "queue": "greet", "image": "greet-worker:1"}
CPU = {"name": "count", "queue": "count.words", "image": "count-worker:1", "scaler": "cpu", "min": 1, "max": 4}
STILL = {"name": "send", "queue": "send", "image": "send-worker:1", "scaler": "none", "min": 2}
DATABASE = {
    "replicas": 2, "journal": {"kind": "postgresql"},
    "secret": TOKEN["secret"] | {"journalUrl": "postgres://workflow:secret@postgres:5432/workflow", "amqpServer": "amqp://u:p@rabbitmq"},
}
WRONG = {
    "no token": {},
    "a short token": {"secret": {"token": "short"}},
    "two writers of one file": TOKEN | {"replicas": 2},
    "no address of the database": TOKEN | {"journal": {"kind": "postgresql"}},
    "another journal": TOKEN | {"journal": {"kind": "disk"}},
    "an unknown key": TOKEN | {"replica": 1},
    "no workflow": TOKEN | {"workflows": {"hello.yaml": None}},
    "a worker without an image": TOKEN | {"workers": [{"name": "greet", "queue": "greet"}]},
    "a queue that is no part of a path": TOKEN | {"workers": [KEDA | {"queue": "a/b"}]},
    "none of a worker that nothing wakes": TOKEN | {"workers": [CPU | {"min": 0}]},
}


def main() -> None:
    helm, program = sys.argv[1:]
    call(helm, "lint", TOKEN, "--strict")
    with open(os.path.join(CHART, "Chart.yaml"), encoding="utf-8") as chart, open(os.path.join(CHART, "..", "..", "Cargo.toml"), "rb") as cargo:
        assert yaml.safe_load(chart)["appVersion"] == tomllib.load(cargo)["workspace"]["package"]["version"], "the image is of another version"
    documents = 0
    for name, values in {
        "a file": TOKEN | {"workers": [KEDA], "podMonitor": {"enabled": True}},
        "a database": DATABASE | {"workers": [KEDA, CPU, STILL]},
        "a Secret that is there": {"secret": {"existing": "mine"}, "podDisruptionBudget": {"enabled": False}},
    }.items():
        by_kind = defaultdict(list)
        for document in yaml.safe_load_all(call(helm, "template", values)):
            by_kind[document["kind"]].append(document)
            if not document["apiVersion"].startswith(("keda.sh/", "monitoring.coreos.com/")):
                kubernetes_validate.validate(document, kubernetes.VERSION, strict=True)
            documents += 1
        (manager,) = by_kind["StatefulSet"]
        assert ("PodMonitor" in by_kind) == ("podMonitor" in values) and ("PodDisruptionBudget" in by_kind) == ("podDisruptionBudget" not in values), name
        if "existing" in values["secret"]:
            assert "Secret" not in by_kind and "name: mine" in yaml.safe_dump(manager), name
            continue
        kubernetes.references(by_kind)
        kubernetes.closed(by_kind)
        scaled = {document["spec"]["scaleTargetRef"]["name"] for kind in ("ScaledObject", "HorizontalPodAutoscaler") for document in by_kind[kind]}
        fixed = {document["metadata"]["name"] for document in by_kind["Deployment"] if "replicas" in document["spec"]}
        assert not scaled & fixed and scaled | fixed == {worker["name"] for worker in values["workers"]}, name
        if values.get("replicas", 1) == 1:
            kubernetes.asked(program, manager, by_kind)
        else:
            kubernetes.fails_over(program, manager, by_kind)
    for name, values in WRONG.items():
        done = helm_with(helm, "template", values)
        assert done.returncode != 0 and "schema" in done.stderr, f"{name} is rendered: {done.stderr}"
    print(f"  chart: {documents} documents, valid and right about a real manager; {len(WRONG)} wrong values are refused")


def helm_with(helm: str, command: str, values: dict, *more: str) -> subprocess.CompletedProcess:
    words = [helm, command, *(["workflow-manager"] if command == "template" else []), CHART, "--values", "-", *more]
    return subprocess.run(words, input=yaml.safe_dump(values), capture_output=True, text=True, check=False)


def call(helm: str, command: str, values: dict, *more: str) -> str:
    done = helm_with(helm, command, values, *more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


main()
