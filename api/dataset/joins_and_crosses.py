"""Joins, co-groups and crosses under way: their keys, and what happens to records that belong together.

They are begun in `headrace.dataset.two_inputs`. ``a.join(b).where("id").equal_to("a_id")`` is a data set of tuples
(left, right) already; ``with_``, ``merge``, ``project_first`` and ``project_second`` say what else a pair becomes.

Source: Flink's ``JoinOperator``, ``CoGroupOperator``, ``CrossOperator``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import pyarrow as pa

from headrace.engine.errors import ProgramError, TypeMismatchError
from headrace.engine.functions.cofunctions import FlatJoinFunction
from headrace.engine.partitions.function_life import checked_function
from headrace.engine.plan.plan import (
    CoGroup,
    Cross,
    GroupKey,
    Join,
    JoinHint,
    KeyMatch,
    Node,
    Order,
    SemiJoin,
    Ship,
    ShipKind,
    record_shape,
)
from headrace.state.type_variables import T1, T2

from ..arguments.checks import described, field_of, require_instance
from ..arguments.function_shapes import CoGroupOf, CrossOf, JoinOf, KeyOf
from .dataset import DataSet
from .record_types import field_type, function_schema, group_key, order_of, schema_with_kind

if TYPE_CHECKING:
    from .environment import ExecutionEnvironment

__all__ = [
    "CoGroupBuilder",
    "CrossDataSet",
    "JoinBuilder",
    "JoinedDataSet",
    "SemiJoinBuilder",
    "cross_of",
    "require_one_kind",
]

_New = TypeVar("_New")
_Left = TypeVar("_Left", covariant=True)
_Right = TypeVar("_Right", covariant=True)

_HOWS = ("inner", "left", "right", "full")


def require_one_kind(
    method: str, left: DataSet[Any], left_key: GroupKey, right: DataSet[Any], right_key: GroupKey
) -> None:
    """Refuse keys that could never be equal.

    Raises:
        ProgramError: If they have not as many fields. TypeMismatchError: If their types have nothing in common.
    """
    if left_key.fields is None or right_key.fields is None:
        return
    if len(left_key.fields) != len(right_key.fields):
        message = f"{method}: the keys {left_key!r} and {right_key!r} differ in the number of fields"
        raise ProgramError(message)
    for one, other in zip(left_key.fields, right_key.fields, strict=True):
        types = field_type(method, one, left.schema), field_type(method, other, right.schema)
        if types[0] is not None and types[1] is not None and _family(types[0]) != _family(types[1]):
            both = f"{method}: key fields {one!r} of type {types[0]} and {other!r} of type {types[1]}"
            message = f"{both} are never equal"
            if all(kind is not None and pa.types.is_timestamp(kind) and kind.tz is not None for kind in types):
                message = f"{both} are times of different zones, which are not compared"
            raise TypeMismatchError(message, hint="cast one of them: with_columns(name=col(name).cast(type))")


def _family(kind: pa.DataType) -> str:
    is_ = pa.types
    if is_.is_integer(kind) or is_.is_floating(kind) or is_.is_decimal(kind) or is_.is_boolean(kind):
        return "number"
    if is_.is_string(kind) or is_.is_large_string(kind):
        return "text"
    if is_.is_timestamp(kind):
        return f"time {kind.tz}"
    return str(kind)


class _PairDataSet(DataSet[tuple[T1, T2]]):
    """A data set of pairs, which may still be told what a pair is to become."""

    def __init__(self, environment: ExecutionEnvironment, node: Node, left: DataSet[Any], right: DataSet[Any]) -> None:
        super().__init__(environment, node)
        self._left = left
        self._right = right
        # Fields of the projection so far.
        self._projection: tuple[tuple[int, str | int, str], ...] = ()

    def _made(self, func: Any, method: str, output_type: Any) -> DataSet[Any]:
        checked_function(func, method)
        many = isinstance(func, FlatJoinFunction)
        return self._with(
            function=func,
            schema=function_schema(func, method, output_type, many=many),
            name=described(self._node.operator.lower(), func),
        )

    def _with(self, **changes: Any) -> DataSet[Any]:
        return DataSet(self._environment, replace(self._node, id=self._environment.new_id(), **changes))

    def project_first(self, *fields: Any) -> Any:
        """Records of fields of the first input (all, if none is named), and of what is projected behind this."""
        return self._projected(0, self._left, fields)

    def project_second(self, *fields: Any) -> Any:
        """Records of fields of the second input (all, if none is named), and of what is projected behind this."""
        return self._projected(1, self._right, fields)

    def _projected(self, side: int, data: DataSet[Any], fields: tuple[Any, ...]) -> Any:
        method = "project_second" if side else "project_first"
        chosen = [field_of(method, field) for field in fields]
        if not chosen:
            if data.schema is None:
                message = f"{method} must name fields, because the input has no type"
                raise ProgramError(message)
            is_tuple = record_shape(data.schema) == "tuple"
            chosen = list(range(len(data.schema))) if is_tuple else list(data.schema.names)
        before = self._projection
        is_tuple = isinstance((before[0][1] if before else chosen[0]), int)
        if any(isinstance(field, int) != is_tuple for field in chosen):
            message = "a projection takes names or positions, not both"
            raise ProgramError(message)
        names = [f"f{len(before) + i}" if is_tuple else str(field) for i, field in enumerate(chosen)]
        new = tuple((side, field, name) for field, name in zip(chosen, names, strict=True))
        made = type(self)(self._environment, self._node, self._left, self._right)
        made._projection = (*before, *new)
        made._node = self._projection_node(made._projection, is_tuple=is_tuple)
        return made

    def merge(self, suffix: str | None = None) -> DataSet[dict[str, Any]]:
        """Dicts of the fields of both inputs.

        A field that both have is taken once if it is the key on both sides (from whichever record is there).

        Args:
            suffix: What is appended to the name of any other field of the second input that the first has too; None to
                refuse that.
        """
        left, right = self._left.schema, self._right.schema
        if record_shape(left) != "dict" or record_shape(right) != "dict" or left is None or right is None:
            message = "merge is for records that are dicts of a known type on both sides"
            raise ProgramError(message, hint="use with_(lambda left, right: {**left, **right})")
        shared = self._shared_keys()
        how = getattr(self._node, "how", "inner")
        projection = [(1 if name in shared and how == "right" else 0, name, name) for name in left.names]
        for name in right.names:
            if name in shared:
                continue
            target = name if name not in left.names else f"{name}{suffix or ''}"
            if target in left.names:
                message = f"both inputs have a field {name!r}"
                raise ProgramError(message, hint='pass merge(suffix="_right"), or select other names before')
            projection.append((1, name, target))
        if how == "full" and shared:
            message = f"a full join cannot take {sorted(shared)} from one side"
            raise ProgramError(message, hint="use with_, or project both under names of their own")
        doubled = {name for _s, _f, name in projection if sum(name == other for _a, _b, other in projection) > 1}
        if doubled:
            message = f"the result would have several fields called {', '.join(map(repr, sorted(doubled)))}"
            raise ProgramError(message)
        node = self._projection_node(tuple(projection), is_tuple=False)
        return DataSet(self._environment, node)

    def _shared_keys(self) -> set[str]:
        node = self._node
        if not isinstance(node, Join) or node.left_key.fields is None or node.right_key.fields is None:
            return set()
        return {
            str(one) for one, other in zip(node.left_key.fields, node.right_key.fields, strict=True) if one == other
        }

    def _projection_node(self, projection: tuple[tuple[int, str | int, str], ...], *, is_tuple: bool) -> Node:
        names = [name for _side, _field, name in projection]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            message = f"a projection has several fields called {', '.join(map(repr, doubled))}"
            raise ProgramError(message, hint="select other names before the join")
        fields = []
        for side, field, name in projection:
            data = self._right if side else self._left
            fields.append((name, field_type("a projection", field, data.schema)))
        schema = None
        if all(kind is not None for _name, kind in fields):
            schema = schema_with_kind([pa.field(name, kind) for name, kind in fields], "tuple" if is_tuple else "dict")
        changes: Any = {"projection": projection, "is_tuple": is_tuple, "schema": schema}
        return replace(self._node, id=self._environment.new_id(), **changes)


# ---------------------------------------------------------------------------------------------------------------- joins


Waiting = TypeVar("Waiting", bound="_WaitingJoin")


class _WaitingJoin(Generic[T1, T2]):
    """Two data sets that wait for the keys by which their records are matched."""

    def __init__(self, left: DataSet[T1], right: DataSet[T2]) -> None:
        left.get_execution_environment().require_same(left, right)
        self._left = left
        self._right = right
        self._left_key: GroupKey | None = None

    def where(self: Waiting, *key: KeyOf[T1]) -> Waiting:
        """Say the key of the first input: names, positions, or a function."""
        self._left_key = group_key("where", key, self._left.schema)
        return self

    def _matched(self, key: tuple[Any, ...], kind: type[KeyMatch], name: str, **more: Any) -> Any:
        """The node, with the key of the second input."""
        if self._left_key is None:
            message = "equal_to comes behind where"
            raise ProgramError(message)
        right_key = group_key("equal_to", key, self._right.schema)
        require_one_kind("join", self._left, self._left_key, self._right, right_key)
        return kind(
            id=self._left.get_execution_environment().new_id(),
            name=name,
            inputs=(self._left.take_node(), self._right.take_node()),
            ships=(Ship(ShipKind.HASH, self._left_key), Ship(ShipKind.HASH, right_key)),
            left_key=self._left_key,
            right_key=right_key,
            **more,
        )


class JoinBuilder(_WaitingJoin[T1, T2], Generic[_Left, _Right, T1, T2]):
    """A join that waits for its keys. Made by ``DataSet.join``.

    The first two type parameters are of the sides of pairs, which an outer join may leave None, the others of the
    inputs.
    """

    def __init__(self, left: DataSet[T1], right: DataSet[T2], how: str, hint: JoinHint) -> None:
        if how not in _HOWS:
            message = f"how must be one of {', '.join(_HOWS)}; got {how!r}"
            raise ProgramError(message, hint="semi_join and anti_join give records of the first data set alone")
        require_instance("hint must be a JoinHint", JoinHint, hint)
        kept_if_broadcast = {JoinHint.BROADCAST_HASH_FIRST: ("inner", "right"),
                             JoinHint.BROADCAST_HASH_SECOND: ("inner", "left")}  # fmt: skip
        if hint in kept_if_broadcast and how not in kept_if_broadcast[hint]:
            message = f"an input whose unmatched records are kept cannot be broadcast: {how} join, {hint.name}"
            raise ProgramError(message)
        super().__init__(left, right)
        self._how = how
        self._hint = hint

    def on(self, *key: Any) -> JoinedDataSet[_Left, _Right]:
        """Say the key of both inputs."""
        return self.where(*key).equal_to(*key)

    def equal_to(self, *key: KeyOf[T2]) -> JoinedDataSet[_Left, _Right]:
        """Say the key of the second input. Records whose key is null, or has a part that is, match nothing."""
        node = self._matched(key, Join, f"{self._how} join", how=self._how, hint=self._hint)
        return JoinedDataSet(self._left.get_execution_environment(), node, self._left, self._right)


class SemiJoinBuilder(_WaitingJoin[T1, Any]):
    """A semi or anti join that waits for its keys. Made by ``semi_join`` and ``anti_join``."""

    def __init__(self, left: DataSet[T1], right: DataSet[Any], *, is_anti: bool) -> None:
        super().__init__(left, right)
        self._is_anti = is_anti

    def on(self, *key: Any) -> DataSet[T1]:
        """Say the key of both inputs."""
        return self.where(*key).equal_to(*key)

    def equal_to(self, *key: Any) -> DataSet[T1]:
        """Say the key of the second input. A record whose key is null, or has a part that is, has no partner."""
        name = "anti join" if self._is_anti else "semi join"
        node = self._matched(key, SemiJoin, name, schema=self._left.schema, is_anti=self._is_anti)
        return DataSet(self._left.get_execution_environment(), node)


class JoinedDataSet(_PairDataSet[T1, T2]):
    """The pairs of a join, as tuples (left, right); a missing side of an outer join is None."""

    @overload
    def with_(self, func: FlatJoinFunction[T1, T2, _New], output_type: None = None) -> DataSet[_New]: ...

    @overload
    def with_(self, func: JoinOf[T1, T2, _New], output_type: None = None) -> DataSet[_New]: ...

    @overload
    def with_(self, func: JoinOf[T1, T2, Any], output_type: Any) -> DataSet[Any]: ...

    def with_(self, func: Any, output_type: Any = None) -> DataSet[Any]:
        """Make a record of each pair.

        Args:
            func: A callable of two records, a JoinFunction, or a FlatJoinFunction, which gives any number of records.
                It must not change the records.
            output_type: The new records' type.
        """
        return self._made(func, "join", output_type)


# ------------------------------------------------------------------------------------------------------------ co-groups


class CoGroupBuilder(Generic[T1, T2]):
    """A co-group that waits for its keys and function. Made by ``DataSet.co_group``."""

    def __init__(self, left: DataSet[T1], right: DataSet[T2]) -> None:
        left.get_execution_environment().require_same(left, right)
        self._sides = (left, right)
        self._keys: list[GroupKey | None] = [None, None]
        self._orders: list[tuple[Order, ...]] = [(), ()]

    def where(self, *key: KeyOf[T1]) -> CoGroupBuilder[T1, T2]:
        """Say the key of the first input."""
        self._keys[0] = group_key("where", key, self._sides[0].schema)
        return self

    def equal_to(self, *key: KeyOf[T2]) -> CoGroupBuilder[T1, T2]:
        """Say the key of the second input. Null is a key like any other."""
        self._keys[1] = group_key("equal_to", key, self._sides[1].schema)
        return self

    def sort_first_group(self, field: KeyOf[T1], ascending: bool = True) -> CoGroupBuilder[T1, T2]:
        """Put the groups of the first input in order."""
        return self._sorted(0, "sort_first_group", field, ascending)

    def sort_second_group(self, field: KeyOf[T2], ascending: bool = True) -> CoGroupBuilder[T1, T2]:
        """Put the groups of the second input in order."""
        return self._sorted(1, "sort_second_group", field, ascending)

    def _sorted(self, side: int, method: str, field: Any, ascending: bool) -> CoGroupBuilder[T1, T2]:
        order = order_of(method, field, ascending, self._sides[side].schema)
        self._orders[side] = (*self._orders[side], order)
        return self

    @overload
    def with_(self, func: CoGroupOf[T1, T2, _New], output_type: None = None) -> DataSet[_New]: ...

    @overload
    def with_(self, func: CoGroupOf[T1, T2, Any], output_type: Any) -> DataSet[Any]: ...

    def with_(self, func: Any, output_type: Any = None) -> DataSet[Any]:
        """Any number of records for each key that an input has.

        Args:
            func: A callable of two lists of records, of which one may be empty, or a CoGroupFunction; yields or
                returns records.
            output_type: The new records' type.
        """
        left_key, right_key = self._keys
        if left_key is None or right_key is None:
            message = "with_ comes behind where and equal_to"
            raise ProgramError(message)
        left, right = self._sides
        require_one_kind("co_group", left, left_key, right, right_key)
        checked_function(func, "co_group")
        environment = left.get_execution_environment()
        node = CoGroup(
            id=environment.new_id(),
            name=described("co_group", func),
            inputs=(left.take_node(), right.take_node()),
            schema=function_schema(func, "co_group", output_type, many=True),
            ships=(Ship(ShipKind.HASH, left_key), Ship(ShipKind.HASH, right_key)),
            left_key=left_key,
            right_key=right_key,
            function=func,
            left_orders=self._orders[0],
            right_orders=self._orders[1],
        )
        return DataSet(environment, node)


# -------------------------------------------------------------------------------------------------------------- crosses


class CrossDataSet(_PairDataSet[T1, T2]):
    """All pairs, as tuples (first, second)."""

    @overload
    def with_(self, func: CrossOf[T1, T2, _New], output_type: None = None) -> DataSet[_New]: ...

    @overload
    def with_(self, func: CrossOf[T1, T2, Any], output_type: Any) -> DataSet[Any]: ...

    def with_(self, func: Any, output_type: Any = None) -> DataSet[Any]:
        """Make a record of each pair: a callable of two records or a CrossFunction; must not change them."""
        return self._made(func, "cross", output_type)


def cross_of(left: DataSet[T1], right: DataSet[T2], ships: tuple[Ship, Ship]) -> CrossDataSet[T1, T2]:
    """Return the cross of two data sets."""
    environment = left.get_execution_environment()
    environment.require_same(left, right)
    node = Cross(id=environment.new_id(), name="cross", inputs=(left.take_node(), right.take_node()), ships=ships)
    return CrossDataSet(environment, node, left, right)
