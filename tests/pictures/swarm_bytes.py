"""Draws where the bytes of a Job came from, host by host, from a run of the bench's fifty hosts.

`python -m tests.pictures.swarm_bytes docs/images/swarm-bytes.svg`
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.bench.swarm import FULL, MIB, Scale, run_fleet

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 860, 300, 64, 46, 36
FROM_STORE, FROM_PEERS, TEXT, GRID = "#c2410c", "#0e7490", "#6b7280", "#d1d5db"


def draw(results: dict[str, dict[str, Any]], scale: Scale, egress: float) -> str:
    told = [results[name]["figures"] for name in sorted(results)]
    plot, wide = HEIGHT - TOP - BOTTOM, (WIDTH - LEFT - 16) / len(told)
    per_byte = plot / (scale.size * 1.1)
    title = f"One Job, {len(told)} hosts, {scale.size // MIB} MiB each: S3 sent {egress:.2f} file sizes"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" fill="#111827" font-size="15">{title}</text>',
    ]
    for x, colour, name in ((LEFT, FROM_STORE, "from S3"), (LEFT + 90, FROM_PEERS, "from other hosts")):
        parts.append(f'<rect x="{x}" y="29" width="11" height="11" fill="{colour}"/>')
        parts.append(f'<text x="{x + 16}" y="39" fill="{TEXT}">{name}</text>')
    for share in (0, 0.5, 1):
        y = float(TOP + plot - share * scale.size * per_byte)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 16}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>')
        label = f"{share * scale.size / MIB:.0f} MiB"
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" fill="{TEXT}" text-anchor="end">{label}</text>')
    for number, one in enumerate(told):
        left, y = LEFT + number * wide, float(TOP + plot)
        for count, colour in ((one["origin_bytes"], FROM_STORE), (one["peer_bytes"], FROM_PEERS)):
            tall = count * per_byte
            y -= tall
            parts.append(
                f'<rect x="{left + 1:.1f}" y="{y:.1f}" width="{wide - 2:.1f}" height="{tall:.1f}" fill="{colour}"/>'
            )
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 12}" fill="{TEXT}">host 1 … {len(told)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    run, wrong = run_fleet(FULL)
    assert not wrong
    Path(sys.argv[1]).write_text(draw(run.results, FULL, run.egress))


if __name__ == "__main__":
    main()
