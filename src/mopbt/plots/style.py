"""Define the style of a comparison's figures: colors, panels, axes, legends.

- MO-PBT always has the same strong color and lies on top.
- Algorithms differ by color or line, and by marker, so figures can be read in gray and with every
  kind of color vision.
- Text has 8 points in a figure as wide as a page.
- Axes show scores in their original direction.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mopbt.errors import MissingExtra
from mopbt.objectives import Objective

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Array = NDArray[np.float64]

INK = "#333333"
FAINT = "#bbbbbb"
# Stands out from the blue evaluations for every kind of color vision, and in gray by its line.
FRONT = "#c8401e"
# Inches, the width of both columns of a page.
WIDTH = 7.0
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
    # A $ in a label is a plain character.
    "text.parse_math": False,
    # Journals require fonts that are embedded as text.
    "pdf.fonttype": 42,
}


@dataclass(frozen=True)
class Style:
    """Appearance of an algorithm in every figure."""

    color: str
    # A line style of matplotlib.
    line: Any = "-"
    marker: str = "o"

    @property
    def leads(self) -> bool:
        """Return whether this is the strong color, whose lines are thick and lie on top."""
        return self.color == FRONT


# Styles of all algorithms of a comparison, by label.
Styles = Mapping[str, Style]

BLUE = "#0072b2"
GREEN = "#009e73"
ORANGE = "#e69f00"
PURPLE = "#cc79a7"
SKY = "#56b4e9"
GRAY = "#606060"
BLACK = "#000000"
DASHED = (0, (4, 1.5))
DOTTED = (0, (1, 1.2))
MIXED = (0, (5, 1.2, 1, 1.2))
LEAD = Style(FRONT)
# Styles of the labels in the paper's experiments. Algorithms of one family share a color.
STYLES = {
    "MO-PBT": LEAD,
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
# Styles that all other labels get in turn.
SPARE = tuple(
    Style(color, line, marker)
    for line, markers in (("-", "^DvsP>h"), (DASHED, "<pXd8*H"), (MIXED, "^DvsP>h"))
    for color, marker in zip((GREEN, ORANGE, PURPLE, SKY, BLUE, GRAY, BLACK), markers, strict=True)
)


def styles_of(labels: Iterable[str]) -> dict[str, Style]:
    """Assign a style to each label.

    MO-PBT gets the strong color, or else the first label. The paper's algorithms get their fixed
    styles, and all others the spare styles in turn.
    """
    labels = tuple(labels)
    fixed = {label: STYLES[label] for label in labels if label in STYLES}
    if LEAD not in fixed.values():
        fixed |= dict.fromkeys(labels[:1], LEAD)
    taken = {(style.color, style.line) for style in fixed.values()}
    spare = cycle([style for style in SPARE if (style.color, style.line) not in taken])
    return {label: fixed[label] if label in fixed else next(spare) for label in labels}


def shown_styles(styles: Styles, labels: Iterable[str]) -> dict[str, Style]:
    """Return the styles of some labels, in their order in a comparison."""
    shown = set(labels)
    return {label: style for label, style in styles.items() if label in shown}


@contextmanager
def styled() -> Iterator[None]:
    """Apply the style within the context, and restore matplotlib's settings after it."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise MissingExtra(
            "the figures of a comparison need matplotlib: pip install 'mopbt[plot]'; the tables "
            "are already written"
        ) from None
    with rc_context(STYLE):  # type: ignore[arg-type]
        yield


def create_panels(
    panels: int,
    *,
    height: float,
    columns: int | None = None,
    width: float | None = None,
    **options: Any,
) -> tuple["Figure", list["Axes"]]:
    """Create a figure of panels in rows.

    It is as wide as a page, or narrower for a single panel.

    Args:
        panels: Number of panels.
        height: Height of a panel in inches.
        columns: Panels per row.
        width: Width of the figure in inches.
        options: Options of matplotlib's `Figure.subplots`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(panels, columns or {4: 2}.get(panels, 3))
    rows = -(-panels // columns)
    size = (width or (WIDTH if panels > 1 else 4.8), height * rows + 0.5)
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    # A canvas of its own needs neither a window nor the global state of pyplot.
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for ax in axes[panels:]:
        ax.remove()
    # The lowest panel of each column has tick labels, also where the last row is incomplete.
    for ax in axes[max(panels - columns, 0) : panels]:
        ax.tick_params(labelbottom=True)
    return figure, axes[:panels]


def drawing_order(labels: Iterable[str], styles: Styles) -> list[str]:
    """Sort labels for drawing: the leading one last, so that it is on top."""
    return sorted(labels, key=lambda label: styles[label].leads)


def line_options(style: Style) -> dict[str, Any]:
    """Return a style as options of matplotlib's `Axes.plot`."""
    return {
        "color": style.color,
        "ls": style.line,
        "marker": style.marker,
        "lw": 2.0 if style.leads else 1.2,
        "mew": 0.4,
    }


