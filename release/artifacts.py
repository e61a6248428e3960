"""Makes the files of a release out of compiled programs. The same inputs give the same bytes."""

import json
import platform as machine
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from archive import Entry, folder_entries, gzip, tar
from compiler import PLATFORMS, Platform
from image import ImageSource, image_layout
from licences import licence_texts
from notes import release_notes
from packages import build_packages, package_entries
from provenance import statement
from sbom import crates, software_bill
from signing import write_checksums

SHELLS = ("bash", "fish", "zsh")


@dataclass(frozen=True)
class Release:
    """What is released, and from where."""

    source: Path
    version: str
    # The commit and its time.
    revision: str
    epoch: int
    # Where the sources are published, or nothing.
    uri: str
    builder: str


def check_versions(release: Release) -> None:
    """Fails if the sources call themselves by another version, or have no notes about it."""
    for name, pattern in [
        ("Cargo.toml", r'(?ms)^\[workspace\.package\]$.*?^version = "([^"]+)"$'),
        ("helm/watershed/Chart.yaml", r"(?m)^version: (\S+)$"),
        ("helm/watershed/Chart.yaml", r"(?m)^appVersion: (\S+)$"),
    ]:
        found = re.search(pattern, (release.source / name).read_text())
        if not found or found[1].strip('"') != release.version:
            raise ValueError(f"{name} has version {found and found[1]}, not {release.version}")
    release_notes((release.source / "CHANGELOG.md").read_text(), release.version)


def check_folder(out: Path) -> None:
    """Fails if a folder has anything but an earlier release in it, as it is emptied."""
    if out.exists() and any(out.iterdir()) and not (out / "SHA256SUMS").is_file():
        raise ValueError(f"{out} has files, and no SHA256SUMS of a release: empty it, or name another folder")


def native_platform() -> Platform:
    """Returns the platform whose program runs on this machine."""
    return next(it for it in PLATFORMS if it.rpm == machine.machine())


def documents(program: Path, source: Path, licences: bytes) -> list[Entry]:
    """Returns what is packed beside the program. Completions and manual pages come out of it."""
    entries = [
        Entry("CHANGELOG.md", (source / "CHANGELOG.md").read_bytes()),
        Entry("LICENSE", (source / "LICENSE").read_bytes()),
        Entry("README.md", (source / "README.md").read_bytes()),
        Entry("copyright", licences),
    ]
    for shell in SHELLS:
        script = subprocess.run([program, "completion", shell], check=True, capture_output=True)
        entries.append(Entry(f"completions/watershed.{shell}", script.stdout))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, "man", folder], check=True)
        entries += folder_entries(Path(folder), "man")
    return entries


def write_artifacts(
    release: Release, out: Path, programs: dict[Platform, Path], certificates: bytes, nfpm: Path
) -> None:
    """Writes everything but the signature."""
    name = f"watershed-{release.version}"
    built_from = crates(release.source)
    licences = licence_texts(built_from, (release.source / "LICENSE").read_text())
    beside = documents(programs[native_platform()], release.source, licences)
    for platform, path in programs.items():
        program = path.read_bytes()
        folder = f"{name}-linux-{platform.oci}"
        entries = [Entry(f"{folder}/{it.path}", it.content, it.mode) for it in beside]
        entries.append(Entry(f"{folder}/watershed", program, 0o755))
        (out / f"{folder}.tar.gz").write_bytes(gzip(tar(entries, release.epoch)))
        packed = package_entries(program, beside)
        build_packages(out, nfpm, release.version, platform, packed, release.epoch)
    image = ImageSource(
        release.version, release.revision, release.uri, release.epoch, certificates, licences
    )
    layout = image_layout(
        image, {platform.oci: path.read_bytes() for platform, path in programs.items()}
    )
    (out / f"{name}-image.oci.tar").write_bytes(layout)
    (out / f"{name}-chart.tgz").write_bytes(chart(release))
    lock = (release.source / "Cargo.lock").read_text()
    bill = software_bill(built_from, lock, release.version, release.revision, release.epoch)
    write_json(out / f"{name}.cdx.json", bill)
    notes = release_notes((release.source / "CHANGELOG.md").read_text(), release.version)
    (out / f"{name}-notes.md").write_text(notes)
    made = statement(
        out, release.source, release.version, release.uri, release.revision, release.builder
    )
    write_json(out / f"{name}.provenance.json", made)
    write_checksums(out)


def chart(release: Release) -> bytes:
    """Returns the chart as Helm packages it, with its document and where it comes from.

    `helm package` writes the time of day into it.
    """
    helm = release.source / "helm"
    entries = folder_entries(helm / "watershed", "watershed")
    # The links in it are those of the repository.
    readme = (helm / "README.md").read_text().replace("](watershed/", "](")
    if release.uri:
        readme = readme.replace("](../", f"]({release.uri}/blob/v{release.version}/")
        description = next(it for it in entries if it.path == "watershed/Chart.yaml")
        origin = f"home: {release.uri}\nsources:\n  - {release.uri}\n"
        entries.append(Entry(description.path, description.content + origin.encode()))
        entries.remove(description)
    entries.append(Entry("watershed/README.md", readme.encode()))
    return gzip(tar(entries, release.epoch))


def write_json(path: Path, value: dict) -> None:
    """Writes a document for programs and people."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")
