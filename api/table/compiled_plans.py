"""Plans in files: COMPILE PLAN writes what a statement becomes, EXECUTE PLAN runs it, and nothing else.

A file holds the statement and its operators with the ids and names under which they keep state
(`headrace.engine.optimizer.upgrades.stored_plan`). It is planned again when it is executed, and refused unless all
operators come out the same: so another version, another definition of a table or view, or another setting never makes
another job of it unnoticed. Tables, views and functions of Python are those of the program that executes it.

Source: FLIP-190, whose files hold nodes to be run without planning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headrace.engine.errors import ProgramError
from headrace.engine.optimizer.upgrades.stored_plan import MAX_PLAN_BYTES, StoredOperator, StoredPlan
from headrace.engine.optimizer.upgrades.upgrade import Upgrade
from headrace.engine.plan.plan import Node, walk
from headrace.engine.plan.table_nodes import Scan
from headrace.state.credentials import masked
from headrace.state.errors import AlreadyExistsError, CheckpointError
from headrace.state.files.filesystem import filesystem_for

from ..arguments.places import lasting_place
from ..sql.parsing.errors import SqlError

__all__ = ["plan_exists", "read_plan", "refuse_rows_at_hand", "require_same", "ttls_as_compiled", "write_plan"]


def plan_exists(place: str) -> bool:
    """Return whether there is a file."""
    files, path = filesystem_for(lasting_place(place, "the file of a plan"))
    return files.exists(path)


def write_plan(plan: StoredPlan, place: str, *, overwrites: bool) -> None:
    """Write a plan.

    Raises:
        SqlError: If there is a file that must stay, or the statement has a secret.
    """
    if any(masked(one) != one for one in plan.statements):
        message = "the statement holds a secret, which would stand in the file"
        raise SqlError(message, hint="options with passwords belong to CREATE TABLE")
    files, path = filesystem_for(lasting_place(place, "the file of a plan"))
    data = plan.to_text().encode()
    if overwrites:
        files.write_bytes(path, data)
        return
    try:
        files.create_exclusive(path, data)
    except AlreadyExistsError:
        message = f"there is a plan at {place}"
        raise SqlError(message, hint="IF NOT EXISTS leaves it, OVERWRITE replaces it") from None


def read_plan(place: str) -> StoredPlan:
    """Read a plan.

    Raises:
        SqlError: If there is none, or it is not what COMPILE PLAN has written.
    """
    files, path = filesystem_for(lasting_place(place, "the file of a plan"))
    if not files.exists(path):
        message = f"there is no plan at {place}"
        raise SqlError(message, hint="COMPILE PLAN writes one")
    try:
        plan = StoredPlan.from_text(files.read_bytes(path, MAX_PLAN_BYTES), place)
    except CheckpointError as error:
        message = f"{place} is not what COMPILE PLAN writes: {error.message}"
        raise SqlError(message) from error
    if len(plan.statements) != 1:
        message = f"{place} is not what COMPILE PLAN writes: it has {len(plan.statements)} statements"
        raise SqlError(message)
    return plan


def refuse_rows_at_hand(roots: Sequence[Node]) -> None:
    """Refuse plans over rows that only this program has.

    Raises:
        ProgramError: If there are some.
    """
    for node in walk(*roots):
        if isinstance(node, Scan) and node.table.identity is None:
            message = f"{node.name}: these are rows of this program, which another one does not have"
            raise ProgramError(message, hint="a plan reads tables that CREATE TABLE makes")


def require_same(compiled: StoredPlan, planned: StoredPlan) -> None:
    """Refuse a statement whose plan is not the compiled one.

    Raises:
        ProgramError: If an operator is another one, or keeps something else.
    """
    there, here = (Counter(map(_about, one.operators)) for one in (compiled, planned))
    gone, come = [_titles(compiled, there - here), _titles(planned, here - there)]
    if gone or come:
        message = f"the statement is planned otherwise than it was compiled: {_list(gone)} became {_list(come)}"
        raise ProgramError(message, hint="tables, views, settings or the version have changed: COMPILE PLAN it again")


def ttls_as_compiled(compiled: StoredPlan, upgrade: Upgrade) -> dict[int, tuple[int, ...]]:
    """Return how long what nodes keep lives, by their ids, as it was when the plan was compiled, whatever SET says now.

    Args:
        compiled: The plan in the file.
        upgrade: The same operators (`require_same`), planned again.
    """
    by_uid = {one.uid: one.ttls_ms for one in compiled.operators}
    return {
        one.node.id: by_uid.get(one.uid) or (0,) * len(one.node.inputs)
        for one in upgrade.operators
        if one.node is not None
    }


def _about(one: StoredOperator) -> tuple[str, str, frozenset[str]]:
    return one.kind, one.id, frozenset(one.parts)


def _titles(plan: StoredPlan, wanted: Counter[tuple[str, str, frozenset[str]]]) -> list[str]:
    return [one.title for one in plan.operators if _about(one) in wanted]


def _list(titles: list[str]) -> str:
    return ", ".join(titles) or "nothing"
