"""The operators of a task as a whole: joined, opened, told, finished and closed in the right order.

* *Opened* from the last to the first, so that an operator that emits finds the next one open; each with its own state
  backends, restored before.
* *Finished* from the first to the last, each only when it waits for nothing any more: an operator with work outside
  makes those behind it wait.
* *Snapshotted* from the first to the last, after all of them have emitted what was pending.
* *Closed*, those that were opened or failed in it, whatever happens, and then their state.

Source: Flink's ``OperatorChain``, ``StreamOperatorStateHandler`` and ``StreamTaskStateInitializer``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace.state.backends.choice import make_keyed_backend, restore_keyed_backend
from headrace.state.backends.heap.backend import HeapOperatorStateBackend
from headrace.state.checkpoints.snapshot import (
    KEYED_KINDS,
    OPERATOR_KINDS,
    OperatorSnapshot,
    RestoredPart,
    SnapshotPart,
)
from headrace.state.identifiers import OperatorId
from headrace.state.keyed.contract import KeyedStateBackend
from headrace.state.keyed.managed_memory import MIN_SORT_BYTES, ManagedMemory
from headrace.state.keys.key_groups import key_group_range

from ..errors import HeadraceError, raise_from_outside
from ..functions.operator import BatchOrder, Operator, OperatorContext, add_place, place_of
from ..functions.steps import StepMeter
from ..graph.job_graph import JobVertex
from ..kernel.metrics import MetricGroup
from ..operators.sorted_input import SortedInput
from ..protocol.task_messages import TaskDeployment
from .chain import ChainLink
from .channels import CutBatch
from .outbox import OffloadedWork, TaskOutbox
from .processor_time import ProcessorTime

__all__ = ["OperatorChain", "SnapshotDraft"]

SnapshotDraft = list[tuple[OperatorId, list[SnapshotPart]]]
"""A task's snapshot that is not written yet, by operator in the chain's order. Local files that it needs are gone when
nothing refers to its parts any more."""


class OperatorChain:
    """The operators of one task.

    Args:
        vertex: The operators, which become this task's own.
        deployment: What is deployed, and where it restores from.
        slot: The slot's name: state databases of one slot share its memory.
        now_ms: The clock.
        probe: Marks protocol points.
        outbox: Takes the operators' reports and the work they have done outside.
        step: How the task cuts what it takes.
        time: Books the operators' processor time.
        memory: The slot's managed memory.

    Attributes:
        vertex: What it was made of.
        links: The operators, parents before children.
        head: The first of them, which is fed by the task.
        works: Their work outside.
    """

    def __init__(
        self,
        vertex: JobVertex,
        deployment: TaskDeployment,
        slot: str,
        now_ms: Callable[[], int],
        probe: Callable[[str], None],
        outbox: TaskOutbox,
        step: StepMeter,
        time: ProcessorTime,
        memory: ManagedMemory,
    ) -> None:
        self.vertex = vertex
        self._memory = memory
        self._deployment = deployment
        self._slot = slot
        self._now_ms = now_ms
        self._probe = probe
        self._outbox = outbox
        self._step = step
        self.works = OffloadedWork(outbox)
        subtask = deployment.attempt.subtask
        self.links = [
            ChainLink(node.uid, node.name, node.operator, subtask, vertex.parallelism, MetricGroup(now_ms), time)
            for node in vertex.chain
        ]
        settings = deployment.settings
        for link, node in zip(self.links, vertex.chain, strict=True):
            link.isolate(reuses_objects=settings.object_reuse, watches=settings.watches_records)
            if node.parent is not None:
                self.links[node.parent].output.add_link(link, node.side_tag)
        self.head = self.links[0]
        # Those that are asked before each step, which most need not be: who may be blocked, who may want to be called
        # at a time.
        self._offloaders = [link.operator for link in self.links if link.operator.offloads]
        self._timed = [
            link
            for link in self.links
            if _may_want_time(link.operator) and not (settings.is_batch and link.operator.fires_by_clock)
        ]
        # In a batch: those whose input is gathered and sorted.
        self._sorting: list[ChainLink] = []
        # Keyed state of the operators that have been opened, or are about to be.
        self._keyed: dict[OperatorId, KeyedStateBackend] = {}
        # Index of the first link whose operator has a context: they are opened last first, and may fail half-way.
        self._first_opened = len(self.links)
        # All input is processed: index of the link that is to finish next, and whether it knows that its input ended.
        self._finishing: int | None = None
        self._knows_end = False

    # ------------------------------------------------------------------------------------------------- opening, closing
    def open(self, restored: Mapping[OperatorId, list[RestoredPart]]) -> None:
        """Restore state and open the operators.

        Raises:
            HeadraceError: If state does not fit or cannot be read, or an operator fails.
        """
        for index in range(len(self.links) - 1, -1, -1):
            link = self.links[index]
            link.call(self._open, index, link, restored.get(OperatorId(link.uid), []))

    def _open(self, index: int, link: ChainLink, parts: list[RestoredPart]) -> None:
        operator_id = OperatorId(link.uid)
        vertex, deployment = self.vertex, self._deployment
        attempt, settings = deployment.attempt, deployment.settings
        keyed = self._keyed[operator_id] = make_keyed_backend(
            settings.state.backend,
            operator_id,
            attempt.subtask,
            key_group_range(vertex.max_parallelism, vertex.parallelism, attempt.subtask),
            vertex.max_parallelism,
            self._now_ms,
            slot=self._slot,
            managed_memory_bytes=settings.state.managed_memory_bytes,
            memory=self._memory,
            use=vertex.memory_use,
            local_directory=settings.state.local_directory,
        )
        operator_state = HeapOperatorStateBackend(operator_id)
        if parts:
            restore_keyed_backend(keyed, settings.state.backend, parts, operator_id)
            unkeyed = [part for part in parts if part.kind in OPERATOR_KINDS]
            is_undealt = deployment.restore is not None and operator_id in deployment.restore.undealt
            operator_state.restore(unkeyed, attempt.subtask, vertex.parallelism, is_undealt=is_undealt)
        context = OperatorContext(
            operator=operator_id,
            name=link.name,
            subtask=attempt.subtask,
            parallelism=vertex.parallelism,
            max_parallelism=vertex.max_parallelism,
            attempt=f"{attempt.epoch}.{attempt.attempt}",
            job=deployment.job_id,
            output=link.output,
            keyed_state=keyed,
            operator_state=operator_state,
            metrics=link.metrics,
            now_ms=self._now_ms,
            probe=self._probe,
            is_restored=deployment.restore is not None,
            must_prove_after=None if deployment.restore is None else deployment.restore.must_prove_after,
            reuses_objects=settings.object_reuse,
            watches_records=settings.watches_records,
            repeats_output=deployment.restore is not None and deployment.restore.repeats_output,
            starts_event_time_anew=deployment.restore is not None and deployment.restore.starts_event_time_anew,
            report=functools.partial(self._outbox.report, operator_id),
            is_batch=settings.is_batch,
            send_source_event=functools.partial(self._outbox.send_source_event, operator_id),
            checkpointing=settings.checkpoints is not None,
            accumulators=link.accumulators,
            offload=functools.partial(self.works.start, link),
            cancel_offload=self.works.cancel,
            call_later=functools.partial(self.works.call_later, link),
            step=self._step,
            rejected=link.rejected,
        )
        # Set here as well, so that `close` and snapshots never meet an operator without one.
        link.operator.context = context
        self._first_opened = index
        link.operator.open(context)
        link.is_open = True
        orders = link.operator.batch_orders
        if settings.is_batch and any(order is not None for order in orders):
            self._sort_input(link, orders, context)

    def _sort_input(self, link: ChainLink, orders: Sequence[BatchOrder | None], context: OperatorContext) -> None:
        """Have an operator's input gathered, within its part of the slot's managed memory."""
        settings = self._deployment.settings
        wanted, least = settings.sort_memory_bytes, 1
        if wanted is None:
            wanted = self._memory.sort_bytes(settings.state.managed_memory_bytes, self.vertex.memory_use)
            least = MIN_SORT_BYTES
        account = self._memory.account()
        memory_bytes = account.reserve(wanted, least)
        link.sort_input(SortedInput(orders, memory_bytes, settings.state.local_directory, context, account))
        self._sorting.insert(0, link)

    def close(self) -> BaseException | None:
        """Close every operator that was opened, and all state, whatever happens; gives the first failure."""
        for link in self.links:
            link.is_open = False
        closes: list[Callable[[], Any]] = [
            functools.partial(link.call, link.operator.close) for link in self.links[self._first_opened :]
        ]
        failure: BaseException | None = None
        letting_go = [link.stop_sorting for link in self._sorting]
        for close in [*closes, *letting_go, *(backend.close for backend in self._keyed.values())]:
            try:
                close()
            except BaseException as error:
                raise_from_outside(error)
                failure = failure or error
        return failure

    def keyed_state(self, operator: OperatorId) -> KeyedStateBackend | None:
        """Return the keyed state of an operator that is open; None if there is no such operator."""
        return self._keyed.get(operator)

    def note_memory(self) -> None:
        """Say in the operators' metrics what they hold of the slot's managed memory, where that is counted."""
        for link in self.links:
            keyed = self._keyed.get(OperatorId(link.uid))
            used_bytes = None if keyed is None else keyed.managed_bytes()
            if used_bytes is not None:
                link.metrics.gauge("managed_memory.used_bytes", used_bytes)
        for link in self._sorting:
            link.note_sorting()

    # ---------------------------------------------------------------------------------------------------- while it runs
    @property
    def may_block(self) -> bool:
        """Whether some operator has work done outside."""
        return bool(self._offloaders)

    @property
    def is_blocked(self) -> bool:
        """Whether an operator can take no more records for now."""
        return bool(self._offloaders) and any(operator.is_blocked for operator in self._offloaders)

    @property
    def is_settled(self) -> bool:
        """Whether no operator waits for work that must end before the task is ready, and before it is finished."""
        return all(link.operator.is_settled for link in self.links)

    def next_time(self) -> int | None:
        """Return the first time at which an operator wants to be called, epoch milliseconds; None for no such wish."""
        first_ms: int | None = None
        for link in self._timed:
            time_ms = link.operator.next_processing_time()
            if time_ms is not None and (first_ms is None or time_ms < first_ms):
                first_ms = time_ms
        return first_ms

    @property
    def is_draining(self) -> bool:
        """Whether an operator is still to be fed of what was gathered for it, before anything else is taken."""
        return any(link.is_draining for link in self._sorting)

    def drain(self, cut: CutBatch) -> bool:
        """Get on with what was gathered for the first operator that waits for it; gives whether it was fed some."""
        return next(link for link in self._sorting if link.is_draining).drain(cut)

    def fire_timers(self, now_ms: int) -> None:
        """Call the operators whose time has come, from the first to the last."""
        for link in self._timed:
            due = link.operator.next_processing_time()
            if due is not None and due <= now_ms:
                link.call(link.operator.on_processing_time, now_ms)

    # -------------------------------------------------------------------------------------------------------- finishing
    def begin_finishing(self) -> None:
        """Let `finish` go on from here: all input is processed, and the head has been told of each input's end."""
        self._finishing = 0

    @property
    def is_finishing(self) -> bool:
        """Whether all input is processed and some operator has not finished."""
        return self._finishing is not None

    @property
    def can_finish(self) -> bool:
        """Whether the operator whose turn it is to finish waits for nothing any more."""
        return (
            self._finishing is not None
            and not self.is_draining
            and not self.links[self._finishing].operator.has_pending
        )

    def finish(self) -> bool:
        """Let operators finish, each when it waits for nothing any more; gives whether all have.

        To be called again, while `can_finish`, if not.
        """
        assert self._finishing is not None
        if self.is_draining:
            return False
        while self._finishing < len(self.links):
            link = self.links[self._finishing]
            link.check_drained()
            if not self._knows_end:
                self._knows_end = True
                if link is not self.head:  # which was told of each input's end
                    link.call(link.operator.end_input, 0)
            if link.operator.has_pending:
                return False
            link.call(link.operator.finish)
            self._finishing += 1
            self._knows_end = False
        self._finishing = None
        return True

    def suspend(self) -> None:
        """Give up work outside, and finishing: nothing of what is under way counts any more."""
        self.works.cancel_all()
        self._finishing = None

    def finish_job(self) -> None:
        """Let operators make their output final: all of the job's data is processed and durable."""
        for link in self.links:
            link.call(link.operator.finish_job)

    # ------------------------------------------------------------------------------------------------------ checkpoints
    def snapshot(self, checkpoint_id: int, base_id: int, *, is_savepoint: bool = False) -> SnapshotDraft:
        """Take the synchronous part of a snapshot, after operators have emitted what was pending.

        Args:
            checkpoint_id: The checkpoint.
            base_id: A complete one whose files may be used again; 0 for none.
            is_savepoint: Whether it is a savepoint, which the operators may want to know.
        """
        for link in self.links:
            link.operator.context.takes_savepoint = is_savepoint
            link.call(link.operator.prepare_snapshot, checkpoint_id)
        draft: SnapshotDraft = []
        for link in self.links:
            link.call(link.operator.take_snapshot, checkpoint_id)
            context = link.operator.context
            # The one snapshot of a batch is taken when no record can come any more: nothing will read keyed state.
            keyed = [] if context.is_batch else link.call(context.keyed_state.snapshot, base_id)
            draft.append((OperatorId(link.uid), [*keyed, *link.call(context.operator_state.snapshot)]))
        return draft

    def snapshot_stored(self, checkpoint_id: int, snapshots: Iterable[OperatorSnapshot]) -> None:
        """Tell backends that a snapshot has been written: they may build on its files when its checkpoint is a base."""
        if self._deployment.settings.is_batch:
            return
        for snapshot in snapshots:
            keyed_files = [file for file in snapshot.files if file.kind in KEYED_KINDS]
            self._keyed[snapshot.operator].snapshot_stored(checkpoint_id, keyed_files)

    def add_place(self, error: BaseException) -> None:
        """Say by name which operator of this subtask an error is of, as far as it names one by its uid."""
        for link in self.links:
            if isinstance(error, HeadraceError) and error.context.get("operator") == link.uid:
                place = place_of(link.name, link.subtask, link.parallelism)
                add_place(error, place, link.uid)

    def checkpoint_complete(self, checkpoint_id: int) -> None:
        """Let operators commit, as a checkpoint is durable."""
        for link in self.links:
            link.call(functools.partial(link.operator.checkpoint_ended, checkpoint_id, is_complete=True))

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Tell operators that a checkpoint was given up."""
        for link in self.links:
            link.call(functools.partial(link.operator.checkpoint_ended, checkpoint_id, is_complete=False))


def _may_want_time(operator: Operator) -> bool:
    """Whether it has a say of its own in when it is called: by default an operator never is."""
    return type(operator).next_processing_time is not Operator.next_processing_time
