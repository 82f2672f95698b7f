#!/usr/bin/env python3
"""packaging/compose.yaml: what it names is there, and its parts fit each other and a real manager. No container engine is part of it.

usage: tests/packaging/compose.py PROGRAM

A real manager prints its settings with the environment of the file, and checks its workflows; Prometheus's own promtool checks what it is to
be told, where it is installed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "..", "..", "packaging")
TOKEN = "0123456789abcdef0123456789abcdef"
NAMED = {"TOKEN": TOKEN}


def main() -> None:
    with open(os.path.join(FOLDER, "compose.yaml"), encoding="utf-8") as file:
        text = file.read()
    body = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    without = re.search(r"\$(?!\{)", body)
    assert not without, f"Compose takes $ for a variable: {body[without.start():][:40]}"
    whole = yaml.safe_load(re.sub(r"\$\{(\w+)(:\?[^}]*)?\}", lambda found: NAMED[found[1]], body))
    services = whole["services"]
    references(whole)
    closed(services)
    fits(sys.argv[1], whole)
    assert set(services) == {"manager", "worker", "rabbitmq", "postgres", "prometheus", "grafana"}, services
    print(f"  compose: {len(services)} services; settings, workflows and addresses fit a real manager")


def references(whole: dict) -> None:
    services, used, volumes = whole["services"], set(), set()
    for name, service in services.items():
        assert "image" in service or "build" in service, name
        for other, how in service.get("depends_on", {}).items():
            assert how["condition"] != "service_healthy" or "healthcheck" in services[other], f"{other} has no health check"
        for config in service.get("configs", []):
            assert config["source"] in whole["configs"], config
            used.add(config["source"])
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert os.path.exists(os.path.join(FOLDER, source)), source
            else:
                volumes.add(source)
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} is reached from other machines: {port}"
        if "build" in service:
            context = os.path.join(FOLDER, service["build"]["context"])
            if "dockerfile" in service["build"]:
                assert os.path.isfile(os.path.join(context, service["build"]["dockerfile"])), service["build"]
            for source in re.findall(r"^COPY (\S+)", service["build"].get("dockerfile_inline", ""), re.M):
                assert os.path.exists(os.path.join(context, source)), source
    assert used == set(whole["configs"]), f"nobody uses {set(whole['configs']) - used}"
    assert volumes == set(whole["volumes"]), volumes ^ set(whole["volumes"])
    # Every address within the file names a service of it.
    for host in re.findall(r"://(?:[^@/\s]*@)?([a-z]+):\d{4,5}\b", json.dumps(whole)):
        assert host in services or host == "localhost", host


def closed(services: dict) -> None:
    manager = services["manager"]
    assert manager["read_only"] and manager["cap_drop"] == ["ALL"] and manager["security_opt"] == ["no-new-privileges:true"]


def fits(program: str, whole: dict) -> None:
    services, configs = whole["services"], {name: config["content"] for name, config in whole["configs"].items()}
    with tempfile.TemporaryDirectory() as scratch:
        for name, text in configs.items():
            with open(f"{scratch}/{name}.yaml", "w", encoding="utf-8") as file:
                file.write(text)
        environment = {"PATH": os.environ["PATH"], **services["manager"]["environment"]}
        environment["WORKFLOW_MANAGER__WORKFLOWS"] = f"{scratch}/workflows.yaml"
        # The image sets it: a manager that others can reach needs the token.
        environment["WORKFLOW_MANAGER__HTTP__LISTEN"] = ":8088"
        settings = yaml.safe_load(run([program, "serve", "--print-settings"], environment))
        assert settings["journal"]["url"] and settings["amqp"]["management"] and settings["http"]["token"], settings
        assert settings["http"]["public_url"] == "http://localhost:8088", settings["http"]
        assert TOKEN not in json.dumps(settings), "a secret is shown"
        run([program, "check", f"{scratch}/workflows.yaml"], environment)
        (workflow,) = yaml.safe_load(configs["workflows"])["workflows"]
        compile(configs["worker"], "worker.py", "exec")
        for step in workflow["steps"]:
            assert f'run("{step["name"]}"' in configs["worker"], f"no worker takes {step}"
        password = re.search(r"://(\w+):(\w+)@rabbitmq", services["worker"]["environment"]["AMQP_SERVER"]).groups()
        told = services["rabbitmq"]["environment"]
        assert password == (told["RABBITMQ_DEFAULT_USER"], told["RABBITMQ_DEFAULT_PASS"]), told
        told = services["postgres"]["environment"]
        url = f"postgres://{told['POSTGRES_USER']}:{told['POSTGRES_PASSWORD']}@postgres:5432/{told['POSTGRES_DB']}"
        assert services["manager"]["environment"]["WORKFLOW_MANAGER__JOURNAL__URL"] == url, url
        (job,) = yaml.safe_load(configs["prometheus"])["scrape_configs"]
        # The alerts and the dashboard go by this name.
        assert job["job_name"] == "workflow-manager" and job["authorization"]["credentials"] == TOKEN, job
        if shutil.which("promtool"):
            shutil.copy(os.path.join(FOLDER, "..", "monitoring", "alerts.yaml"), scratch)
            run(["promtool", "check", "config", f"{scratch}/prometheus.yaml"], environment)
        else:
            print("  compose: NOT TRIED, for promtool is not installed: the configuration of Prometheus")


def run(command: list, environment: dict) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


main()
