"""The input of a keyed operator in a batch: gathered, then given key by key, the records of a key in the order of time.

Nothing is given before all has come, which the end of event time says. Records without event time, and those of one
time, come in the order in which they arrived, first those of the first input. Keys come in the order of their hashes;
two keys of one hash come mixed, each in its order.

What is gathered may be larger than memory: when it fills its share it is sorted and spilled as a *run*. At the end
the runs are merged block by block, so that memory holds one block of each. A key of any number of records is no more
than some of them at a time.

Source: Flink's ``SortingDataInput`` and ``MultiInputSortingDataInput``; FLIP-140.
"""

from __future__ import annotations

import itertools
import pickle
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.engine.functions import keys_of
from headrace.engine.keys import KeySelector
from headrace.engine.operators import OperatorContext
from headrace.engine.records import MIN_TIMESTAMP, Batch
from headrace.state.keygroups import hash_columns, hash_keys
from headrace.state.program_pickles import load_program
from headrace.state.spilling import SpillFile, SpillPlace

__all__ = ["SortedInput"]

BLOCK_BYTES = 256 << 10
"""About so much of a run is in memory while runs are merged."""

MAX_BLOCK_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class _Block:
    """Records of one input, with what they are sorted by: hash of the key, event time, number of arrival."""

    batch: Batch
    input_index: int
    hashes: npt.NDArray[np.uint64]
    times: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]

    def last(self) -> tuple[int, int, int, int]:
        return int(self.hashes[-1]), int(self.times[-1]), self.input_index, int(self.numbers[-1])

    def num_up_to(self, bound: tuple[int, int, int, int]) -> int:
        """How many of its records, which are sorted, come no later than a place in the order."""
        hash_, time, input_index, number = np.uint64(bound[0]), bound[1], bound[2], bound[3]
        if self.input_index == input_index:
            is_before = self.numbers <= number
        else:
            is_before = np.full(len(self.numbers), self.input_index < input_index)
        at_hash = (self.times < time) | ((self.times == time) & is_before)
        return int(np.count_nonzero((self.hashes < hash_) | ((self.hashes == hash_) & at_hash)))

    def take(self, indices: npt.NDArray[np.intp]) -> _Block:
        return _Block(
            self.batch.take(indices),
            self.input_index,
            self.hashes[indices],
            self.times[indices],
            self.numbers[indices],
        )

    def cut(self, start: int, end: int) -> _Block:
        return _Block(
            self.batch.slice(start, end - start),
            self.input_index,
            self.hashes[start:end],
            self.times[start:end],
            self.numbers[start:end],
        )


