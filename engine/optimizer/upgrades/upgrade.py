"""A plan that goes on from what another one has kept: which operator goes on, with what, and what must begin anew.

Each operator with state is matched with one of the stored plan by its id. What then becomes of it is a `Verdict`:

- It goes on as it is, if all its parts are there; what it no longer keeps is forgotten.
- A group that has one more aggregate is *extended*: the aggregate begins with the next record, unless it follows from
  what is kept. That is for groups whose records are never taken back.
- What is fed by operators that can give all they have once more is *rebuilt* from them: they *replay*.
- A group whose records pass other conditions than before is a relative; whether it goes on with what it has counted
  under the old ones the user says.
- All else begins anew, with the rows that come from now on.

What would give other results than the query has when it is run from the beginning must be allowed by the user: see
`Consent`.

Invariant: an operator never gets a change of a row that it has not been given, but with the user's consent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ...plan.plan import Node, walk
from ...plan.table_nodes import LocalAggregation
from ..growth import can_expire, ttl_text, ttls_of
from ..stream_traits import drops_late_rows, read_as_streams, takes_back
from .kept_parts import Identity, Keeps, Part, layout_of
from .matching import Matching
from .stored_plan import NEWEST, OperatorKind, StoredOperator, StoredPart, StoredPlan

__all__ = ["Consent", "Planned", "SinkOfPlan", "Upgrade", "Verdict", "planned"]


class Verdict(str, Enum):
    """What becomes of an operator's state."""

    NEW = "new"
    """There was none, and it begins with all rows."""
    REUSE = "reuse"
    EXTEND = "extend"
    """It goes on, with parts that were not there."""
    REBUILD = "rebuild"
    """It is made anew, of what other operators have kept."""
    PARTIAL = "partial"
    """It begins anew, with the rows that come from now on."""
    LOST = "lost"
    """Nobody has a use for it."""


class Consent(str, Enum):
    """What the user has to allow."""

    PARTIAL = "partial"
    """Something has only seen the rows since the savepoint."""
    OLD_FILTER = "old-filter"
    """Groups go on with what they have counted under other conditions, or another watermark."""
    LOST = "lost"
    """State is left behind."""


@dataclass(frozen=True)
class SinkOfPlan:
    """Where the rows of a root go.

    Attributes:
        identity: What the table is, by the version of a plan.
        title: For people.
        known_as: What its columns are called where they are written; None if that is their order.
    """

    identity: Callable[[int], str]
    title: str
    known_as: Callable[[str], str] | None = None


@dataclass
class Planned:
    """An operator of a plan, or one that only the stored plan has.

    Attributes:
        node: Of the plan; None for a sink, and for what is lost.
        uid: Under which the job has it.
        kind: See `Keeps`.
        title: For people.
        verdict: What becomes of its state.
        details: The same in sentences.
        asks: What the user has to allow.
        stored: What it goes on from, or is made anew in place of.
        names: Those under which its parts are kept.
        replays: Whether it gives all its rows once more.
        keeps: What it keeps; None for a sink, and for what is lost.
        parts: What of it is in the stored plan that is made of this one.
        is_impossible: Whether it could not even run so.
    """

    node: Node | None
    uid: str
    kind: OperatorKind
    title: str
    verdict: Verdict = Verdict.NEW
    details: list[str] = field(default_factory=list)
    asks: set[Consent] = field(default_factory=set)
    stored: StoredOperator | None = None
    names: dict[str, str] = field(default_factory=dict)
    replays: bool = False
    keeps: Keeps | None = None
    parts: dict[str, StoredPart] = field(default_factory=dict)
    is_impossible: bool = False


@dataclass(frozen=True)
class Upgrade:
    """What a plan goes on from.

    Attributes:
        operators: Those with state, inputs first; then sinks, one for each root, then what is lost.
        identities: What its nodes are.
        plan: What is stored of it.
    """

    operators: tuple[Planned, ...]
    identities: Mapping[Node, Identity]
    plan: StoredPlan

    @property
    def asks(self) -> set[Consent]:
        """What the user has to allow."""
        return set().union(*(one.asks for one in self.operators))

    def of(self, node: Node) -> Planned | None:
        """Return what becomes of a node's state; None if it has none."""
        return next((one for one in self.operators if one.node is node), None)

    @property
    def sinks(self) -> list[Planned]:
        """The sinks, in the order of the roots."""
        return [one for one in self.operators if one.kind is OperatorKind.SINK and one.verdict is not Verdict.LOST]


