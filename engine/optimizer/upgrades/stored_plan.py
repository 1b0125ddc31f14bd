"""A plan as it lies in checkpoints: its operators with state, under which ids they keep it, and under which names.

It is JSON, and whatever is read is checked before anybody looks at it: a checkpoint may come from anywhere.

Source: Flink's ``ExecNodeGraph`` and ``COMPILE PLAN`` (FLIP-190), which lie beside the job instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.state.checkpoints.manifest_schema import is_count, is_text, require
from headrace.state.errors import CheckpointCorruptError, CheckpointMismatchError
from headrace.state.reading.stored_json import parse_json
from headrace.state.text_enum import TextEnum

__all__ = ["MAX_PLAN_BYTES", "NEWEST", "OperatorKind", "StoredOperator", "StoredPart", "StoredPlan"]

NEWEST = 4
"""The version of plans. In version 1 all options of a connector are part of what its table is; since then those alone
that say what is read or written. Up to version 2 rows of the program are known by the name of their table alone, not by
its catalog and database. Up to version 3 a key of several columns has them in the order of their digests, wherever its
rows come from. What goes on from a plan has the version of that plan."""

MAX_PLAN_BYTES = 16 << 20
"""Of a plan: some hundred bytes for each column that is kept, and the texts of its statements."""

_MOST_INPUTS = 2


@dataclass(frozen=True)
class StoredPart:
    """Something that an operator keeps.

    Attributes:
        name: Under which it is kept.
        text: What it is, for people.
    """

    name: str
    text: str


class OperatorKind(TextEnum):
    """What an operator with state does. Plans in savepoints have the value, and ids are made of it."""

    SOURCE = "source"
    WATERMARK = "watermark"
    AGGREGATE = "aggregate"
    WINDOW = "window"
    TOP = "top"
    ONE_ROW = "one row"
    UPSERTS = "upserts"
    OVER = "over"
    SORT = "sort"
    JOIN = "join"
    TEMPORAL_JOIN = "temporal join"
    INTERVAL_JOIN = "interval join"
    MULTI_JOIN = "multi join"
    SHARED_JOINS = "shared joins"
    LOOKUP = "lookup"
    SINK = "sink"


@dataclass(frozen=True)
class StoredOperator:
    """An operator with state.

    Attributes:
        uid: Under which the job has it.
        kind: What it does.
        id: What it is about.
        kin: The same without conditions.
        title: For people.
        parts: What it keeps, by digest.
        ttls_ms: By input, how long what it keeps lives that is not written; 0 for ever, as all if there is none.
    """

    uid: str
    kind: OperatorKind
    id: str
    kin: str
    title: str
    parts: Mapping[str, StoredPart] = field(default_factory=dict)
    ttls_ms: tuple[int, ...] = ()


@dataclass(frozen=True)
class StoredPlan:
    """A plan.

    Attributes:
        statements: Their texts, without secrets.
        operators: Those with state, inputs first, then sinks.
        generation: How often it has been upgraded, from 1: what begins anew has it in its name.
        layout: What records between its operators are (`headrace.engine.optimizer.upgrades.kept_parts.layout_of`).
        version: How its ids are made.
    """

    statements: tuple[str, ...]
    operators: tuple[StoredOperator, ...]
    generation: int = 1
    layout: str = ""
    version: int = NEWEST

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        operators = [
            {
                "uid": one.uid,
                "kind": one.kind.value,
                "id": one.id,
                "kin": one.kin,
                "title": one.title,
                "parts": {digest: [part.name, part.text] for digest, part in one.parts.items()},
                **({"ttls_ms": list(one.ttls_ms)} if any(one.ttls_ms) else {}),
            }
            for one in self.operators
        ]
        return {
            "version": self.version,
            "generation": self.generation,
            "layout": self.layout,
            "statements": list(self.statements),
            "operators": operators,
        }

    @classmethod
    def from_json(cls, raw: Any, path: str) -> StoredPlan:
        """Read it.

        Args:
            raw: JSON values.
            path: Where they come from, for errors.

        Raises:
            CheckpointMismatchError: If a newer version wrote it.
            CheckpointCorruptError: If it is none.
        """
        try:
            require(type(raw) is dict, "plan", raw)
            version = raw["version"]
            if type(version) is int and version > NEWEST:
                message = f"a plan has version {version}; this Headrace reads versions up to {NEWEST}"
                raise CheckpointMismatchError(message, path=path)
            require(is_count(version) and version > 0, "version", version)
            generation, statements, layout = raw["generation"], raw["statements"], raw.get("layout", "")
            require(is_text(layout), "layout", layout)
            require(is_count(generation) and generation > 0, "generation", generation)
            require(type(statements) is list and all(map(is_text, statements)), "statements", statements)
            require(type(raw["operators"]) is list, "operators", raw["operators"])
            operators = tuple(map(_operator, raw["operators"]))
            uids = [one.uid for one in operators]
            require(len(set(uids)) == len(uids), "uids", uids)
        except (KeyError, TypeError, ValueError) as error:
            message = f"a plan has the wrong structure: {error!r:.400}"
            raise CheckpointCorruptError(message, path=path) from error
        return cls(tuple(statements), operators, generation, layout, version)

    def to_text(self) -> str:
        """Return it as a text."""
        return json.dumps(self.to_json(), indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_text(cls, text: bytes, path: str) -> StoredPlan:
        """Read a text; see `from_json`."""
        try:
            raw = parse_json(text, max_bytes=MAX_PLAN_BYTES, max_depth=16)
        except (ValueError, TypeError, RecursionError) as error:
            message = f"a plan cannot be decoded: {error!r:.400}"
            raise CheckpointCorruptError(message, path=path) from error
        return cls.from_json(raw, path)


_KINDS = frozenset(kind.value for kind in OperatorKind)


def _operator(raw: Any) -> StoredOperator:
    require(type(raw) is dict, "operator", raw)
    require(set(raw) - {"ttls_ms"} == {"uid", "kind", "id", "kin", "title", "parts"}, "operator", raw)
    ttls = raw.get("ttls_ms", [])
    require(type(ttls) is list and len(ttls) <= _MOST_INPUTS and all(map(is_count, ttls)), "ttls_ms", ttls)
    texts = {name: raw[name] for name in ("uid", "kind", "id", "kin", "title")}
    require(all(is_text(one) and 0 < len(one) < 10_000 for one in texts.values()), "operator", texts)
    require(type(raw["parts"]) is dict, "parts", raw["parts"])
    parts = {}
    for digest, part in raw["parts"].items():
        require(type(part) is list and len(part) == 2 and all(map(is_text, (digest, *part))), "part", part)
        parts[digest] = StoredPart(*part)
    names = [part.name for part in parts.values()]
    require(len(set(names)) == len(names), "names of parts", names)
    require(raw["kind"] in _KINDS, "kind of an operator", raw["kind"])
    named = {**texts, "kind": OperatorKind(raw["kind"])}
    return StoredOperator(**named, parts=parts, ttls_ms=tuple(ttls))
