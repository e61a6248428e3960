"""Archives whose bytes depend on their content alone: sorted, owned by root, of one time."""

import io
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """A file of an archive, or a folder if it has no content."""

    path: str
    content: bytes | None
    mode: int = 0o644


def folder_entries(folder: Path, prefix: str) -> list[Entry]:
    """Returns the files below a folder, with paths that begin with `prefix`."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return [
        Entry(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        for path in files
    ]


def tar(entries: list[Entry], epoch: int) -> bytes:
    """Returns a tar archive of the entries and the folders above them."""
    by_path = {entry.path: entry for entry in entries}
    for entry in entries:
        for parent in list(Path(entry.path).parents)[:-1]:
            by_path.setdefault(parent.as_posix(), Entry(parent.as_posix(), None, 0o755))
    out = io.BytesIO()
    # The format that every tar reads, also with long names.
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, entry in sorted(by_path.items()):
            info = tarfile.TarInfo(path)
            info.mtime, info.mode = epoch, entry.mode
            info.uname = info.gname = "root"
            if entry.content is None:
                info.type = tarfile.DIRTYPE
            info.size = len(entry.content or b"")
            archive.addfile(info, io.BytesIO(entry.content or b""))
    return out.getvalue()


def gzip(content: bytes) -> bytes:
    """Returns the content compressed by GNU gzip, without name and time.

    The program brings its own codec. That of Python's module is the system's, and two systems
    compress differently.
    """
    return subprocess.run(["gzip", "-9n"], input=content, check=True, capture_output=True).stdout
