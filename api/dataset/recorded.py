"""What all verbs of a data set stand on: an environment, and the node of the plan that makes the records.

The verbs themselves are in modules of their own, one for each thing that they are about: `headrace.dataset.columns`,
`headrace.dataset.grouped`, `headrace.dataset.two_inputs`, `headrace.dataset.writes`; `headrace.dataset.dataset` has the
rest, and the class that users see.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, cast

import pyarrow as pa

from headrace.engine.errors import ProgramError
from headrace.engine.plan.plan import FORWARD, Node, Ship, record_shape
from headrace.state.type_variables import T1

from ..arguments.data_types import TypeInformation, resolve_type

if TYPE_CHECKING:
    from .dataset import DataSet
    from .environment import ExecutionEnvironment

__all__ = ["Recorded"]


class Recorded(Generic[T1]):
    """A data set, as far as its verbs need it."""

    def __init__(self, environment: ExecutionEnvironment, node: Node) -> None:
        self._environment = environment
        self._node = node
        # Whether a node reads it, so that it cannot be changed any more.
        self._is_used = False

    @property
    def _data(self) -> DataSet[T1]:
        """Itself, as what it is."""
        return cast("DataSet[T1]", self)

    def take_node(self) -> Node:
        """Return the node that makes the data set; it cannot be changed afterwards."""
        self._is_used = True
        return self._node

    @property
    def schema(self) -> pa.Schema | None:
        """The type of the records as an Arrow schema; None for arbitrary Python objects."""
        return self._node.schema

    def get_type(self) -> TypeInformation | None:
        """Return the type of the records; None for arbitrary Python objects."""
        return None if self.schema is None else resolve_type(self.schema)

    def get_execution_environment(self) -> ExecutionEnvironment:
        """Return the environment that the data set belongs to."""
        return self._environment

    def then(
        self, kind: type[Node], name: str, schema: pa.Schema | None, ship: Ship = FORWARD, /, **more: Any
    ) -> DataSet[Any]:
        """Return a data set that a node of one input makes of this one."""
        return self._of_node(kind, name, (self._data,), schema, (ship,), **more)

    def _of_node(
        self,
        kind: type[Node],
        name: str,
        inputs: tuple[DataSet[Any], ...],
        schema: pa.Schema | None,
        ships: tuple[Ship, ...],
        /,
        **more: Any,
    ) -> DataSet[Any]:
        """A data set that a node makes of data sets."""
        from .dataset import DataSet

        nodes = tuple(data.take_node() for data in inputs)
        node = kind(id=self._environment.new_id(), name=name, inputs=nodes, schema=schema, ships=ships, **more)
        return DataSet(self._environment, node)

    def _change(self, **changes: Any) -> None:
        if self._is_used:
            message = f"operator {self._node.name!r} cannot be changed any more: its result has been used"
            raise ProgramError(message, hint="call name, set_parallelism and with_broadcast_set right behind it")
        self._node = replace(self._node, **changes)

    def _fields_for(self, method: str) -> pa.Schema:
        """The type of records that are dicts.

        Raises:
            ProgramError: If they are not.
        """
        if self.schema is None or record_shape(self.schema) != "dict":
            message = f"{method} is for records that are dicts of a known type"
            raise ProgramError(message, hint="declare the type before: as_type(...) or output_type=...")
        return self.schema
