"""Progress on a terminal, or as plain lines where there is none."""

import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mopbt.progress import Outcome, Progress


class Display:
    """Shows a run while it goes on. Use it as a context manager and call it with each `Progress`."""

    def __init__(self, console: Console | None = None, *, every: float = 10.0) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._every = every
        self._live: Live | None = None
        self._last: Progress | None = None
        self._shown = (-1, 0.0)
        self._told = 0

    def __enter__(self) -> "Display":
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        """Show the run as it is now."""
        self._last = progress
        for report in progress.reports:
            if report.error and self._told < 3:
                self._told += 1
                cause = report.error.strip().splitlines()[-1]
                self._console.print(Text(f"interval {report.job} failed: {cause}", style="yellow"))
        if self._live is not None:
            self._live.update(panel(progress))
        elif (
            progress.generation > self._shown[0] or time.monotonic() - self._shown[1] > self._every
        ):
            self._shown = (progress.generation, time.monotonic())
            self._console.print(line(progress), soft_wrap=True)

    def note(self, text: str) -> None:
        """Say something in one line."""
        self._console.print(Text(text, style="dim"), soft_wrap=True)

    def finish(self, outcome: Outcome, resume_hint: str) -> None:
        """Say how the run ended, and what there is to say beside: how to go on if it has not."""
        if self._last is None or outcome == "done":
            if resume_hint:
                self.note(resume_hint)
            return
        why = {
            "interrupted": "interrupted",
            "failed": "an error, see below",
            "budget": "the budget is spent",
        }[outcome]
        text = f"stopped ({why}) after {self._last.reported} intervals; {resume_hint}"
        self._console.print(Text(text, style="bold"), soft_wrap=True)


def line(progress: Progress) -> str:
    """Return a run in one plain line."""
    best = "  ".join(f"{name} {value:.4g}" for name, value in progress.best().items())
    parts = [f"generation {progress.generation}/{progress.generations}"]
    parts += [
        f"{progress.reported}/{progress.total or '?'} intervals",
        best,
        f"front {len(progress.front)}",
    ]
    parts += [f"hypervolume {progress.hypervolume():.5g}", f"{clock(progress.elapsed)} elapsed"]
    if progress.seconds_left is not None:
        parts.append(f"{clock(progress.seconds_left)} left")
    parts += troubles(progress)
    return " | ".join(part for part in parts if part)


def panel(progress: Progress) -> Group:
    """Return a run as a bar and a table."""
    bar = Table.grid(padding=(0, 1))
    left = "" if progress.seconds_left is None else f"{clock(progress.seconds_left)} left"
    failures = Text(", ".join(troubles(progress)), style="yellow")
    bar.add_row(
        Text(progress.problem.name, style="bold"),
        ProgressBar(total=progress.total or 1, completed=progress.reported, width=32),
        f"generation {progress.generation}/{progress.generations}",
        f"{progress.reported}/{progress.total or '?'} intervals",
        clock(progress.elapsed),
        left,
        failures,
    )
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in progress.best():
        table.add_column(f"best {name}", justify="right")
    table.add_column("front", justify="right")
    table.add_column("hypervolume", justify="right")
    best = [f"{value:.4g}" for value in progress.best().values()]
    table.add_row(*best, str(len(progress.front)), f"{progress.hypervolume():.5g}")
    return Group(bar, table)


def troubles(progress: Progress) -> list[str]:
    """Return how many intervals failed and how many measured NaN or infinity, where there are any."""
    counts = {"failed": progress.failures, "diverged": progress.diverged}
    return [f"{count} {what}" for what, count in counts.items() if count]


def clock(seconds: float) -> str:
    """Return seconds as h:mm:ss, without leading zeros."""
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
