"""What tests of lookup joins share: a table in a list, and what rows are joined with by a loop over it."""

from __future__ import annotations

import pyarrow as pa

from headrace.engine.connectors.table_lookup import TableLookup
from headrace.engine.errors import HeadraceError

LEFT = pa.schema({"id": "int64", "a": "int64", "b": "string"})
RIGHT = pa.schema({"k": "int64", "t": "string", "v": "int64"})
PROJECTION = ((0, "id", "id"), (0, "b", "b"), (1, "v", "v"), (1, "t", "t"))


class Table(TableLookup):
    """Rows in a list, which tests change; says what it is asked, and gives a row too many each time."""

    rows: list[tuple[int | None, str | None, int]] = []
    asked: list[list[tuple[int, str]]] = []
    fails = False

    def open(self):
        type(self).asked.clear()

    def lookup(self, keys):
        names = keys.schema.names
        wanted = set(zip(*keys.to_pydict().values(), strict=True))
        type(self).asked.append(sorted(wanted))
        if self.fails:
            message = "gone"
            raise HeadraceError(message)
        place = {"k": 0, "t": 1}
        own = [row for row in self.rows if tuple(row[place[name]] for name in names) in wanted]
        columns = list(zip(*[*own, (77, "none asks", 0)], strict=True))
        return pa.record_batch([pa.array(one, field.type) for one, field in zip(columns, RIGHT, strict=True)], RIGHT)


def oracle(rows, table, *, is_left, least=None):
    found = []
    for number, a, b in rows:
        own = [(number, b, v, t) for k, t, v in table if k is not None and t is not None and (k, t) == (a, b)]
        own = [row for row in own if least is None or row[2] >= least]
        found += own or ([(number, b, None, None)] if is_left else [])
    return found
