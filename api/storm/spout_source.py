"""Spouts as sources: a task of a spout is a split without end, whose messages are acknowledged behind checkpoints.

A spout has no positions. A message that it emits with an id is acknowledged when the first checkpoint is complete whose
barrier was behind all tuples of it: then whatever has become of it is in that checkpoint (`bolt_operator`). After a
failure the spout is started anew, and must emit again what was not acknowledged; so messages come at least once. An id
is not looked at: what comes again is given again.

Source: Storm's ``SpoutExecutor``; FLIP-27.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.acknowledging import NUM_SPANS, Acknowledgements
from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    NOTHING_NOW,
    Discovery,
    EnumeratorContext,
    Polled,
    ReaderContext,
    SourceReader,
    Split,
    SplitEnumerator,
)
from headrace.engine.errors import CheckpointMismatchError, TypeMismatchError
from headrace.engine.functions.operator import Operator

from .bolt_operator import program_of
from .components import ShellSpout, Spout
from .groupings import Router, emit_all
from .layout import DEFAULT_STREAM, Layout
from .spout_tasks import PythonSpoutCalls, ShellSpoutCalls, SpoutCalls, SpoutTask, SpoutTuple

__all__ = ["SpoutSource", "TuplesOfRecords", "TuplesOfSpout"]

POLL_MS = 5
"""How soon to look again when nothing was there."""

CLOSE_TIMEOUT_S = 5.0


class SpoutSource:
    """Reads a spout.

    Args:
        spout: Of Python, or an external program.
        layout: The topology.
        component: Its name in it.
    """

    is_bounded = False

    def __init__(self, spout: Spout | ShellSpout, layout: Layout, component: str) -> None:
        self._spout = spout
        self._layout = layout
        self._component = component

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        return _Tasks(self._component, self._layout.components[self._component].num_tasks)

    def create_reader(self) -> SourceReader:
        return _SpoutReader(self._spout, self._layout, self._component)


class _Tasks:
    """The tasks of a spout, a split each."""

    discovery_interval_ms: int | None = None

    def __init__(self, component: str, num_tasks: int) -> None:
        self._splits = [Split(f"{component} {index}", {"index": index}) for index in range(num_tasks)]

    def discover(self) -> Discovery:
        return Discovery(self._splits, is_final=True)


class _SpoutReader(SourceReader):
    """Has the tasks of one subtask."""

    def __init__(self, spout: Spout | ShellSpout, layout: Layout, component: str) -> None:
        self._spout = spout
        self._layout = layout
        self._component = component
        self._splits: dict[str, Split] = {}
        self._tasks: dict[str, SpoutTask] = {}
        self._messages: dict[str, Acknowledgements[Any]] = {}
        self._has_warned = False
        # Stands for checkpoints where there are none, above the numbers of savepoints.
        self._num_polls = 1 << 62

    def open(self, context: ReaderContext) -> None:
        self._context = context

    def add_splits(self, splits: list[Split]) -> None:
        layout, component = self._layout, self._component
        pending = layout.number(component, "topology.max.spout.pending", 0)
        for split in splits:
            index = split.payload["index"]
            if index >= layout.components[component].num_tasks:
                message = f"the checkpoint is of a topology in which spout {component!r} had more tasks"
                raise CheckpointMismatchError(
                    message, hint="a spout may get more tasks, not less", split=split.split_id
                )
            router = Router(layout, component, index, self._context.subtask)
            name = f"storm {component} {index + 1}"
            self._splits[split.split_id] = split
            self._messages[split.split_id] = Acknowledgements(NUM_SPANS, 0)
            self._tasks[split.split_id] = SpoutTask(
                name, self._calls_of(router), int(pending) or None, tracks=layout.tracks
            )
            self._tasks[split.split_id].start()

    def _calls_of(self, router: Router) -> SpoutCalls:
        layout, component, context = self._layout, self._component, self._context
        if isinstance(self._spout, Spout):
            return PythonSpoutCalls(copy.deepcopy(self._spout), router, layout, component, context)
        return ShellSpoutCalls(
            program_of(self._spout, layout, component, router.task), router, layout, component, context
        )

    # --------------------------------------------------------------------------------------------------------- messages
    def poll(self, max_records: int) -> Any:
        if not self._tasks:
            return ALL_SPLITS_FINISHED
        self._acknowledge_without_checkpoints()
        found: list[Polled] = []
        for split_id, task in self._tasks.items():
            for sentence in task.check():
                self._context.warn(sentence)
            rows: list[SpoutTuple] = []
            while len(rows) < max_records and (emitted := task.take()) is not None:
                rows += emitted
            self._note(split_id, rows)
            if rows:
                found.append(Polled(split_id, Batch.of_rows([one.emission for one in rows])))
            elif task.waits_for_checkpoint and self._context.checkpointing and not self._has_warned:
                self._has_warned = True
                self._context.warn(
                    f"spout {self._component!r} has as many messages that are not acknowledged as"
                    " topology.max.spout.pending allows, and waits for the next checkpoint"
                )
        return found or NOTHING_NOW

    def _note(self, split_id: str, rows: Sequence[SpoutTuple]) -> None:
        if self._layout.tracks:
            messages = self._messages[split_id]
            for one in rows:
                if one.message_id is not None:
                    messages.arrived(None, one.message_id)

    def _acknowledge_without_checkpoints(self) -> None:
        """What was given by the last poll has gone through the chain."""
        if not self._context.checkpointing:
            self._num_polls += 1
            self.snapshot_for(self._num_polls)
            self.notify_checkpoint_complete(self._num_polls)

    def next_poll_ms(self) -> int | None:
        return self._context.now_ms() + POLL_MS

    # ------------------------------------------------------------------------------------------------------ checkpoints
    def snapshot(self) -> list[Split]:
        return list(self._splits.values())

    def snapshot_for(self, checkpoint_id: int) -> list[Split]:
        """As `snapshot`; what was given until now will be acknowledged when this checkpoint is complete."""
        for messages in self._messages.values():
            messages.snapshot(checkpoint_id)
        return self.snapshot()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Acknowledge what it covers."""
        for split_id, messages in self._messages.items():
            messages.complete(checkpoint_id)
            self._tasks[split_id].acknowledge(messages.take_due())

    def close(self) -> None:
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.stop(0)
        for task in tasks.values():
            task.stop(CLOSE_TIMEOUT_S)
            task.end_spout()  # if it hangs


