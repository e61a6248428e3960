"""Builds a release: `make release-artifacts VERSION=0.3.0`. docs/releases.md describes it."""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from artifacts import Release, check_folder, check_versions, write_artifacts
from compiler import PLATFORMS, RUST, compile_program, prepare
from packages import build_nfpm
from signing import sign

TOP = Path(__file__).resolve().parent.parent


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(prog="release", description="Builds a release.")
    parser.add_argument("--version", required=True, help="version, as Cargo.toml has it")
    parser.add_argument(
        "--out",
        type=Path,
        default=TOP / "target/release-artifacts",
        help="folder for the release, which is emptied if it has an earlier one",
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=TOP / "target/release-build",
        help="folder for tools and objects",
    )
    parser.add_argument("--uri", default="", help="URL of the published sources")
    parser.add_argument(
        "--builder", default="urn:watershed:local", help="URI of who builds, for the provenance"
    )
    parser.add_argument(
        "--signing-key", type=Path, help="PEM file with an ECDSA key; no signature without it"
    )
    parser.add_argument(
        "--allow-changes", action="store_true", help="build a work tree that has changes"
    )
    return parser.parse_args()


def git(*words: str) -> str:
    """Returns what git says."""
    done = subprocess.run(["git", *words], cwd=TOP, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def main() -> None:
    """Builds everything, in an empty folder."""
    flags = arguments()
    changes = git("status", "--porcelain")
    if changes and not flags.allow_changes:
        sys.exit(
            f"the work tree has changes, which no commit names (--allow-changes builds it):\n{changes}"
        )
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct"))
    revision = git("rev-parse", "HEAD") + ("-changed" if changes else "")
    out, work = flags.out.resolve(), flags.work.resolve()
    release = Release(TOP, flags.version, revision, epoch, flags.uri, flags.builder)
    try:
        check_versions(release)
        check_folder(out)
    except ValueError as error:
        sys.exit(str(error))
    work.mkdir(parents=True, exist_ok=True)
    os.environ["RUSTUP_TOOLCHAIN"] = RUST
    tools = prepare(work / "tools", TOP / "release/requirements.txt")
    nfpm = build_nfpm(work / "tools")
    try:
        programs = {it: compile_program(TOP, work / "target", it, tools, epoch) for it in PLATFORMS}
    except ValueError as error:
        sys.exit(str(error))
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    write_artifacts(release, out, programs, tools.certificates(), nfpm)
    if flags.signing_key:
        sign(out, flags.signing_key)
    print(f"{out}:\n{(out / 'SHA256SUMS').read_text()}", end="")


if __name__ == "__main__":
    main()
