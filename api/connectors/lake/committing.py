"""Commits what a checkpoint holds into a table, once, however often and by whichever attempt it is tried.

The rules, for a committer and for those that go on from its checkpoints:

1. A commit adds its files and notes that it has done so (`headrace.connectors.lake.ledger`), in one atomic change.
2. Before each try, the table is looked at afresh: is the note there, nothing is left to be done. The try is made on top
   of exactly what was looked at. So if another committer of the sink has committed in between, the try fails and the
   next look finds its note. To look once and then try again and again is not enough: an answer that got lost, or a
   committer that was given up for dead and is not, would double a checkpoint's rows.
3. A sink that goes on from a checkpoint claims the table first, by a commit of its own. Who finds another claim commits
   no more. What is committed behind the checkpoint is noticed then, before anything is written twice.

Source: Flink's ``IcebergFilesCommitter`` and ``DeltaGlobalCommitter``; iceberg#10765, iceberg#14425, which the second
rule answers; ``docs/design/064-table-formats.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.engine.connectors.contract import CommitterContext
from headrace.engine.connectors.sink_protocols import GlobalCommittable, GlobalCommitter
from headrace.engine.errors import NewerOutputError, PossibleLossError, SinkError, SinkFencedError
from headrace.state.credentials import masked

from .contract import CommitConflictError, DataFile, Note, TableAccess, TableView
from .ledger import Ledger, number_of

__all__ = ["LakeCommitter"]

MAX_TRIES = 20
"""Of one commit, against others that commit at the same time; then the job's own retries begin."""


class LakeCommitter(GlobalCommitter):
    """Commits for all subtasks.

    Args:
        access: To the table.
        key: The columns of the table's key if changes are written; empty if rows are added.
    """

    def __init__(self, access: TableAccess, key: tuple[str, ...]) -> None:
        self._access = access
        self._key = key
        # The sink's notes as they are behind the last commit: nobody else changes them while the claim stands.
        self._ledger = Ledger()

    def open(self, context: CommitterContext) -> None:
        self._context = context
        if not context.history.is_restored:
            self._access.make()
        self._until_committed("take over the table", self._take_over)

    def commit(self, committable: GlobalCommittable) -> None:
        files = [DataFile.of_state(one) for one in committable.committables]
        self._until_committed("commit", lambda view: self._commit(view, committable, files))

    def _until_committed(self, what: str, attempt: Callable[[TableView], Ledger]) -> None:
        """Try on top of what the table is, looked at anew for every try; keep the notes as they are behind it."""
        last = ""
        for _ in range(MAX_TRIES):
            try:
                self._ledger = attempt(self._access.look())
                return
            except CommitConflictError as error:
                last = masked(str(error.__cause__ or error))
        message = f"others have committed to the table each time when the sink tried to {what}"
        raise SinkError(message, tries=MAX_TRIES, last=last, **self._place)

    def _commit(self, view: TableView, whole: GlobalCommittable, files: list[DataFile]) -> Ledger:
        origin = self._context.history.origin
        self._require_table(view, files)
        ledger = self._ledger.with_commit(whole)
        if view.has(origin, whole):
            return ledger
        if view.claim_of(origin) != ledger.claim:
            message = "another run of the job, or another job, has taken the table over"
            raise SinkFencedError(message, **self._place)
        note = self._note(ledger, whole)
        if self._key:
            view.change(files, self._key, note)
        else:
            view.append(files, note)
        return ledger

    def _require_table(self, view: TableView, files: list[DataFile]) -> None:
        """Files that were written for a table of the same name that is gone are never part of this one."""
        strange = [one for one in files if one.table != view.table_id]
        if strange:
            message = "output was prepared for a table that has been dropped or replaced: possible loss"
            hint = "the rows are in files that the table never had"
            raise PossibleLossError(message, hint=hint, rows=sum(one.rows for one in strange), **self._place)

    def _take_over(self, view: TableView) -> Ledger:
        context, history = self._context, self._context.history
        ledger = view.ledger(history.origin)
        self._require_nothing_newer(ledger)
        owner, attempt = ledger.holder
        if owner == history.owner and number_of(attempt) > number_of(context.attempt):
            message = "a newer attempt of the job has taken the table over"
            raise SinkFencedError(message, attempt=attempt, **self._place)
        if not history.is_restored and not ledger.claim and not ledger.committed:
            return ledger  # a beginning: there is nobody to be shut out
        ledger = ledger.with_claim(history.owner, context.attempt)
        view.claim(self._note(ledger, None))
        return ledger

    def _require_nothing_newer(self, ledger: Ledger) -> None:
        """What is committed behind the restored checkpoint would be written again."""
        history = self._context.history
        newer = {
            owner: checkpoint_id
            for owner, checkpoint_id in ledger.last_checkpoints().items()
            if not history.accounts_for(owner, checkpoint_id)
        }
        if not newer:
            return
        if self._context.newer_output == "repeat":
            for owner, checkpoint_id in newer.items():
                history.accept(owner, checkpoint_id)
            return
        known = max(history.prepared.values(), default=None)
        point = "nothing" if known is None else f"checkpoint {known}"
        last = max(newer.values())
        what = "the end of a run without checkpoints" if last == 0 else f"checkpoint {last}"
        message = (
            f"the job goes on from {point}, and the table has output up to {what};"
            " going on would write the records of those again"
        )
        hint = "restore the newest checkpoint, or roll the table back and write with another sink"
        raise NewerOutputError(message, hint=hint, **self._place)

    def _note(self, ledger: Ledger, whole: GlobalCommittable | None) -> Note:
        context = self._context
        return Note(context.history.origin, ledger, whole, context.job, context.operator)

    @property
    def _place(self) -> dict[str, Any]:
        return {"operator": self._context.operator_name, **self._access.place}
