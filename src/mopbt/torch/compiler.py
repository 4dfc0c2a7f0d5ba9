"""Keep what was compiled of a model in this process, and whether it can be used."""

import warnings
from collections.abc import Callable, Hashable
from typing import Any

import torch


class Compiler:
    """Compiles the losses of one model.

    Attributes:
        failure: Why training is not compiled; empty as long as it is.
        reads: The hyperparameters that the loss reads. Compiled losses do not record them.
    """

    def __init__(self) -> None:
        self.failure = ""
        self.reads: set[str] = set()
        self._functions: dict[Hashable, Callable[..., Any]] = {}
        self._tried: set[Hashable] = set()

    def find(
        self, key: Hashable, function: Callable[..., Any], *, device: torch.device, whole: bool
    ) -> Callable[..., Any]:
        """Return a compiled function, the same one whenever the key is the same."""
        if key not in self._functions:
            # Masks of dropout are those of usual training.
            options: dict[str, Any] = {"fallback_random": True}
            if device.type == "cpu":
                # Each worker has one core.
                options["compile_threads"] = 1
            self._functions[key] = torch.compile(
                function, fullgraph=whole, dynamic=False, options=options
            )
        return self._functions[key]

    def is_new(self, shape: Hashable) -> bool:
        """Return whether a shape comes for the first time."""
        if shape in self._tried:
            return False
        self._tried.add(shape)
        return True

    def give_up(self, failure: str) -> None:
        """Continue without compilation, and warn about it once."""
        self.failure = failure
        warnings.warn(
            f"training continues without compilation: {failure}. This is reported once.",
            RuntimeWarning,
            stacklevel=2,
        )
