"""Worker processes that execute the runs of a comparison."""

import json
import queue
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from types import TracebackType
from typing import IO, Any

from mopbt.compare.plan import Experiment
from mopbt.compare.prepare import prepare_task
from mopbt.compare.single_run import RunSpec, execute_run, measure_task
from mopbt.engines.pool import THREADS
from mopbt.engines.supervisor import (
    Supervisor,
    WorkerProcess,
    exit_at_once,
    open_channel,
    receive,
    send,
)
from mopbt.engines.worker import keep_memory
from mopbt.errors import MopbtError, StorageFull, TaskFailed, all_errors

# What a worker answers. One key says what it is about:
#   "share": how much of the run is done. More answers follow.
#   "finished": the marker of the finished run.
#   "prepared": what the runs of a task need, see `prepare_task`.
#   "measured": cost and engine of a task.
#   "failed": the error, with its class as "kind", its traceback as "trace", and "stop" if no other
#       run can succeed.
Answer = Mapping[str, Any]
# Errors of a task that the driver raises again, by name.
_ERRORS: list[type[Exception]] = [ValueError, TypeError, *all_errors()]
KINDS = {kind.__name__: kind for kind in _ERRORS}


class WorkerPool:
    """Worker processes, each of which executes one run at a time.

    A worker that dies is replaced. Use the pool as a context manager.
    """

    def __init__(self) -> None:
        self._supervisor = Supervisor()
        self._idle: list[WorkerProcess] = []
        # The specification of a run, or None while a task is prepared or measured.
        self._busy: dict[WorkerProcess, RunSpec | None] = {}

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Nothing is lost, because all reports are in the journals.
        self._supervisor.close()

    def start(self, spec: RunSpec) -> None:
        """Start a run in an idle process, or in a new one if all are busy."""
        self._send({"run": asdict(spec)}, spec)

    def receive(self) -> tuple[str, Answer]:
        """Wait for the next answer, and return it with the path of its run.

        If a process dies, perhaps because of the code of its run, the run is repeated with its
        training isolated in another process.
        """
        while True:
            spec, answer = self._receive()
            assert spec is not None
            if "died" not in answer:
                return spec.path, answer
            if spec.isolated:
                return spec.path, _failed(answer)
            self.start(replace(spec, isolated=True))

    def prepare(self, experiment: Experiment, task: str, scale: str | None) -> Mapping[str, Any]:
        """Prepare a task in a process, see `prepare_task`; no run may be running.

        An error of the task is raised here.
        """
        message = {"experiment": experiment.to_dict(), "task": task, "scale": scale}
        answer = self._ask({"prepare": message})
        if "failed" not in answer:
            prepared: Mapping[str, Any] = answer["prepared"]
            return prepared
        if answer.get("kind") not in KINDS:
            raise TaskFailed(f"{task} cannot be loaded:", answer.get("trace", answer["failed"]))
        # The cause is shown with --traceback.
        raise KINDS[answer["kind"]](answer["failed"]) from TaskFailed(answer["trace"])

    def measure(self, task: str, **options: Any) -> Mapping[str, Any]:
        """Measure a task in a process, see `measure_task`; no run may be running."""
        answer = self._ask({"measure": {"task": task, **options}})
        if "failed" in answer:
            raise TaskFailed(f"{task} cannot be measured:", answer["failed"])
        measured: Mapping[str, Any] = answer["measured"]
        return measured

    def _ask(self, message: Mapping[str, Any]) -> Answer:
        self._send(message, None)
        answer = self._receive()[1]
        return _failed(answer) if "died" in answer else answer

    def _send(self, message: Mapping[str, Any], spec: RunSpec | None) -> None:
        if self._idle:
            worker = self._idle.pop()
        else:
            environment = dict.fromkeys(THREADS, "1")
            worker = self._supervisor.spawn("mopbt.compare.workers:serve", environment)
        self._busy[worker] = spec
        worker.send(json.dumps(message).encode())

    def _receive(self) -> tuple[RunSpec | None, Answer]:
        """Wait for the next answer or the death of a busy process, and say of which run."""
        while True:
            event = self._supervisor.receive()
            assert event is not None
            worker, message = event
            if message is None:
                code = self._supervisor.reap(worker)
                if worker in self._busy:
                    return self._busy.pop(worker), {"died": code}
                self._idle.remove(worker)
                continue
            answer: Answer = json.loads(message)
            if "share" in answer:
                return self._busy[worker], answer
            self._idle.append(worker)
            return self._busy.pop(worker), answer


def _failed(answer: Answer) -> Answer:
    return {"failed": f"its process died (exit code {answer['died']})"}


# The worker's side.


def serve() -> None:
    """Answer messages of a `WorkerPool` until it closes the channel."""
    keep_memory()
    source, sink = open_channel()
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(source, inbox), daemon=True).start()

    def send_answer(answer: Answer) -> None:
        try:
            send(sink, json.dumps(answer).encode())
        except BrokenPipeError:
            # The pool is gone. The journal has all reports of the run.
            exit_at_once()

    while True:
        message = json.loads(inbox.get())
        send_answer(answer_message(message, lambda share: send_answer({"share": share})))


def _listen(source: IO[bytes], inbox: "queue.SimpleQueue[bytes]") -> None:
    while (message := receive(source)) is not None:
        inbox.put(message)
    exit_at_once()


def answer_message(message: Mapping[str, Any], report_share: Callable[[float], None]) -> Answer:
    """Execute a run, or prepare or measure a task, and return the last answer."""
    try:
        if "prepare" in message:
            options = message["prepare"]
            experiment = Experiment(**options["experiment"])
            return {"prepared": prepare_task(experiment, options["task"], options["scale"])}
        if "measure" in message:
            return {"measured": measure_task(**message["measure"])}
        return {"finished": execute_run(RunSpec(**message["run"]), report_share)}
    except (MopbtError, ValueError, TypeError) as error:
        return {
            "failed": str(error),
            "kind": type(error).__name__,
            "trace": traceback.format_exc(),
            "stop": isinstance(error, StorageFull),
        }
    except Exception:
        return {"failed": traceback.format_exc()}
