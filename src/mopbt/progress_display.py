"""Show the progress of a run: live in a terminal or notebook, else as lines."""

import math
import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mopbt.callbacks import Callback
from mopbt.messages import counted, number
from mopbt.notebook import Block
from mopbt.progress import Outcome, Progress
from mopbt.results import Results
from mopbt.state import Report

# Further failures are only counted.
_MAX_FAILURES = 3
# Seconds between two updates in a notebook.
_REFRESH = 0.25
_REASONS: dict[Outcome, str] = {
    "budget": "budget exhausted",
    "stopped": "by a callback",
    "interrupted": "interrupted",
    "failed": "an error, see below",
}


class Display(Callback):
    """Shows a run in progress, and at its end how to resume it.

    Args:
        console: Where to show it (default: standard error).
        every: Seconds after which a line is printed even within a generation.
        closing_note: Returns what to print at the end, for an outcome.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        every: float = 10.0,
        closing_note: Callable[[Outcome], str] = lambda outcome: "",
    ) -> None:
        self._console = console or Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._every = every
        self._closing_note = closing_note
        self._live: Live | None = None
        # A notebook would show each line as an output of its own.
        self._block = Block() if self._console.is_jupyter else None
        self._status = ""
        self._remarks: list[str] = []
        self._printed_generation = -1
        self._printed_at = 0.0
        self._printed_failures = 0
        self._advised: set[str] = set()

    def on_start(self, run: Results) -> None:
        """Show where the run stands."""
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4)
            self._live.start()
        self._advise(run)
        self._show(run.progress)

    def on_report(self, run: Results, reports: Sequence[Report]) -> None:
        """Show where the run stands, and the first failures."""
        for report in reports:
            if report.error and self._printed_failures < _MAX_FAILURES:
                self._printed_failures += 1
                cause = report.error.strip().splitlines()[-1]
                self._print(f"interval {report.job} failed: {cause}", "yellow")
        self._advise(run)
        self._show(run.progress)

    def on_end(self, run: Results) -> None:
        """Print how the run ended and, if it is not done, how to resume it."""
        if self._live is not None:
            self._live.stop()
        if self._block is not None:
            self._refresh(self._block)
        assert run.outcome is not None
        note = self._closing_note(run.outcome)
        if run.outcome in _REASONS:
            reason = _REASONS[run.outcome]
            text = f"stopped ({reason}) after {counted(len(run), 'interval')}; {note}"
            self._print(text, "bold")
        elif note:
            self.note(note)

    def note(self, text: str) -> None:
        """Print a remark in one line."""
        self._print(text, "dim")

    def _print(self, text: str, style: str) -> None:
        if self._block is None:
            self._console.print(Text(text, style=style), soft_wrap=True)
        else:
            self._remarks.append(text)
            self._refresh(self._block)

    def _refresh(self, block: Block) -> None:
        self._printed_at = time.monotonic()
        block.show("\n".join(filter(None, [self._status, *self._remarks])))

    def _advise(self, run: Results) -> None:
        """Print advice on the size of the run, each sentence once."""
        for sentence in run.advice():
            if sentence not in self._advised:
                self._advised.add(sentence)
                self._print(f"advice: {sentence}", "yellow")

    def _show(self, progress: Progress | None) -> None:
        assert progress is not None
        if self._live is not None:
            self._live.update(panel(progress))
            return
        now = time.monotonic()
        if self._block is not None:
            self._status = line(progress)
            if now - self._printed_at > _REFRESH:
                self._refresh(self._block)
            return
        if progress.generation > self._printed_generation or now - self._printed_at > self._every:
            self._printed_generation = progress.generation
            self._printed_at = now
            self._console.print(line(progress), soft_wrap=True)


def line(progress: Progress) -> str:
    """Format the state of a run as one plain line."""
    parts = [
        f"generation {progress.generation}/{progress.generations}",
        f"{progress.reported}/{progress.total or '?'} intervals",
        "  ".join(f"{name} {number(value)}" for name, value in progress.best().items()),
        f"front {len(progress.front)}",
        f"hypervolume {progress.hypervolume():.5g}",
        _describe_stall(progress),
        f"{clock(progress.elapsed)} elapsed",
    ]
    if progress.seconds_left is not None:
        parts.append(f"{clock(progress.seconds_left)} left")
    parts += failure_counts(progress)
    return " | ".join(part for part in parts if part)


def _describe_stall(progress: Progress) -> str:
    if progress.stalled is None:
        return ""
    generations, limit = progress.stalled
    return f"no growth for {generations} of {limit} generations" if generations else ""


def panel(progress: Progress) -> Group:
    """Build a progress bar and a table of the state of a run."""
    left = "" if progress.seconds_left is None else f"{clock(progress.seconds_left)} left"
    # Where the terminal is narrow, only the bar gives way.
    bar = Table.grid(padding=(0, 1))
    bar.add_column(no_wrap=True, overflow="ellipsis", max_width=32)
    bar.add_column(min_width=8, max_width=32)
    for _ in range(3):
        bar.add_column(no_wrap=True)
    bar.add_row(
        Text(progress.problem.name, style="bold"),
        ProgressBar(total=progress.total or 1, completed=progress.reported),
        f"generation {progress.generation}/{progress.generations}",
        clock(progress.elapsed),
        left,
    )
    table = Table(box=None, padding=(0, 2), header_style="dim")
    columns = {"intervals": f"{progress.reported}/{progress.total or '?'}"}
    for name, value in progress.best().items():
        columns[f"best {name}"] = number(value)
    columns["front"] = str(len(progress.front))
    columns["hypervolume"] = f"{progress.hypervolume():.5g}"
    for name in columns:
        table.add_column(name, justify="right")
    table.add_row(*columns.values())
    remarks = [*failure_counts(progress), _describe_stall(progress)]
    remark = Text(", ".join(filter(None, remarks)), style="yellow")
    return Group(bar, table, remark) if remark else Group(bar, table)


def failure_counts(progress: Progress) -> list[str]:
    """Count intervals that failed or diverged (NaN, infinity): ``["2 failed"]``."""
    counts = {"failed": progress.failures, "diverged": progress.diverged}
    return [f"{count} {what}" for what, count in counts.items() if count]


def clock(seconds: float) -> str:
    """Format seconds as h:mm:ss, or as m:ss below an hour."""
    if not math.isfinite(seconds):
        return str(seconds)
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
