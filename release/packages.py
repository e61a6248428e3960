"""Packages for Debian and Red Hat systems, made by nfpm.

They have the program, manual pages, completions and a systemd service that is not started. There
are no scripts, so nothing runs when they are installed.
"""

import json
import tempfile
from pathlib import Path

from archive import Entry
from compiler import Platform, run
from image import rfc3339

HERE = Path(__file__).parent / "package"
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/watershed",
    "fish": "usr/share/fish/vendor_completions.d/watershed.fish",
    "zsh": "usr/share/zsh/site-functions/_watershed",
}
# Files that an administrator changes, and that upgrades leave alone.
SETTINGS = "etc/watershed/environment"


def build_nfpm(folder: Path) -> Path:
    """Builds nfpm into a folder, and returns its path."""
    program = folder / "nfpm"
    build = ["go", "build", "-trimpath", "-buildvcs=false", "-o", program]
    run([*build, "github.com/goreleaser/nfpm/v2/cmd/nfpm"], cwd=HERE)
    return program


def package_entries(program: bytes, documents: list[Entry]) -> list[Entry]:
    """Returns the files of a package. `documents` are those of the plain archive."""
    entries = [
        Entry("usr/bin/watershed", program, 0o755),
        Entry(
            "usr/lib/systemd/system/watershed.service", (HERE / "watershed.service").read_bytes()
        ),
        Entry(SETTINGS, (HERE / "environment").read_bytes()),
    ]
    for document in documents:
        name = Path(document.path).name
        if document.path.startswith("man/"):
            path = f"usr/share/man/man1/{name}"
        elif document.path.startswith("completions/"):
            path = COMPLETIONS[name.removeprefix("watershed.")]
        else:
            path = f"usr/share/doc/watershed/{name}"
        entries.append(Entry(path, document.content))
    return entries


def build_packages(
    out: Path, nfpm: Path, version: str, platform: Platform, entries: list[Entry], epoch: int
) -> None:
    """Writes a .deb and a .rpm into `out`."""
    with tempfile.TemporaryDirectory() as folder:
        contents = [stage(Path(folder), entry, epoch) for entry in entries]
        description = {
            "name": "watershed",
            "arch": platform.oci,
            "platform": "linux",
            "version": version,
            "version_schema": "semver",
            "release": "1",
            "section": "net",
            "priority": "optional",
            "maintainer": "The watershed authors",
            "description": "Caching reverse proxy and watch multiplexer for the Kubernetes API",
            "license": "Apache-2.0",
            "mtime": rfc3339(epoch),
            "contents": contents,
            "rpm": {"buildhost": "localhost"},
        }
        # JSON is YAML, too.
        config = Path(folder, "nfpm.yaml")
        config.write_text(json.dumps(description))
        for packager in ("deb", "rpm"):
            command = [
                nfpm,
                "package",
                "--config",
                config,
                "--packager",
                packager,
                "--target",
                f"{out}/",
            ]
            run(command, SOURCE_DATE_EPOCH=str(epoch))


def stage(folder: Path, entry: Entry, epoch: int) -> dict:
    """Writes a file for nfpm, and returns its description of it."""
    path = folder / entry.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(entry.content)
    return {
        "src": str(path),
        "dst": f"/{entry.path}",
        "type": "config|noreplace" if entry.path == SETTINGS else "",
        "file_info": {
            "mode": entry.mode,
            "owner": "root",
            "group": "root",
            "mtime": rfc3339(epoch),
        },
    }
