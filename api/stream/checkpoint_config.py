"""How a program wants its checkpoints taken and kept.

Source: PyFlink's ``CheckpointConfig``.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from enum import Enum
from typing import Any

from headrace.engine.errors import NoResourceAvailableError, UserError
from headrace.engine.kernel.config import CheckpointingMode, CheckpointSettings, DamagedCheckpointPolicy
from headrace.state.reading.signing import SigningKeys, key_file_of

from ..arguments.checks import duration_ms
from ..arguments.places import lasting_place

__all__ = ["CheckpointConfig", "ExternalizedCheckpointRetention"]


_NO_INTERVAL_MS = 2**62

_OF_BATCH = frozenset(("timeout_ms", "num_retained", "retain_on_cancellation", "damaged_checkpoints"))
"""What counts for the one checkpoint of a batch."""


class ExternalizedCheckpointRetention(Enum):
    """What happens to a job's checkpoints when it is canceled."""

    RETAIN_ON_CANCELLATION = "retain"
    DELETE_ON_CANCELLATION = "delete"


class CheckpointConfig:
    """The settings of an environment's checkpoints beyond their interval; got from ``get_checkpoint_config``."""

    def __init__(self) -> None:
        # None until checkpoints are enabled: there is no default for how often.
        self._interval_ms: int | None = None
        # None until said.
        self._directory: str | None = None
        # What is used meanwhile; made for the first job that needs it. It is on this machine only.
        self._temporary: str | None = None
        self._key_file: str | None = None
        # Everything else, by the names of `CheckpointSettings`; checked when it is set.
        self._others: dict[str, Any] = {}

    def copy(self) -> CheckpointConfig:
        """Return the same settings, to be changed apart."""
        made = CheckpointConfig()
        made._interval_ms, made._directory, made._temporary = self._interval_ms, self._directory, self._temporary
        made._key_file, made._others = self._key_file, dict(self._others)
        return made

    def adopt_temporary(self, other: CheckpointConfig) -> None:
        """Go on with the temporary directory that a copy has made."""
        self._temporary = self._temporary or other._temporary

    def enable(self, interval_ms: int, mode: CheckpointingMode, directory: str | None) -> None:
        """Switch checkpoints on; called by ``enable_checkpointing``."""
        self._interval_ms = interval_ms
        if directory is not None:
            self.set_checkpoint_storage_dir(directory)
        self._set("mode", mode)

    def is_checkpointing_enabled(self) -> bool:
        """Return whether checkpoints are taken."""
        return self._interval_ms is not None

    def is_storage_dir_named(self) -> bool:
        """Return whether the program has said where they go; a temporary directory of a job is not that."""
        return self._directory is not None

    def get_checkpoint_interval(self) -> int | None:
        """Time from one trigger to the next, milliseconds; None while checkpoints are off."""
        return self._interval_ms

    def set_checkpointing_mode(self, mode: CheckpointingMode) -> CheckpointConfig:
        """Exactly-once (aligned barriers) or at-least-once."""
        return self._set("mode", mode)

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """Exactly-once or at-least-once."""
        mode: CheckpointingMode = self._others.get("mode", CheckpointingMode.EXACTLY_ONCE)
        return mode

    def set_checkpoint_timeout(self, timeout: Any) -> CheckpointConfig:
        """Set after how long a checkpoint is aborted; milliseconds or a text such as "1 min"."""
        return self._set("timeout_ms", duration_ms("checkpoint timeout", timeout, 1))

    def set_min_pause_between_checkpoints(self, pause: Any) -> CheckpointConfig:
        """Time between the end of one checkpoint and the trigger of the next, at least; milliseconds or a text."""
        return self._set("min_pause_ms", duration_ms("minimum pause", pause, 0))

    def set_max_concurrent_checkpoints(self, number: int) -> CheckpointConfig:
        """Set how many checkpoints may be in flight at once."""
        return self._set("max_concurrent", number)

    def set_tolerable_checkpoint_failure_number(self, number: int) -> CheckpointConfig:
        """Set how many in a row may fail before the job does; -1 for any number."""
        return self._set("tolerable_failures", number)

    def set_max_retained_checkpoints(self, number: int) -> CheckpointConfig:
        """Set how many complete checkpoints are kept."""
        return self._set("num_retained", number)

    def set_externalized_checkpoint_retention(self, retention: ExternalizedCheckpointRetention) -> CheckpointConfig:
        """Set what happens to checkpoints when the job is canceled."""
        return self._set("retain_on_cancellation", retention is ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)

    def set_damaged_checkpoint_policy(self, policy: DamagedCheckpointPolicy) -> CheckpointConfig:
        """Set what happens to the job if it restarts and its newest checkpoint is damaged or gone.

        Args:
            policy: By default, ``FAIL``. ``FALL_BACK_AT_LEAST_ONCE`` goes on from an older retained checkpoint: nothing
                is lost, and output that was public comes twice. Keep more than one
                (``set_max_retained_checkpoints``), or there is nothing to fall back to. A job that has no sound
                checkpoint left fails in any case.
        """
        return self._set("damaged_checkpoints", DamagedCheckpointPolicy(policy))

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> CheckpointConfig:
        """Let barriers overtake records in flight, which become part of the checkpoint: it is quick under backpressure.

        Exactly-once only. At most one checkpoint is in flight at a time then, whatever
        ``set_max_concurrent_checkpoints`` says. Jobs with loops are aligned all the same, and so is the last checkpoint
        of a job that is stopped. Broadcast, forward, rescale and custom exchanges keep their order.

        Args:
            enabled: False for aligned barriers, the default of a job.
        """
        return self._set("unaligned", bool(enabled))

    def is_unaligned_checkpoints_enabled(self) -> bool:
        """Return whether barriers may overtake records."""
        return bool(self._others.get("unaligned", False))

    def set_aligned_checkpoint_timeout(self, timeout: Any) -> CheckpointConfig:
        """With unaligned checkpoints: barriers keep their place until a checkpoint is this old, and then overtake.

        Args:
            timeout: Milliseconds since its trigger, or a text such as "10 s"; 0, the default, overtakes at once.
        """
        return self._set("aligned_timeout_ms", duration_ms("aligned checkpoint timeout", timeout, 0))

    def get_checkpoint_storage_dir(self) -> str | None:
        """Give where checkpoints go: where the program says, else the temporary directory of the jobs submitted so far.

        Returns:
            A path or URI; None if the program has not said so and no job has been submitted.
        """
        return self._directory or self._temporary

    def set_checkpoint_storage_dir(self, directory: str | os.PathLike[str]) -> CheckpointConfig:
        """Set where checkpoints go: a path or a URI; a relative path is one of the client's."""
        self._directory = lasting_place(directory, "the directory of checkpoints")
        return self

    def set_key_file(self, path: str | os.PathLike[str] | None) -> CheckpointConfig:
        """Have manifests signed, and take no others when the job restores; None for ``HEADRACE_CHECKPOINT_KEY_FILE``.

        Args:
            path: Where every machine of the cluster has the key file. A line for each key, an id and 32 bytes in hex;
                the first one signs, all are taken. It may be readable for its owner alone.

        Raises:
            ConfigurationError: If it is no such file on this machine.
        """
        self._key_file = None if path is None else lasting_place(path, "the key file of checkpoints")
        if self._key_file is not None:
            SigningKeys.read(self._key_file)
        return self

    def get_key_file(self) -> str | None:
        """Return where the keys are that manifests are signed with; None if they are not signed."""
        return key_file_of(self._key_file)

    def _set(self, name: str, value: Any) -> CheckpointConfig:
        CheckpointSettings(interval_ms=1, directory="", **{**self._others, name: value})  # checks it
        self._others[name] = value
        return self

    def to_settings(self, *, make_directory: bool) -> CheckpointSettings | None:
        """Return the settings for a job; None while checkpoints are off.

        Args:
            make_directory: Whether to make the temporary directory, if no other was named; else its place is only
                described.
        """
        if self._interval_ms is None:
            return None
        return CheckpointSettings(self._interval_ms, self._place(make_directory), **self._others)

    def to_batch_settings(self, *, make_directory: bool) -> CheckpointSettings:
        """Return the settings for a batch job, which takes one checkpoint, at its end; whether checkpoints are on or
        off.
        """
        kept = {name: value for name, value in self._others.items() if name in _OF_BATCH}
        return CheckpointSettings(_NO_INTERVAL_MS, self._place(make_directory), only_last=True, **kept)

    @contextlib.contextmanager
    def submitting(self) -> Iterator[None]:
        """While a job is submitted: if it is refused, the temporary directory that was made for it goes again.

        One that has something in it stays: a job may have begun.
        """
        before = self._temporary
        try:
            yield
        except (UserError, NoResourceAvailableError):  # anything else may have come after the job was taken
            if before is None and self._temporary is not None:
                with contextlib.suppress(OSError):
                    os.rmdir(self._temporary)
                    self._temporary = None
            raise

    def _place(self, make_directory: bool) -> str:
        if self._directory is None and self._temporary is None and make_directory:
            self._temporary = tempfile.mkdtemp(prefix="headrace-checkpoints-")
        return self.get_checkpoint_storage_dir() or os.path.join(tempfile.gettempdir(), "headrace-checkpoints-*")
