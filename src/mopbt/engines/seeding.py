"""Seeds of the global random generators, for tasks that draw from them."""

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np

# The last seed of each open `global_seeds`, the innermost one last.
_open_seeds: list[int] = []


@contextmanager
def global_seeds(seed: int) -> Iterator[None]:
    """Seed the global generators, and restore the caller's state afterwards.

    PyTorch is seeded as well if it is imported, or as soon as it is imported.
    """
    torch = sys.modules.get("torch")
    python_state = random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002
    torch_state = torch.get_rng_state() if torch else None
    device_states = _device_states() if torch else []
    if not torch and not _open_seeds:
        sys.meta_path.insert(0, _seed_late)
    _open_seeds.append(seed)
    seed_globals(seed)
    try:
        yield
    finally:
        _open_seeds.pop()
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        if torch:
            torch.set_rng_state(torch_state)
            _restore_devices(device_states)
        else:
            _leave_without_torch()


def seed_globals(seed: int) -> None:
    """Seed the global generators of `random`, numpy and, if it is imported, PyTorch."""
    if _open_seeds:
        _open_seeds[-1] = seed
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the task's code may use it
    if sys.modules.get("torch"):
        _seed_torch(seed)


def _seed_torch(seed: int) -> None:
    torch = sys.modules["torch"]
    # `torch.manual_seed` takes milliseconds, because it also queues the seed for accelerators.
    (torch.manual_seed if _accelerator() else torch.default_generator.manual_seed)(seed)


@cache
def _accelerator() -> Any:
    """Return PyTorch's module for this machine's accelerator, such as torch.cuda.

    Returns None if there is none.
    """
    torch = sys.modules["torch"]
    return torch.get_device_module() if torch.accelerator.is_available() else None


def _device_states() -> list[Any]:
    """Return the generator states of all accelerators, without initializing any."""
    module = _accelerator()
    if module is None or not getattr(module, "is_initialized", lambda: True)():
        return []
    if module.__name__ == "torch.mps":
        return [module.get_rng_state()]
    return [module.get_rng_state(index) for index in range(module.device_count())]


def _restore_devices(states: Sequence[Any]) -> None:
    """Restore generator states; accelerators without one return to the enclosing seed."""
    module = _accelerator()
    if module is None:
        return
    if not states and _open_seeds:
        module.manual_seed_all(_open_seeds[-1])
    for index, state in enumerate(states):
        if module.__name__ == "torch.mps":
            module.set_rng_state(state)
        else:
            module.set_rng_state(state, index)


class _SeedLateImport(MetaPathFinder):
    """Seeds PyTorch when a task imports it within `global_seeds`.

    Without it, a task that imports PyTorch in the middle of an interval would draw unseeded
    numbers there, and seeded ones in every later interval.
    """

    initial_state: Any = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find PyTorch as usual, and have its seed set after it is loaded."""
        if fullname != "torch":
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                self._seed_after_loading(spec.loader)
                return spec
        return None

    def _seed_after_loading(self, loader: Any) -> None:
        load = loader.exec_module

        def load_and_seed(module: ModuleType) -> None:
            del loader.exec_module
            load(module)
            self.initial_state = module.get_rng_state()
            if _open_seeds:
                _seed_torch(_open_seeds[-1])

        loader.exec_module = load_and_seed


_seed_late = _SeedLateImport()


def _leave_without_torch() -> None:
    """Leave a `global_seeds` that was entered before PyTorch was imported.

    PyTorch returns to the seed of the enclosing `global_seeds`, or to the state in which its
    import left it.
    """
    if not _open_seeds and _seed_late in sys.meta_path:
        sys.meta_path.remove(_seed_late)
    torch = sys.modules.get("torch")
    if torch and _open_seeds:
        _seed_torch(_open_seeds[-1])
    elif torch and _seed_late.initial_state is not None:
        torch.set_rng_state(_seed_late.initial_state)
