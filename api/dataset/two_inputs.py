"""Verbs of two data sets: pairs by key or by any condition, all pairs, and both taken for sets of records.

Source: Flink's ``DataSet.join``, ``coGroup``, ``cross``, ``union``; its Table API for ``minus`` and ``intersect``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import pyarrow as pa

from headrace.engine.columns.conditions import require_condition
from headrace.engine.columns.expressions import Expression
from headrace.engine.errors import ProgramError, TypeMismatchError
from headrace.engine.partitions.wire_records import frozen
from headrace.engine.plan.plan import BROADCAST, FORWARD, ConditionJoin, JoinHint, Union, record_shape
from headrace.state.type_variables import T1

from ..arguments.known_columns import naming_step
from .record_types import is_same_type, schema_with_kind
from .recorded import Recorded

if TYPE_CHECKING:
    from .dataset import DataSet
    from .joins_and_crosses import CoGroupBuilder, CrossDataSet, JoinBuilder, SemiJoinBuilder

__all__ = ["TwoInputVerbs"]

_Other = TypeVar("_Other")


class TwoInputVerbs(Recorded[T1]):
    """The part of a data set that takes another one."""

    @overload
    def join(
        self, other: DataSet[_Other], *, how: Literal["inner"] = "inner", hint: JoinHint = JoinHint.OPTIMIZER_CHOOSES
    ) -> JoinBuilder[T1, _Other, T1, _Other]: ...

    @overload
    def join(
        self, other: DataSet[_Other], *, how: str, hint: JoinHint = JoinHint.OPTIMIZER_CHOOSES
    ) -> JoinBuilder[Any, Any, T1, _Other]: ...

    def join(
        self, other: DataSet[_Other], *, how: str = "inner", hint: JoinHint = JoinHint.OPTIMIZER_CHOOSES
    ) -> JoinBuilder[Any, Any, T1, _Other]:
        """Pair records with equal keys: ``a.join(b).where("id").equal_to("a_id")``.

        Args:
            other: The second input.
            how: ``inner``, ``left``, ``right`` or ``full``: whose records without a partner are kept. Type checkers
                know the sides of an outer join by `left_outer_join` and the like.
            hint: What is known of the sizes.
        """
        from .joins_and_crosses import JoinBuilder

        return JoinBuilder(self._data, other, how, hint)

    def join_with_tiny(self, other: DataSet[_Other]) -> JoinBuilder[T1, _Other, T1, _Other]:
        """Return a join whose second input is small enough to be sent everywhere."""
        return self.join(other, hint=JoinHint.BROADCAST_HASH_SECOND)

    def join_with_huge(self, other: DataSet[_Other]) -> JoinBuilder[T1, _Other, T1, _Other]:
        """Return a join whose first input is small enough to be sent everywhere."""
        return self.join(other, hint=JoinHint.BROADCAST_HASH_FIRST)

    def left_outer_join(
        self, other: DataSet[_Other], hint: JoinHint = JoinHint.OPTIMIZER_CHOOSES
    ) -> JoinBuilder[T1, _Other | None, T1, _Other]:
        """Return a join that keeps records of this data set without a partner."""
        return self.join(other, how="left", hint=hint)

    def right_outer_join(
        self, other: DataSet[_Other], hint: JoinHint = JoinHint.OPTIMIZER_CHOOSES
    ) -> JoinBuilder[T1 | None, _Other, T1, _Other]:
        """Return a join that keeps records of the other data set without a partner."""
        return self.join(other, how="right", hint=hint)

    def full_outer_join(
        self, other: DataSet[_Other], hint: JoinHint = JoinHint.OPTIMIZER_CHOOSES
    ) -> JoinBuilder[T1 | None, _Other | None, T1, _Other]:
        """Return a join that keeps all records without a partner."""
        return self.join(other, how="full", hint=hint)

    def co_group(self, other: DataSet[_Other]) -> CoGroupBuilder[T1, _Other]:
        """Give both groups of each key to one call: ``a.co_group(b).where("id").equal_to("a_id").with_(func)``."""
        from .joins_and_crosses import CoGroupBuilder

        return CoGroupBuilder(self._data, other)

    def cross(self, other: DataSet[_Other]) -> CrossDataSet[T1, _Other]:
        """Return all pairs of records; ``other`` is sent everywhere."""
        from .joins_and_crosses import cross_of

        return cross_of(self._data, other, ships=(FORWARD, BROADCAST))

    def cross_with_tiny(self, other: DataSet[_Other]) -> CrossDataSet[T1, _Other]:
        """As `cross`."""
        return self.cross(other)

    def cross_with_huge(self, other: DataSet[_Other]) -> CrossDataSet[T1, _Other]:
        """Return all pairs of records; this data set is sent everywhere."""
        from .joins_and_crosses import cross_of

        return cross_of(self._data, other, ships=(BROADCAST, FORWARD))

    def semi_join(self, other: DataSet[Any]) -> SemiJoinBuilder[T1]:
        """Return the records that have a partner in ``other``, each once:
        ``a.semi_join(b).where("id").equal_to("a_id")``.
        """
        from .joins_and_crosses import SemiJoinBuilder

        return SemiJoinBuilder(self._data, other, is_anti=False)

    def anti_join(self, other: DataSet[Any]) -> SemiJoinBuilder[T1]:
        """Return the records that have no partner in ``other``, also those whose key is null; else as `semi_join`."""
        from .joins_and_crosses import SemiJoinBuilder

        return SemiJoinBuilder(self._data, other, is_anti=True)

    def join_where(
        self, other: DataSet[Any], condition: Expression, *, how: str = "inner", suffix: str | None = None
    ) -> DataSet[dict[str, Any]]:
        """Return pairs of records by any condition, as dicts of the fields of both; ``other`` is sent everywhere.

        Every pair is looked at, so `join` is better where keys must be equal; further conditions are a ``filter``.

        Args:
            other: The second input.
            condition: Over the fields of the result. Null is not fulfilled.
            how: ``inner``, ``left`` (records without a partner stay), ``semi`` or ``anti`` (records of this data set
                that have a partner, or none).
            suffix: What is appended to the names of fields of ``other`` that both have; None to refuse them.
        """
        if how not in ("inner", "left", "semi", "anti"):
            message = f"how must be one of inner, left, semi, anti; got {how!r}"
            raise ProgramError(message, hint="for a right join change the sides")
        given: Any = condition
        if not isinstance(given, Expression):
            message = f"join_where takes an expression over the fields of both; got {condition!r}"
            raise ProgramError(message)
        self._environment.require_same(self._data, other)
        left, right = self._fields_for("join_where"), other._fields_for("join_where")
        projection = [(0, name, name) for name in left.names]
        fields = list(left)
        for field in right:
            name = f"{field.name}{suffix or ''}" if field.name in left.names else field.name
            if name in (known.name for known in fields):
                message = f"both inputs have a field {name!r}"
                raise ProgramError(message, hint='pass suffix="_right", or rename it before')
            projection.append((1, field.name, name))
            fields.append(pa.field(name, field.type))
        both = schema_with_kind(fields, "dict")
        with naming_step("join_where"):
            require_condition(condition, condition.output_type(both), "join")
        return self._of_node(
            ConditionJoin, f"{how} join where {condition!r}", (self._data, other),
            both if how in ("inner", "left") else left, (FORWARD, BROADCAST),
            condition=condition, projection=tuple(projection), how=how,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------------------------- sets

    def union(self, *others: DataSet[_Other]) -> DataSet[T1 | _Other]:
        """Unite data sets: the records of all, duplicates too; of one type, or all without one."""
        for other in others:
            self._environment.require_same(self._data, other)
        members = (self._data, *others)
        if any(member.schema is None for member in members):
            members = tuple(m if m.schema is None else m.with_schema(None) for m in members)
        for member in members[1:]:
            _require_one_type("a union", members[0], member)
        first = members[0].schema
        fitting = tuple(
            m if m.schema is None or first is None or m.schema.equals(first) else m.with_schema(first) for m in members
        )
        return self._of_node(Union, "union", fitting, first, (FORWARD,) * len(fitting))

    def minus(self, other: DataSet[Any]) -> DataSet[T1]:
        """Return the different records that are not in ``other``; null is a value like any other."""
        return _sets(self._data, other, "minus", _Minus(is_all=False))

    def minus_all(self, other: DataSet[Any]) -> DataSet[T1]:
        """Return the records without as many of each as ``other`` has."""
        return _sets(self._data, other, "minus_all", _Minus(is_all=True))

    def intersect(self, other: DataSet[Any]) -> DataSet[T1]:
        """Return the different records that are in ``other`` too; null is a value like any other."""
        return _sets(self._data, other, "intersect", _Intersect(is_all=False))

    def intersect_all(self, other: DataSet[Any]) -> DataSet[T1]:
        """Of each record as many as both have."""
        return _sets(self._data, other, "intersect_all", _Intersect(is_all=True))


def _require_one_type(what: str, one: DataSet[Any], other: DataSet[Any]) -> None:
    """Refuse data sets of different types.

    Raises:
        TypeMismatchError: If they are.
    """
    if not is_same_type(one.schema, other.schema):
        message = f"{what} is of data sets of one type; got {one.get_type()!r} and {other.get_type()!r}"
        raise TypeMismatchError(message, hint="project or select the same fields, cast to the same types")


class _Minus:
    def __init__(self, *, is_all: bool) -> None:
        self._is_all = is_all

    def __call__(self, left: list[Any], right: list[Any]) -> Iterable[Any]:
        if self._is_all:
            return left[len(right) :]
        return [] if right else left[:1]


class _Intersect:
    def __init__(self, *, is_all: bool) -> None:
        self._is_all = is_all

    def __call__(self, left: list[Any], right: list[Any]) -> Iterable[Any]:
        return left[: len(right)] if self._is_all else left[: min(len(right), 1)]


def _sets(data: DataSet[T1], other: DataSet[Any], method: str, function: Any) -> DataSet[T1]:
    """Records of two data sets of one type, group by group of equal records."""
    data.get_execution_environment().require_same(data, other)
    if data.schema is None or other.schema is None:
        one, two = data.with_schema(None), other.with_schema(None)
    else:
        _require_one_type(method, data, other)
        one, two = data, other
    schema = one.schema
    keys: list[Any] = [[frozen], [frozen]]
    if schema is not None and not any(pa.types.is_nested(field.type) for field in schema):
        is_tuple = record_shape(schema) == "tuple"
        keys = [list(range(len(schema))) if is_tuple else list(schema.names)] * 2
    elif schema is not None:
        # Columns may come in another order on the other side.
        one, two = one.with_schema(None), two.with_schema(None)
    pairs = one.co_group(two).where(*keys[0]).equal_to(*keys[1])
    return pairs.with_(function, output_type=schema).name(method)
