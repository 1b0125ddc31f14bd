"""What operators over changes share that keep rows by key: a batch is taken part by part, each as large as fits.

`ByKey` is the operator, with any number of inputs; `OneInput` one that has a single one. `ReplayingInput` can give all
its rows once more: for a query that goes on from what it has kept and shows it to somebody who has not seen it. That is
done once, before anything else goes out: with the first batch, when time passes, ahead of a barrier, or at the end.
What has been done is known by a token, which is kept: a job that fails before its first checkpoint starts from the
savepoint again, and all behind the operator with it; one that goes on from its own checkpoint does not repeat it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from ..columns.records import Batch, RowKinds
from ..functions.operator import TABLE_LOOPS, Operator, OperatorContext
from ..operators.column_operators import naming_operator
from .changes import columns_of, parts_of, plain_schema, signs_of

if TYPE_CHECKING:
    from ..tables.columns import Integers
    from ..tables.resident_keys import ResidentKeys

__all__ = ["ByKey", "OneInput", "ReplayingInput"]


class Kept(Protocol):
    """What such an operator keeps."""

    @property
    def residents(self) -> ResidentKeys:
        """Which keys are in memory."""

    def persist_all(self) -> None:
        """Write what has changed of all that is kept."""


class KeptOfOneInput(Kept, Protocol):
    """What is kept of one input."""

    def key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the columns of records' keys."""

    def process(self, batch: pa.RecordBatch, signs: Integers | None) -> tuple[list[pa.Array], RowKinds]:
        """Take records; returns the changes of the result: its columns, and kinds."""


class KeptForGood(KeptOfOneInput, Protocol):
    """What can give all that there is."""

    def all_rows(self) -> Iterator[list[pa.Array]]:
        """Yield the rows that there are, some at a time."""


class ByKey(Operator):
    """Takes batches of changes of keyed inputs.

    Subclasses open what they keep as ``_state``.

    Args:
        schemas: Types of the records, by input.
        takes_back: Whether changes may take records back.
    """

    may_change_records = False
    face = "columns"
    keyed = True
    keeps_columns = True
    takes_changes = True
    compiled_loops = TABLE_LOOPS

    _state: Kept

    def __init__(self, schemas: Sequence[pa.Schema], *, takes_back: bool = True) -> None:
        self.schemas = tuple(schemas)
        self.takes_back = takes_back
        self._plain = tuple(map(plain_schema, schemas))

    @abstractmethod
    def _keys_of(self, columns: pa.RecordBatch, input_index: int) -> list[pa.Array]:
        """The columns of records' keys."""

    @abstractmethod
    def _process(
        self, part: pa.RecordBatch, signs: Integers | None, kinds: RowKinds | None, input_index: int
    ) -> Iterable[Batch]:
        """Take records, with their signs and kinds; gives the changes that they come to."""

    def _columns_of(self, batch: Batch, input_index: int) -> pa.RecordBatch:
        return columns_of(batch, self.schemas[input_index], self._plain[input_index])

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        with naming_operator(self.context):
            signs = signs_of(batch, takes_back=self.takes_back)
            columns = self._columns_of(batch, input_index)
            parts = self._state.residents.parts(self._keys_of(columns, input_index), columns.num_rows)
            for part, part_signs, kinds in parts_of(parts, columns, signs, batch.row_kinds):
                for changes in self._process(part, part_signs, kinds, input_index):
                    self.context.output.emit(changes)

    def snapshot_state(self, checkpoint_id: int) -> None:
        with naming_operator(self.context):
            self._state.persist_all()


class OneInput(ByKey):
    """Takes batches of changes of one keyed input.

    Args:
        input_schema: Type of the records.
        takes_back: Whether changes may take records back.
    """

    _state: KeptOfOneInput

    def __init__(self, input_schema: pa.Schema, *, takes_back: bool = True) -> None:
        super().__init__((input_schema,), takes_back=takes_back)

    @property
    def input_schema(self) -> pa.Schema:
        """Type of the records."""
        return self.schemas[0]

    @property
    def _schema(self) -> pa.Schema:
        """The same without dictionaries and metadata."""
        return self._plain[0]

    @abstractmethod
    def output_schema(self, input_schema: pa.Schema | None = None) -> pa.Schema:
        """Return the schema of the output."""

    def _keys_of(self, columns: pa.RecordBatch, input_index: int) -> list[pa.Array]:
        return self._state.key_columns(columns)

    def _process(
        self, part: pa.RecordBatch, signs: Integers | None, kinds: RowKinds | None, input_index: int
    ) -> Iterable[Batch]:
        return self._changes(*self._state.process(part, signs))

    def _changes(self, arrays: Sequence[pa.Array], kinds: RowKinds) -> Iterator[Batch]:
        """Changes of the result, if there are any; those that all insert go without kinds."""
        columns = pa.RecordBatch.from_arrays(arrays, schema=self.output_schema())
        if columns.num_rows:
            yield Batch.of_columns(columns, None, kinds if kinds.any() else None)


class ReplayingInput(OneInput):
    """One that can give all its rows once more."""

    replays: str | None = None
    """A token, if it is to give all its rows once more when it goes on from what was kept."""

    _state: KeptForGood

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        with naming_operator(context):
            self._replayed = context.operator_state.union_list_state("replayed")
            self._is_replay_due = self.replays is not None and self.replays not in self._replayed.get()

    def _replay(self) -> None:
        """Give all rows, if that is still to be done."""
        if not self._is_replay_due:
            return
        self._is_replay_due = False
        with naming_operator(self.context):
            for arrays in self._state.all_rows():
                rows = pa.RecordBatch.from_arrays(arrays, schema=self.output_schema())
                self.context.output.emit(Batch.of_columns(rows))

    def next_processing_time(self) -> int | None:
        return 0 if self._is_replay_due else None

    def on_processing_time(self, now_ms: int) -> None:
        self._replay()

    def prepare_snapshot(self, checkpoint_id: int) -> None:
        self._replay()

    def finish(self) -> None:
        self._replay()

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows:
            self._replay()
        super().process_batch(batch, input_index)

    def snapshot_state(self, checkpoint_id: int) -> None:
        self._replayed.update([] if self.replays is None else [self.replays])
        super().snapshot_state(checkpoint_id)
