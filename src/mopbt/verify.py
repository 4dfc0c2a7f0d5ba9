"""Verify a run end to end: its settings, journal, checkpoints, storage and code.

Nothing is changed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from mopbt.algorithms import algorithm_of
from mopbt.errors import CorruptCheckpoint, MopbtError, StoreError
from mopbt.evaluations import FILE, read_evaluations
from mopbt.filesystem import list_names, size_of
from mopbt.fingerprint import code_of, is_changed
from mopbt.messages import counted, shortened
from mopbt.ownership import Owner
from mopbt.results import Results
from mopbt.run_config import RunConfig
from mopbt.run_directory import initial_checkpoints, read_run_config
from mopbt.schedulers.base import extend_scheduler, extendable_by
from mopbt.state import required_checkpoints
from mopbt.stores.base import Checkpoints, check_model
from mopbt.stores.directory import SUFFIX, DirectoryCheckpoints
from mopbt.stores.journal import check_lines, intact_length

Severity = Literal["error", "warning"]
Code = Literal["same", "changed", "not compared"]
# How many numbers a finding lists.
SHOWN = 5


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
    """The outcome of verifying a run: how much was checked, and what was found.

    Attributes:
        run: The directory of the run.
        reports: How many reports its journal has.
        checkpoints: How many checkpoints were loaded and compared with their checksums.
        code: Whether the code of the task is that of the start of the run: "same", "changed", or
            "not compared" if the task was not given.
        findings: What is wrong.
    """

    run: str
    reports: int = 0
    checkpoints: int = 0
    code: Code = "not compared"
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
        settings = read_run_config(path)
    except MopbtError as error:
        return Verification(str(path), findings=[_finding("settings", error)])
    code = _compare_code(settings, task)
    others = [*_check_evaluations(path), *_check_code(settings, code)]
    try:
        damaged = list(_check_lines(path / "journal.jsonl"))
        if damaged:
            return Verification(str(path), code=code, findings=[*damaged, *others])
        results = Results.open(path)
    except MopbtError as error:
        journal = [_finding("journal", error), *others]
        return Verification(str(path), code=code, findings=journal)
    try:
        return _verify_models(results, path, code, others)
    except StoreError as error:
        # The storage cannot be reached, or a directory cannot be listed.
        unread = [_finding("storage", error), *others]
        return Verification(str(path), len(results), code=code, findings=unread)


def _verify_models(results: Results, path: Path, code: Code, others: list[Finding]) -> Verification:
    """Verify what a readable journal requires."""
    required, optional = _required_models(results)
    initial = results.settings.warm_start.get("checksums", ())
    findings = [
        *_check_end_of_journal(results, path / "journal.jsonl"),
        *_check_checkpoints(results, required, "error"),
        *_check_checkpoints(results, optional - required, "warning"),
        *_check_lost_models(results),
        *_check_initial_models(path, initial),
        *_check_orphans(results, required | optional),
        *_check_leftovers(results, path),
        *_check_owner(results.checkpoints, results.settings),
        *others,
    ]
    loaded = len(required | optional) + len(initial)
    return Verification(str(path), len(results), loaded, code, findings)


def _finding(where: str, error: MopbtError) -> Finding:
    """Return an error as a finding; its message ends with the remedy."""
    what, _, remedy = shortened(str(error)).partition("; ")
    return Finding("error", where, what, remedy or "restore a copy of the run")


def _check_lines(journal: Path) -> Iterator[Finding]:
    """Name all damaged lines of a journal."""
    intact, damaged = check_lines(journal)
    if damaged and intact:
        names = ", ".join(map(str, damaged[:SHOWN])) + (", ..." if len(damaged) > SHOWN else "")
        number = f"line {names} of" if len(damaged) == 1 else f"{len(damaged)} lines ({names}) of"
        what = f"{number} {journal} cannot be read: wrong checksum"
        remedy = f"`mopbt resume {journal.parent} --repair` rebuilds the journal from the others"
        yield Finding("error", "journal", what, remedy)


def _required_models(results: Results) -> tuple[frozenset[int], frozenset[int]]:
    """Return the checkpoints of the front, of unfinished work and for an extension."""
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
    rest = size_of(journal) - intact_length(journal)
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
        try:
            checksum = results.history.report(model).checksum
            check_model(results.checkpoints, model, checksum)
        except CorruptCheckpoint as error:
            if _is_dropped(results, model):
                continue
            is_missing = "does not exist" in str(error)
            what = f"checkpoint {model} {'is missing' if is_missing else 'is damaged'}"
            remedy = f"restore {model}{SUFFIX}, or retrain it with `mopbt replay RUN {model}`"
            if severity == "warning":
                remedy += "; it is needed only to extend the run"
            yield Finding(severity, "checkpoints", what, remedy)


def _is_dropped(results: Results, model: int) -> bool:
    """Return whether the process that executes the run does not need a model any more."""
    if not results.running:
        return False
    assert results.path is not None
    required, optional = _required_models(Results.open(results.path))
    return model not in required | optional


def _check_lost_models(results: Results) -> Iterator[Finding]:
    """Name the models that a repair brought back to the front without weights."""
    for model in sorted(results.lost_models()):
        what = f"model {model} is on the front again without weights, because a report was lost"
        remedy = f"train it again with `mopbt replay {results.path} {model} --export FILE`"
        yield Finding("warning", "checkpoints", what, remedy)


def _check_initial_models(path: Path, checksums: Sequence[str]) -> Iterator[Finding]:
    """Check the models that the first members of a run with a warm start started from."""
    initial = initial_checkpoints(path)
    for place, checksum in enumerate(checksums):
        try:
            initial.load(place, checksum)
        except CorruptCheckpoint:
            what = f"initial/{place}{SUFFIX}, which a member started from, is missing or damaged"
            remedy = "delete it if it is damaged; resuming copies it again from the other run"
            yield Finding("error", "checkpoints", what, remedy)


def _check_orphans(results: Results, needed: frozenset[int]) -> Iterator[Finding]:
    if results.running:
        return
    orphans = sorted(results.checkpoints.kept() - needed - results.history.outstanding)
    if orphans and not results.done:
        remedy = "nothing: resuming removes them"
    else:
        remedy = "delete their files if you need the space"
    if orphans:
        names = ", ".join(map(str, orphans[:SHOWN])) + (", ..." if len(orphans) > SHOWN else "")
        verb = "is" if len(orphans) == 1 else "are"
        what = f"{counted(len(orphans), 'checkpoint')} {verb} not needed ({names})"
        yield Finding("warning", "checkpoints", what, remedy)


def _check_leftovers(results: Results, path: Path) -> Iterator[Finding]:
    folders = [path, path / "checkpoints", path / "initial"]
    if isinstance(results.checkpoints, DirectoryCheckpoints):
        folders.append(results.checkpoints.path)
    names = {folder: list_names(folder) for folder in folders}
    leftovers = [n for found in names.values() for n in found if n.endswith(".tmp")]
    if leftovers and not results.running:
        what = f"{len(leftovers)} temporary files of killed processes ({leftovers[0]})"
        yield Finding("warning", "checkpoints", what, "nothing: resuming removes them")


def _check_evaluations(path: Path) -> Iterator[Finding]:
    try:
        known = len(read_evaluations(path))
        intact, damaged = check_lines(path / FILE)
    except MopbtError as error:
        yield _finding("evaluations", error)
        return
    if known < intact + len(damaged):
        what = f"{intact + len(damaged) - known} lines of {FILE} are damaged or repeated"
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


def _compare_code(settings: RunConfig, task: Any) -> Code:
    if task is None:
        return "not compared"
    return "changed" if is_changed(settings.task_fingerprint, code_of(task)) else "same"


def _check_code(settings: RunConfig, code: Code) -> Iterator[Finding]:
    """Check that the file of a task exists, and that its code is the same."""
    file = settings.task_reference.rpartition(":")[0]
    if file.endswith(".py") and not Path(file).is_file():
        what = f"the file of the task, {file}, does not exist"
        yield Finding("warning", "code", what, "put it back before you resume")
    elif code == "changed":
        what = "the code of the task has changed since the run started"
        remedy = "restore it if a resumed run must equal an unbroken one"
        yield Finding("warning", "code", what, remedy)
