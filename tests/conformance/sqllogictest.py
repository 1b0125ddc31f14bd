"""Runs files of sqllogictest (``.slt``, ``.test``) through batch and streaming mode, and says what passed.

Each query is asked of the tables that the statements before it have made. A query or statement that is refused by name
counts as refused, and reasons are counted; a table that a refused statement would have changed is not asked any more.
What a file's own dialect says otherwise is translated: by sqlglot, averages of whole numbers to averages of DOUBLE, and
``x IN table``. Parts of files (``.slt.part``) are run where they are included; those that nobody includes, alone.

    python tests/conformance/sqllogictest.py PATH... [--mode batch|streaming|both] [--dialect sqlite|postgres]
        [--share 0.1 --seed N] [--show N]

Ends with status 1 if a query failed. Source: https://www.sqlite.org/sqllogictest, the formats of sqllogictest-rs.
"""

from __future__ import annotations

import argparse
import datetime
import decimal
import hashlib
import math
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import exp

from headrace.engine.errors import ProgramError
from headrace.sql.parsing.dialect import Flink
from headrace.table import TableEnvironment

_TYPES = {
    "int": pa.int64(), "integer": pa.int64(), "bigint": pa.int64(), "smallint": pa.int16(), "int2": pa.int16(),
    "int4": pa.int32(), "int8": pa.int64(), "real": pa.float64(), "float": pa.float64(), "double": pa.float64(),
    "float8": pa.float64(), "varchar": pa.string(), "text": pa.string(), "char": pa.string(), "boolean": pa.bool_(),
    "bool": pa.bool_(), "date": pa.date32(), "timestamp": pa.timestamp("us"), "numeric": pa.decimal128(28, 10),
    "decimal": pa.decimal128(28, 10),
}  # fmt: skip


@dataclass
class Record:
    """A statement or a query of a file.

    Attributes:
        place: File and line.
        text: Of the SQL.
        is_query: Whether rows are expected.
        fails: Whether an error is expected.
        types: One letter a column: ``I``, ``R``, ``T``.
        sort: ``nosort``, ``rowsort`` or ``valuesort``.
        expected: The lines behind ``----``.
    """

    place: str
    text: str
    is_query: bool
    fails: bool = False
    types: str = ""
    sort: str = "nosort"
    expected: list[str] = field(default_factory=list)


class Refused(Exception):
    """What is not there, by name."""


def records_of(path: Path, engine: str) -> Iterator[Record]:
    """Yield what a file asks for, of what is meant for an engine."""
    lines = path.read_text(errors="replace").splitlines()
    i, is_skipped = 0, False
    while i < len(lines):
        words = lines[i].split("#")[0].split()
        i += 1
        if not words:
            continue
        if words[0] in ("skipif", "onlyif"):
            is_skipped |= (words[1] == engine) == (words[0] == "skipif")
            continue
        if words[0] == "halt":
            if not is_skipped:
                return
        elif words[0] == "include" and not is_skipped:
            for included in sorted(path.parent.glob(words[1])):
                yield from records_of(included, engine)
        elif words[0] in ("statement", "query"):
            begin, text = i, []
            while i < len(lines) and lines[i].strip() and lines[i].strip() != "----":
                text.append(lines[i])
                i += 1
            expected = []
            if i < len(lines) and lines[i].strip() == "----":
                i += 1
                while i < len(lines) and lines[i].strip():
                    expected.append(lines[i].strip())
                    i += 1
            if not is_skipped:
                yield _record(f"{path}:{begin}", words, "\n".join(text), expected)
        is_skipped = False


def _record(place: str, words: list[str], text: str, expected: list[str]) -> Record:
    text = text.strip().rstrip(";")
    if words[0] == "statement" or words[1:2] == ["error"]:
        return Record(place, text, is_query=words[0] == "query", fails=words[1:2] == ["error"], expected=expected)
    types = words[1] if len(words) > 1 else ""
    sort = next((word for word in words[2:] if word.endswith("sort")), "nosort")
    return Record(place, text, True, types=types, sort=sort, expected=expected)


