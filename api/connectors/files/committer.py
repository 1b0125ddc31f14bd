"""The committer of a file sink: takes the directory over, and renames staged parts to their public names.

The same commit done twice changes nothing: a part is either still staged or already there. What earlier attempts
staged and no checkpoint holds is deleted once this attempt's own first checkpoint is complete.

Source: Flink's ``FileCommitter``.
"""

from __future__ import annotations

import contextlib
from typing import Any

from headrace.engine.connectors.contract import Committer, CommitterContext
from headrace.engine.errors import CheckpointMismatchError, NotFoundError, PossibleLossError, SinkFencedError
from headrace.state.reading.read_limits import number_in

from .committables import Committable, PublicFile
from .output import NOTE, OutputDirectory
from .parts import FileSinkSettings, NewerOutput, failing

__all__ = ["FileCommitter"]


class FileCommitter(Committer):
    """Takes the directory over, and renames staged parts to their public names."""

    def __init__(self, settings: FileSinkSettings) -> None:
        self._settings = settings
        # What earlier attempts of this job staged and left, as found at the start.
        self._leftovers: list[str] = []
        # None until opened, so that `close` after a failed start has nothing to do.
        self._output: OutputDirectory | None = None

    def open(self, context: CommitterContext) -> None:
        self._context = context
        output = OutputDirectory.of(self._settings, context.history)
        with self._failing("cannot use the output directory", output.root):
            output.require_room(self._settings.max_part_bytes)
            output.make()
            output.require_fresh(self._settings.mode)
            self._newer(output)  # before the owner is shut out for nothing
            output.claim(context.job, is_alone=self._settings.mode != "append")
            output.forget_done(context.subtask)
            output.adopt()
            newer = self._newer(output)
            if self._choice == "delete":
                for file in newer:
                    output.fs.delete(output.public_path(file.name))
            elif self._choice == "keep":
                for file in output.newer_than_restored():
                    context.history.accept(file.owner, file.checkpoint_id)
            self._leftovers = self._find_leftovers(output)
        self._output = output

    def _newer(self, output: OutputDirectory) -> list[PublicFile]:
        """This subtask's share of the public files that the restored checkpoint does not account for.

        What other subtasks have published since, if only this one was restarted, is none of its business.
        """
        newer = [file for file in output.newer_than_restored() if self._is_mine(file.subtask)]
        if newer and self._choice == "error":
            raise output.newer_output(newer)
        return newer

    @property
    def _choice(self) -> NewerOutput:
        """What happens to output behind the restored checkpoint: the user may also have chosen for the whole job."""
        choice = self._settings.on_newer_output
        return "keep" if choice == "error" and self._context.newer_output == "repeat" else choice

    def _is_mine(self, subtask: int) -> bool:
        """Parallelism may have changed: the subtask with the old one's number, modulo, sees to what belonged to it."""
        return subtask % self._context.parallelism == self._context.subtask

    def _find_leftovers(self, output: OutputDirectory) -> list[str]:
        staged = output.staged_files()
        notes = {note: output.noted(note) for note in output.notes()}
        spared = {name for name, _ in staged}.intersection(*[set().union(*notes.values())])
        found = [
            name
            for name, says in staged
            if name not in spared and says.owner == self._context.history.owner and self._is_mine(says.subtask)
        ]
        for note, names in notes.items():
            number = number_in(note.removeprefix(NOTE).split("-", 1)[0])
            if number is not None and self._is_mine(number) and spared.isdisjoint(names):
                found.append(note)
        return [f"{output.own_staging}/{name}" for name in found]

    def commit(self, committable: Any) -> None:
        output = self._output
        assert output is not None
        part = Committable.of(committable)
        final = output.public_path(part.final)
        with self._failing("could not commit", final):
            if not output.is_place_of(part.location):
                if output.is_public_elsewhere(part):
                    return
                message = "the checkpoint holds output that was prepared for another directory and is not public there"
                hint = "restore once with a sink that writes to that directory"
                raise CheckpointMismatchError(message, hint=hint, path=part.location, rows=part.rows)
            output.require_own(part)
            output.require_folder(part.final)
            is_public = output.is_public(part)  # asked first: nothing comes between the looks below and the rename
            output.require_owner()
            output.require_alone()
            try:
                if is_public:  # by an attempt that failed afterwards; where a rename is a copy, both names may be there
                    output.fs.delete(output.staged_path(part.staged))
                    return
                output.fs.rename(output.staged_path(part.staged), final)
            except NotFoundError:
                if output.fs.exists(final) and output.fs.size(final) == part.size:
                    return  # an old attempt that still runs has just committed it
                output.require_owner()  # it may have been taken away just now
                output.require_alone()
                message = "prepared output is gone and was never committed: possible loss"
                raise PossibleLossError(message, path=part.staged, final=final, rows=part.rows) from None

    def _failing(self, what: str, path: str) -> contextlib.AbstractContextManager[None]:
        return failing(what, path=path, **self._context.place)

    def abort_leftovers(self) -> None:
        assert self._output is not None
        self._output.delete(self._leftovers, self._context)
        self._leftovers = []

    def finish(self) -> None:
        output = self._output
        assert output is not None
        with self._failing("cannot clean up", output.staging), contextlib.suppress(SinkFencedError):
            output.require_owner()  # all is committed: the new owner cleans up
            output.mark_done(self._context.subtask, self._context.parallelism)

    def close(self) -> None:
        if self._output is not None:
            self._output.remove_if_empty()
