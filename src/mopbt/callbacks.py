"""Callbacks: follow or stop a run from the process that executes it."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from mopbt.errors import StopRun
from mopbt.progress import Outcome, Progress
from mopbt.results import Results
from mopbt.state import Report


class Callback:
    """Follow a run. Override the methods that you need; these do nothing.

    `run` is the run while it executes: its front, hypervolume and models are those so far, and
    `run.progress` counts what is done and what is left. Raise `StopRun` to end the run; the same
    call resumes it. Any other exception ends the run as an error.

    Callbacks are called in the process that executes the run, so they delay it while they work.
    """

    def on_start(self, run: Results) -> None:
        """Handle the start of a run, or of its continuation, before it reports anything."""

    def on_report(self, run: Results, reports: Sequence[Report]) -> None:
        """Handle new reports, once they are in the journal.

        No report is passed twice, also not after a resume. One that was written just before the
        process was killed is not passed at all.
        """

    def on_end(self, run: Results) -> None:
        """Handle the end of the run, also by an error or Ctrl-C; `run.outcome` says which.

        It is called if `on_start` has returned.
        """


class CallbackList:
    """Calls callbacks in their order, and watches a session for them."""

    def __init__(self, callbacks: Sequence[Callback], run: Results) -> None:
        self._callbacks = callbacks
        self._run = run
        self._started: list[Callback] = []

    def __call__(self, progress: Progress) -> None:
        """Pass what a session reports to the callbacks."""
        self._run.progress = progress
        if progress.reports:
            self._call(lambda callback: callback.on_report(self._run, progress.reports))
        else:
            self._call(self._start)

    def end(self, outcome: Outcome) -> None:
        """Call `on_end` of all callbacks that have started, the first one last."""
        self._run.outcome = outcome
        with ExitStack() as stack:
            for callback in self._started:
                stack.callback(callback.on_end, self._run)

    def _start(self, callback: Callback) -> None:
        callback.on_start(self._run)
        self._started.append(callback)

    def _call(self, function: Callable[[Callback], None]) -> None:
        """Call a function for all callbacks.

        The request of one callback to stop waits for the others.
        """
        stop: StopRun | None = None
        for callback in self._callbacks:
            try:
                function(callback)
            except StopRun as request:
                stop = stop or request
        if stop is not None:
            raise stop


def check_callbacks(callbacks: Any) -> None:
    """Raise TypeError unless the argument is a sequence of callbacks."""
    if isinstance(callbacks, str) or not isinstance(callbacks, Sequence):
        raise TypeError(f"`callbacks` must be a list of Callback objects, got {callbacks!r}")
    for callback in callbacks:
        if isinstance(callback, Callback):
            continue
        remedy = ""
        if isinstance(callback, type):
            remedy = f"; pass {callback.__name__}()"
        elif callable(callback):
            remedy = "; write a class with a method `on_report`"
        raise TypeError(
            f"`callbacks` must be a list of Callback objects, got {callback!r} in it{remedy}"
        )