class Database:
    """The tables of one file, and two ways to ask them."""

    def __init__(self, dialect: str, mode: str) -> None:
        self._dialect = dialect
        self._mode = mode
        self._tables: dict[str, pa.Schema] = {}
        self._rows: dict[str, list[dict[str, Any]]] = {}
        # By the name of a view, the tables that it is of.
        self._views: dict[str, set[str]] = {}
        self._lost: set[str] = set()
        self._environment = self._new()

    def _new(self) -> TableEnvironment:
        options = {"actor_system": "local"} if self._mode == "streaming" else {}
        return TableEnvironment.create(mode=self._mode, parallelism=2, **options)

    @property
    def is_streaming(self) -> bool:
        """Whether queries run on streams."""
        return self._mode == "streaming"

    def close(self) -> None:
        """Let go of the cluster, if one was started."""
        self._environment.close()

    # -- statements ----------------------------------------------------------------------------------------------------

    def run(self, text: str) -> None:
        """Run a statement.

        Raises:
            Refused: If there is nothing like it here.
        """
        words = text.split(None, 1)
        first = words[0].lower() if words else ""
        if first in ("flush", "set", "reindex", "pragma", "analyze", "begin", "commit"):
            return
        tree = self._parsed(text)
        if isinstance(tree, exp.Create):
            self._create(tree)
        elif isinstance(tree, exp.Insert):
            self._insert(tree)
        elif isinstance(tree, exp.Delete):
            self._delete(tree)
        elif isinstance(tree, exp.Update):
            self._update(tree)
        elif isinstance(tree, exp.Drop):
            self._drop(tree)
        elif isinstance(tree, exp.Query):
            self.ask_tree(tree)
        else:
            self._lose(tree)
            message = f"statement {type(tree).__name__.upper()}"
            raise Refused(message)

    def _parsed(self, text: str) -> Any:
        try:
            return sqlglot.parse_one(text, read=self._dialect)
        except sqlglot.errors.SqlglotError as error:
            message = f"not parsed as {self._dialect}: {str(error).splitlines()[0][:60]}"
            raise Refused(message) from error

    def _lose(self, tree: Any) -> None:
        named = set(re.findall(r"\w+", str(tree.expression).lower())) if isinstance(tree, exp.Command) else set()
        self._lost |= _tables_of(tree) | (named & {*self._tables})

    def _create(self, tree: exp.Create) -> None:
        name = tree.find(exp.Table).name.lower()
        kind = str(tree.kind).upper()
        if kind == "INDEX":
            return
        if kind == "VIEW" and isinstance(tree.expression, (exp.Query, exp.Subquery)):
            self._register(f"CREATE VIEW `{name}` AS {self._translated(tree.expression)}", name)
            self._views[name] = _tables_of(tree.expression)
            return
        if kind == "TABLE" and isinstance(tree.expression, exp.Query) and not isinstance(tree.this, exp.Schema):
            rows = self._asked(tree.expression, name)
            self._tables[name], self._rows[name] = rows.schema, rows.to_pylist()
            self._offer(name)
            return
        if kind != "TABLE" or not isinstance(tree.this, exp.Schema) or tree.expression is not None:
            self._lost.add(name)
            message = f"CREATE {kind}"
            raise Refused(message)
        fields = []
        for one in tree.this.expressions:
            if not isinstance(one, exp.ColumnDef):
                continue
            if any(isinstance(part.kind, exp.DefaultColumnConstraint) for part in one.constraints):
                self._lost.add(name)
                message = "a column with a default"
                raise Refused(message)
            kind_name = one.kind.sql(dialect="postgres").lower().split("(")[0].split()[0]
            if kind_name not in _TYPES:
                self._lost.add(name)
                message = f"a column of type {kind_name}"
                raise Refused(message)
            fields.append(pa.field(one.name.lower(), _TYPES[kind_name]))
        self._tables[name], self._rows[name] = pa.schema(fields), []
        self._lost.discard(name)
        self._offer(name)

    def _register(self, statement: str, name: str) -> None:
        try:
            self._environment.execute_sql(statement)
        except ProgramError as error:
            self._lost.add(name)
            raise Refused(reason_of(error)) from error

    def _offer(self, name: str) -> None:
        self._environment.execute_sql(f"DROP TABLE IF EXISTS `{name}`")
        table = pa.Table.from_pylist(self._rows[name], schema=self._tables[name])
        self._environment.create_temporary_view(name, table)

    def _insert(self, tree: exp.Insert) -> None:
        target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
        name = target.name.lower()
        if name in self._lost or name not in self._tables:
            message = "INSERT into a table that is not there"
            raise Refused(message)
        if tree.args.get("alternative") or tree.args.get("conflict"):
            self._lost.add(name)
            message = "INSERT that replaces rows"
            raise Refused(message)
        schema = self._tables[name]
        columns = (
            [one.name.lower() for one in tree.this.expressions] if isinstance(tree.this, exp.Schema) else schema.names
        )
        for row in self._rows_of(tree.expression, name):
            try:
                found = {column: _stored(value, schema.field(column).type) for column, value in zip(columns, row)}  # noqa: B905
            except (ValueError, KeyError, ArithmeticError) as error:
                self._lost.add(name)
                message = "a value that does not fit its column"
                raise Refused(message) from error
            self._rows[name].append(found)
        self._offer(name)

    def _rows_of(self, tree: Any, name: str) -> list[list[Any]]:
        """The rows of VALUES, or of a query; what is no plain constant is asked for."""
        if not isinstance(tree, exp.Values):
            return [list(row.values()) for row in self._asked(tree, name).to_pylist()]
        rows = []
        for row in tree.expressions:
            try:
                rows.append([_constant(one) for one in row.expressions])
            except ValueError:
                named = [exp.alias_(one.copy(), f"x{i}") for i, one in enumerate(row.expressions)]
                rows.append(list(self._asked(exp.select(*named), name).to_pylist()[0].values()))
        return rows

    def _asked(self, tree: Any, name: str) -> pa.Table:
        """The answer of a query of our own; a table that it cannot be asked for is not there any more."""
        try:
            return self.ask_tree(tree)
        except Refused:
            self._lost.add(name)
            raise

    def _update(self, tree: exp.Update) -> None:
        """Change the rows that a query of our own finds, to what it computes."""
        name, where = tree.this.name.lower(), tree.args.get("where")
        if name in self._lost or name not in self._tables:
            message = "UPDATE of a table that is not there"
            raise Refused(message)
        new = {one.this.name.lower(): one.expression for one in tree.expressions}
        if not set(new) <= set(self._tables[name].names):
            message = "UPDATE of a column that is not there"
            raise Refused(message)
        columns = []
        for column in self._tables[name].names:
            value: Any = exp.column(column)
            if column in new and where is None:
                value = new[column].copy()
            elif column in new:
                value = exp.case().when(where.this.copy(), new[column].copy()).else_(value)
            columns.append(exp.alias_(value, column))
        rows = self._asked(exp.select(*columns).from_(name), name).to_pylist()
        kinds = self._tables[name]
        self._rows[name] = [{key: _stored(value, kinds.field(key).type) for key, value in row.items()} for row in rows]
        self._offer(name)

    def _delete(self, tree: exp.Delete) -> None:
        """Delete the rows that a query of our own finds."""
        name = tree.this.name.lower()
        where = tree.args.get("where")
        kept: list[dict[str, Any]] = []
        if where is not None:
            condition = exp.Is(this=exp.Paren(this=where.this.copy()), expression=exp.true())
            others = exp.select("*").from_(name).where(exp.Not(this=exp.Paren(this=condition)))
            kept = self._asked(others, name).to_pylist()
        self._rows[name] = kept
        self._offer(name)

    def _drop(self, tree: exp.Drop) -> None:
        name = tree.find(exp.Table).name.lower()
        if self._tables.pop(name, None) is not None:
            self._environment.execute_sql(f"DROP TABLE IF EXISTS `{name}`")
        elif name in self._views:
            del self._views[name]
            self._environment.execute_sql(f"DROP VIEW `{name}`")
        self._lost.discard(name)

    # -- queries -------------------------------------------------------------------------------------------------------

    def ask(self, text: str) -> pa.Table:
        """Return the answer of a query.

        Raises:
            Refused: If there is nothing like it here.
        """
        tree = self._parsed(text)
        if not isinstance(tree, (exp.Query, exp.Values)):
            self._lose(tree)
            message = f"query {type(tree).__name__.upper()}"
            raise Refused(message)
        return self.ask_tree(tree)

    def ask_tree(self, tree: Any) -> pa.Table:
        """Return the answer of a query that has been parsed."""
        named, seen = _tables_of(tree), set()
        while named - seen:
            seen |= named
            named = named.union(*(self._views.get(one, set()) for one in named))
        if named & self._lost:
            message = "a table that is not there any more"
            raise Refused(message)
        try:
            return self._environment.sql_query(self._translated(tree)).to_arrow()
        except ProgramError as error:
            raise Refused(reason_of(error)) from error

    def _is_text(self, tree: Any) -> bool:
        """Whether it is a column of texts in all tables that have it."""
        kinds = {one.field(tree.name.lower()).type for one in self._tables.values() if tree.name.lower() in one.names}
        return isinstance(tree, exp.Column) and kinds == {pa.string()}

    def _translated(self, tree: Any) -> str:
        tree = tree.copy()
        for one in tree.find_all(exp.Identifier):
            one.set("this", one.name.lower())
        for one in list(tree.find_all(exp.Avg)):
            inner = one.this
            value = inner.expressions[0] if isinstance(inner, exp.Distinct) else inner
            if self._is_text(value):
                continue  # SQLite reads texts as numbers; here they are refused
            value.replace(exp.Cast(this=value.copy(), to=exp.DataType.build("DOUBLE")))
        for one in list(tree.find_all(exp.Array)):
            one.replace(exp.Bracket(this=exp.Var(this="ARRAY"), expressions=one.expressions))
        for one in list(tree.find_all(exp.In)):
            if one.args.get("field") is not None:  # SQLite's x IN table
                table = one.args["field"].name
                one.set("field", None)
                one.set("query", exp.Subquery(this=exp.select("*").from_(exp.to_identifier(table))))
        if self._dialect == "sqlite":
            _integer_literals(tree)
        if tree.find(exp.ByteString) is not None:
            message = "a text with escapes"
            raise Refused(message)
        text: str = tree.sql(dialect=Flink, identify=True)
        return text


