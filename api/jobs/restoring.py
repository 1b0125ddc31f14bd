"""How a program says what it goes on from: a snapshot, who owns it, and what may be left behind.

Source: Flink's ``SavepointRestoreSettings`` and ``RestoreMode`` (FLIP-193).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from headrace.engine.checkpoint.io import RestorePoint
from headrace.engine.checkpoint.restore_check import RestoreReport, check_restore
from headrace.engine.errors import ConfigurationError, HeadraceError
from headrace.engine.graph.job_graph import JobGraph
from headrace.engine.graph.stream_graph import AdoptedMaxParallelism
from headrace.engine.kernel.config import JobSettings, RestoreMode
from headrace.state.checkpoints.storage import CheckpointStorage

from ..arguments.places import absolute_place, lasting_place

__all__ = ["DryRunOver", "Restore", "adopted_from", "restore_mode_of", "restore_report"]


class DryRunOver(SystemExit):
    """Ends a program that is only to be compared with a snapshot, where it would have been submitted.

    Args:
        report: What was found; decides the exit status.
    """

    def __init__(self, report: RestoreReport) -> None:
        super().__init__(0 if report.is_restorable else 1)
        self.report = report


@dataclass(frozen=True, slots=True)
class Restore:
    """What one submission says about it; None leaves it to the environment."""

    path: str | None = None
    allow_non_restored_state: bool | None = None
    mode: RestoreMode | None = None

    @classmethod
    def of(
        cls,
        from_checkpoint: str | os.PathLike[str] | None,
        from_savepoint: str | os.PathLike[str] | None,
        allow_non_restored_state: bool | None,
        restore_mode: RestoreMode | str | None,
    ) -> Restore:
        """From the arguments of ``execute``.

        Raises:
            ConfigurationError: If they contradict each other or mean nothing.
        """
        if from_checkpoint is not None and from_savepoint is not None:
            message = "a job starts from one snapshot; got from_checkpoint and from_savepoint"
            raise ConfigurationError(message)
        path = from_checkpoint if from_savepoint is None else from_savepoint
        return cls(
            None if path is None else lasting_place(path, "the snapshot to start from"),
            allow_non_restored_state,
            None if restore_mode is None else restore_mode_of(restore_mode),
        )

    def applied_to(self, settings: JobSettings) -> JobSettings:
        """Return the settings of the job."""
        changes: dict[str, Any] = {
            "restore_from": self.path,
            "allow_non_restored_state": self.allow_non_restored_state,
            "restore_mode": self.mode,
        }
        return replace(settings, **{name: value for name, value in changes.items() if value is not None})


def restore_mode_of(value: RestoreMode | str) -> RestoreMode:
    """Return a restore mode by its value or name.

    Raises:
        ConfigurationError: If there is none of that name.
    """
    if isinstance(value, RestoreMode):
        return value
    for mode in RestoreMode:
        if value.lower().replace("-", "_") == mode.value:
            return mode
    message = f"the restore mode must be one of {', '.join(mode.value for mode in RestoreMode)}; got {value!r}"
    raise ConfigurationError(message)


def restore_report(
    job_graph: JobGraph, path: str | os.PathLike[str], allow_non_restored_state: bool, *, open_functions: bool
) -> RestoreReport:
    """Say what would come of starting a job from a snapshot.

    Raises:
        CheckpointNotFoundError, CheckpointCorruptError, CheckpointMismatchError: If there is no sound snapshot.
    """
    key_file = job_graph.settings.checkpoint_key_file
    storage, manifest = CheckpointStorage.from_manifest(absolute_place(path), key_file)
    return check_restore(
        RestorePoint(manifest, storage.uri, is_requested=True),
        job_graph,
        backend=job_graph.settings.state.backend,
        allow_non_restored_state=allow_non_restored_state,
        open_functions=open_functions,
    )


def adopted_from(place: str) -> AdoptedMaxParallelism | None:
    """Return the numbers of key groups of a snapshot; None if it cannot be read from here, as a restore will tell."""
    try:
        _, manifest = CheckpointStorage.locate(place)
    except HeadraceError:
        return None
    return AdoptedMaxParallelism.of(manifest, place)
