"""The input of a keyed operator in a batch: gathered, then given key by key, the records of a key in the order of time.

Nothing is given before all has come, which the end of event time says. Records without event time, and those of one
time, come in the order in which they arrived, first those of the first input. Keys come in the order of their hashes;
two keys of one hash come mixed, each in its order. An input without keys may be gathered as well, behind one that must
be read first: it comes as it arrived.

What is gathered may be larger than memory. It is sorted a *chunk* at a time; when the chunks fill their part of the
memory the oldest are spilled. At the end all are merged, in several passes if there are more than can be merged at
once. While records come, three quarters of the memory are for chunks, the rest for sorting one; then half of it is for
chunks that were never spilled, a quarter for blocks of the others, a quarter for what is about to be given.

Source: Flink's ``SortingDataInput`` and ``MultiInputSortingDataInput``; FLIP-140.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from headrace.state.files.spilling import SpillFile
from headrace.state.keyed.managed_memory import MemoryAccount
from headrace.state.keys.column_hashing import hash_columns
from headrace.state.keys.hashing import hash_keys

from ..columns.records import MIN_TIMESTAMP, Batch
from ..functions.keys import KeySelector
from ..functions.operator import BatchOrder, OperatorContext
from ..functions.user_function import keys_of
from .sorted_runs import (
    ORDER_BYTES,
    Group,
    SortedBlock,
    SpilledRun,
    in_order,
    joined,
    merged,
)

__all__ = ["SortedInput"]

MIN_BLOCK_BYTES, MAX_BLOCK_BYTES = 64 << 10, 256 << 10
"""About so much of a spilled run is read at once."""

MAX_CHUNK_BYTES = 16 << 20
"""More is not sorted at once: barriers, cancellation and heartbeats wait meanwhile."""

MAX_GROUP_BYTES = 32 << 20
"""No more than that is merged at once for the same reason, if memory for a block of each run is less."""

MAX_ROWS = 65_536


class SortedInput:
    """Gathers the records of an operator, and gives them in order.

    Args:
        orders: By input, the order in which its records are to come; None for an input that is not gathered.
        memory_bytes: How much memory to use.
        directory: Where to spill to.
        context: The operator's, for errors.
        account: Holds that memory; closed with this.
    """

    def __init__(
        self,
        orders: Sequence[BatchOrder | None],
        memory_bytes: int,
        directory: str | None,
        context: OperatorContext,
        account: MemoryAccount | None = None,
    ) -> None:
        self._orders = tuple(orders)
        self._context = context
        self._account = account
        self.memory_bytes = memory_bytes
        self._chunk_bytes = max(1, min(memory_bytes // 8, MAX_CHUNK_BYTES))
        self._block_bytes = max(MIN_BLOCK_BYTES, min(memory_bytes // 512, MAX_BLOCK_BYTES))
        self._merge_bytes = memory_bytes // 4
        # More are not merged at once: of each there are two blocks in memory. A pass makes one run of several of one
        # input, so with fewer than one of each input it could not come to an end.
        self._fan_in = max(2, len(self._orders), self._merge_bytes // (2 * self._block_bytes))
        self._directory = directory
        # What is spilled; and runs that were made of several, each in a file of its own.
        self._file = SpillFile(directory)
        self._files = [self._file]
        # What has come since the last chunk, by input, and its size; chunks, oldest first, and their size.
        self._coming: list[list[SortedBlock]] = [[] for _ in orders]
        self._coming_bytes = 0
        self._chunks: deque[SortedBlock] = deque()
        self._chunks_bytes = 0
        self._runs: list[SpilledRun] = []
        self._num_records = 0
        # What is left to do of a pass that makes one run of some; gives True when it is done.
        self._pass: Iterator[bool] | None = None
        # What is to be given, once all passes are done; and what was put back.
        self._sorted: Iterator[tuple[Batch, int]] | None = None
        self._put_back: tuple[Batch, int] | None = None

    @property
    def num_spilled_bytes(self) -> int:
        """How much has been written to the disk."""
        return sum(file.num_bytes for file in self._files)

    def takes(self, input_index: int) -> bool:
        """Return whether records of an input are gathered."""
        return self._orders[input_index] is not None

    def add(self, batch: Batch, input_index: int) -> None:
        """Gather records.

        Raises:
            UserFunctionError: If keys cannot be found.
            StorageError: If there is no room on the disk.
        """
        num_rows = batch.num_rows
        if num_rows == 0:
            return
        numbers = np.arange(self._num_records, self._num_records + num_rows, dtype=np.int64)
        self._num_records += num_rows
        order, times = self._orders[input_index], batch.timestamps
        if isinstance(order, KeySelector):
            columns = order.key_columns(batch)
            hashes = hash_columns(columns) if columns else hash_keys(keys_of(order, batch, self._context))
        else:
            hashes, times = np.zeros(num_rows, dtype=np.uint64), None
        if times is None:
            times = np.full(num_rows, MIN_TIMESTAMP, dtype=np.int64)
        block = SortedBlock(batch, input_index, hashes, times, numbers, batch.nbytes + ORDER_BYTES * num_rows)
        self._coming[input_index].append(block)
        self._coming_bytes += block.num_bytes
        if self._coming_bytes > self._chunk_bytes:
            self._make_chunks()
            self._spill_to(self.memory_bytes * 3 // 4 - self._chunk_bytes)

    def merge_some(self) -> bool:
        """Do some of what must be done before the first record can be given; False if there is nothing to do.

        All input has come by the first call.
        """
        if self._sorted is not None:
            return False
        if self._coming_bytes:
            self._make_chunks()
            return True
        if self._runs and self._chunks_bytes > self.memory_bytes // 2:
            self._spill_to(self._chunks_bytes - self._chunk_bytes)
            return True
        if self._pass is None and len(self._runs) > self._fan_in:
            self._pass = self._one_pass()
        if self._pass is not None:
            if next(self._pass):
                self._pass = None
            return True
        self._sorted = self._all_in_order()
        return False

    def next(self) -> tuple[Batch, int] | None:
        """Return the next records, with the input that they are of; None behind the last. `merge_some` has nothing to
        do.
        """
        if self._put_back is not None:
            following, self._put_back = self._put_back, None
            return following
        assert self._sorted is not None
        return next(self._sorted, None)

    def put_back(self, batch: Batch, input_index: int) -> None:
        """Give these records, the rest of those given last, the next time."""
        self._put_back = (batch, input_index)

    def close(self) -> None:
        """Let go of everything."""
        self._coming, self._put_back = [[] for _ in self._orders], None
        self._chunks.clear()
        self._runs.clear()
        self._pass, self._sorted = None, iter(())
        for file in self._files:
            file.close()
        if self._account is not None:
            self._account.close()

    # ----------------------------------------------------------------------------------------------------------- chunks
    def _make_chunks(self) -> None:
        """Sort what has come since the last time, of each input for itself."""
        for coming in self._coming:
            if coming:
                chunk = joined(coming).sorted()
                self._chunks.append(chunk)
                self._chunks_bytes += chunk.num_bytes
                coming.clear()
        self._coming_bytes = 0

    def _spill_to(self, num_bytes: int) -> None:
        """Keep no more than so many bytes of chunks in memory."""
        while self._chunks and self._chunks_bytes > num_bytes:
            chunk = self._chunks.popleft()
            self._chunks_bytes -= chunk.num_bytes
            run = SpilledRun(chunk.input_index, self._file, [])
            run.add(self._pieces(chunk))
            self._runs.append(run)

    def _pieces(self, chunk: SortedBlock) -> Iterator[SortedBlock]:
        return chunk.pieces(self._block_bytes, MAX_ROWS)

    # ------------------------------------------------------------------------------------------------------------- runs
    def _merged(self, runs: Sequence[Iterable[SortedBlock]]) -> Iterator[Group]:
        at_least = 2 * self._block_bytes * len(runs)
        return merged(runs, max(at_least, min(self._merge_bytes, MAX_GROUP_BYTES)))

    def _one_pass(self) -> Iterator[bool]:
        """Make one run of some of one input, so that fewer are left; gives whether it is done, after each group."""
        num_runs = Counter(run.input_index for run in self._runs)
        input_index = max(num_runs, key=num_runs.__getitem__)
        excess = len(self._runs) - self._fan_in
        of_input = [run for run in self._runs if run.input_index == input_index]
        chosen = of_input[: min(self._fan_in, excess + 1)]
        whole = SpilledRun(input_index, SpillFile(self._directory), [])
        self._files.append(whole.file)
        for group in self._merged(chosen):
            whole.add(self._pieces(group.of_one_input()))
            yield False
        self._runs = [run for run in self._runs if run not in chosen]
        self._runs.append(whole)
        for run in chosen:
            if run.file is not self._file:  # which has others
                run.file.close()
        yield True

    def _all_in_order(self) -> Iterator[tuple[Batch, int]]:
        chunks, self._chunks = [self._pieces(chunk) for chunk in self._chunks], deque()
        for group in self._merged([*self._runs, *chunks]):
            yield from in_order(group, MAX_ROWS)