def _tables_of(tree: Any) -> set[str]:
    """The names of tables in a tree; SQLite's `x IN table` among them."""
    names = {one.name.lower() for one in tree.find_all(exp.Table)}
    return names | {one.args["field"].name.lower() for one in tree.find_all(exp.In) if one.args.get("field")}


def _integer_literals(tree: Any) -> None:
    """Sums and products of SQLite's literals have 64 bits."""
    for one in list(tree.find_all(exp.Literal)):
        if not one.is_string and one.name.isdigit() and not isinstance(one.parent, (exp.Order, exp.Ordered, exp.Limit)):
            one.replace(exp.Cast(this=one.copy(), to=exp.DataType.build("BIGINT")))


def _constant(tree: Any) -> Any:
    if isinstance(tree, exp.Paren):
        return _constant(tree.this)
    if isinstance(tree, exp.Cast):
        return _constant(tree.this)
    if isinstance(tree, exp.Null):
        return None
    if isinstance(tree, exp.Boolean):
        return bool(tree.this)
    if isinstance(tree, exp.Neg):
        return "-" + str(_constant(tree.this))
    if isinstance(tree, exp.Literal):
        return tree.name
    raise ValueError(tree)


def _stored(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else _shown(value, "T", is_sqlite=False)
    if pa.types.is_boolean(kind):
        return value if isinstance(value, bool) else value.lower() in ("t", "true", "1")
    if pa.types.is_integer(kind):
        return int(decimal.Decimal(str(value)))
    if pa.types.is_floating(kind):
        return float(value)
    if pa.types.is_decimal(kind):
        return decimal.Decimal(value).quantize(decimal.Decimal(1).scaleb(-kind.scale))
    return pa.scalar(value).cast(kind).as_py()


def reason_of(error: ProgramError) -> str:
    """Return why something is refused, without its names and numbers."""
    first = re.sub(r"^line \d+, column \d+: ", "", str(error).splitlines()[0])
    return re.sub(r"'[^']*'|\d+", "…", first)[:90]


# -- answers -----------------------------------------------------------------------------------------------------------


def _shown(value: Any, letter: str, *, is_sqlite: bool) -> str:
    if value is None:
        return "NULL"
    if is_sqlite and letter == "R":
        return f"{float(value):.3f}"
    if is_sqlite and letter == "I":
        # SQLite reads a text as the whole number that it begins with, or as zero.
        return str(int((re.match(r"\s*[-+]?\d+", value) or ["0"])[0]) if isinstance(value, str) else int(value))
    if isinstance(value, bool):
        return str(int(value)) if is_sqlite else "tf"[not value]
    if isinstance(value, decimal.Decimal):
        value = value.normalize()
        return f"{value:f}"
    if isinstance(value, datetime.timedelta):
        days, rest = divmod(value, datetime.timedelta(days=1))
        return " ".join([*([f"{days} day{'s' * (days != 1)}"] if days else []), *([_clock(rest)] if rest else [])])
    if isinstance(value, list):
        return "{" + ",".join(_shown(one, "T", is_sqlite=is_sqlite) for one in value) + "}"
    if isinstance(value, dict):
        parts = ("" if one is None else _shown(one, "T", is_sqlite=is_sqlite) for one in value.values())
        return "(" + ",".join(parts) + ")"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value) or "(empty)"


