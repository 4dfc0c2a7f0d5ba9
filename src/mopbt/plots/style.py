"""What the figures of a comparison share: one style for each algorithm, panels, axes and legends.

MO-PBT always has the same strong color and lies on top; every algorithm differs from every other by color or line, and by marker,
so that figures can be read in gray and by every kind of color vision; letters have 8 points where a figure is as wide as a page.
Axes are in the scores' own sense.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from mopbt.compare.measures import (
    Array,
    baseline_of,
)
from mopbt.errors import MissingExtra
from mopbt.objectives import Objective
from mopbt.plots.front import FAINT, FRONT, INK, axis_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

WIDTH = 7.0  # inches: both columns of a page
STYLE = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.labelsize": 8,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.labelcolor": INK,
    "text.color": INK,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "text.parse_math": False,  # a label's $ is a $
    "pdf.fonttype": 42,  # letters stay letters: journals ask for it
}


@dataclass(frozen=True)
class Style:
    """How an algorithm looks in every figure."""

    color: str
    line: Any = "-"  # of matplotlib's line styles
    marker: str = "o"

    @property
    def leads(self) -> bool:
        """Tell whether this is the strong color, whose lines are thick and lie on top."""
        return self.color == FRONT


BLUE, GREEN, ORANGE, PURPLE, SKY, GRAY, BLACK = (
    "#0072b2",
    "#009e73",
    "#e69f00",
    "#cc79a7",
    "#56b4e9",
    "#606060",
    "#000000",
)
DASHED, DOTTED, MIXED = (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2))
LEAD = Style(FRONT)
STYLES = {  # of the labels that the paper's experiments use; a family shares a color
    "random search": Style(GRAY, "-", "s"),
    "PBT, objective 1": Style(ORANGE, "-", "^"),
    "PBT, objective 2": Style(ORANGE, DASHED, "v"),
    "PBT, objective 3": Style(ORANGE, DOTTED, "<"),
    "PBT, random scalarization": Style(GREEN, "-", "D"),
    "PBT, max scalarization": Style(GREEN, DASHED, "P"),
    "MO-ASHA": Style(BLUE, "-", "X"),
    "BO-MO-ASHA": Style(BLUE, DASHED, "p"),
    "qNEHVI": Style(PURPLE, "-", "*"),
    "NSGA-II": Style(BLACK, MIXED, "h"),
    "ParEGO": Style(SKY, "-", ">"),
}
SPARE = tuple(  # for other labels, in turn
    Style(color, line, marker)
    for line, markers in (("-", "^DvsP>h"), (DASHED, "<pXd8*H"), (MIXED, "^DvsP>h"))
    for color, marker in zip((GREEN, ORANGE, PURPLE, SKY, BLUE, GRAY, BLACK), markers, strict=True)
)


def styles_of(labels: Iterable[str]) -> dict[str, Style]:
    """Return how each label looks: the baseline in the strong color, the paper's algorithms as always, others in turn."""
    labels = tuple(labels)
    fixed = {label: STYLES[label] for label in labels if label in STYLES} | {
        baseline_of(labels): LEAD
    }
    taken = {(style.color, style.line) for style in fixed.values()}
    spare = cycle([style for style in SPARE if (style.color, style.line) not in taken])
    return {label: fixed[label] if label in fixed else next(spare) for label in labels}


@contextmanager
def styled() -> Iterator[None]:
    """Draw and write in the style, and leave matplotlib's settings as they were."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise MissingExtra(
            "the figures of a comparison need matplotlib: pip install 'mopbt[plot]'; its tables are written"
        ) from None
    with rc_context(STYLE):  # type: ignore[arg-type]
        yield


def sheet(
    panels: int,
    *,
    height: float,
    columns: int | None = None,
    width: float | None = None,
    **options: Any,
) -> tuple["Figure", list["Axes"]]:
    """Return a figure of so many panels of a height in inches, in rows; it is as wide as a page, or less for a single one."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(panels, columns or {4: 2}.get(panels, 3))
    rows = -(-panels // columns)
    size = (width or (WIDTH if panels > 1 else 4.8), height * rows + 0.5)
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)  # no window, and nothing global
    axes = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for ax in axes[panels:]:
        ax.remove()
    for ax in axes[max(panels - columns, 0) : panels]:  # the lowest ones, also above an empty place
        ax.tick_params(labelbottom=True)
    return figure, axes[:panels]


