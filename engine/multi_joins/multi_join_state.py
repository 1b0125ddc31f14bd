"""What a multi-way join keeps: the rows of each input by the codes of the common key, once for all its chains.

All chains that read an input look for what a batch of it matches; then its rows are kept; then each chain says what it
comes to (`headrace.engine.multi_joins.chain_state`). So every chain sees the inputs as they were before the batch and
as they are behind it, as if it had kept them alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ..changelog.join_state import codes_of_keys, make_room, put_away
from ..columns.records import Batch, RowKinds
from ..functions.operator import OperatorContext
from ..tables.columns import Integers
from ..tables.key_index import LocalCodes
from ..tables.resident_keys import ResidentKeys
from ..tables.row_store import RowStore
from .chain_state import Arrived, ChainState
from .join_step import JoinChain

__all__ = ["MultiJoinState"]


class MultiJoinState:
    """The rows of all inputs, of one subtask.

    Args:
        context: The operator's.
        keys: Names of the key's columns, of each input.
        schemas: Of the records, of each input.
        chains: How inputs are joined.

    Attributes:
        residents: Which keys are in memory.
    """

    def __init__(
        self,
        context: OperatorContext,
        keys: Sequence[tuple[str, ...]],
        schemas: Sequence[pa.Schema],
        chains: Sequence[JoinChain],
    ) -> None:
        self._keys = keys
        used = [(chain.inputs[at], column) for chain in chains for at, column, _ in chain.columns]
        self._kept = [list(dict.fromkeys(column for of, column in used if of == at)) for at in range(len(keys))]
        self.residents = ResidentKeys(context.keyed_state, [schemas[0].field(name).type for name in keys[0]])
        self._stores = [
            RowStore(
                context.keyed_state,
                f"input{at}",
                [schema.field(name) for name in keys[at]],
                self.residents.index,
                [schema.field(name) for name in self._kept[at]],
                is_attached=True,
            )
            for at, schema in enumerate(schemas)
        ]
        self.residents.attach(*self._stores)
        self._local = LocalCodes()
        self._chains = [ChainState(chain, self._stores, self._kept) for chain in chains]
        self._readers = [[i for i, chain in enumerate(chains) if at in chain.inputs] for at in range(len(keys))]

    def process(
        self, batch: pa.RecordBatch, signs: Integers | None, kinds: RowKinds | None, at: int
    ) -> Iterator[tuple[int, Batch]]:
        """Take records of an input; gives the changes of the results: the number of a chain, and a batch.

        Args:
            batch: The records.
            signs: -1 for those that are taken back; None if none is.
            kinds: What each record does; None if all are inserted.
            at: The input.

        Raises:
            UserFunctionError: If one is taken back that was not there.
        """
        columns = [batch.column(name) for name in self._keys[at]]
        codes = codes_of_keys(self.residents, columns, batch.num_rows)
        kinds = np.zeros(batch.num_rows, np.int8) if kinds is None else kinds
        arrived = Arrived(batch, codes, signs, kinds, *self._touched(codes))
        pending = [(number, self._chains[number].before(arrived, at)) for number in self._readers[at]]
        is_moved = put_away(self._stores[at], batch, self._kept[at], codes, signs).is_moved
        for number, one in pending:
            for changes in self._chains[number].after(one, arrived, is_moved):
                yield number, changes
        make_room(self.residents, self._stores)

    def persist_all(self) -> None:
        """Write what has changed of all that is kept."""
        self.residents.persist()

    def _touched(self, codes: Integers) -> tuple[Integers, Integers]:
        """The codes that occur, and for each row the place of its own; -1 for a row without one."""
        known = np.flatnonzero(codes >= 0)
        touched, places = self._local.of(codes[known], len(self.residents.index))
        local = np.full(len(codes), -1, np.int64)
        local[known] = places
        return touched, local
