#!/usr/bin/env python3
"""Draws the figures of `make simulate-nodes`, and prints them as a Markdown table.

    tests/lab/nodes.py target/lab/nodes.json --out docs/images/nodes.svg
"""
import argparse
import json
from xml.sax.saxutils import escape

MIB = 1 << 20
PHASES = ("start", "churn", "rollout")
# Colours that people who do not tell red from green can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
WIDTH, HEIGHT, LEFT, TOP = 320, 220, 46, 60


def requests(figures: dict) -> int:
    return sum(figures[kind] for kind in ("Lists", "Watches", "Reviews", "Others"))


PANELS = (
    ("MiB from the API server", lambda f: f["UpstreamBytes"] / MIB),
    ("requests at the API server", requests),
    ("CPU seconds of the API server", lambda f: f["UpstreamSeconds"]),
)


def panel(at: int, title: str, names: list, value) -> list:
    """Returns one chart with a group of bars for each phase."""
    left, bottom = LEFT + at * WIDTH, TOP + HEIGHT
    top = max(v for name in names for p in PHASES if (v := value(name, p)) is not None) or 1
    parts = [f'<text x="{left}" y="{TOP - 12}" font-size="13">{escape(title)}</text>']
    for line in range(5):
        y = bottom - HEIGHT * line / 4
        parts.append(f'<line x1="{left}" x2="{left + WIDTH - 60}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 4}" y="{y + 4:.1f}" text-anchor="end">{top * line / 4:,.4g}</text>')
    group = (WIDTH - 60) / len(PHASES)
    bar = (group - 14) / len(names)
    for i, phase in enumerate(PHASES):
        for n, name in enumerate(names):
            if (now := value(name, phase)) is None:
                continue
            height = HEIGHT * now / top
            x = left + i * group + 7 + n * bar
            parts.append(
                f'<rect x="{x:.1f}" y="{bottom - height:.1f}" width="{bar - 2:.1f}" height="{height:.1f}" '
                f'fill="{COLOURS[n % len(COLOURS)]}"/>'
            )
        parts.append(f'<text x="{left + (i + 0.5) * group:.1f}" y="{bottom + 16}" text-anchor="middle">{phase}</text>')
    return parts


def draw(by_setup: dict) -> str:
    names = list(by_setup)
    parts = []
    for n, name in enumerate(names):
        x = LEFT + n * 235
        parts.append(f'<rect x="{x}" y="10" width="11" height="11" fill="{COLOURS[n % len(COLOURS)]}"/>')
        parts.append(f'<text x="{x + 16}" y="20">{escape(name)}</text>')
    for at, (title, of) in enumerate(PANELS):
        def value(name, phase, of=of):
            figures = by_setup[name].get(phase)
            return None if figures is None else of(figures)

        parts += panel(at, title, names, value)
    width, height = LEFT + len(PANELS) * WIDTH, TOP + HEIGHT + 30
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )


def table(by_setup: dict) -> str:
    head = "| set-up | phase | MiB | lists | watches | reviews | other gets | API server, CPU s | between tiers, MiB |"
    lines = [head, "|---|---|" + "--:|" * 7]
    for name, phases in by_setup.items():
        for phase, f in phases.items():
            between = f"{f['TierBytes'] / MIB:.1f}" if f["TierBytes"] else "–"
            lines.append(
                f"| {name} | {phase} | {f['UpstreamBytes'] / MIB:.1f} | {f['Lists']} | {f['Watches']} "
                f"| {f['Reviews']} | {f['Others']} | {f['UpstreamSeconds']:.1f} | {between} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("figures", help="the file that NODE_FIGURES named")
    parser.add_argument("--out", help="file for the picture (SVG)")
    given = parser.parse_args()
    by_setup: dict = {}
    with open(given.figures, encoding="utf-8") as lines:
        for figures in map(json.loads, lines):
            by_setup.setdefault(figures["Setup"], {})[figures["Phase"]] = figures
    if given.out:
        with open(given.out, "w", encoding="utf-8") as picture:
            picture.write(draw(by_setup))
    print(table(by_setup))


if __name__ == "__main__":
    main()
