#!/usr/bin/env python3
"""The manifests of packaging/kubernetes: valid by the schemas of Kubernetes, closed, and right about the manager.

usage: tests/packaging/kubernetes.py PROGRAM

A real manager runs with the settings, workflows, token and arguments of manager.yaml; the probes and the scaler of the workers are
asked of it. Of failover.yaml, which needs a database, it prints the settings.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import kubernetes_validate
import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "..", "..", "packaging", "kubernetes")
# The newest schemas that the package has, strict: unknown keys are errors.
VERSION = kubernetes_validate.latest_version()
START_SECONDS_MAX = 30


def main() -> None:
    program = sys.argv[1]
    documents = 0
    # Either the one or the other is applied, beside the workers.
    for name in ("manager.yaml", "failover.yaml"):
        by_kind = {}
        for document in load(name) + load("workers.yaml"):
            by_kind.setdefault(document["kind"], []).append(document)
            if not document["apiVersion"].startswith("keda.sh/"):
                kubernetes_validate.validate(document, VERSION, strict=True)
            documents += 1
        references(by_kind)
        closed(by_kind)
        (manager,) = by_kind["StatefulSet"]
        if manager["spec"]["replicas"] == 1:
            asked(program, manager, by_kind)
        else:
            fails_over(program, manager, by_kind)
    assert set(os.listdir(FOLDER)) == {"manager.yaml", "failover.yaml", "workers.yaml"}
    print(f"  kubernetes: {documents} documents, valid by Kubernetes {VERSION}")
    print("  kubernetes: probes, token and scaler fit a real manager, and so do the settings of two")


def load(name: str) -> list:
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        return [document for document in yaml.safe_load_all(file) if document]


def pod(document: dict) -> dict:
    return document["spec"]["template"]["spec"]


def named(by_kind: dict, kind: str, name: str) -> dict:
    found = [document for document in by_kind[kind] if document["metadata"]["name"] == name]
    assert found, f"there is no {kind} {name}"
    return found[0]


def references(by_kind: dict) -> None:
    """Whatever is named is there."""
    for document in by_kind["StatefulSet"] + by_kind["Deployment"]:
        labels = document["spec"]["template"]["metadata"]["labels"]
        assert document["spec"]["selector"]["matchLabels"].items() <= labels.items(), document["metadata"]
        for container in pod(document)["containers"]:
            for variable in container["env"]:
                key = variable.get("valueFrom", {}).get("secretKeyRef")
                if key and not key.get("optional"):
                    assert key["key"] in named(by_kind, "Secret", key["name"])["stringData"], key
        for volume in pod(document).get("volumes", []):
            if "configMap" in volume:
                named(by_kind, "ConfigMap", volume["configMap"]["name"])
            if "secret" in volume:
                data = named(by_kind, "Secret", volume["secret"]["secretName"])["stringData"]
                assert all(item["key"] in data for item in volume["secret"]["items"]), volume
    for service in by_kind["Service"]:
        labels = by_kind["StatefulSet"][0]["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items(), service["metadata"]
    for scaled in by_kind["ScaledObject"]:
        named(by_kind, "Deployment", scaled["spec"]["scaleTargetRef"]["name"])
        for trigger in scaled["spec"]["triggers"]:
            auth = named(by_kind, "TriggerAuthentication", trigger["authenticationRef"]["name"])
            for target in auth["spec"]["secretTargetRef"]:
                assert target["parameter"] == "token", "metrics-api with authMode bearer takes the parameter token"
                assert target["key"] in named(by_kind, "Secret", target["name"])["stringData"], target


def closed(by_kind: dict) -> None:
    """No process is root, gains rights or writes outside of its volumes."""
    for document in by_kind["StatefulSet"] + by_kind["Deployment"]:
        name, of_pod = document["metadata"]["name"], pod(document)["securityContext"]
        assert of_pod["runAsNonRoot"] and of_pod["runAsUser"] > 0, name
        assert of_pod["seccompProfile"]["type"] == "RuntimeDefault", name
        assert pod(document)["automountServiceAccountToken"] is False, name
        for container in pod(document)["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"], name
            assert context["capabilities"]["drop"] == ["ALL"] and "memory" in container["resources"]["limits"], name


def asked(program: str, manager: dict, by_kind: dict) -> None:
    (container,) = pod(manager)["containers"]
    (port,) = container["ports"]
    token = named(by_kind, "Secret", "workflow-manager")["stringData"]["token"]
    with tempfile.TemporaryDirectory() as scratch:
        # What the pod mounts, and the same paths below the scratch directory.
        volumes = {volume["name"]: volume for volume in pod(manager)["volumes"]}
        for mount in container["volumeMounts"]:
            folder = scratch + mount["mountPath"]
            os.makedirs(folder, exist_ok=True)
            for name, text in configured(by_kind, volumes.get(mount["name"], {})).items():
                mounts = "|".join(re.escape(each["mountPath"]) for each in container["volumeMounts"])
                text = re.sub(f"(?:{mounts})/", lambda found: scratch + found[0], text)
                with open(f"{folder}/{name}", "w", encoding="utf-8") as file:
                    file.write(text)
        listen = free_port()
        environment = {
            "WORKFLOW_MANAGER__HTTP__TOKEN": token,
            "WORKFLOW_MANAGER__HTTP__LISTEN": f"127.0.0.1:{listen}",
            "WORKFLOW_MANAGER__JOURNAL__FILE": f"{scratch}/var/lib/workflow-manager/journal.db",
        }
        arguments = [scratch + word if word.startswith("/") else word for word in container["args"]]
        process = subprocess.Popen([program, *arguments], env=environment)
        try:
            base = f"http://127.0.0.1:{listen}"
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert container[probe]["httpGet"]["port"] == port["name"] and port["containerPort"] == 8088
                eventually(lambda: ask(base + container[probe]["httpGet"]["path"])[0] == 200)
            queue_of_jobs(base, token, by_kind)
        finally:
            process.terminate()
            assert process.wait(30) == 0


def fails_over(program: str, manager: dict, by_kind: dict) -> None:
    """Two on two nodes; the Service leads to the one that is ready; each tells its own address and finds the same journal."""
    of_pods, (container,) = pod(manager), pod(manager)["containers"]
    assert manager["spec"]["replicas"] == 2 and manager["spec"]["podManagementPolicy"] == "Parallel"
    # A standby is never ready: a rolling update and a budget that count ready pods would wait for ever.
    assert manager["spec"]["updateStrategy"]["type"] == "OnDelete" and "volumeClaimTemplates" not in manager["spec"]
    (budget,) = by_kind["PodDisruptionBudget"]
    assert budget["spec"]["maxUnavailable"] == 2, "the node of the active one could not be drained"
    (rule,) = of_pods["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert rule["labelSelector"]["matchLabels"] == manager["spec"]["selector"]["matchLabels"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz", "the Service must lead to the active one"
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez", "a standby must not be ended"
    assert of_pods.get("restartPolicy", "Always") == "Always", "exit code 75 asks for another start"
    assert of_pods["terminationGracePeriodSeconds"] > 12, "shutdown.grace and two seconds"
    pod_ip, secret = "10.1.2.3", named(by_kind, "Secret", "workflow-manager")["stringData"]
    with tempfile.TemporaryDirectory() as scratch:
        (volume,) = (each for each in of_pods["volumes"] if "secret" in each)
        (mount,) = (each["mountPath"] for each in container["volumeMounts"] if each["name"] == volume["name"])
        os.makedirs(scratch + mount)
        for item in volume["secret"]["items"]:
            with open(f"{scratch}{mount}/{item['path']}", "w", encoding="utf-8", opener=private) as file:
                file.write(secret[item["key"]])
        environment = {}
        for variable in container["env"]:
            if "value" in variable:
                environment[variable["name"]] = variable["value"].replace("$(POD_IP)", pod_ip).replace(mount, scratch + mount)
        # Kubernetes puts a variable into later ones only.
        names = [variable["name"] for variable in container["env"]]
        assert names.index("POD_IP") < names.index("WORKFLOW_MANAGER__HTTP__PUBLIC_URL")
        printed = subprocess.run([program, "serve", "--print-settings"], env=environment, check=True, capture_output=True)
        settings = json.loads(printed.stdout)
        assert settings["http"]["public_url"] == f"http://{pod_ip}:8088", settings["http"]
        assert "***" in settings["journal"]["url"], "the address of the database is a secret, and there"


def private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def configured(by_kind: dict, volume: dict) -> dict:
    return named(by_kind, "ConfigMap", volume["configMap"]["name"])["data"] if "configMap" in volume else {}


def queue_of_jobs(base: str, token: str, by_kind: dict) -> None:
    jobs = 3
    for _ in range(jobs):
        assert ask(f"{base}/api/workflow/hello", token, b"{}")[0] == 201
    status, _ = ask(f"{base}/api/queue/greet/receive?wait=5s", token, b"")
    assert status == 200, status
    triggers = by_kind["ScaledObject"][0]["spec"]["triggers"]
    values = {}
    for trigger in triggers:
        metadata = trigger["metadata"]
        assert trigger["type"] == "metrics-api" and metadata["authMode"] == "bearer" and float(metadata["targetValue"]) > 0
        host, path = metadata["url"].removeprefix("http://").split("/", 1)
        name, port = host.split(":")
        service = named(by_kind, "Service", name)
        assert int(port) in [each["port"] for each in service["spec"]["ports"]], host
        assert ask(f"{base}/{path}")[0] == 401, "the scaler needs the token"

        def value() -> object:
            found = json.loads(ask(f"{base}/{path}", token)[1])
            for key in metadata["valueLocation"].split("."):
                found = found[key]
            return found

        expected = {"messages": jobs - 1, "unacknowledged": 1}[metadata["valueLocation"]]
        # The manager looks at its queues every few seconds.
        eventually(lambda: value() == expected)
        values[metadata["valueLocation"]] = value()
    assert len(values) == len(triggers), values


def ask(url: str, token: str = "", body: bytes | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, data=body)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


def eventually(condition) -> None:
    end = time.monotonic() + START_SECONDS_MAX
    while not condition():
        assert time.monotonic() < end, "not within the time"
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    main()
