"""The crates that are in the program, in CycloneDX 1.6.

https://cyclonedx.org/docs/1.6/json/
"""

import json
import subprocess
import tomllib
import uuid
from dataclasses import dataclass
from pathlib import Path

from compiler import PLATFORMS, RUST
from image import rfc3339

CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"


@dataclass(frozen=True)
class Crates:
    """The crates that the program is made of, on any platform of a release, without those of tests."""

    # Cargo's descriptions, by name and version.
    packages: dict[tuple[str, str], dict]
    dependencies: dict[tuple[str, str], set[tuple[str, str]]]


def crates(source: Path) -> Crates:
    """Asks cargo for the crates.

    `cargo metadata` has their descriptions, but unites the features of the program and its tests.
    `cargo tree` decides as a build does.
    """
    metadata = json.loads(cargo(source, "metadata", "--format-version", "1"))
    by_id = {package["id"]: package for package in metadata["packages"]}
    used = set().union(*(built_for(source, platform.rust) for platform in PLATFORMS))
    dependencies = {}
    for node in metadata["resolve"]["nodes"]:
        needed = {
            identity(by_id[dependency["pkg"]])
            for dependency in node["deps"]
            if not_for_tests(dependency)
        }
        dependencies[identity(by_id[node["id"]])] = needed & used
    packages = {identity(package): package for package in by_id.values()}
    return Crates({it: packages[it] for it in used}, {it: dependencies[it] for it in used})


def built_for(source: Path, target: str) -> set[tuple[str, str]]:
    """Returns names and versions of what a build of the program compiles."""
    selection = ["--package", "watershed", "--no-default-features", "--edges", "normal,build"]
    lines = cargo(source, "tree", *selection, "--target", target, "--prefix", "none").splitlines()
    words = (line.split() for line in lines if line)
    return {(name, version.removeprefix("v")) for name, version, *_ in words}


def cargo(source: Path, *arguments: str) -> str:
    """Returns what a command of cargo prints."""
    command = ["cargo", *arguments, "--locked"]
    return subprocess.run(command, cwd=source, check=True, capture_output=True, text=True).stdout


def identity(package: dict) -> tuple[str, str]:
    """Returns the name and the version of a crate."""
    return package["name"], package["version"]


def not_for_tests(dependency: dict) -> bool:
    """Returns whether a crate needs another to be built or to run."""
    return any(kind["kind"] != "dev" for kind in dependency["dep_kinds"])


def checksums(lock: str) -> dict[tuple[str, str], str]:
    """Returns the digests of crates that `Cargo.lock` has, by name and version."""
    packages = tomllib.loads(lock)["package"]
    return {(it["name"], it["version"]): it["checksum"] for it in packages if "checksum" in it}


def software_bill(crates: Crates, lock: str, version: str, revision: str, epoch: int) -> dict:
    """Returns the document. What runs during the build is in it, too."""
    digests = checksums(lock)
    component = {
        it: crate_component(package, digests) for it, package in sorted(crates.packages.items())
    }
    reference = {it: component[it]["bom-ref"] for it in component}
    program = next(it for it in component if it[0] == "watershed")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, f'watershed {version} {revision}')}",
        "version": 1,
        "metadata": {
            "timestamp": rfc3339(epoch),
            "component": component[program] | {"type": "application", "version": version},
            "tools": {"components": [{"type": "application", "name": "rustc", "version": RUST}]},
        },
        "components": [component[it] for it in component if it != program],
        "dependencies": [
            {
                "ref": reference[it],
                "dependsOn": sorted(reference[other] for other in crates.dependencies[it]),
            }
            for it in component
        ],
    }


def crate_component(package: dict, digests: dict[tuple[str, str], str]) -> dict:
    """Returns the description of a crate."""
    name, version = package["name"], package["version"]
    url = f"pkg:cargo/{name}@{version}"
    component = {
        "type": "library",
        "bom-ref": url,
        "name": name,
        "version": version,
        "scope": "required",
    }
    if package["source"] == CRATES_IO:
        component["purl"] = url
    if package["license"]:
        # Before the present syntax, crates separated licences of choice by a stroke.
        component["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if digest := digests.get((name, version)):
        component["hashes"] = [{"alg": "SHA-256", "content": digest}]
    return component
