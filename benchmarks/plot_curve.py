"""A run's loss curve as an SVG picture: training loss as a line, held-out loss as dots.

    python benchmarks/plot_curve.py demo/run docs/images/loss.svg --mark "unigram model" 5.92

The picture has no background and only colours that can be read on white and on black. It is made of the
numbers in ``monitors/metrics.jsonl``, read as every reader must read them (later lines supersede).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from protolith.formats.rundir import RunDir, read_metrics

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 48, 16, 20, 40
GREY, LINE, DOT = "#7d8590", "#3b82f6", "#d97706"

Points = Sequence[tuple[float, float]]


def curves(run: Path) -> tuple[Points, Points]:
    """(step, loss) of training and of validation; what is not finite is left out."""
    lines = read_metrics(RunDir(run).metrics)

    def points(name: str) -> Points:
        found = [(step, float(line[name])) for step, line in lines.items() if name in line]
        return [(step, value) for step, value in found if math.isfinite(value)]

    return points("loss/mean"), points("val/loss")


def svg(train: Points, held_out: Points, mark: tuple[str, float] | None = None) -> str:
    """The picture. ``mark`` is a level to hold the curve against, with its name."""
    values = [value for _, value in (*train, *held_out)] + ([mark[1]] if mark else [])
    low, high = math.floor(min(values)), math.ceil(max(values))
    last = max(step for step, _ in (*train, *held_out))

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / last

    def y(loss: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="12" role="img">',
        "<title>Loss by optimizer step</title>",
    ]
    for level in range(low, high + 1):
        parts.append(_line(LEFT, y(level), WIDTH - RIGHT, y(level), opacity=0.25))
        parts.append(_text(LEFT - 8, y(level) + 4, str(level), "end"))
    every = _tick(last)
    parts += [_text(x(step), HEIGHT - 22, str(step)) for step in range(0, int(last) + 1, every)]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5, "optimizer step"))
    if mark:
        parts.append(_line(LEFT, y(mark[1]), WIDTH - RIGHT, y(mark[1]), dash="5 4"))
        parts.append(_text(WIDTH - RIGHT, y(mark[1]) - 6, f"{mark[0]}: {mark[1]:.2f}", "end"))
    path = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in train)
    parts.append(f'<polyline points="{path}" fill="none" stroke="{LINE}" stroke-width="2"/>')
    dots = [f'<circle cx="{x(s):.1f}" cy="{y(v):.1f}" r="4" fill="{DOT}"/>' for s, v in held_out]
    parts += dots
    parts += _legend(bool(held_out))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(with_dots: bool) -> list[str]:
    parts = [
        f'<line x1="{LEFT + 90}" y1="32" x2="{LEFT + 114}" y2="32" stroke="{LINE}" stroke-width="2"/>',
        _text(LEFT + 120, 36, "training loss (nats per token)", "start"),
    ]
    if with_dots:
        parts.append(f'<circle cx="{LEFT + 102}" cy="50" r="4" fill="{DOT}"/>')
        parts.append(_text(LEFT + 120, 54, "held-out loss", "start"))
    return parts


def _tick(last: float) -> int:
    """A round distance that gives 4 to 10 labels."""
    step = 10 ** max(0, math.floor(math.log10(last)) - 1)
    return next(int(step * factor) for factor in (1, 2, 5, 10, 20, 50) if last / (step * factor) <= 10)


def _line(x1: float, y1: float, x2: float, y2: float, *, opacity: float = 1.0, dash: str = "") -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{GREY}" '
        f'stroke-opacity="{opacity}"{dashes}/>'
    )


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{GREY}" text-anchor="{anchor}">{escape(text)}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the loss curve of a run.")
    parser.add_argument("run", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--mark", nargs=2, metavar=("NAME", "LOSS"), help="a level to hold the curve against")
    arguments = parser.parse_args()
    mark = (arguments.mark[0], float(arguments.mark[1])) if arguments.mark else None
    arguments.picture.write_text(svg(*curves(arguments.run), mark), encoding="utf-8")


if __name__ == "__main__":
    main()
