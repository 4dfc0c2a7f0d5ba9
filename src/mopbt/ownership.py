"""Record which run a storage belongs to.

Two runs in one storage would destroy each other's models.
"""

import json
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from mopbt.errors import RunMismatch, StoreError
from mopbt.filesystem import exists, read_settings
from mopbt.run_config import RunConfig
from mopbt.stores.base import OWNER, Checkpoints


@dataclass(frozen=True)
class Owner:
    """The run that a storage belongs to: its id, and its last known directory."""

    run_id: str
    directory: str
    host: str

    @staticmethod
    def of(run_id: str, directory: Path) -> "Owner":
        """Return the owner's record of a run on this machine."""
        return Owner(run_id, str(directory.resolve()), socket.gethostname())

    def to_json(self) -> bytes:
        """Return the record as it is stored."""
        return (json.dumps(asdict(self)) + "\n").encode()

    @staticmethod
    def from_json(data: bytes, place: str) -> "Owner":
        """Read a record; StoreError if it is damaged."""
        try:
            return Owner(**json.loads(data))
        except (TypeError, ValueError) as error:
            raise StoreError(
                f"{place}/{OWNER} is damaged ({error}): it says which run the storage belongs to; "
                "if no other run uses the storage, delete it, then rerun"
            ) from None


def claim_storage(
    checkpoints: Checkpoints, place: str, owner: Owner, *, is_new: bool, is_shared: bool
) -> None:
    """Make sure that a storage belongs to a run, or raise RunMismatch.

    Args:
        checkpoints: The storage.
        place: Its folder or URL, for messages.
        owner: The run.
        is_new: Whether the run has just been created, so that it cannot have checkpoints.
        is_shared: Whether the storage is outside of the run's directory. A copy of a directory
            then shares it with the original, which is refused; a moved directory keeps it.
    """
    record = checkpoints.owner()
    if record is None:
        if is_new and is_shared and checkpoints.kept():
            raise RunMismatch(
                f"{place} holds checkpoints, but no {OWNER} that says of which run; give each run "
                "its own storage"
            )
        checkpoints.record_owner(owner.to_json())
        # Another run may have been faster.
        record = checkpoints.owner() or owner.to_json()
    elif _is_incomplete(record, owner, checkpoints):
        checkpoints.record_owner(owner.to_json(), replace=True)
        record = checkpoints.owner() or owner.to_json()
    recorded = Owner.from_json(record, place)
    if recorded.run_id != owner.run_id:
        raise RunMismatch(
            f"the storage {place} belongs to another run, {recorded.directory} on {recorded.host} "
            f"(run_id {recorded.run_id}); give each run its own storage (if that run is deleted, "
            f"empty the storage, including {OWNER})"
        )
    if is_shared and recorded.directory != owner.directory:
        _check_moved(recorded, owner, place)
        checkpoints.record_owner(owner.to_json(), replace=True)


def _is_incomplete(record: bytes, owner: Owner, checkpoints: Checkpoints) -> bool:
    """Return whether a crash left only the beginning of this run's own record.

    If that does not tell whose record it is, the storage must be empty.
    """
    own = owner.to_json()
    if record == own or not own.startswith(record):
        return False
    return owner.run_id.encode() in record or not checkpoints.kept()


def _check_moved(recorded: Owner, owner: Owner, place: str) -> None:
    """Raise RunMismatch unless a run was moved: its former directory must be gone."""
    if _holds_run(Path(recorded.directory), owner.run_id):
        raise RunMismatch(
            f"{owner.directory} is a copy of the run {recorded.directory}, and both would write to "
            f"the storage {place}; resume the original, or delete it if the copy replaces it"
        )
    if recorded.host != owner.host:
        raise RunMismatch(
            f"the storage {place} belongs to {recorded.directory} on {recorded.host}, got "
            f"{owner.directory} on {owner.host}, which may be a copy; if you moved the run, delete "
            f"{place}/{OWNER}, then rerun to resume"
        )


def _holds_run(directory: Path, run_id: str) -> bool:
    file = directory / "run.toml"
    if not exists(file):
        return False
    # A file that cannot be read stops the run: it may be the original.
    text = read_settings(file)
    try:
        return RunConfig.from_toml(text, file).run_id == run_id
    except StoreError:
        return False