def back_to_front(labels: Iterable[str], styles: Mapping[str, Style]) -> list[str]:
    """Return the labels in the order of drawing: what leads comes last and lies on top."""
    return sorted(labels, key=lambda label: styles[label].leads)


def line_of(style: Style) -> dict[str, Any]:
    """Return a style in the words of matplotlib."""
    return {
        "color": style.color,
        "ls": style.line,
        "marker": style.marker,
        "lw": 2.0 if style.leads else 1.2,
        "mew": 0.4,
    }


def draw_stairs(ax: "Axes", points: Array, x: Objective, style: Style, **options: Any) -> "Line2D":
    """Draw the edge of what points (n, 2), in the scores' own sense, dominate."""
    xs, ys = points[np.argsort(points[:, 0])].T
    steps = {"drawstyle": "steps-pre" if x.direction == "max" else "steps-post"}
    thin = {"marker": "", "lw": 1.6 if style.leads else 1.0}
    (line,) = ax.plot(xs, ys, **line_of(style) | thin | steps | options)
    return line


def label_axes(ax: "Axes", x: Objective, y: Objective) -> None:
    """Label the axes of two objectives."""
    ax.set_xlabel(axis_label(x))
    ax.set_ylabel(axis_label(y))


def label_rows(axes: Sequence["Axes"], text: str) -> None:
    """Label the vertical axis of the first panel in each row."""
    left = min(ax.get_position().x0 for ax in axes)
    for ax in axes:
        if ax.get_position().x0 == left:
            ax.set_ylabel(text)


def legend(figure: "Figure", styles: Mapping[str, Style], panels: int, **options: Any) -> None:
    """Put a legend below all panels, or beside a single one."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], label=label, **line_of(style) | options) for label, style in styles.items()
    ]
    columns = _legend_columns(list(styles))
    below: dict[str, Any] = {"loc": "outside lower center", "ncols": columns}
    figure.legend(
        handles=handles, handlelength=3, **below if panels > 1 else {"loc": "outside right center"}
    )
    if panels > 1:  # `sheet` leaves room for two lines
        figure.set_figheight(figure.get_figheight() + 0.17 * max(-(-len(styles) // columns) - 2, 0))
    else:
        figure.set_figwidth(
            min(max(figure.get_figwidth(), 2.6 + _legend_width(list(styles))), WIDTH)
        )


def _legend_columns(texts: Sequence[str]) -> int:
    """Return in how many columns texts fit below a figure."""
    for columns in (5, 4, 3, 2):
        rows = -(-len(texts) // columns)
        widths = [_legend_width(texts[i : i + rows]) for i in range(0, len(texts), rows)]
        if sum(widths) <= WIDTH:
            return len(widths)
    return 1


def _legend_width(texts: Sequence[str]) -> float:
    """Return the width in inches of a column of a legend: a letter takes about 0.06, and a sample of a line 0.65."""
    return 0.65 + 0.06 * max(map(len, texts))


def set_title(ax: "Axes", text: str, **options: Any) -> None:
    """Put a title above a panel, in as many lines as it needs there."""
    letters = int(ax.get_position().width * ax.figure.get_figwidth() / 0.065)  # type: ignore[union-attr]
    ax.set_title("\n".join(fill(line, max(letters, 12)) for line in text.split("\n")), **options)


def legend_beside(ax: "Axes", lines: Sequence["Line2D"], title: str) -> None:
    """Put what lines are labeled with beside their panel."""
    options: dict[str, Any] = {
        "handles": lines,
        "loc": "upper left",
        "bbox_to_anchor": (1.0, 1.04),
        "title": title,
    }
    ax.legend(
        **options,
        title_fontsize=8,
        alignment="left",
        handlelength=1.5,
        handletextpad=0.5,
        labelspacing=0.3,
        borderpad=0.2,
    )


def unit_of(times: Array) -> tuple[float, str]:
    """Return the seconds of a unit that suits times (T,), and its name."""
    longest = float(times.max())
    return next(
        ((size, name) for size, name in ((3600.0, "h"), (60.0, "min")) if longest >= 2 * size),
        (1.0, "s"),
    )
