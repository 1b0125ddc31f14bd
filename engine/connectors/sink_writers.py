"""What every operator of a sink does: it drives a writer, and keeps the sink's history.

What becomes of what the writer prepares is for the operators that are made of this to say:
`headrace.engine.connectors.sinks` commits it beside the writer, `headrace.engine.connectors.global_commits` hands it on
to one committer for all subtasks.

A sink that commits has a *history* (state ``history``, a union list of which the first subtask writes the one element):
who prepared output that led to the checkpoint, and up to which one. With it a sink can tell what is public and was made
behind the checkpoint that is restored.

Source: Flink's ``SinkWriterOperator``; FLIP-143, FLIP-191; ``docs/design/020-owners-of-output.md``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

from headrace.state.checkpoints.manifest_schema import is_count, require
from headrace.state.files.filesystem import place_of
from headrace.state.keyed.contract import ListStateHandle
from headrace.state.open.names import SINK_HISTORY

from ..columns.records import Batch
from ..errors import CheckpointMismatchError, ConfigurationError, InternalError
from ..functions.checkpointed import attach
from ..functions.operator import Operator, OperatorContext
from .contract import Sink, SinkHistory, SinkWriter, SupportsOutputPlace, WriterContext

__all__ = ["KeptHistory", "WriterOperator", "check_output_places", "require_owner"]

_NAME = re.compile(r"[0-9a-f]{12}")
"""Of an origin or an owner."""


class KeptHistory:
    """A sink's history, as state of one of its operators.

    Args:
        context: Of the operator.

    Attributes:
        history: What the restored checkpoint says; a beginning if it says nothing.
    """

    def __init__(self, context: OperatorContext) -> None:
        self._is_keeper = context.subtask == 0
        self._state: ListStateHandle = context.operator_state.union_list_state(SINK_HISTORY)
        self.history = _history_of(context, self._state.get())
        self._state.update([])

    def prepared(self, checkpoint_id: int) -> None:
        """Note that output has been prepared for a checkpoint, whose snapshot is being taken."""
        if self._is_keeper:
            history = self.history
            prepared = {**history.prepared, history.owner: checkpoint_id}
            self._state.update([{"origin": history.origin, "prepared": prepared}])


class WriterOperator(Operator):
    """Hands what comes in to a sink's writer; its subclasses take what that prepares.

    Args:
        sink: Where the records go.
    """

    may_change_records = False

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        # Made in `open`; None before, so that `close` after a failed start has nothing to do.
        self._writer: SinkWriter | None = None

    @property
    def collects(self) -> bool:
        return bool(getattr(self.sink, "collects", False))

    def open(self, context: OperatorContext) -> None:
        """Make the writer."""
        super().open(context)
        self._kept = KeptHistory(context)
        self._history = self._kept.history
        writer = self.sink.create_writer()
        self._writer = writer
        attach(writer, context, None)
        writer.open(
            WriterContext(
                job=context.job,
                operator=context.operator,
                operator_name=context.name,
                subtask=context.subtask,
                parallelism=context.parallelism,
                attempt=context.attempt,
                now_ms=context.now_ms,
                metrics=context.metrics,
                probe=context.probe,
                report=context.report,
                checkpointing=context.checkpointing,
                history=self._history,
            )
        )
        self._write = writer.write

    def process_batch(self, batch: Batch, input_index: int) -> None:
        """Hand records to the writer."""
        self._write(batch)

    def finish(self) -> None:
        """Tell the writer that no more records come, if it wants to know."""
        end_input = getattr(self._writer, "end_input", None)
        if end_input is not None:
            end_input()

    def close(self) -> None:
        """Close the writer, if there is one."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _prepare(self, checkpoint_id: int) -> list[Any]:
        """Have the writer prepare what it has written; gives the committables."""
        if self._writer is None:
            message = "the sink's writer is not open"
            raise InternalError(message)
        return self._writer.prepare(checkpoint_id)

    def _retain(self, committables: list[Any]) -> None:
        """A savepoint holds these."""
        if committables and self._writer is not None:
            self._writer.retain(committables)


def require_owner(name: Any) -> None:
    """See that what a checkpoint gives as an origin or owner is one: sinks make names of files of them.

    Raises:
        ValueError: If it is not.
    """
    require(type(name) is str and _NAME.fullmatch(name) is not None, "name", name)


def _history_of(context: OperatorContext, restored: Iterable[Any]) -> SinkHistory:
    """What a restored checkpoint says of the sink's past; a beginning if it says nothing."""
    owner = hashlib.blake2b(f"{context.job}\0{context.operator}".encode(), digest_size=6).hexdigest()
    origin, prepared = owner, dict[str, int]()
    for part in restored:
        try:
            origin = part["origin"]
            for name in (origin, *part["prepared"]):
                require_owner(name)
            for name, checkpoint_id in part["prepared"].items():
                require(is_count(checkpoint_id), "checkpoint", checkpoint_id)
                prepared[name] = max(checkpoint_id, prepared.get(name, 0))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"the checkpoint's part for a sink's history cannot be read: {error!r:.400}"
            raise CheckpointMismatchError(message) from error
    return SinkHistory(origin, owner, prepared, context.is_restored)


def check_output_places(operators: Iterable[tuple[str, Operator]]) -> None:
    """See that no two sinks of a program meet in one place where one of them does away with what the other writes.

    Args:
        operators: Of the program, with their names.

    Raises:
        ConfigurationError: If they do; unless both add to what is there.
    """
    places: dict[tuple[str, ...], tuple[str, bool]] = {}
    for name, operator in operators:
        sink: object = operator.sink if isinstance(operator, WriterOperator) else None
        if not isinstance(sink, SupportsOutputPlace):
            continue
        place = place_of(sink.output_place)
        other, shares = places.get(place, ("", True))
        if place in places and not (shares and sink.shares_place):
            message = f"two sinks of one program write to {sink.output_place!r}: {other!r} and {name!r}"
            hint = "give each a directory of its own, let both have mode='append', or write a union of the streams"
            raise ConfigurationError(message, hint=hint, operator=name)
        places[place] = (name, shares and sink.shares_place)