_CAN_REPLAY = (OperatorKind.AGGREGATE, OperatorKind.TOP)
_WITHOUT_ROWS = (OperatorKind.SOURCE, OperatorKind.WATERMARK, OperatorKind.LOOKUP)
_PASSES_ON = (OperatorKind.WATERMARK, OperatorKind.LOOKUP)
"""What keeps none of the rows that it has given."""


def planned(
    roots: Sequence[Node],
    sinks: Sequence[SinkOfPlan],
    statements: Sequence[str],
    stored: StoredPlan | None = None,
    has_state: Callable[[str], bool] = lambda _uid: True,
    version: int = NEWEST,
) -> Upgrade:
    """Say what becomes of a plan's state.

    Args:
        roots: The plan, as it is run on streams.
        sinks: Where the rows of each root go.
        statements: Its texts.
        stored: The plan of the savepoint; None if it starts from nothing.
        has_state: Whether the savepoint has something of an operator, by its uid.
        version: Of the plan that is made, if it starts from nothing; else it is that of the stored one.
    """
    version = version if stored is None else stored.version
    return _Planner(roots, sinks, stored, has_state, version).upgrade(tuple(statements))


class _Planner:
    def __init__(
        self,
        roots: Sequence[Node],
        sinks: Sequence[SinkOfPlan],
        stored: StoredPlan | None,
        has_state: Callable[[str], bool],
        version: int,
    ) -> None:
        self._roots = roots
        self._has_state = has_state
        self._sinks = sinks
        self._stored = stored
        self._version = version
        self._nodes = _streams_of(roots)
        # Operators and sinks that get all rows of something that is made anew, and so cannot keep what they have of it.
        self._fed_anew: set[int] = set()
        self._matching = Matching.of(roots, self._nodes, stored, version)
        self._identities = self._matching.identities
        self._operators = [self._operator(node) for node in self._nodes if self._identities[node].keeps is not None]
        self._by_node = {one.node: one for one in self._operators if one.node is not None}
        self._ends: list[Planned] = []
        for root, sink in zip(roots, sinks, strict=True):
            self._ends.append(self._sink(root, sink))

    def _operator(self, node: Node) -> Planned:
        keeps = self._identities[node].keeps
        assert keeps is not None
        return Planned(node, "", keeps.kind, keeps.title, keeps=keeps, stored=self._matching.stored.get(node))

    def _sink(self, root: Node, sink: SinkOfPlan) -> Planned:
        identity, table = self._identities[root], sink.identity(self._version)
        own = Planned(None, "", OperatorKind.SINK, sink.title)
        own.parts = {
            _of_sink(root, identity, sink): StoredPart("rows", "the rows that are written"),
            f"table {table}": StoredPart("table", "the table"),
        }
        taken = {one.stored.uid for one in self._ends if one.stored is not None}
        same = [
            one
            for one in (self._stored.operators if self._stored else ())
            if one.kind is OperatorKind.SINK and one.id == table and one.uid not in taken
        ]
        own.stored = max(same, key=lambda one: len(set(one.parts) & set(own.parts)), default=None)
        return own

    # -- what becomes of it --------------------------------------------------------------------------------------------

    def upgrade(self, statements: tuple[str, ...]) -> Upgrade:
        if self._stored is not None:
            while self._judge_all():
                pass
            self._refuse_unlike_sources()
        generation = self._name_all()
        lost = list(self._lost())
        operators = (*self._operators, *self._ends)
        layout = layout_of(self._identities[one] for one in self._nodes if not isinstance(one, LocalAggregation))
        plan = StoredPlan(statements, tuple(map(self._to_store, operators)), generation, layout, self._version)
        return Upgrade((*operators, *lost), self._identities, plan)

    def _judge_all(self) -> bool:
        """Say of all what becomes of them; returns whether it has to be said anew.

        What is made anew gives all its rows as if they had just come. Who has kept rows of it would have them twice,
        and is made anew, too.
        """
        for one in (*self._operators, *self._ends):
            one.verdict, one.details, one.asks, one.is_impossible = Verdict.NEW, [], set(), False
        self._find_replays()
        for one in self._operators:
            self._judge(one)
        for root, end in zip(self._roots, self._ends, strict=True):
            self._judge_end(root, end)
        below = [(one, one.node.inputs) for one in self._operators if one.node is not None]
        below += [(end, (root,)) for root, end in zip(self._roots, self._ends, strict=True)]
        twice = {
            id(one)
            for one, nodes in below
            if one.kind is not OperatorKind.WATERMARK and self._goes_on(one) and self._is_rebuilt_below(nodes)
        }
        self._fed_anew |= twice
        return bool(twice)

    def _is_rebuilt_below(self, nodes: Iterable[Node]) -> bool:
        return any(self._by_node[node].verdict is Verdict.REBUILD for node in self._sources_of(nodes))

    def _missing(self, one: Planned) -> list[Part]:
        """The parts that are not there."""
        if one.keeps is None or one.stored is None:
            return []
        return [part for digest, part in one.keeps.parts.items() if digest not in one.stored.parts]

    def _goes_on(self, one: Planned) -> bool:
        """Whether it has all that it keeps, and gets none of it once more."""
        if id(one) in self._fed_anew:
            return False
        if one.kind is OperatorKind.SINK:
            return one.stored is not None and set(one.parts) <= set(one.stored.parts)
        return one.stored is not None and not self._missing(one)

    def _can_extend(self, one: Planned) -> bool:
        return (
            one.kind is OperatorKind.AGGREGATE
            and one.stored is not None
            and id(one) not in self._fed_anew
            and not takes_back(_input(one))
        )

    def _find_replays(self) -> None:
        """An operator gives all its rows once more if all who read it want them."""
        readers: dict[Node, list[bool]] = {}
        for one in self._operators:
            for below in self._sources_of(one.node.inputs if one.node is not None else ()):
                if one.kind not in _WITHOUT_ROWS:
                    readers.setdefault(below, []).append(not self._goes_on(one))
        for root, end in zip(self._roots, self._ends, strict=True):
            for below in self._sources_of((root,)):
                # A table that keeps all rows that come would have those of before twice.
                takes_all = takes_back(root) or end.stored is None
                readers.setdefault(below, []).append(takes_all and not self._goes_on(end))
        for node, wants in readers.items():
            one = self._by_node[node]
            is_there = self._goes_on(one) or self._can_extend(one)
            one.replays = one.kind in _CAN_REPLAY and is_there and bool(wants) and all(wants)

    def _sources_of(self, nodes: Iterable[Node]) -> list[Node]:
        """The operators that keep rows, or tables, right below nodes: those are looked at, too."""
        found: dict[Node, None] = {}
        stack = list(nodes)
        seen: set[Node] = set()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            one = self._by_node.get(node)
            if one is not None and one.kind not in _PASSES_ON:
                found[node] = None
            else:
                stack += read_as_streams(node)
        return list(found)

    def _gives_all(self, nodes: Iterable[Node]) -> bool:
        """Whether all rows come from below, and not only those from now on."""
        return all(self._is_whole(node) for node in self._sources_of(nodes))

    def _is_whole(self, node: Node) -> bool:
        one = self._by_node[node]
        if one.kind is OperatorKind.SOURCE:
            return one.stored is None
        return one.replays or one.verdict in (Verdict.NEW, Verdict.REBUILD)

    def _judge(self, one: Planned) -> None:
        assert one.node is not None
        assert one.keeps is not None
        if one.stored is not None and one.stored.uid in self._matching.relatives:
            one.asks.add(Consent.OLD_FILTER)
            one.details.append(
                "the conditions on its rows have changed: groups keep what was counted under the old ones"
            )
        if self._goes_on(one):
            one.verdict = Verdict.REUSE if not one.asks else Verdict.EXTEND
            if one.kind is OperatorKind.SOURCE:
                one.details.append("goes on where it was")
            assert one.stored is not None
            gone = [part.text for digest, part in one.stored.parts.items() if digest not in one.keeps.parts]
            if gone:
                one.details.append(f"forgets {_list(gone)}")
        elif one.kind is OperatorKind.WATERMARK and one.stored is not None:
            one.verdict = Verdict.EXTEND
            one.details.append(f"was {_list(part.text for part in one.stored.parts.values())}")
            if any(one.node in walk(node) for node in self._nodes if drops_late_rows(node)):
                one.asks.add(Consent.OLD_FILTER)
                one.details.append("which rows were late it has said until the savepoint")
        elif one.kind is OperatorKind.LOOKUP and one.stored is not None:
            self._judge_lookup(one)
        elif one.kind in _WITHOUT_ROWS:
            one.verdict = Verdict.NEW
            one.details.append("begins at its beginning" if one.kind is OperatorKind.SOURCE else "begins anew")
        elif self._can_extend(one) and not self._is_replayed(one):
            self._extend(one)
        else:
            self._begin_anew(one)
        if one.replays:
            one.details.append("gives all its rows once more")
        if one.stored is not None and one.verdict in (Verdict.REUSE, Verdict.EXTEND) and can_expire(one.node):
            one.details += _on_time_to_live(one.stored.ttls_ms, ttls_of(one.node))

    def _judge_lookup(self, one: Planned) -> None:
        """Rows that wait for an answer can go on only with all their columns."""
        one.verdict = Verdict.NEW
        if id(one) in self._fed_anew:
            one.details.append("its rows come once more")
            return
        one.asks.add(Consent.LOST)
        one.details.append(
            f"rows that wait for an answer are lost: they lack {_list(p.text for p in self._missing(one))}"
        )

    def _refuse_unlike_sources(self) -> None:
        """Refuse a table that is read by several sources, here or there: which position is whose is not known, and rows
        would be read twice, or by nobody. The very same plan has them in the same order.
        """
        assert self._stored is not None
        there = [
            (one.kind, one.id, frozenset(one.parts))
            for one in self._stored.operators
            if one.kind is not OperatorKind.SINK
        ]
        here = [
            (one.kind, one.keeps.id, frozenset(one.keeps.parts)) for one in self._operators if one.keeps is not None
        ]
        if here == there:
            return
        for one in self._operators:
            assert one.keeps is not None
            if one.kind is OperatorKind.SOURCE:
                told = "source", one.keeps.id
                counts = [sum(other[:2] == told for other in plan) for plan in (there, here)]
                if counts[0] and max(counts) > 1:
                    one.is_impossible = True
                    one.details.append(f"the savepoint has {counts[0]} sources of this table, the query {counts[1]}")

    def _is_replayed(self, one: Planned) -> bool:
        assert one.node is not None
        return any(self._by_node[node].replays for node in self._sources_of(one.node.inputs))

    def _extend(self, one: Planned) -> None:
        one.verdict = Verdict.EXTEND
        assert one.stored is not None
        calls = [part for part in self._missing(one) if part.is_call]
        known = set(one.stored.parts)
        for part in calls:
            if part.is_derived and set(part.reads) <= known:
                one.details.append(f"{part.text} follows from what is kept")
            else:
                one.asks.add(Consent.PARTIAL)
                one.details.append(f"{part.text} counts rows from the savepoint on")

    def _begin_anew(self, one: Planned) -> None:
        assert one.node is not None
        was, inputs = one.stored, one.node.inputs
        if self._gives_all(inputs):
            is_replayed = self._is_replayed(one)
            one.verdict = Verdict.REBUILD if is_replayed or was is not None else Verdict.NEW
            one.details.append("is made of all rows of its inputs")
            return
        one.verdict = Verdict.PARTIAL
        one.asks.add(Consent.PARTIAL)
        one.details.append("sees rows from the savepoint on")
        if any(takes_back(node) for node in inputs) and not self._begins(inputs):
            one.is_impossible = True
            one.details.append("its input would take back rows that it has not been given")
        if was is not None:
            one.asks.add(Consent.LOST)
            lacks = _list(part.text for part in self._missing(one))
            why = f"it lacks {lacks}" if lacks else "rows of it come once more"
            one.details.append(f"what it has kept is lost, as {why}")

    def _begins(self, nodes: Iterable[Node]) -> bool:
        """Whether what comes from below never takes back a row that has not come from there."""
        return all(
            self._is_whole(node) or self._by_node[node].verdict is Verdict.PARTIAL or not takes_back(node)
            for node in self._sources_of(nodes)
        )

    def _judge_end(self, root: Node, end: Planned) -> None:
        if self._goes_on(end):
            end.verdict = Verdict.REUSE
        elif takes_back(root) and not self._begins((root,)):
            end.verdict = Verdict.PARTIAL
            end.asks.add(Consent.PARTIAL)
            end.details.append("gets changes from the savepoint on, of rows too that it has not been given")
        elif self._gives_all((root,)):
            end.verdict = Verdict.NEW if end.stored is None and not takes_back(root) else Verdict.REBUILD
            end.details.append("all rows are written anew" if takes_back(root) else "all rows are written")
            if end.stored is not None:
                end.details.append("rows that the old query has written and this one has not stay")
        else:
            end.verdict = Verdict.PARTIAL
            end.asks.add(Consent.PARTIAL)
            behind = "" if end.stored is None else ", behind those of the old query"
            end.details.append(f"gets rows from the savepoint on{behind}")

    # -- names ---------------------------------------------------------------------------------------------------------

    def _name_all(self) -> int:
        """Give operators and parts the names under which they are kept; returns the generation."""
        known = [one for one in self._operators if one.verdict in (Verdict.REUSE, Verdict.EXTEND)]
        fresh = [one for one in self._operators if one not in known]
        generation = 1
        if self._stored is not None:
            is_changed = fresh or any(self._missing(one) for one in known)
            generation = self._stored.generation + (1 if is_changed else 0)
        mark = f"@{generation}" if generation > 1 else ""
        taken: set[str] = {one.uid for one in self._stored.operators} if self._stored else set()
        for one in self._operators:
            assert one.keeps is not None
            if one in known:
                assert one.stored is not None
                one.uid = one.stored.uid
                names = {digest: part.name for digest, part in one.stored.parts.items()}
            else:
                one.uid = _free(f"{one.kind.value.replace(' ', '-')}-{one.keeps.id}{mark}", taken)
                names = {}
            one.names = {
                digest: names.get(digest) or f"{self._matching.name_of(digest)}{mark}" for digest in one.keeps.parts
            }
        for end, sink in zip(self._ends, self._sinks, strict=True):
            if end.stored is not None:
                end.uid = end.stored.uid
            else:
                end.uid = _free(f"sink-{sink.identity(self._version)}", taken)
        return generation

    def _to_store(self, one: Planned) -> StoredOperator:
        if one.keeps is None:
            table = self._sinks[self._ends.index(one)].identity(self._version)
            return StoredOperator(one.uid, OperatorKind.SINK, table, table, one.title, one.parts)
        parts = {digest: StoredPart(one.names[digest], part.text) for digest, part in one.keeps.parts.items()}
        ttls = () if one.node is None else ttls_of(one.node)
        return StoredOperator(one.uid, one.kind, one.keeps.id, one.keeps.kin, one.title, parts, ttls)

    def _lost(self) -> Iterable[Planned]:
        """What only the stored plan has, but for what is made anew."""
        if self._stored is None:
            return
        used = {one.stored.uid for one in (*self._operators, *self._ends) if one.stored is not None}
        made_anew = {
            one.keeps.kin for one in self._operators if one.verdict is Verdict.REBUILD and one.keeps is not None
        }
        for other in self._stored.operators:
            if other.uid in used:
                continue
            gone = Planned(None, other.uid, other.kind, other.title, Verdict.LOST, stored=other)
            if other.kind is OperatorKind.WATERMARK or other.kin in made_anew or not self._has_state(other.uid):
                gone.details.append("nothing of it is needed")
            else:
                gone.details.append("the query has no use for it")
                gone.asks.add(Consent.LOST)
            yield gone