class TuplesOfSpout(Operator):
    """Sends what a spout has emitted on its way; behind its source.

    Args:
        layout: The topology.
        component: The spout's name in it.
    """

    may_change_records = False

    def __init__(self, layout: Layout, component: str) -> None:
        self._layout = layout
        self._component = component

    def process_batch(self, batch: Batch, input_index: int) -> None:
        emit_all(self._layout, self._component, batch.rows, self.context.output)


class TuplesOfRecords(Operator):
    """Makes tuples of the records of a stream, which stands in a topology as a spout; else as `TuplesOfSpout`.

    A record that is a dict gives the values of the fields' names, a tuple or list its values, any other one value.
    """

    def __init__(self, layout: Layout, component: str) -> None:
        self._layout = layout
        self._component = component
        self._router: Router | None = None

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if self._router is None:
            subtask = self.context.subtask
            self._router = Router(self._layout, self._component, subtask, subtask)
        router, fields = self._router, self._layout.stream(self._component, DEFAULT_STREAM).fields
        emissions = [router.route(DEFAULT_STREAM, _values_of(record, fields), is_tracked=True) for record in batch.rows]
        emit_all(self._layout, self._component, emissions, self.context.output)


def _values_of(record: Any, fields: Sequence[str]) -> Sequence[Any]:
    if isinstance(record, dict):
        try:
            return [record[name] for name in fields]
        except KeyError as error:
            message = f"a record has no field {error}, which the topology takes; its fields are {list(record)}"
            raise TypeMismatchError(message) from error
    return record if isinstance(record, (tuple, list)) else [record]
