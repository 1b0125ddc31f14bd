"""What the parts of a plan are about, whatever the text calls it: found node by node, inputs first.

What a node's rows are does not depend on names, nor on which columns are selected, nor on the order of conditions, keys
or columns; what is found of it is said in `kept_parts`.

Source: "operator id = hash of the canonical sub-plan"; Flink's ``StreamGraphHasherV2`` hashes positions instead.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ...changelog.accumulators.value_arguments import filtered_argument, is_of_values, name_of_counts, name_of_values
from ...functions.aggregates.contract import Aggregate
from ...multi_joins.join_step import JoinChain, JoinStep
from ...plan.plan import (
    Aggregation,
    Distinct,
    FilterColumns,
    GroupKey,
    Node,
    Order,
    OverGroups,
    Select,
    Sort,
    TableSource,
    Union,
    walk,
)
from ...plan.table_nodes import (
    EventTime,
    Expand,
    IntervalJoin,
    JoinResult,
    LocalAggregation,
    LookupJoin,
    MultiJoin,
    ProcessingTime,
    ProjectedJoin,
    Scan,
    SharedJoins,
    TableJoin,
    TemporalJoin,
    TopN,
    WindowAggregation,
    WindowRows,
)
from ..join_filters import conditions_of
from ..stream_traits import is_temporal_sort, is_timed, takes_back
from .digests import digest_of, expression_digest, stable_text
from .kept_parts import Identity, Keeps, Part
from .stored_plan import NEWEST, OperatorKind

__all__ = ["identities_of", "identity_of_table"]


def identities_of(
    roots: Iterable[Node], known_as: Mapping[str, str] | None = None, version: int = NEWEST
) -> tuple[dict[Node, Identity], Callable[[str], str]]:
    """Return what all nodes of plans are, and what gives a part the name under which it is kept.

    Args:
        roots: The plans, as they are run on streams.
        known_as: Ids that count as others: operators that go on with what a relative has kept.
        version: Of the plan whose ids they are to be.
    """
    finder = _Finder(known_as or {}, version)
    for node in walk(*roots):
        finder.found[node] = finder.identity(node)
    return finder.found, finder.stored_name


def identity_of_table(table: Any, name: str, version: int = NEWEST) -> str:
    """Return what a table is: by its connector's options, whatever it is called; else by where the program has it.

    Args:
        table: Its connector.
        name: What it is called, which is all that plans up to version 2 know of rows of the program.
        version: Of the plan.
    """
    identity = table.identity if version > 1 else table.first_identity
    if identity is not None:
        return digest_of("table", identity)
    return digest_of("table", table.name, table.identity_in_program() if version > 2 else name)


class _Finder:
    """Finds what nodes are, inputs first."""

    def __init__(self, known_as: Mapping[str, str], version: int) -> None:
        self._known_as = known_as
        self._version = version
        # What columns of tables are called, and parts, for names that can be read.
        self.labels: dict[str, str] = {}
        self.found: dict[Node, Identity] = {}

    def identity(self, node: Node) -> Identity:
        for kinds, find in _KINDS:
            if isinstance(node, kinds):
                return find(self, node)
        # What cannot be run on a stream is told when it is lowered.
        below = [self.found[one].rows for one in node.inputs]
        names = node.schema.names if node.schema is not None else []
        base = digest_of(type(node).__name__, below)
        return Identity(base, frozenset(), {name: digest_of(base, name) for name in names})

    def _of(self, node: Node, index: int = 0) -> Identity:
        return self.found[node.inputs[index]]

    def _stored(self, digest: str) -> str:
        """A name that depends on what something is alone, and can be read where that is a column of a table."""
        return f"{self.labels.get(digest, 'value')}~{digest[:8]}"

    # -- rows ----------------------------------------------------------------------------------------------------------

    def scan(self, node: Scan) -> Identity:
        assert node.schema is not None
        own = identity_of_table(node.table, node.name, self._version)
        # Rows in columns are read as far as somebody reads them: that makes no other columns.
        kinds = {one.name: "row" if pa.types.is_struct(one.type) else str(one.type) for one in node.schema}
        columns = {name: digest_of(own, node.table.known_as(name), kind) for name, kind in kinds.items()}
        self.labels |= {digest: node.table.known_as(name) for name, digest in columns.items()}
        return Identity(own, frozenset(), columns, Keeps(OperatorKind.SOURCE, own, own, node.name))

    def values(self, node: TableSource) -> Identity:
        kinds = [str(column.type) for column in node.table.columns]
        own = digest_of("values", node.table.to_pydict().values(), kinds)
        columns = {name: digest_of(own, i) for i, name in enumerate(node.table.column_names)}
        return Identity(own, frozenset(), columns, Keeps(OperatorKind.SOURCE, own, own, node.name))

    def event_time(self, node: EventTime) -> Identity:
        """Where it is of the source, that keeps it; what it is is said here all the same."""
        below = self._of(node)
        own = digest_of("event time", below.base, below.columns[node.column])
        late = Part(digest_of("delay", node.delay_ms), f"a watermark {node.delay_ms} ms behind", ())
        return dataclasses.replace(
            below, keeps=Keeps(OperatorKind.WATERMARK, own, own, node.name, parts={late.digest: late})
        )

    def processing_time(self, node: ProcessingTime) -> Identity:
        below = self._of(node)
        return dataclasses.replace(
            below, columns={**below.columns, node.column: digest_of("processing time")}, keeps=None
        )

    def filter(self, node: FilterColumns) -> Identity:
        below = self._of(node)
        conditions = {expression_digest(one.structure, below.columns) for one in conditions_of(node.condition)}
        return dataclasses.replace(below, conditions=below.conditions | conditions, keeps=None)

    def select(self, node: Select) -> Identity:
        below = self._of(node)
        kept = dict(below.columns) if node.keep else {}
        computed = {name: expression_digest(one.structure, below.columns) for name, one in node.columns.items()}
        return dataclasses.replace(below, columns={**kept, **computed}, keeps=None)

    def expand(self, node: Expand) -> Identity:
        below, made = self._of(node), node.expansion
        settings = {name: value for name, value in vars(made).items() if name != "fields"}
        own = stable_text([list(value.values()) if isinstance(value, dict) else value for value in settings.values()],
                          below.columns)  # fmt: skip
        base = digest_of("expand", below.base, type(made).__qualname__, own, [str(one.type) for one in made.fields])
        columns = {name: digest_of(base, i) for i, name in enumerate(made.fields.names)}
        return Identity(base, below.conditions, {**below.columns, **columns})

    def union(self, node: Union) -> Identity:
        assert node.schema is not None
        sides = sorted(
            (self.found[one] for one in node.inputs), key=lambda one: (one.rows, sorted(one.columns.items()))
        )
        columns = {name: digest_of("union", [one.columns[name] for one in sides]) for name in node.schema.names}
        conditions = {digest_of(i, one) for i, side in enumerate(sides) for one in side.conditions}
        return Identity(digest_of("union", [one.base for one in sides]), frozenset(conditions), columns)

    def local(self, node: LocalAggregation) -> Identity:
        return dataclasses.replace(self._of(node), keeps=None)

    def sort(self, node: Sort) -> Identity:
        """By event time rows wait, and late ones are left out; any other order changes nothing."""
        below = self._of(node)
        if not is_temporal_sort(node):
            return dataclasses.replace(below, keeps=None)
        keeps = self._kept(
            OperatorKind.SORT, node, [below], _orders(node.orders, below), [], self._rows(("rows",), [below])
        )
        return Identity(keeps.id, frozenset(), below.columns, keeps)

    def window_rows(self, node: WindowRows) -> Identity:
        below = self._of(node)
        base = digest_of("windows", below.base, self._window(node.window, below))
        borders = {name: digest_of(base, i) for i, name in enumerate(node.names)}
        return Identity(base, below.conditions, {**below.columns, **borders})

    def _window(self, window: Any, below: Identity) -> Any:
        partition = sorted(below.columns[name] for name in window.partition)
        time = below.columns[window.time_column]
        return (window.kind.value, time, window.size_ms, window.step_ms, window.offset_ms, partition)

    # -- groups --------------------------------------------------------------------------------------------------------

    def _in_order(self, sides: Sequence[Identity], keys: Iterable[tuple[str, ...]]) -> list[list[str]]:
        """Put a key in order: that in which the rows of the first input that has them by it come; else by what tables
        call the columns, so that two inputs are likely to be alike, and by digests.

        Plans up to version 3 have digests alone.

        Args:
            sides: What the inputs are.
            keys: Each column of the key, in each input.

        Returns:
            By input the columns in order.
        """

        def place(names: tuple[str, ...]) -> list[tuple[str, str]]:
            digests = [side.columns[name] for side, name in zip(sides, names, strict=True)]
            return [(self.labels.get(one, "") if self._version > 3 else "", one) for one in digests]

        ordered = sorted(keys, key=place)
        for at, side in enumerate(sides if self._version > 3 else ()):
            parts = [side.parts.get(side.columns[names[at]], -1) for names in ordered]
            if set(parts) == set(side.parts.values()) and len(set(parts)) == len(parts):
                ordered = [names for _, names in sorted(zip(parts, ordered, strict=True))]
                break
        return [[names[at] for names in ordered] for at in range(len(sides))]

    def _in_order_of(self, below: Identity, names: Iterable[str]) -> list[str]:
        return self._in_order([below], [(name,) for name in names])[0]

    def _kept(
        self,
        kind: OperatorKind,
        node: Node,
        sides: list[Identity],
        about: Any,
        keys: list[list[str]],
        parts: Mapping[str, Part] | None = None,
        states: tuple[str, ...] = (),
    ) -> Keeps:
        """What an operator keeps; ``states`` are those of its inputs, if they have keys of different names."""
        own = digest_of(kind.value, [one.rows for one in sides], about)
        own = self._known_as.get(own, own)
        kin = digest_of(kind.value, [one.base for one in sides], about)
        places: list[tuple[str, str, str]] = []
        for state, names, side in zip(states or ("",), keys, sides, strict=False):
            stored = _told_apart([self._stored(side.columns[name]) for name in names])
            places += [(state, f"key.{name}", f"key.{one}") for name, one in zip(names, stored, strict=True)]
        return Keeps(kind, own, kin, node.name, tuple(map(tuple, keys)), parts or {}, tuple(places))

    def aggregation(self, node: Aggregation | Distinct) -> Identity:
        below = self._of(node)
        assert node.schema is not None
        names = tuple(node.schema.names) if isinstance(node, Distinct) else _names(node.key)
        keys = self._in_order_of(below, names)
        aggregates = {} if isinstance(node, Distinct) else node.aggregates
        parts, results = self._calls(node, aggregates, below)
        about = [below.columns[name] for name in keys]
        keeps = self._kept(OperatorKind.AGGREGATE, node, [below], about, [keys], parts)
        columns = {name: below.columns[name] for name in names}
        columns |= {name: digest_of(keeps.id, digest) for name, digest in results.items()}
        return Identity(keeps.id, frozenset(), columns, keeps, _parts_of(below, keys))

    def _calls(
        self, node: Node, aggregates: Mapping[str, Aggregate], below: Identity
    ) -> tuple[dict[str, Part], dict[str, str]]:
        """The parts of a group's calls, and what each result is."""
        schema = node.inputs[0].schema
        assert schema is not None
        back = takes_back(node.inputs[0])
        parts: dict[str, Part] = {}
        results: dict[str, str] = {}
        for name, one in aggregates.items():
            results[name] = call = digest_of("call", stable_text(one, below.columns))
            of_values = is_of_values(one, takes_back=back)
            keeps_nothing = of_values and one.name in ("count_distinct", "min", "max")
            is_derived = keeps_nothing or (one.name == "count" and one.argument is None)
            text = re.sub(r"col\('([^']*)'\)", r"\1", repr(one))
            self.labels[call] = one.name
            reads: tuple[str, ...] = ()
            if of_values:
                argument, condition = filtered_argument(one, schema)
                state, counts = name_of_values(argument), name_of_counts(condition)
                values = digest_of("values", expression_digest(argument.structure, below.columns))
                where = None if condition is None else expression_digest(condition.structure, below.columns)
                reads = (values, digest_of("counts", values, where))
                self.labels |= dict(zip(reads, ("values", "count"), strict=True))
                parts[reads[0]] = Part(reads[0], f"the values of {text}", ((state, None),))
                parts[reads[1]] = Part(reads[1], f"how often the values of {text} have come", ((state, counts),))
            places = () if keeps_nothing else (("groups", name),)
            _add(parts, Part(call, text, places, is_call=True, is_derived=is_derived, reads=reads))
        return parts, results

    def top(self, node: TopN) -> Identity:
        below = self._of(node)
        keys = self._in_order_of(below, _names(node.key))
        about = (
            [below.columns[name] for name in keys], _orders(node.orders, below), node.limit, node.offset,
            node.latest_first, takes_back(node.inputs[0]) or node.refuses_others,
        )  # fmt: skip
        kind, only = OperatorKind.ONE_ROW if node.refuses_others else OperatorKind.TOP, None
        if node.of_upserts:
            kind, only = OperatorKind.UPSERTS, [below.columns.keys() - set(keys)]
        keeps = self._kept(kind, node, [below], about, [keys], self._rows(("rows",), [below], only))
        columns = dict(below.columns)
        if node.number is not None:
            columns[node.number] = digest_of(keeps.id, "number")
        return Identity(keeps.id, frozenset(), columns, keeps, _parts_of(below, keys))

    def over(self, node: OverGroups) -> Identity:
        below = self._of(node)
        keys = self._in_order_of(below, _names(node.key))
        specs = [stable_text(one, below.columns) for one in node.columns.values()]
        timed = is_timed(node)
        about = (
            [below.columns[name] for name in keys], _orders(node.orders, below), repr(node.frame), timed,
            specs if timed else None,
        )  # fmt: skip
        keeps = self._kept(OperatorKind.OVER, node, [below], about, [keys], self._rows(("rows",), [below]))
        columns = {name: digest_of(keeps.id, spec) for name, spec in zip(node.columns, specs, strict=True)}
        return Identity(keeps.id, frozenset(), {**below.columns, **columns}, keeps)

    def window_aggregation(self, node: WindowAggregation) -> Identity:
        below = self._of(node)
        keys = self._in_order_of(below, _names(node.key))
        _, results = self._calls(node, node.aggregates, below)
        about = ([below.columns[name] for name in keys], self._window(node.window, below), sorted(results.values()))
        keeps = self._kept(OperatorKind.WINDOW, node, [below], about, [keys])
        columns = {name: below.columns[name] for name in keys}
        columns |= {name: digest_of(keeps.id, digest) for name, digest in results.items()}
        columns |= {name: digest_of(keeps.id, i) for i, name in enumerate(node.names) if name is not None}
        return Identity(keeps.id, frozenset(), columns, keeps)

    # -- joins ---------------------------------------------------------------------------------------------------------

    def join(self, node: ProjectedJoin) -> Identity:
        sides = [self._of(node, 0), self._of(node, 1)]
        keys = self._in_order(sides, zip(_names(node.left_key), _names(node.right_key), strict=True))
        columns = {name: digest_of("side", side, sides[side].columns[column]) for side, column, name in node.projection}
        self.labels |= {
            columns[name]: self.labels.get(sides[side].columns[column], "value")
            for side, column, name in node.projection
        }
        condition = None if node.condition is None else expression_digest(node.condition.structure, columns)
        about: list[Any] = [[[sides[i].columns[name] for name in keys[i]] for i in (0, 1)], node.how, condition]
        if isinstance(node, LookupJoin):
            base = digest_of("lookup", sides[0].base, sides[1].rows, about)
            keeps = None if node.way is None else self._waiting(node, sides, about)
            return Identity(base, sides[0].conditions, columns, keeps)
        kind, states = OperatorKind.JOIN, ("left", "right")
        if isinstance(node, TemporalJoin):
            kind, states = OperatorKind.TEMPORAL_JOIN, ("rows", "versions")
            about.append([sides[i].columns[node.times[i]] for i in (0, 1)])
        if isinstance(node, IntervalJoin):
            kind = OperatorKind.INTERVAL_JOIN
            about += [[sides[i].columns[node.times[i]] for i in (0, 1)], node.low_ms, node.high_ms]
        only = [{column for at, column, _ in node.projection if at == side} for side in (0, 1)]
        parts = self._rows(states, sides, only if isinstance(node, TableJoin) else None)
        keeps = self._kept(kind, node, sides, about, keys, parts, states)
        if isinstance(node, TemporalJoin):  # times of keys are kept by the names of the rows' keys
            times = [("times", column, name) for state, column, name in keeps.places if state == "rows"]
            keeps = dataclasses.replace(keeps, places=(*keeps.places, *times))
        own = [_parts_of(sides[at], keys[at]) for at in (0, 1)]
        places = {digest_of("side", at, digest): part for at in (0, 1) for digest, part in own[at].items()}
        return Identity(keeps.id, frozenset(), columns, keeps, places)

    def _by_one_key(self, node: MultiJoin | SharedJoins) -> tuple[list[Identity], list[list[str]], list[Any]]:
        """The inputs of a join by one key, the key's columns of each in an order of their own, and what they are."""
        sides = [self._of(node, at) for at in range(len(node.inputs))]
        keys = self._in_order(sides, zip(*map(_names, node.keys), strict=True))
        about: list[Any] = [[[side.columns[name] for name in own] for side, own in zip(sides, keys, strict=True)]]
        return sides, keys, about

    def multi_join(self, node: MultiJoin) -> Identity:
        sides, keys, about = self._by_one_key(node)
        chain = JoinChain.of_all(node.steps, node.projection)
        about += [[step.how == "left", *rest] for step, *rest in self._steps(chain, sides)]
        keeps = self._kept_of_inputs(OperatorKind.MULTI_JOIN, node, (chain,), sides, keys, about)
        return Identity(keeps.id, frozenset(), self._given(chain, sides), keeps)

    def shared_joins(self, node: SharedJoins) -> Identity:
        """What it keeps; what its joins give is said of each result."""
        sides, keys, about = self._by_one_key(node)
        for chain in node.chains:
            own = [sides[at] for at in chain.inputs]
            about.append([chain.inputs, [[step.how, *rest] for step, *rest in self._steps(chain, own)]])
        keeps = self._kept_of_inputs(OperatorKind.SHARED_JOINS, node, node.chains, sides, keys, about)
        return Identity(keeps.id, frozenset(), {}, keeps)

    def join_result(self, node: JoinResult) -> Identity:
        below = self._of(node)
        columns = self._given(node.chain, [self.found[one] for one in node.sides])
        return Identity(digest_of(below.base, node.number), frozenset(), columns)

    def _given(self, chain: JoinChain, sides: list[Identity]) -> dict[str, str]:
        """The columns of a chain's result."""
        columns = {name: digest_of("side", at, sides[at].columns[column]) for at, column, name in chain.projection}
        self.labels |= {
            columns[name]: self.labels.get(sides[at].columns[column], "value") for at, column, name in chain.projection
        }
        return columns

    def _steps(self, chain: JoinChain, sides: list[Identity]) -> Iterator[tuple[JoinStep, tuple[int, ...], str | None]]:
        """The joins of a chain, by what each needs, and under which condition it is."""
        for step in chain.steps:
            named = {name: digest_of("side", at, sides[at].columns[column]) for at, column, name in step.columns}
            condition = None if step.condition is None else expression_digest(step.condition.structure, named)
            yield step, step.needs, condition

    def _kept_of_inputs(
        self,
        kind: OperatorKind,
        node: Node,
        chains: tuple[JoinChain, ...],
        sides: list[Identity],
        keys: list[list[str]],
        about: list[Any],
    ) -> Keeps:
        """The rows of all inputs, with the columns that chains read."""
        states = tuple(f"input{at}" for at in range(len(sides)))
        used = [(chain.inputs[at], column) for chain in chains for at, column, _ in chain.columns]
        only = [{column for of, column in used if of == at} for at in range(len(sides))]
        return self._kept(kind, node, sides, about, keys, self._rows(states, sides, only), states)

    def _waiting(self, node: LookupJoin, sides: list[Identity], about: Any) -> Keeps:
        """What an asynchronous lookup keeps: rows that wait for an answer."""
        parts = self._rows(("requests",), sides[:1])
        return self._kept(OperatorKind.LOOKUP, node, sides, about, [], parts)

    def _rows(
        self, states: tuple[str, ...], sides: list[Identity], only: list[set[str]] | None = None
    ) -> dict[str, Part]:
        """The columns of rows that are kept."""
        parts: dict[str, Part] = {}
        for side, state in enumerate(states):
            for name, digest in sides[side].columns.items():
                if only is None or name in only[side]:
                    own = digest_of("row", side, digest)
                    self.labels[own] = self.labels.get(digest, "value")
                    own = _add(parts, Part(own, f"column {name}", ((state, f"row.{name}"),)))
                    self.labels[own] = self.labels.get(digest, "value")
        return parts

    def stored_name(self, digest: str) -> str:
        """The name under which a part is kept."""
        return self._stored(digest)