def _streams_of(roots: Sequence[Node]) -> list[Node]:
    """The nodes that become streams, inputs first; the table of a lookup is asked."""
    wanted: set[Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in wanted:
            wanted.add(node)
            stack += read_as_streams(node)
    return [node for node in walk(*roots) if node in wanted]


def _input(one: Planned) -> Node:
    assert one.node is not None
    return one.node.inputs[0]


def _of_sink(root: Node, identity: Identity, sink: SinkOfPlan) -> str:
    assert root.schema is not None
    columns = [identity.columns[name] for name in root.schema.names]
    if sink.known_as is not None:
        names = map(sink.known_as, root.schema.names)
        columns = sorted(f"{name}={column}" for name, column in zip(names, columns, strict=True))
    return " ".join(["rows", identity.rows, *columns])


def _free(uid: str, taken: set[str]) -> str:
    number, found = 1, uid
    while found in taken:
        number += 1
        found = f"{uid}.{number}"
    taken.add(found)
    return found


def _on_time_to_live(was: tuple[int, ...], now: tuple[int, ...]) -> list[str]:
    """What another time to live comes to for what is kept; nothing has to be allowed, as it is said in the program."""
    if (was or (0,) * len(now)) == now:
        return []
    details = [f"the time to live was {ttl_text(was) or 'for ever'}, and is {ttl_text(now) or 'for ever'}"]
    if any(was):
        details.append("what has expired stays forgotten")
    if not any(was):
        details.append("what is kept counts as written when it is restored")
    return details


def _list(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))