def draw_stairs(ax: "Axes", points: Array, x: Objective, style: Style, **options: Any) -> "Line2D":
    """Draw the edge of what points (n, 2) dominate, in their original direction."""
    xs, ys = points[np.argsort(points[:, 0])].T
    steps = {"drawstyle": "steps-pre" if x.direction == "max" else "steps-post"}
    thin = {"marker": "", "lw": 1.6 if style.leads else 1.0}
    (line,) = ax.plot(xs, ys, **line_options(style) | thin | steps | options)
    return line


def axis_label(objective: Objective) -> str:
    """Return the name of an objective with an arrow towards better scores.

    The text of a vertical axis is rotated, and its arrow with it.
    """
    if objective.direction == "max":
        return f"{objective.name}  (better →)"
    return f"(← better)  {objective.name}"


def label_axes(ax: "Axes", x: Objective, y: Objective) -> None:
    """Label the axes with two objectives."""
    ax.set_xlabel(axis_label(x))
    ax.set_ylabel(axis_label(y))


def label_rows(axes: Sequence["Axes"], text: str) -> None:
    """Label the vertical axis of the first panel in each row."""
    left = min(ax.get_position().x0 for ax in axes)
    for ax in axes:
        if ax.get_position().x0 == left:
            ax.set_ylabel(text)


def add_legend(figure: "Figure", styles: Styles, panels: int, **options: Any) -> None:
    """Add a legend below several panels, or to the right of a single one."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], label=label, **line_options(style) | options)
        for label, style in styles.items()
    ]
    labels = list(styles)
    if panels > 1:
        columns = _legend_columns(labels)
        figure.legend(handles=handles, handlelength=3, loc="outside lower center", ncols=columns)
        # `create_panels` leaves room for two rows.
        rows = -(-len(labels) // columns)
        figure.set_figheight(figure.get_figheight() + 0.17 * max(rows - 2, 0))
    else:
        figure.legend(handles=handles, handlelength=3, loc="outside right center")
        width = max(figure.get_figwidth(), 2.6 + _legend_width(labels))
        figure.set_figwidth(min(width, WIDTH))


def _legend_columns(texts: Sequence[str]) -> int:
    """Return the number of legend columns that fit the width of a figure."""
    for columns in (5, 4, 3, 2):
        rows = -(-len(texts) // columns)
        widths = [_legend_width(texts[i : i + rows]) for i in range(0, len(texts), rows)]
        if sum(widths) <= WIDTH:
            return len(widths)
    return 1


def _legend_width(texts: Sequence[str]) -> float:
    """Estimate the width of a legend column in inches.

    A character takes 0.06, the sample of a line 0.65.
    """
    return 0.65 + 0.06 * max(map(len, texts))


def set_title(ax: "Axes", text: str, **options: Any) -> None:
    """Set the title of a panel, wrapped to the width of the panel."""
    letters = int(ax.get_position().width * ax.figure.get_figwidth() / 0.065)  # type: ignore[union-attr]
    ax.set_title("\n".join(fill(line, max(letters, 12)) for line in text.split("\n")), **options)


def add_side_legend(ax: "Axes", lines: Sequence["Line2D"], title: str) -> None:
    """Add a legend of lines to the right of their panel."""
    ax.legend(
        handles=list(lines),
        loc="upper left",
        bbox_to_anchor=(1.0, 1.04),
        title=title,
        title_fontsize=8,
        alignment="left",
        handlelength=1.5,
        handletextpad=0.5,
        labelspacing=0.3,
        borderpad=0.2,
    )


def time_unit(times: Array) -> tuple[float, str]:
    """Choose a unit for times (T,); return its length in seconds and its name."""
    longest = float(times.max())
    for seconds, name in ((3600.0, "h"), (60.0, "min")):
        if longest >= 2 * seconds:
            return seconds, name
    return 1.0, "s"