def _clock(span: datetime.timedelta) -> str:
    return str(span).zfill(8)


def is_right(record: Record, answer: pa.Table, *, is_sqlite: bool) -> bool:
    """Whether an answer is the one that a file expects."""
    rows = list(zip(*(column.to_pylist() for column in answer.columns), strict=True))
    types = record.types.ljust(answer.num_columns, "T")
    shown = [[_shown(value, letter, is_sqlite=is_sqlite) for value, letter in zip(row, types)] for row in rows]  # noqa: B905
    if not is_sqlite:
        lines, wanted = [" ".join(row) for row in shown], [_plain(line) for line in record.expected]
        lines = [_plain(line) for line in lines]
        is_ordered = record.sort == "nosort" and re.search(r"\border\s+by\b", record.text, re.IGNORECASE)
        return lines == wanted if is_ordered else sorted(lines) == sorted(wanted)
    if record.sort == "rowsort":
        shown.sort()
    values = [value for row in shown for value in row]
    if record.sort == "valuesort":
        values.sort()
    hashed = re.fullmatch(r"(\d+) values hashing to (\w+)", record.expected[0]) if len(record.expected) == 1 else None
    if hashed is not None:
        digest = hashlib.md5("".join(f"{value}\n" for value in values).encode(), usedforsecurity=False).hexdigest()
        return (str(len(values)), digest) == hashed.groups()
    return values == record.expected


