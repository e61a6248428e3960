"""Release notes, cut out of the changelog."""

import re

HEADING = re.compile(r"^## \[(?P<version>[^]]+)\](?: - (?P<date>\d{4}-\d\d-\d\d))?$", re.MULTILINE)


def release_notes(changelog: str, version: str) -> str:
    """Returns the section of a version. Fails if there is none, or if it has no date."""
    headings = list(HEADING.finditer(changelog))
    for heading, following in zip(headings, [*headings[1:], None]):
        if heading["version"] != version:
            continue
        if not heading["date"]:
            raise ValueError(f"CHANGELOG.md has no date for {version}")
        end = following.start() if following else len(changelog)
        body = changelog[heading.end() : end].strip()
        # Links at the end belong to the whole file.
        body = re.sub(r"(?m)^\[[^]]+\]: \S+\n?", "", body).strip()
        if not body:
            raise ValueError(f"CHANGELOG.md says nothing about {version}")
        return f"# watershed {version}\n\n{body}\n"
    raise ValueError(f"CHANGELOG.md has no section for {version}")
