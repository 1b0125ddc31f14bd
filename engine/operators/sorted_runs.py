"""Sorted runs of records: blocks that come in order, in memory or on the local disk, and their merge.

A *block* holds records of one input, with what they are sorted by. A *run* is a sequence of blocks in order. Runs are
merged a *group* at a time: as many blocks are loaded as memory allows, always of the run that is least far; what comes
no later than the least far of all runs' loaded blocks is a group, as nothing else can come before it. So a group has
about half of what is loaded, each run is cut once per group, and a key of any number of records is no more than some
blocks of each run at a time.

Source: Flink's ``UnilateralSortMerger`` and ``BinaryExternalMerger``, by blocks instead of records.
"""

from __future__ import annotations

import heapq
import itertools
import pickle
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.state.files.spilling import SpillFile, SpillPlace
from headrace.state.reading.program_pickles import load_program

from ..columns.records import Batch

__all__ = ["Group", "SortedBlock", "SpilledRun", "in_order", "joined", "merged"]

ORDER_BYTES = 24
"""What a record is sorted by takes so much."""

Place = tuple[int, int, int, int]
"""In the order: hash of the key, event time, input, number of arrival."""


@dataclass(frozen=True, slots=True)
class SortedBlock:
    """Records of one input, with what they are sorted by: hash of the key, event time, number of arrival.

    ``num_bytes`` is about what it takes in memory.
    """

    batch: Batch
    input_index: int
    hashes: npt.NDArray[np.uint64]
    times: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    num_bytes: int

    def last(self) -> Place:
        """Return where its last record is in the order."""
        return int(self.hashes[-1]), int(self.times[-1]), self.input_index, int(self.numbers[-1])

    def num_up_to(self, bound: Place) -> int:
        """Return how many of its records, which are sorted, come no later than a place in the order."""
        hash_, time, input_index, number = np.uint64(bound[0]), bound[1], bound[2], bound[3]
        low = int(np.searchsorted(self.hashes, hash_, "left"))
        high = int(np.searchsorted(self.hashes, hash_, "right"))
        if low == high:
            return low
        times, numbers = self.times[low:high], self.numbers[low:high]
        if self.input_index == input_index:
            is_before = numbers <= number
        else:
            is_before = np.full(high - low, self.input_index < input_index)
        return low + int(np.count_nonzero((times < time) | ((times == time) & is_before)))

    def sorted(self) -> SortedBlock:
        """Return the same records in order."""
        order = np.lexsort((self.numbers, self.times, self.hashes))
        return SortedBlock(
            self.batch.take(order),
            self.input_index,
            self.hashes[order],
            self.times[order],
            self.numbers[order],
            self.num_bytes,
        )

    def cut(self, start: int, end: int) -> SortedBlock:
        """Return some of its records."""
        return SortedBlock(
            self.batch.slice(start, end - start),
            self.input_index,
            self.hashes[start:end],
            self.times[start:end],
            self.numbers[start:end],
            self.num_bytes * (end - start) // max(1, len(self.numbers)),
        )

    def pieces(self, num_bytes: int, max_rows: int) -> Iterator[SortedBlock]:
        """Blocks of about so many bytes, in order."""
        num_rows = len(self.numbers)
        size = max(1, min(max_rows, num_rows * num_bytes // max(1, self.num_bytes)))
        return (self.cut(start, min(start + size, num_rows)) for start in range(0, num_rows, size))


def joined(blocks: Sequence[SortedBlock]) -> SortedBlock:
    """Return the records of blocks of one input, one block after another."""
    if len(blocks) == 1:
        return blocks[0]
    return SortedBlock(
        Batch.concat([block.batch for block in blocks]),
        blocks[0].input_index,
        np.concatenate([block.hashes for block in blocks]),
        np.concatenate([block.times for block in blocks]),
        np.concatenate([block.numbers for block in blocks]),
        sum(block.num_bytes for block in blocks),
    )


@dataclass(frozen=True, slots=True, eq=False)
class SpilledRun:
    """A run of one input on the disk: where its blocks are."""

    input_index: int
    file: SpillFile
    places: list[SpillPlace]

    def add(self, blocks: Iterable[SortedBlock]) -> None:
        """Write blocks that come behind all others.

        Raises:
            StorageError: If there is no room.
        """
        self.places.extend(self.file.write(pickle.dumps(block, protocol=5)) for block in blocks)

    def __iter__(self) -> Iterator[SortedBlock]:
        for place in self.places:
            block: SortedBlock = load_program(self.file.read(place))
            yield block


class Group:
    """Records that come before all others that are left: of each run that has any, blocks in order."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: list[SortedBlock]) -> None:
        self.blocks = blocks

    def of_one_input(self) -> SortedBlock:
        """Return the records in order, if all are of one input."""
        return self.blocks[0] if len(self.blocks) == 1 else joined(self.blocks).sorted()


class _Run:
    """A run that is being merged."""

    __slots__ = ("_blocks", "_loaded", "is_over", "num_bytes")

    def __init__(self, blocks: Iterable[SortedBlock]) -> None:
        self._blocks = iter(blocks)
        self._loaded: deque[SortedBlock] = deque()
        self.num_bytes = 0
        self.is_over = False

    def load(self) -> None:
        """Load the next block, if there is one."""
        block = next(self._blocks, None)
        if block is None:
            self.is_over = True
        else:
            self._loaded.append(block)
            self.num_bytes += block.num_bytes

    def last(self) -> Place:
        """Return how far what is loaded goes."""
        return self._loaded[-1].last()

    def take(self, bound: Place | None) -> list[SortedBlock]:
        """Give away what is loaded and comes no later than a place; None for all."""
        taken: list[SortedBlock] = []
        loaded = self._loaded
        while loaded:
            block = loaded[0]
            num_rows = len(block.numbers)
            num_first = num_rows if bound is None else block.num_up_to(bound)
            if num_first < num_rows:
                if num_first:
                    taken.append(block.cut(0, num_first))
                    loaded[0] = block.cut(num_first, num_rows)
                break
            taken.append(loaded.popleft())
        self.num_bytes = sum(block.num_bytes for block in loaded)
        return taken

    @property
    def needs_block(self) -> bool:
        return not self._loaded and not self.is_over


def merged(runs: Iterable[Iterable[SortedBlock]], memory_bytes: int) -> Iterator[Group]:
    """Merge runs.

    Args:
        runs: Each in order.
        memory_bytes: About so much is loaded at once, and no less than a block of each run.
    """
    live = [_Run(run) for run in runs]
    while live:
        for run in live:
            if run.needs_block:
                run.load()
        ahead = [(run.last(), number) for number, run in enumerate(live) if not run.is_over]
        heapq.heapify(ahead)
        num_bytes = sum(run.num_bytes for run in live)
        while ahead and num_bytes < memory_bytes:
            run = live[ahead[0][1]]
            num_bytes -= run.num_bytes
            run.load()
            num_bytes += run.num_bytes
            if run.is_over:
                heapq.heappop(ahead)
            else:
                heapq.heapreplace(ahead, (run.last(), ahead[0][1]))
        bound = ahead[0][0] if ahead else None
        blocks = [block for run in live for block in run.take(bound)]
        live = [run for run in live if run.num_bytes or not run.is_over]
        if blocks:
            yield Group(blocks)


def in_order(group: Group, max_rows: int) -> Iterator[tuple[Batch, int]]:
    """Yield the records of a group in order, with the input that they are of, cut where that changes."""
    by_input: dict[int, list[SortedBlock]] = {}
    for block in group.blocks:
        by_input.setdefault(block.input_index, []).append(block)
    if len(by_input) == 1:
        whole = group.of_one_input().batch
        for start in range(0, whole.num_rows, max_rows):
            yield whole.slice(start, min(max_rows, whole.num_rows - start)), group.blocks[0].input_index
        return
    wholes = {index: joined(some).sorted() for index, some in sorted(by_input.items())}
    inputs = np.concatenate([np.full(len(whole.numbers), index) for index, whole in wholes.items()])
    times = np.concatenate([whole.times for whole in wholes.values()])
    hashes = np.concatenate([whole.hashes for whole in wholes.values()])
    # Of one input records are in order already, and sorting is stable.
    order = np.lexsort((inputs, times, hashes))
    inputs = inputs[order]
    cuts = [0, *(np.flatnonzero(np.diff(inputs)) + 1).tolist(), len(inputs)]
    given = dict.fromkeys(wholes, 0)
    for start, end in itertools.pairwise(cuts):
        index = int(inputs[start])
        for first in range(start, end, max_rows):
            num_rows = min(max_rows, end - first)
            yield wholes[index].batch.slice(given[index], num_rows), index
            given[index] += num_rows
