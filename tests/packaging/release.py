#!/usr/bin/env python3
"""The files of a release: the sums are right, the archive has what it should, the bill of materials is valid and complete.

usage: tests/packaging/release.py DIRECTORY
"""

import fnmatch
import glob
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
WANTED = {
    "workflow-manager", "man/workflow-manager.1", "man/workflow-manager-serve.1", "completions/workflow-manager",
    "completions/_workflow-manager", "completions/workflow-manager.fish", "README.md", "CHANGELOG.md", "LICENSE", "config/default.yaml",
    "systemd/workflow-manager.service", "systemd/workflow-manager@.service",
}


ARTEFACTS = {
    "workflow-manager-*.tar.gz", "workflow-manager-*.cdx.json", "workflow-manager_*.deb", "workflow_manager-*.whl", "workflow-manager-*.tgz",
    "pyworker-*.whl", "jsworker-*.tgz", "workflow-worker-*.crate", "RELEASE_NOTES.md",
}


def main() -> None:
    folder = sys.argv[1]
    with open(f"{folder}/SHA256SUMS", encoding="ascii") as file:
        sums = dict(reversed(line.split()) for line in file)
    assert set(os.listdir(folder)) == {"SHA256SUMS", *sums}, os.listdir(folder)
    for name, told in sums.items():
        with open(f"{folder}/{name}", "rb") as file:
            assert hashlib.sha256(file.read()).hexdigest() == told, name
    (archive,) = [name for name in sums if name.endswith(".tar.gz")]
    (bill,) = [name for name in sums if name.endswith(".cdx.json")]
    for pattern in ARTEFACTS:
        assert len([name for name in sums if fnmatch.fnmatch(name, pattern)]) == 1, f"{pattern} is not one of {sorted(sums)}"
    unpacked(f"{folder}/{archive}", archive.removesuffix(".tar.gz"))
    found_by_binstall(f"{folder}/{archive}", archive)
    with open(f"{folder}/{bill}", encoding="utf-8") as file:
        told_of(file.read())


def unpacked(path: str, name: str) -> None:
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(path) as archive:
        for member in archive.getmembers():
            assert member.name.split("/")[0] == name and member.isfile() | member.isdir(), member.name
            assert member.uid == member.gid == 0 and not member.mode & 0o022, member.name
        archive.extractall(scratch, filter="data")
        missing = [wanted for wanted in WANTED if not os.path.isfile(f"{scratch}/{name}/{wanted}")]
        assert not missing, missing
        version = subprocess.run([f"{scratch}/{name}/workflow-manager", "--version"], capture_output=True, text=True, check=True)
        assert f"-{version.stdout.split()[1]}-" in name, version.stdout
    print(f"  release: {name}.tar.gz, the same bytes twice")


def found_by_binstall(path: str, archive: str) -> None:
    """What Cargo.toml tells cargo binstall is the archive's name, and the program's place in it."""
    version = dependencies("Cargo.toml", "workspace", "package")["version"]
    target = archive.removeprefix(f"workflow-manager-{version}-").removesuffix(".tar.gz")
    told = dependencies("Cargo.toml", "package", "metadata", "binstall")
    values = {"name": "workflow-manager", "bin": "workflow-manager", "version": version, "target": target, "binary-ext": "", "repo": ""}
    url, place = (re.sub(r"\{ ([a-z-]+) \}", lambda found: values[found[1]], told[key]) for key in ("pkg-url", "bin-dir"))
    assert told["pkg-fmt"] == "tgz" and url.rsplit("/", 1)[1] == archive, url
    with tarfile.open(path) as members:
        assert members.getmember(place).isfile(), place


def told_of(text: str) -> None:
    error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(text)
    assert error is None, error
    assert "path+file:///" not in text, "a path of this machine is in it"
    bill = json.loads(text)
    told = {(component["name"], component["version"]) for component in bill["components"]}
    without = [component["name"] for component in bill["components"] if not component.get("licenses")]
    assert not without, f"without a licence: {without}"
    shared = dependencies("Cargo.toml", "workspace", "dependencies")
    named = {}
    for manifest in ["Cargo.toml", *glob.glob("src/*/Cargo.toml", root_dir=ROOT)]:
        # Some are the choice of a feature.
        if manifest not in ("src/grpc/Cargo.toml", "src/kafka/Cargo.toml"):
            named |= dependencies(manifest, "dependencies")
    chosen = {name for name, detail in named.items() if not detail.get("optional")}
    packages = {name: detail.get("package", name) if isinstance(detail, dict) else name for name, detail in shared.items()}
    direct = {packages[name] for name in chosen}
    names = {name for name, _ in told}
    assert direct <= names, f"direct dependencies are missing: {direct - names}"
    with open(f"{ROOT}/Cargo.lock", "rb") as file:
        locked = {(package["name"], package["version"]) for package in tomllib.load(file)["package"]}
    assert told <= locked, f"not in Cargo.lock: {told - locked}"
    print(f"  release: a valid bill of materials, {len(told)} components")


def dependencies(manifest: str, *keys: str) -> dict:
    with open(f"{ROOT}/{manifest}", "rb") as file:
        table = tomllib.load(file)
    for key in keys:
        table = table[key]
    return table


main()