def _plain(line: str) -> str:
    """A line with numbers as they are written shortest."""
    return " ".join(
        re.sub(r"\.?0+$", "", word) if re.fullmatch(r"[-\d:]+\.\d+", word) else word for word in line.split()
    )


@dataclass
class Score:
    """What became of the queries and statements.

    Attributes:
        passed: As expected.
        failed: Other rows, or an error where there should be none.
        refused: By name.
    """

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


def run_file(path: Path, mode: str, dialect: str, chosen: random.Random | None, share: float) -> Score:
    """Run one file in one mode."""
    score = Score()
    database = Database(dialect, mode)
    try:
        for record in records_of(path, "sqlite" if dialect == "sqlite" else "risingwave"):
            if record.is_query and chosen is not None and chosen.random() > share:
                continue
            _run_record(record, database, score, is_sqlite=dialect == "sqlite")
    finally:
        database.close()
    return score


def _run_record(record: Record, database: Database, score: Score, *, is_sqlite: bool) -> None:
    try:
        answer = database.ask(record.text) if record.is_query else database.run(record.text)
    except Refused as refused:
        if record.fails:
            score.passed += 1
        else:
            score.refused[str(refused)] += 1
        return
    except Exception as error:  # whatever fails is counted and shown
        if record.fails:
            score.passed += 1
        else:
            score.failed.append(f"{record.place}: {type(error).__name__}: {str(error)[:300]}\n  {record.text[:400]}")
        return
    if not record.is_query:
        return
    if database.is_streaming and record.expected and not answer.num_rows and _is_global(record.text):
        score.refused["a global aggregate of no rows has no row on a stream (known difference)"] += 1
    elif record.fails or not is_right(record, answer, is_sqlite=is_sqlite):
        got = "no error" if record.fails else answer.to_pylist()[:6]
        score.failed.append(f"{record.place}\n  {record.text[:600]}\n  expected {record.expected[:6]}\n  got {got}")
    else:
        score.passed += 1


