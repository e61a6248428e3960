"""Checksums of a release, and their signature by a key from outside.

The key is ECDSA on P-256, as cosign and KMS services have them, in a PEM file that openssl reads.
"""

import base64
import hashlib
import subprocess
from pathlib import Path

SUMS = "SHA256SUMS"


def write_checksums(folder: Path) -> None:
    """Writes the checksums of all files in a folder, as `sha256sum -c` reads them."""
    files = sorted(path for path in folder.iterdir() if path.name not in (SUMS, f"{SUMS}.sig"))
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / SUMS).write_text("".join(lines))


def sign(folder: Path, key: Path) -> None:
    """Signs the checksums. The signature is in base64."""
    command = ["openssl", "dgst", "-sha256", "-sign", key, folder / SUMS]
    signature = subprocess.run(command, check=True, capture_output=True).stdout
    (folder / f"{SUMS}.sig").write_bytes(base64.b64encode(signature) + b"\n")
