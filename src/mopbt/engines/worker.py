"""A worker process of the pool: reads jobs from its standard input, writes reports to its standard output.

What the task prints goes to standard error. When the driver dies, standard input ends, and the worker ends at once, whatever it
is doing.
"""

import ctypes
import gc
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import IO, Any

from mopbt.engines.base import ModelCache, RunContext, Trained, saved, train
from mopbt.errors import MopbtError, WorkerFailed
from mopbt.state import Report


def send(stream: IO[bytes], data: bytes) -> None:
    """Write one message."""
    stream.write(len(data).to_bytes(8, "little"))
    stream.write(data)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """Read one message; None at the end."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    size = int.from_bytes(head, "little")
    data = stream.read(size)
    return data if len(data) == size else None


def _listen(stream: IO[bytes], inbox: "queue.SimpleQueue[bytes]") -> None:
    while (message := receive(stream)) is not None:
        inbox.put(message)
    os._exit(0)


_KEEPING = {-3: 2**30, -1: 2**31 - 1, -2: 2**26}  # mmap threshold, trim threshold, top pad
_USUAL = {
    -3: 2**25,
    -1: 2**26,
    -2: 2**17,
}  # what glibc comes to by itself in a process that works with large blocks


def keep_memory() -> None:
    """Tell glibc not to give large blocks back after each training step: asking for them anew costs a tenth of the time."""
    _tune_malloc(_KEEPING)


@contextmanager
def memory_kept() -> Iterator[None]:
    """Keep large blocks for a while, as a worker does all its life."""
    keep_memory()
    try:
        yield
    finally:
        _tune_malloc(_USUAL)


def _tune_malloc(options: Mapping[int, int]) -> None:
    mallopt = (
        getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    )
    if mallopt is not None:
        for option, value in options.items():
            mallopt(option, value)


def main() -> None:
    """Serve one driver until it goes away."""
    keep_memory()
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole group; the driver decides what happens
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(source, inbox), daemon=True).start()
    gc.disable()  # what is imported stays: looking through it again and again takes a tenth of the time of importing PyTorch
    try:
        work, warm = _prepare(inbox.get())
    except Exception as error:
        remedy = "put the task in a module that worker processes can import, or use engine='local'"
        failure = WorkerFailed(
            f"a worker process cannot read the task: {type(error).__name__}: {error}; {remedy}"
        )
        send(sink, pickle.dumps(failure))
        return
    gc.freeze()
    gc.enable()
    send(sink, pickle.dumps(None))
    line = source.fileno(), sink.fileno()
    os.register_at_fork(
        after_in_child=partial(_close, line)
    )  # else a child of the task's would keep the line open
    _serve(work, warm, inbox.get, lambda answer: _answer(sink, answer))


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _answer(sink: IO[bytes], answer: Any) -> None:
    try:
        send(sink, pickle.dumps(answer))
    except BrokenPipeError:
        os._exit(0)  # the driver is gone; the journal knows nothing of this job, so it runs again


def _prepare(message: bytes) -> tuple[RunContext, ModelCache]:
    work, warm_bytes = pickle.loads(message)
    return pickle.loads(work), ModelCache(warm_bytes)


def _serve(
    work: RunContext,
    warm: ModelCache,
    next_message: Callable[[], bytes],
    answer: Callable[[Any], None],
) -> None:
    """Train one bundle after the other; a thread makes the last ones durable meanwhile, and reports them when they are."""
    waiting: queue.Queue[list[Trained] | MopbtError] = queue.Queue(maxsize=2)
    threading.Thread(target=_save, args=(work, waiting.get, answer), daemon=True).start()
    while True:
        bundle = pickle.loads(next_message())
        try:
            waiting.put(train(work, bundle, warm))
        except MopbtError as error:
            waiting.put(error)  # after what is done already


def _save(
    work: RunContext,
    next_done: Callable[[], list[Trained] | MopbtError],
    answer: Callable[[Any], None],
) -> None:
    while True:
        done = next_done()
        try:
            answer(
                done
                if isinstance(done, MopbtError)
                else [saved_or_failed(work, trained) for trained in done]
            )
        except MopbtError as error:
            answer(error)
        except (
            Exception
        ) as error:  # a store that is broken: without an answer the driver would wait for ever
            answer(
                WorkerFailed(
                    f"a worker process cannot save a checkpoint: {type(error).__name__}: {error}"
                )
            )


def saved_or_failed(work: RunContext, trained: Trained) -> Report:
    """Make a trained model durable; where that cannot be done, the job has failed."""
    try:
        return saved(work, trained)
    except OSError:
        return Report(trained.job.id, duration=trained.seconds, error=traceback.format_exc())
