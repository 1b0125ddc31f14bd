"""From a text to statements: what each of them says, as data. Queries stay trees of sqlglot.

Invariant: nothing is looked up and nothing is run here; what a statement may not say is refused where it stands.

Source: Flink's documentation of its SQL (CREATE, DROP, INSERT, EXPLAIN, DESCRIBE, SHOW, SET statements).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from sqlglot import Token, TokenType, exp
from sqlglot.errors import ParseError, SqlglotError, TokenError

from .dialect import Flink
from .errors import SqlError, SqlText
from .types import arrow_type

__all__ = [
    "ColumnSpec",
    "CreateTable",
    "CreateView",
    "Describe",
    "Drop",
    "Explain",
    "Insert",
    "Query",
    "Reset",
    "Set",
    "Show",
    "Statement",
    "StatementSet",
    "WatermarkSpec",
    "parse_statements",
]


@dataclass(frozen=True)
class Query:
    """A query; also what an INSERT or a view is made of."""

    tree: exp.Expression


@dataclass(frozen=True)
class ColumnSpec:
    """A column of a table that is being created.

    Attributes:
        name: Its name.
        kind: Its type; None for a computed column, which has that of its expression.
        computed: How it is computed of the others; None for a column that the connector gives.
        metadata: The connector's name of what it tells about a record, for a metadata column.
    """

    name: str
    kind: pa.DataType | None = None
    computed: Any = None
    metadata: str | None = None


@dataclass(frozen=True)
class WatermarkSpec:
    """Which column is the event time, and how far behind it the watermark is."""

    column: str
    expression: Any


@dataclass(frozen=True)
class CreateTable:
    """CREATE TABLE."""

    name: str
    columns: tuple[ColumnSpec, ...]
    watermark: WatermarkSpec | None = None
    primary_key: tuple[str, ...] = ()
    partitioned_by: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    like: str | None = None
    if_not_exists: bool = False


@dataclass(frozen=True)
class CreateView:
    """CREATE VIEW."""

    name: str
    columns: tuple[str, ...]
    query: Query
    if_not_exists: bool = False


@dataclass(frozen=True)
class Drop:
    """DROP TABLE, DROP VIEW, DROP FUNCTION."""

    kind: str
    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class Insert:
    """INSERT INTO: the columns that are named, empty for all in order."""

    table: str
    columns: tuple[str, ...]
    query: Query


@dataclass(frozen=True)
class StatementSet:
    """Several INSERTs that are one job."""

    inserts: tuple[Insert, ...]


@dataclass(frozen=True)
class Explain:
    """EXPLAIN: how a statement would be run."""

    statement: Query | Insert | StatementSet
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Describe:
    """DESCRIBE: the columns of a table."""

    name: str


@dataclass(frozen=True)
class Show:
    """SHOW TABLES, SHOW VIEWS, SHOW FUNCTIONS, SHOW CREATE TABLE t."""

    what: str
    name: str | None = None


@dataclass(frozen=True)
class Set:
    """SET: an option and its value; neither to show all."""

    key: str | None = None
    value: str | None = None


@dataclass(frozen=True)
class Reset:
    """RESET: an option; None for all."""

    key: str | None = None


Statement = (
    Query | CreateTable | CreateView | Drop | Insert | StatementSet | Explain | Describe | Show | Set | Reset
)  # fmt: skip


def parse_statements(text: str) -> list[Statement]:
    """Return the statements of a text, which semicolons separate.

    Raises:
        SqlError: If one of them is no SQL, or says what Flink's SQL knows and this does not.
    """
    source = SqlText(text)
    try:
        tokens = Flink().tokenize(text)
        return [_parsed(chunk, source) for chunk in _chunks(tokens)]
    except ParseError as error:
        raise _no_sql(error, source) from None
    except (TokenError, SqlglotError) as error:
        message = f"this is no SQL: {str(error).splitlines()[0]}"
        raise SqlError(message) from None
    except RecursionError:
        message = "the statement is nested too deeply"
        raise SqlError(message, hint="split it by views or WITH") from None


def _no_sql(error: ParseError, source: SqlText) -> SqlError:
    """What sqlglot says, with our way of showing the place."""
    first = error.errors[0] if error.errors else {}
    message = str(first.get("description") or "it cannot be parsed").split(" but got <Token")[0].rstrip(".")
    line, column, shown = first.get("line"), first.get("col", 0), first.get("highlight") or ""
    place = (line, max(column - len(shown) + 1, 1)) if line and shown else None
    where = "" if place else " at its end"
    return source.error(f"this is no SQL{where}: {message[:1].lower()}{message[1:]}", place)


def _chunks(tokens: list[Token]) -> Iterator[list[Token]]:
    """The tokens of each statement; a statement set, between BEGIN and END, is one."""
    chunk: list[Token] = []
    is_set = False
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON and not is_set:
            if chunk:
                yield chunk
            chunk = []
            continue
        chunk.append(token)
        word = token.text.upper()
        if word == "BEGIN" and len(chunk) > 1 and chunk[-2].text.upper() == "SET":
            is_set = True
        elif word == "END" and is_set and len(chunk) > 1 and chunk[-2].token_type is TokenType.SEMICOLON:
            is_set = False
    if chunk:
        yield chunk


def _parsed(tokens: list[Token], source: SqlText) -> Statement:
    parser = _StatementParser(dialect=Flink)
    parser.begin(tokens, source)
    parser.refuse_words()
    statement = parser.parse_statement()
    parser.require_end()
    return statement


class _StatementParser(Flink.Parser):
    """Parses one statement; what it starts with says how."""

    def begin(self, tokens: list[Token], source: SqlText) -> None:
        self.reset()
        self.sql = source.text
        self.source = source
        self._chunks = [tokens]
        self._tokens = tokens
        self._tokens_size = len(tokens)
        self._index = -1
        self._advance()

    def refuse_words(self) -> None:
        """Refuse what would else be taken for a name."""
        for token in self._tokens:
            if token.text.upper() == "MATCH_RECOGNIZE" and token.token_type is not TokenType.IDENTIFIER:
                self._fail("MATCH_RECOGNIZE is not supported", token)

    # -- what it starts with -------------------------------------------------------------------------------------------

    def parse_statement(self) -> Statement:
        starts: tuple[tuple[tuple[str, ...], Callable[[], Statement]], ...] = (
            (("CREATE",), self._create),
            (("DROP",), self._drop),
            (("INSERT", "INTO"), self._insert),
            (("EXECUTE", "STATEMENT", "SET", "BEGIN"), self._statement_set),
            (("STATEMENT", "SET", "BEGIN"), self._statement_set),
            (("BEGIN", "STATEMENT", "SET"), self._statement_set),
            (("EXPLAIN",), self._explain),
            (("DESCRIBE",), self._describe),
            (("DESC",), self._describe),
            (("SHOW",), self._show),
            (("SET",), self._set),
            (("RESET",), self._reset),
        )
        for words, parse in starts:
            if self._match_words(*words):
                return parse()
        if self._curr.text.upper() in _NOT_YET:
            self._fail(f"{self._curr.text.upper()} is not supported")
        return self._query()

    def require_end(self) -> None:
        if self._curr:
            self._fail(f"{self._curr.text!r} was not expected here")

    def _query(self) -> Query:
        tree = self._parse_statement_of_sql()
        if not isinstance(tree, (exp.Query, exp.Values)):
            self._fail("a query begins with SELECT, WITH or VALUES")
        return Query(tree)

    def _parse_statement_of_sql(self) -> Any:
        values = self._parse_derived_table_values()
        if values is not None:
            return self._parse_query_modifiers(self._parse_set_operations(values))
        return self._parse_query_modifiers(self._parse_set_operations(self._parse_select()))

    # -- CREATE, DROP --------------------------------------------------------------------------------------------------

    def _create(self) -> Statement:
        self._match_words("OR", "REPLACE")
        self._match_words("TEMPORARY")
        if self._match_words("TABLE"):
            return self._create_table()
        if self._match_words("VIEW"):
            return self._create_view()
        if self._match_words("FUNCTION") or self._match_words("SYSTEM", "FUNCTION"):
            self._fail("functions are made in Python", hint="t.create_temporary_function(name, udf(...))")
        return self._fail(f"CREATE {self._curr.text.upper()} is not supported", hint="tables and views can be created")

    def _create_table(self) -> CreateTable:
        if_not_exists = self._match_words("IF", "NOT", "EXISTS")
        name = self._name()
        columns: list[ColumnSpec] = []
        watermark: WatermarkSpec | None = None
        key: tuple[str, ...] = ()
        if self._match(TokenType.L_PAREN):
            while True:
                if self._match_words("WATERMARK", "FOR"):
                    column = self._name()
                    self._expect("AS")
                    watermark = WatermarkSpec(column, self._parse_disjunction())
                elif self._match_words("PRIMARY", "KEY") or self._match_words("CONSTRAINT"):
                    key = self._primary_key()
                else:
                    columns.append(self._column())
                if not self._match(TokenType.COMMA):
                    break
            self._match_r_paren()
        self._comment()
        partitioned_by = self._names() if self._match_words("PARTITIONED", "BY") else ()
        options = self._options() if self._match_words("WITH") else {}
        like = None
        if self._match_words("LIKE"):
            like = self._name()
            if self._curr and self._curr.token_type is TokenType.L_PAREN:
                self._fail(
                    "LIKE takes over columns, watermark, keys and options; INCLUDING and EXCLUDING are not supported"
                )
        elif self._match_words("AS"):
            self._fail("CREATE TABLE AS is not supported", hint="create the table, then INSERT INTO it")
        return CreateTable(name, tuple(columns), watermark, key, partitioned_by, options, like, if_not_exists)

    def _primary_key(self) -> tuple[str, ...]:
        if not self._prev.text.upper().endswith("KEY"):
            self._name()
            self._expect("PRIMARY")
            self._expect("KEY")
        key = self._names()
        if not self._match_words("NOT", "ENFORCED"):
            self._fail("a primary key is NOT ENFORCED: nothing here holds all rows of a table")
        return key

    def _column(self) -> ColumnSpec:
        name = self._name()
        if self._match_words("AS"):
            computed = self._parse_disjunction()
            self._comment()
            return ColumnSpec(name, computed=computed)
        place = self._curr
        declared = self._parse_types(schema=True)
        if not isinstance(declared, exp.DataType):
            self._fail(f"column {name!r} needs a type", place)
        with self.source.at(_place(place)):
            kind = arrow_type(declared)
        metadata = None
        if self._match_words("METADATA"):
            metadata = self._string() if self._match_words("FROM") else name
            self._match_words("VIRTUAL")
        self._comment()
        return ColumnSpec(name, kind, metadata=metadata)

    def _create_view(self) -> CreateView:
        if_not_exists = self._match_words("IF", "NOT", "EXISTS")
        name = self._name()
        columns = self._names() if self._curr and self._curr.token_type is TokenType.L_PAREN else ()
        self._comment()
        self._expect("AS")
        return CreateView(name, columns, self._query(), if_not_exists)

    def _drop(self) -> Drop:
        self._match_words("TEMPORARY")
        for kind in ("TABLE", "VIEW", "FUNCTION"):
            if self._match_words(kind):
                if_exists = self._match_words("IF", "EXISTS")
                return Drop(kind.lower(), self._name(), if_exists)
        return self._fail("tables, views and functions can be dropped")

    # -- INSERT --------------------------------------------------------------------------------------------------------

    def _insert(self) -> Insert:
        table = self._name()
        is_list = self._curr and self._curr.token_type is TokenType.L_PAREN
        is_query = self._next and self._next.token_type in (TokenType.SELECT, TokenType.WITH, TokenType.L_PAREN)
        columns = self._names() if is_list and not is_query else ()
        query = self._query()
        if self._match_words("ON", "CONFLICT"):
            self._fail("ON CONFLICT is not supported")
        return Insert(table, columns, query)

    def _statement_set(self) -> StatementSet:
        self._match_words("BEGIN")
        inserts = []
        while not self._match_words("END"):
            if not self._match_words("INSERT", "INTO"):
                self._fail("a statement set is made of INSERT INTO statements")
            inserts.append(self._insert())
            if not self._match(TokenType.SEMICOLON):
                self._fail("a statement in a statement set ends with a semicolon")
        return StatementSet(tuple(inserts))

    # -- the others ----------------------------------------------------------------------------------------------------

    def _explain(self) -> Explain:
        details: list[str] = []
        if not self._match_words("PLAN", "FOR"):
            while self._curr and self._curr.text.upper() in _DETAILS:
                details.append(self._curr.text.upper())
                self._advance()
                self._match(TokenType.COMMA)
        statement = self.parse_statement()
        if not isinstance(statement, (Query, Insert, StatementSet)):
            message = "queries and INSERT statements can be explained"
            raise self._failure(message)
        return Explain(statement, tuple(details))

    def _describe(self) -> Describe:
        return Describe(self._name())

    def _show(self) -> Show:
        if self._match_words("CREATE", "TABLE"):
            return Show("create table", self._name())
        for what in ("TABLES", "VIEWS", "FUNCTIONS"):
            if self._match_words(what):
                return Show(what.lower())
        return self._fail("SHOW TABLES, VIEWS, FUNCTIONS and CREATE TABLE are supported")

    def _set(self) -> Set:
        if not self._curr:
            return Set()
        key = self._string()
        if not self._match(TokenType.EQ):
            self._fail("SET 'key' = 'value'")
        return Set(key, self._string())

    def _reset(self) -> Reset:
        return Reset(self._string() if self._curr else None)

    # -- words, names, texts -------------------------------------------------------------------------------------------

    def _match_words(self, *words: str) -> bool:
        """Take the words if they come next, and are not names in back-ticks; a token may be several words."""
        found: list[str] = []
        upcoming = self._index
        while len(found) < len(words) and upcoming < len(self._tokens):
            token = self._tokens[upcoming]
            if token.token_type in (TokenType.IDENTIFIER, TokenType.STRING):
                return False
            found += token.text.upper().split()
            upcoming += 1
        if found != list(words):
            return False
        self._advance(upcoming - self._index)
        return True

    def _expect(self, word: str) -> None:
        if not self._match_words(word):
            self._fail(f"expected {word}")

    def _name(self) -> str:
        parts = []
        while True:
            found = self._parse_id_var(any_token=False)
            if found is None:
                message = "expected a name"
                raise self._failure(message, hint="names that are words of SQL go into back-ticks")
            parts.append(found.name)
            if not self._match(TokenType.DOT):
                return ".".join(parts)

    def _names(self) -> tuple[str, ...]:
        if not self._match(TokenType.L_PAREN):
            self._fail("expected names in parentheses")
        names = [self._name()]
        while self._match(TokenType.COMMA):
            names.append(self._name())
        self._match_r_paren()
        return tuple(names)

    def _string(self) -> str:
        if not self._curr or self._curr.token_type is not TokenType.STRING:
            self._fail("expected a text in single quotes")
        text = self._curr.text
        self._advance()
        return str(text)

    def _options(self) -> dict[str, str]:
        if not self._match(TokenType.L_PAREN):
            self._fail("expected options in parentheses")
        options: dict[str, str] = {}
        while True:
            key = self._string()
            if not self._match(TokenType.EQ):
                self._fail(f"option {key!r} needs a value")
            if key in options:
                self._fail(f"option {key!r} is given twice")
            options[key] = self._string()
            if not self._match(TokenType.COMMA):
                break
        self._match_r_paren()
        return options

    def _comment(self) -> None:
        if self._match_words("COMMENT"):
            self._string()

    def _fail(self, message: str, token: Token | None = None, *, hint: str | None = None) -> Any:
        raise self._failure(message, token, hint=hint)

    def _failure(self, message: str, token: Token | None = None, *, hint: str | None = None) -> SqlError:
        return self.source.error(message, _place(token or self._curr or self._prev), hint=hint)


def _place(token: Token) -> tuple[int, int]:
    return token.line, token.col - (token.end - token.start)


_DETAILS = ("ESTIMATED_COST", "CHANGELOG_MODE", "JSON_EXECUTION_PLAN", "PLAN_ADVICE")
_NOT_YET = ("ALTER", "ANALYZE", "CALL", "COMPILE", "DELETE", "LOAD", "TRUNCATE", "UNLOAD", "UPDATE", "USE", "ADD")
