"""Verify a run end to end: its settings, journal, checkpoints, storage and code.

Nothing is changed.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from mopbt.algorithms import algorithm_of
from mopbt.errors import CorruptCheckpoint, MopbtError, StoreError
from mopbt.evaluations import FILE, read_evaluations
from mopbt.fingerprint import code_of, is_changed
from mopbt.history import History
from mopbt.messages import shortened
from mopbt.ownership import Owner
from mopbt.results import Results
from mopbt.run_config import RunConfig
from mopbt.run_directory import read_run_config
from mopbt.schedulers.base import extend_scheduler, extendable_by
from mopbt.state import required_checkpoints
from mopbt.stores.base import Checkpoints
from mopbt.stores.directory import SUFFIX
from mopbt.stores.journal import intact_length

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a run.

    Attributes:
        severity: "error" if something is lost or the run cannot be resumed, else "warning".
        where: What it concerns: settings, journal, checkpoints, evaluations, storage or code.
        what: What is wrong.
        remedy: How to fix it.
    """

    severity: Severity
    where: str
    what: str
    remedy: str


@dataclass(frozen=True)
class Verification:
    """The outcome of verifying a run: how much was checked, and what was found."""

    run: str
    reports: int = 0
    checkpoints: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Return whether nothing is lost and the run can be resumed."""
        return all(finding.severity == "warning" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as a JSON object."""
        return {"ok": self.ok, **asdict(self)}


def verify(path: Path | str, task: Any = None) -> Verification:
    """Verify a run: order and checksums, every required checkpoint, storage and code.

    The task is needed only to compare its code with that at the start of the run.
    """
    path = Path(path).absolute()
    try:
        read_run_config(path)
    except MopbtError as error:
        return Verification(str(path), findings=[_finding("settings", error)])
    try:
        results = Results.open(path)
    except MopbtError as error:
        return Verification(str(path), findings=[_finding("journal", error)])
    required, optional = _required_models(results)
    findings = [
        *_check_end_of_journal(results, path / "journal.jsonl"),
        *_check_checkpoints(results, required, "error"),
        *_check_checkpoints(results, optional - required, "warning"),
        *_check_orphans(results, required | optional),
        *_check_evaluations(path),
        *_check_owner(results.checkpoints, results.settings),
        *_check_code(results.settings, task),
    ]
    return Verification(str(path), len(results), len(required | optional), findings)


def _finding(where: str, error: MopbtError) -> Finding:
    """Return an error as a finding; its message ends with the remedy."""
    what, _, remedy = shortened(str(error)).partition("; ")
    return Finding("error", where, what, remedy or "restore a copy of the run")


def _required_models(results: Results) -> tuple[frozenset[int], frozenset[int]]:
    """Return the checkpoints of the front and of unfinished work, and those for an extension."""
    front = results.models_with_weights()
    if not len(results.history.reports):
        return front, frozenset()
    settings = results.settings
    scheduler = algorithm_of(dict(settings.algorithm)).scheduler(settings.problem)
    scheduler = extend_scheduler(scheduler, results.history.extension)
    state = results.history.state(scheduler, settings.seed)
    last = {t.checkpoint for t in state.trials if t.checkpoint is not None}
    is_extendable = "steps" in extendable_by(scheduler)
    if scheduler.done(state):
        return front, frozenset(last) if is_extendable else frozenset()
    return front | required_checkpoints(state), frozenset(last) if is_extendable else frozenset()


def _check_end_of_journal(results: Results, journal: Path) -> Iterator[Finding]:
    rest = journal.stat().st_size - intact_length(journal) if journal.exists() else 0
    if rest and not results.running:
        yield Finding(
            "warning",
            "journal",
            f"its last line is incomplete ({rest} bytes)",
            "nothing: it is ignored, and resuming repeats its jobs",
        )


def _check_checkpoints(
    results: Results, models: frozenset[int], severity: Severity
) -> Iterator[Finding]:
    """Load every checkpoint and compare its checksum with the journal."""
    for model in sorted(models):
        checksum = _checksum(results.history, model)
        try:
            results.checkpoints.load(model, checksum)
        except CorruptCheckpoint as error:
            is_missing = "does not exist" in str(error)
            what = f"checkpoint {model} {'is missing' if is_missing else 'is damaged'}"
            remedy = f"restore {model}{SUFFIX}, or retrain it with `mopbt replay RUN {model}`"
            if severity == "warning":
                remedy += "; it is needed only to extend the run"
            yield Finding(severity, "checkpoints", what, remedy)
        except StoreError as error:
            yield _finding("storage", error)
            return


def _checksum(history: History, model: int) -> str:
    return history.report(model).checksum


def _check_orphans(results: Results, needed: frozenset[int]) -> Iterator[Finding]:
    if results.running:
        return
    orphans = sorted(results.checkpoints.kept() - needed - results.history.outstanding)
    if orphans and not results.done:
        remedy = "nothing: resuming removes them"
    else:
        remedy = "delete their files if you need the space"
    if orphans:
        names = ", ".join(map(str, orphans[:5])) + (", ..." if len(orphans) > 5 else "")
        what = f"{len(orphans)} checkpoints are not needed ({names})"
        yield Finding("warning", "checkpoints", what, remedy)
    assert results.path is not None
    leftovers = [file.name for file in results.path.rglob("*.tmp")]
    if leftovers:
        what = f"{len(leftovers)} temporary files of killed processes ({leftovers[0]})"
        yield Finding("warning", "checkpoints", what, "nothing: resuming removes them")


def _check_evaluations(path: Path) -> Iterator[Finding]:
    file = path / FILE
    if not file.exists():
        return
    try:
        intact = len(read_evaluations(path))
    except MopbtError as error:
        yield _finding("evaluations", error)
        return
    lines = file.read_bytes().count(b"\n")
    if intact < lines:
        what = f"{lines - intact} of {lines} lines of {FILE} are damaged or repeated"
        yield Finding(
            "warning", "evaluations", what, "`mopbt evaluate RUN` repeats what is missing"
        )


def _check_owner(checkpoints: Checkpoints, settings: RunConfig) -> Iterator[Finding]:
    place = settings.storage or "checkpoints"
    try:
        record = checkpoints.owner()
        owner = None if record is None else Owner.from_json(record, place)
    except MopbtError as error:
        yield _finding("storage", error)
        return
    if owner is None:
        what = f"{place} has no record of the run that it belongs to"
        yield Finding("warning", "storage", what, "nothing: resuming writes it")
    elif owner.run_id != settings.run_id:
        what = f"{place} belongs to another run, {owner.directory} on {owner.host}"
        yield Finding("error", "storage", what, "restore the storage of this run")


def _check_code(settings: RunConfig, task: Any) -> Iterator[Finding]:
    """Check that the file of a task exists and, given the task, that its code is the same."""
    file = settings.task_reference.rpartition(":")[0]
    if file.endswith(".py") and not Path(file).is_file():
        what = f"the file of the task, {file}, does not exist"
        yield Finding("warning", "code", what, "put it back before you resume")
    elif task is not None and is_changed(settings.task_fingerprint, code_of(task)):
        what = "the code of the task has changed since the run started"
        remedy = "restore it if a resumed run must equal an unbroken one"
        yield Finding("warning", "code", what, remedy)
