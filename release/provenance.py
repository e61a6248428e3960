"""A statement of what a release was built from and how: in-toto, with SLSA's predicate.

https://slsa.dev/spec/v1.1/provenance
"""

import hashlib
from pathlib import Path

from compiler import CARGO_AUDITABLE, RUST

# What `externalParameters` mean: the arguments of `make release-artifacts`.
BUILD_TYPE = "urn:watershed:release-artifacts:v1"


def statement(
    folder: Path, source: Path, version: str, uri: str, revision: str, builder: str
) -> dict:
    """Returns the statement about all files in a folder.

    It has no times and no numbers of runs, so that whoever repeats the build gets the same.
    """
    subjects = [
        {"name": path.name, "digest": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}}
        for path in sorted(folder.iterdir())
    ]
    inputs = ["Cargo.lock", "release/requirements.txt", "release/package/go.sum"]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"version": version},
                "internalParameters": {"rust": RUST, "cargo-auditable": CARGO_AUDITABLE},
                "resolvedDependencies": [
                    ({"uri": f"git+{uri}"} if uri else {}) | {"digest": {"gitCommit": revision}},
                    *({"name": name, "digest": digest(source / name)} for name in inputs),
                ],
            },
            "runDetails": {"builder": {"id": builder}},
        },
    }


def digest(path: Path) -> dict[str, str]:
    """Returns the digest of a file."""
    return {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