def _add(parts: dict[str, Part], part: Part) -> str:
    """Add a part; of several that are the same each has a digest of its own. Returns it."""
    digest, number = part.digest, 1
    while digest in parts:
        number += 1
        digest = digest_of(part.digest, number)
    parts[digest] = dataclasses.replace(part, digest=digest)
    return digest


def _told_apart(names: list[str]) -> list[str]:
    return [name if names[:i].count(name) == 0 else f"{name}.{names[:i].count(name)}" for i, name in enumerate(names)]


def _parts_of(side: Identity, keys: list[str]) -> dict[str, int]:
    """What the columns of a key are, and which part of it each is."""
    return {side.columns[name]: part for part, name in enumerate(keys)}


def _names(key: GroupKey | None) -> tuple[str, ...]:
    return () if key is None else key.names or ()


def _orders(orders: Iterable[Order], below: Identity) -> list[tuple[str, bool]]:
    return [(below.columns[str(one.column)], one.ascending) for one in orders]


_KINDS: tuple[tuple[type[Node] | tuple[type[Node], ...], Callable[[_Finder, Any], Identity]], ...] = (
    (Scan, _Finder.scan),
    (TableSource, _Finder.values),
    (EventTime, _Finder.event_time),
    (ProcessingTime, _Finder.processing_time),
    (FilterColumns, _Finder.filter),
    (Select, _Finder.select),
    (Expand, _Finder.expand),
    (Union, _Finder.union),
    (Sort, _Finder.sort),
    (LocalAggregation, _Finder.local),
    ((Aggregation, Distinct), _Finder.aggregation),
    (TopN, _Finder.top),
    (OverGroups, _Finder.over),
    (WindowRows, _Finder.window_rows),
    (WindowAggregation, _Finder.window_aggregation),
    (ProjectedJoin, _Finder.join),
    (MultiJoin, _Finder.multi_join),
    (SharedJoins, _Finder.shared_joins),
    (JoinResult, _Finder.join_result),
)
