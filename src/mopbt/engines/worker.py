"""The worker process of the pool: trains stacks of jobs, and sends reports.

When the driver dies, the worker ends at once, whatever it is doing.
"""

import ctypes
import gc
import importlib
import pickle
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import methodcaller
from typing import IO, Any

from mopbt.engines.base import ModelCache, RunContext
from mopbt.engines.devices import adopt_device
from mopbt.engines.execution import Answer, SavingTurn, TrainedJob, save_stack, train
from mopbt.engines.supervisor import exit_at_once, open_channel, receive, send
from mopbt.errors import MopbtError, TaskError, WorkerFailed

# Options of glibc's `mallopt`: -3 is the mmap threshold, -1 the trim threshold, -2 the top pad.
_KEEP_BLOCKS = {-3: 2**30, -1: 2**31 - 1, -2: 2**26}
# glibc arrives at these values by itself in a process that works with large blocks.
_USUAL = {-3: 2**25, -1: 2**26, -2: 2**17}


def keep_memory() -> None:
    """Keep large blocks in this process after they are freed.

    By default, glibc returns them to the system after each training step. Requesting them again
    takes a tenth of the time of training.
    """
    _tune_malloc(_KEEP_BLOCKS)


@contextmanager
def memory_kept() -> Iterator[None]:
    """Keep large blocks for a while, as a worker always does."""
    keep_memory()
    try:
        yield
    finally:
        _tune_malloc(_USUAL)


def _tune_malloc(options: Mapping[int, int]) -> None:
    if not sys.platform.startswith("linux"):
        return
    # Other C libraries than glibc have no `mallopt`.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in options.items():
            mallopt(option, value)


def main() -> None:
    """Serve the driver until it closes the channel."""
    keep_memory()
    adopt_device()
    source, sink = open_channel()
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(source, inbox), daemon=True).start()
    # What is imported stays. Collecting garbage among it meanwhile would take a tenth of the time
    # of importing PyTorch.
    gc.disable()
    try:
        _import_early(pickle.loads(inbox.get()))
        pickled_context, cache_bytes = pickle.loads(inbox.get())
        context = pickle.loads(pickled_context)
    except Exception as error:
        send(sink, pickle.dumps(_explain_unreadable(error)))
        return
    gc.freeze()
    gc.enable()
    send(sink, pickle.dumps(None))
    _serve(context, ModelCache(cache_bytes), inbox, lambda answer: _answer(sink, answer))


def _import_early(modules: list[str]) -> None:
    """Import what a run needs while the driver prepares it."""
    for name in modules:
        # The context of the run raises the same error, which is then reported.
        with suppress(Exception):
            importlib.import_module(name)


def _explain_unreadable(error: Exception) -> WorkerFailed:
    return WorkerFailed(
        f"a worker process cannot read the task: {type(error).__name__}: {error}; put the "
        f"task in a module that worker processes can import, or use engine='local'"
    )


def answer_calls() -> None:
    """Call methods of a task for the driver.

    The first message is the task, others are calls.
    """
    adopt_device()
    source, sink = open_channel()
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(source, inbox), daemon=True).start()
    try:
        task = pickle.loads(inbox.get())
    except Exception as error:
        _answer(sink, _explain_unreadable(error))
        return
    while True:
        method, arguments = pickle.loads(inbox.get())
        try:
            result = methodcaller(method, *arguments)(task)
        except Exception as error:
            result = _portable(error)
        _answer(sink, result)


def _portable(error: Exception) -> Exception:
    """Return an error that another process can read.

    It includes the traceback if the error is not one of mopbt.
    """
    if not isinstance(error, MopbtError):
        error.add_note(traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return TaskError(traceback.format_exc())
    return error


def _listen(source: IO[bytes], inbox: "queue.SimpleQueue[bytes]") -> None:
    while (message := receive(source)) is not None:
        inbox.put(message)
    exit_at_once()


def _answer(sink: IO[bytes], answer: Any) -> None:
    try:
        send(sink, pickle.dumps(answer))
    except BrokenPipeError:
        # The journal has no report of these jobs, so the next session repeats them.
        exit_at_once()


def _serve(
    context: RunContext,
    cache: ModelCache,
    inbox: "queue.SimpleQueue[bytes]",
    answer: Callable[[Any], None],
) -> None:
    """Train stack after stack, while a thread saves and reports the previous ones."""
    trained: queue.Queue[tuple[list[TrainedJob] | MopbtError, SavingTurn]] = queue.Queue(maxsize=2)
    threading.Thread(target=_save_all, args=(context, trained, answer), daemon=True).start()
    saving = threading.Lock()
    while True:
        stack = pickle.loads(inbox.get())
        turn = SavingTurn(saving)
        try:
            trained.put((train(context, stack, cache, turn), turn))
        except MopbtError as error:
            # It is queued, so that finished jobs are reported before it.
            trained.put((error, turn))


def _save_all(
    context: RunContext,
    trained: "queue.Queue[tuple[list[TrainedJob] | MopbtError, SavingTurn]]",
    answer: Callable[[Any], None],
) -> None:
    while True:
        jobs, turn = trained.get()
        saved = jobs if isinstance(jobs, MopbtError) else _save(context, jobs)
        turn.give_back()
        answer(saved)


def _save(context: RunContext, jobs: list[TrainedJob]) -> Answer | MopbtError:
    try:
        return save_stack(context, jobs)
    except MopbtError as error:
        return error
    except Exception as error:
        # Without an answer, the driver would wait forever.
        return WorkerFailed(
            f"a worker process cannot save a checkpoint: {type(error).__name__}: {error}"
        )
