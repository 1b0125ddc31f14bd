"""Queries that go on from a savepoint: what becomes of its state is said before; what would not be the same is asked.

Source: Flink refuses a restore whose uids do not fit (``allowNonRestoredState``), and says nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.engine.errors import ProgramError
from headrace.engine.graph.stream_graph import StreamGraph
from headrace.engine.optimizer.upgrades.identity import identity_of_table
from headrace.engine.optimizer.upgrades.stored_plan import NEWEST, StoredPlan
from headrace.engine.optimizer.upgrades.upgrade import Consent, Planned, SinkOfPlan, Upgrade, Verdict, planned
from headrace.engine.plan.plan import Node
from headrace.engine.plan.table_nodes import Scan
from headrace.state.checkpoints.manifest import Manifest
from headrace.state.checkpoints.snapshot import FileKind
from headrace.state.checkpoints.storage import CheckpointStorage

from .catalog import CatalogTable

__all__ = ["RESULT", "Beginning", "beginning_of", "sink_of"]

ACCEPT = "table.upgrade.accept"
RESULT = SinkOfPlan(lambda _: "result of a query", "the result")
"""Where the rows of a query go that writes no table."""

_NO_PLAN = "it was taken by a program of streams, or by a version before plans were stored"


@dataclass(frozen=True)
class Beginning:
    """What a query begins with.

    Attributes:
        upgrade: What becomes of each operator.
        path: Of the savepoint; None if it starts from nothing.
        manifest: Of the savepoint.
        storage: Where its files are.
    """

    upgrade: Upgrade
    path: str | None = None
    manifest: Manifest | None = None
    storage: CheckpointStorage | None = None

    @property
    def token(self) -> str:
        """What tells this upgrade from others."""
        stored = None if self.manifest is None else self.manifest.plan
        told = json.dumps([stored, self.upgrade.plan.to_json()], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    @property
    def plan(self) -> str:
        """What is stored in the checkpoints of the job."""
        return json.dumps(self.upgrade.plan.to_json())

    def require(self, accepted: frozenset[str]) -> None:
        """Refuse what the user has not allowed.

        Raises:
            ProgramError: If there is something, with what it is.
        """
        impossible = [one for one in self.upgrade.operators if one.is_impossible]
        if impossible:
            lines = [f"{one.title}: {'; '.join(one.details)}" for one in impossible]
            message = f"the query cannot go on from {self.path}: {' | '.join(lines)}"
            raise ProgramError(message, hint="start it from nothing; EXPLAIN UPGRADE FROM says more")
        missing = sorted(one.value for one in self.upgrade.asks if one.value not in accepted)
        if missing:
            lines = [f"{one.title}: {'; '.join(one.details)}" for one in self.upgrade.operators if one.asks]
            message = f"the query cannot go on from {self.path} without leave: {' | '.join(lines)}"
            words = ", ".join(sorted({*missing, *accepted}))
            hint = f"SET '{ACCEPT}' = '{words}' allows it; EXPLAIN UPGRADE FROM says more"
            raise ProgramError(message, hint=hint)

    def require_positions(self, graph: Callable[[], StreamGraph], accepted: frozenset[str]) -> None:
        """Refuse that sources of the program begin anew, while what their rows have come to goes on.

        Args:
            graph: Gives the whole job.
            accepted: What the user has allowed.

        Raises:
            ProgramError: If a table goes on, and the savepoint has no position of a source that the program has for it.
        """
        if self.manifest is None or Consent.LOST.value in accepted:
            return
        nodes = graph().nodes
        known = {*(str(one.uid) for one in self.manifest.operators), *self.manifest.enumerators}
        for table in self.upgrade.operators:
            if not isinstance(table.node, Scan) or table.verdict is not Verdict.REUSE:
                continue
            for source in table.node.table.sources():
                if nodes[source.transformation_id].uid not in known:
                    message = (
                        f"{table.title}: {self.path} has no position of the program's source {source.name!r}, which "
                    )
                    message += "would begin at its beginning, while what its rows have come to goes on"
                    hint = f"give it the uid that it had; SET '{ACCEPT}' = '{Consent.LOST.value}' lets it begin anew"
                    raise ProgramError(message, hint=hint)

    def explained(self) -> pa.Table:
        """Return a row for each operator; counts are found in the files of the savepoint."""
        from ..jobs.kept_entries import kept_by  # knows operators, and loads their compiled loops

        assert self.storage is not None
        assert self.manifest is not None
        counted = kept_by(self.storage, self.manifest)
        rows = [_row(one, counted) for one in self.upgrade.operators]
        names = ("operator", "kind", "verdict", "kept", "details", "asks")
        columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
        return pa.table(columns, names=list(names))


def sink_of(table: CatalogTable) -> SinkOfPlan:
    """Return where rows go that are written into a table."""
    name, own = table.statement.name, table.connector
    return SinkOfPlan(lambda version: identity_of_table(own, name, version), f"table {name}", own.known_as)


def beginning_of(
    roots: Sequence[Node],
    sinks: Sequence[SinkOfPlan],
    statements: Sequence[str],
    path: str | None,
    key_file: str | None = None,
    version: int = NEWEST,
) -> Beginning:
    """Say what a query begins with.

    Args:
        roots: Its plan, as it is run on streams.
        sinks: Where the rows of each root go.
        statements: Its texts.
        path: Of the savepoint or checkpoint; None for nothing.
        key_file: With which keys it must be signed.
        version: Of the plan, if it begins with nothing.

    Raises:
        ProgramError: If the savepoint has no plan, or records in flight that are others than the query's.
        CheckpointError: If it cannot be read.
    """
    if path is None:
        return Beginning(planned(roots, sinks, statements, version=version))
    storage, manifest = CheckpointStorage.from_manifest(path, key_file)
    if manifest.plan is None:
        message = f"{path} does not say what its state is about: {_NO_PLAN}"
        raise ProgramError(message, hint="start the query from nothing, or the program of streams from there")
    stored = StoredPlan.from_json(manifest.plan, path)
    uids = [str(one.uid) for one in manifest.operators] + list(manifest.enumerators)
    upgrade = planned(roots, sinks, statements, stored, lambda uid: any(_is_of(one, uid) for one in uids))
    if stored.layout != upgrade.plan.layout and _has_records_in_flight(manifest):
        message = f"{path} has records that were on their way between operators, and those of this query are others"
        raise ProgramError(message, hint="go on from a savepoint, or from a checkpoint that was not unaligned")
    return Beginning(upgrade, path, manifest, storage)


def _has_records_in_flight(manifest: Manifest) -> bool:
    snapshots = [snapshot for operator in manifest.operators for snapshot in operator.subtasks]
    return any(file.kind is FileKind.CHANNEL for snapshot in snapshots for file in snapshot.files)


def _is_of(uid: str, planned_uid: str) -> bool:
    """Whether an operator of a job is one that the plan names, or a part of it."""
    return uid == planned_uid or uid.startswith(f"{planned_uid}/")


def _row(one: Planned, counted: dict[str, dict[str, int]]) -> tuple[str, ...]:
    uid = None if one.stored is None else one.stored.uid
    kept: dict[str, int] = {}
    for name, found in counted.items():
        if uid is not None and _is_of(name, uid):
            for what, count in found.items():
                kept[what] = kept.get(what, 0) + count
    shown = ", ".join(f"{count} {what}" for what, count in kept.items())
    asks = "impossible" if one.is_impossible else ", ".join(sorted(ask.value for ask in one.asks))
    return one.title, one.kind.value, one.verdict.value, shown, "; ".join(one.details), asks
