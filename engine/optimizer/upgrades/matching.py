"""Which operators of a plan are those of a stored one.

An operator is the stored one of the same id; of several the one that has most of its parts. A group whose records pass
other conditions than before has another id: it is a *relative* of a stored one, if only that can be meant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...plan.plan import Node
from ..stream_traits import takes_back
from .identity import identities_of
from .kept_parts import Identity, Keeps
from .stored_plan import OperatorKind, StoredOperator, StoredPlan

__all__ = ["Matching"]


@dataclass(frozen=True)
class Matching:
    """What of a plan is in a stored one.

    Attributes:
        identities: What the nodes of the plan are.
        name_of: How a part is called that is not stored yet, by its digest.
        stored: By node the stored operator that it is.
        relatives: The uids of those that go on with what was counted under other conditions.
    """

    identities: Mapping[Node, Identity]
    name_of: Callable[[str], str]
    stored: Mapping[Node, StoredOperator]
    relatives: frozenset[str]

    @staticmethod
    def of(roots: Sequence[Node], nodes: Sequence[Node], stored: StoredPlan | None, version: int) -> Matching:
        """Match a plan with a stored one.

        Args:
            roots: The plan.
            nodes: Those of it that are run as streams, inputs first.
            stored: None if it starts from nothing.
            version: Of the plan that ids are made for.
        """
        known_as: dict[str, str] = {}
        relatives: set[str] = set()
        there = () if stored is None else stored.operators
        while True:
            identities, name_of = identities_of(roots, known_as, version)
            keeps = {node: found for node in nodes if (found := identities[node].keeps) is not None}
            same = _same(keeps, there)
            relative = _relative(keeps, same, [one for one in there if one.uid not in relatives])
            if relative is None:
                return Matching(identities, name_of, same, frozenset(relatives))
            own, other = relative
            known_as[own.id] = other.id
            relatives.add(other.uid)


def _same(keeps: Mapping[Node, Keeps], stored: Sequence[StoredOperator]) -> dict[Node, StoredOperator]:
    """By node the stored operator of the same id."""
    found: dict[Node, StoredOperator] = {}
    free = list(stored)
    for node, own in keeps.items():
        same = [one for one in free if one.kind is own.kind and one.id == own.id]
        if same:
            found[node] = max(same, key=lambda one: len(set(one.parts) & set(own.parts)))
            free.remove(found[node])
    return found


def _relative(
    keeps: Mapping[Node, Keeps], same: Mapping[Node, StoredOperator], stored: Sequence[StoredOperator]
) -> tuple[Keeps, StoredOperator] | None:
    """The first group without a match, and a stored one without a match that differs by its conditions.

    Where several could be meant none is: groups would go on with what others have counted.
    """
    taken = {one.uid for one in same.values()}
    free = [one for one in stored if one.uid not in taken]
    alone = [(node, own) for node, own in keeps.items() if own.kind is OperatorKind.AGGREGATE and node not in same]
    for node, own in alone:
        found = [one for one in free if one.kind is own.kind and one.kin == own.kin]
        is_only_one = len(found) == 1 and sum(other.kin == own.kin for _, other in alone) == 1
        if is_only_one and not takes_back(node.inputs[0]):
            return own, found[0]
    return None
