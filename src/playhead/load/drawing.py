"""Charts as SVG text: axes, lines, points, a legend. No library, no script, nothing loaded from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 28, 44
NUM_COLOURS = 6
MAX_POINTS = 600
"""Of one line. More would not be seen, and make the file large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line, or separate points. Values that are not finite are left out."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    is_points: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A direction: its words, and whether equal distances are equal ratios."""

    label: str
    is_log: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Values to pixels."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool

    def place(self, value: float) -> float:
        low, high, at = (math.log10(v) if self.is_log else v for v in (self.low, self.high, max(value, self.low)))
        return self.start + (self.end - self.start) * (at - low) / (high - low)

    def ticks(self) -> list[float]:
        """Round values along the axis: 1, 2, 5 times powers of ten."""
        if self.is_log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            many = [base * 10.0**power for power in powers for base in ((1,) if len(powers) > 4 else (1, 2, 5))]
            return [tick for tick in many if self.low * 0.999 <= tick <= self.high * 1.001]
        step = round_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least this."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(base * power for base in (1, 2, 5, 10) if base * power >= least * 0.999)


def scale_of(values: Sequence[float], axis: Axis, start: float, end: float) -> Scale:
    """Room for all values. A linear axis begins at zero."""
    usable = [value for value in values if math.isfinite(value) and (value > 0 or not axis.is_log)]
    low, high = (min(usable), max(usable)) if usable else (1.0, 10.0)
    if axis.is_log:
        return Scale(low=low / 1.1, high=high * 1.1, start=start, end=end, is_log=True)
    low = min(low, 0.0)
    return Scale(low=low, high=high if high > low else low + 1, start=start, end=end, is_log=False)


def chart(title: str, x_axis: Axis, y_axis: Axis, lines: Sequence[Line]) -> str:
    """A figure with a caption that says the same to readers who cannot see it."""
    shown = [thin(line) for line in lines if len(line.x)]
    if not shown:
        return f'<figure><figcaption>{escape(title)}</figcaption><p class="none">no data</p></figure>'
    x = scale_of([value for line in shown for value in line.x], x_axis, LEFT, WIDTH - RIGHT)
    y = scale_of([value for line in shown for value in line.y], y_axis, HEIGHT - BOTTOM, TOP)
    parts = [*grid(x, y), *axis_labels(x_axis, y_axis)]
    for i, line in enumerate(shown):
        parts.append((points if line.is_points else path)(line, x, y, i % NUM_COLOURS))
        parts.append(legend_entry(line.label, i))
    label = escape(f"{title}: {y_axis.label} over {x_axis.label}", quote=True)
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"


def thin(line: Line) -> Line:
    """At most `MAX_POINTS`, evenly taken, the last one among them."""
    pairs = [(a, b) for a, b in zip(line.x, line.y, strict=True) if math.isfinite(a) and math.isfinite(b)]
    step = max(1, math.ceil(len(pairs) / MAX_POINTS))
    kept = pairs[::step] if not pairs or (len(pairs) - 1) % step == 0 else [*pairs[::step], pairs[-1]]
    return Line(label=line.label, x=[a for a, _ in kept], y=[b for _, b in kept], is_points=line.is_points)


def path(line: Line, x: Scale, y: Scale, colour: int) -> str:
    places = " ".join(f"{x.place(a):.1f},{y.place(b):.1f}" for a, b in zip(line.x, line.y, strict=True))
    return f'<polyline class="c{colour}" fill="none" stroke-width="1.5" points="{places}"/>'


def points(line: Line, x: Scale, y: Scale, colour: int) -> str:
    dots = (
        f'<circle cx="{x.place(a):.1f}" cy="{y.place(b):.1f}" r="1.8"/>' for a, b in zip(line.x, line.y, strict=True)
    )
    return f'<g class="c{colour} dots">{"".join(dots)}</g>'


def grid(x: Scale, y: Scale) -> list[str]:
    parts = []
    for tick in x.ticks():
        at = x.place(tick)
        parts.append(f'<line class="grid" x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{short(tick)}</text>')
    for tick in y.ticks():
        at = y.place(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{short(tick)}</text>')
    return parts


def axis_labels(x_axis: Axis, y_axis: Axis) -> list[str]:
    middle = (TOP + HEIGHT - BOTTOM) / 2
    return [
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_axis.label)}</text>',
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{escape(y_axis.label)}</text>',
    ]


def legend_entry(label: str, number: int) -> str:
    x = LEFT + 8 + number * 120
    return (
        f'<line class="c{number % NUM_COLOURS}" stroke-width="3" x1="{x}" y1="14" x2="{x + 16}" y2="14"/>'
        f'<text x="{x + 22}" y="18">{escape(label)}</text>'
    )


def short(value: float) -> str:
    """A tick as people write it: 20,000 is 20k."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):g}{unit}"
    return f"{value:g}"
