"""The licences of everything that is in the program, as their texts demand."""

from pathlib import Path

from sbom import Crates

NAMES = ("licen", "copying", "notice", "unlicense", "copyright")


def licence_texts(crates: Crates, own: str) -> bytes:
    """Returns this project's licence, and those of the crates that the program is made of.

    A few crates have no such file. Of those, the name of the licence is all that they say.
    """
    # Most texts are the same for many crates, so each is printed once.
    users: dict[str, list[str]] = {}
    for (name, version), package in sorted(crates.packages.items()):
        if package["source"]:
            title = f"{name} {version} ({package['license']})"
            for text in texts_of(Path(package["manifest_path"]).parent) or [""]:
                users.setdefault(text, []).append(title)
    parts = [own.strip(), "The program contains the work of others, under their licences."]
    parts += ["\n".join([*titles, "", text]).strip() for text, titles in users.items()]
    return ("\n\n" + "-" * 80 + "\n\n").join(parts).encode() + b"\n"


def texts_of(folder: Path) -> list[str]:
    """Returns the texts in the files of a crate that are named like licences."""
    files = sorted(
        it for it in folder.iterdir() if it.is_file() and it.name.lower().startswith(NAMES)
    )
    return [it.read_text(errors="replace").strip() for it in files]