def _is_global(text: str) -> bool:
    tree = sqlglot.parse_one(text)
    return isinstance(tree, exp.Select) and tree.args.get("group") is None and tree.find(exp.AggFunc) is not None


def files_of(paths: list[Path]) -> list[Path]:
    """Return the files of sqllogictest at some paths, and of their parts those that no file includes."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        files = sorted(one for one in path.rglob("*") if one.name.endswith((".slt", ".test", ".slt.part")))
        included = {part.resolve() for one in files for part in _included(one)}
        found += [one for one in files if one.suffix != ".part" or one.resolve() not in included]
    return found


def _included(path: Path) -> Iterator[Path]:
    """The files that one includes."""
    for line in path.read_text(errors="replace").splitlines():
        words = line.split()
        if words[:1] == ["include"] and len(words) > 1:
            yield from path.parent.glob(words[1])


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--mode", choices=["batch", "streaming", "both"], default="both")
    parser.add_argument("--dialect", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--share", type=float, default=1.0, help="of the queries; chosen by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=5, help="how many failures")
    arguments = parser.parse_args(given)
    has_failed = False
    for mode in ["batch", "streaming"] if arguments.mode == "both" else [arguments.mode]:
        total = Score()
        for path in files_of(arguments.paths):
            chosen = random.Random(arguments.seed) if arguments.share < 1 else None
            score = run_file(path, mode, arguments.dialect, chosen, arguments.share)
            total.passed += score.passed
            total.failed += score.failed
            total.refused += score.refused
        sys.stdout.write(
            f"{mode}: {total.passed} passed, {len(total.failed)} failed, {total.refused.total()} refused\n"
        )
        for reason, count in total.refused.most_common(30):
            sys.stdout.write(f"  {count:6} refused: {reason}\n")
        for one in total.failed[: arguments.show]:
            sys.stdout.write(f"FAILED {one}\n")
        has_failed |= bool(total.failed)
    return int(has_failed)


if __name__ == "__main__":
    raise SystemExit(main())