class SortedInput:
    """Gathers the records of an operator, and gives them in order.

    Args:
        keys: By input, what finds the keys; None for an input that is not gathered.
        memory_bytes: How much to hold in memory.
        directory: Where to spill to.
        context: The operator's, for errors.
    """

    def __init__(
        self,
        keys: Sequence[KeySelector | None],
        memory_bytes: int,
        directory: str | None,
        context: OperatorContext,
    ) -> None:
        self._keys = tuple(keys)
        self._context = context
        # Sorting what is in memory takes as much again.
        self._memory_bytes = max(1, memory_bytes // 2)
        self._spill = SpillFile(directory)
        # What is in memory, by input; its size; and the blocks of each run.
        self._gathered: list[list[_Block]] = [[] for _ in keys]
        self._num_bytes = 0
        self._runs: list[list[SpillPlace]] = []
        self._num_records = 0
        # Of each run, once all has come: what is left of it, and of its current block.
        self._left: list[tuple[_Block, Iterator[_Block]]] | None = None
        # What is next, cut at changes of the input.
        self._ready: deque[tuple[Batch, int]] = deque()

    @property
    def num_spilled_bytes(self) -> int:
        """How much has been written to the disk."""
        return self._spill.num_bytes

    def takes(self, input_index: int) -> bool:
        """Whether records of an input are gathered."""
        return self._keys[input_index] is not None

    def add(self, batch: Batch, input_index: int) -> None:
        """Gather records.

        Raises:
            UserFunctionError: If keys cannot be found.
            StorageError: If there is no room on the disk.
        """
        selector = self._keys[input_index]
        assert selector is not None
        columns = selector.key_columns(batch)
        hashes = hash_columns(columns) if columns else hash_keys(keys_of(selector, batch, self._context))
        num_rows, times = batch.num_rows, batch.timestamps
        numbers = np.arange(self._num_records, self._num_records + num_rows, dtype=np.int64)
        self._num_records += num_rows
        if times is None:
            times = np.full(num_rows, MIN_TIMESTAMP, dtype=np.int64)
        self._gathered[input_index].append(_Block(batch, input_index, hashes, times, numbers))
        self._num_bytes += batch.nbytes + 24 * num_rows
        if self._num_bytes > self._memory_bytes:
            self._spill_all()

    def next(self) -> tuple[Batch, int] | None:
        """The next records, with the input that they are of; None behind the last. All input has come by the first
        call.
        """
        if self._left is None:
            in_memory = [blocks for blocks in map(self._sorted, self._gathered) if blocks is not None]
            runs = [*map(self._read, self._runs), *in_memory]
            self._gathered = []
            self._left = [(block, run) for run in runs if (block := next(run, None)) is not None]
        while not self._ready and self._left:
            self._merge_some()
        return self._ready.popleft() if self._ready else None

    def put_back(self, batch: Batch, input_index: int) -> None:
        """Give these records, the rest of those given last, the next time."""
        self._ready.appendleft((batch, input_index))

    def close(self) -> None:
        """Let go of everything."""
        self._gathered, self._left = [], []
        self._ready.clear()
        self._spill.close()

    # ------------------------------------------------------------------------------------------------------------- runs
    def _spill_all(self) -> None:
        for gathered in self._gathered:
            blocks = self._sorted(gathered)
            if blocks is not None:
                self._runs.append([self._spill.write(pickle.dumps(block, protocol=5)) for block in blocks])
            gathered.clear()
        self._num_bytes = 0

    def _read(self, places: list[SpillPlace]) -> Iterator[_Block]:
        for place in places:
            yield load_program(self._spill.read(place))

    def _sorted(self, gathered: list[_Block]) -> Iterator[_Block] | None:
        """What is in memory of one input as blocks in order; None if nothing is."""
        if not gathered:
            return None
        whole = _joined(gathered)
        order = np.lexsort((whole.numbers, whole.times, whole.hashes))
        num_rows = whole.batch.num_rows
        size = max(1, min(MAX_BLOCK_ROWS, num_rows * BLOCK_BYTES // max(1, whole.batch.nbytes)))
        return (whole.take(order[start : start + size]) for start in range(0, num_rows, size))

    def _merge_some(self) -> None:
        """Get ready what comes no later than the end of some run's block: nothing else can come before it."""
        assert self._left is not None
        bound = min(block.last() for block, _ in self._left)
        first: list[_Block] = []
        left: list[tuple[_Block, Iterator[_Block]]] = []
        for block, run in self._left:
            num_rows, num_first = block.batch.num_rows, block.num_up_to(bound)
            if num_first:
                first.append(block if num_first == num_rows else block.cut(0, num_first))
            rest = block.cut(num_first, num_rows) if num_first < num_rows else next(run, None)
            if rest is not None:
                left.append((rest, run))
        self._left = left
        self._ready.extend(_in_order(first))


def _joined(blocks: Sequence[_Block]) -> _Block:
    if len(blocks) == 1:
        return blocks[0]
    return _Block(
        Batch.concat([block.batch for block in blocks]),
        blocks[0].input_index,
        np.concatenate([block.hashes for block in blocks]),
        np.concatenate([block.times for block in blocks]),
        np.concatenate([block.numbers for block in blocks]),
    )


def _in_order(blocks: Sequence[_Block]) -> Iterator[tuple[Batch, int]]:
    """The records of sorted blocks in one order, cut where the input changes."""
    if len(blocks) == 1:
        yield blocks[0].batch, blocks[0].input_index
        return
    by_input: dict[int, list[_Block]] = {}
    for block in blocks:
        by_input.setdefault(block.input_index, []).append(block)
    wholes = {index: _joined(some) for index, some in by_input.items()}
    inputs = np.concatenate([np.full(len(whole.numbers), index) for index, whole in wholes.items()])
    places = np.concatenate([np.arange(len(whole.numbers)) for whole in wholes.values()])
    keys: list[Any] = [np.concatenate([getattr(w, name) for w in wholes.values()]) for name in ("numbers", "times")]
    hashes = np.concatenate([whole.hashes for whole in wholes.values()])
    order = np.lexsort((keys[0], inputs, keys[1], hashes))
    inputs, places = inputs[order], places[order]
    cuts = [0, *(np.flatnonzero(np.diff(inputs)) + 1).tolist(), len(inputs)]
    for start, end in itertools.pairwise(cuts):
        index = int(inputs[start])
        yield wholes[index].batch.take(places[start:end]), index
