"""From a text to statements: it is cut where semicolons are, and each piece becomes what it says, as data.

Invariant: nothing is looked up and nothing is run here; what a statement may not say is refused where it stands.

Source: Flink's documentation of its SQL (CREATE, DROP, INSERT, EXPLAIN, DESCRIBE, SHOW, SET statements).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sqlglot import Token, TokenType, exp
from sqlglot.errors import ParseError, SqlglotError, TokenError

from .dialect import Flink
from .errors import SqlError, SqlText
from .names import path_of
from .sql_types import arrow_type
from .statements import (
    ColumnSpec,
    CompilePlan,
    Conflict,
    CreateCatalog,
    CreateDatabase,
    CreateTable,
    CreateView,
    Describe,
    Drop,
    ExecutePlan,
    Explain,
    ExplainJob,
    ExplainUpgrade,
    Insert,
    InsertSet,
    Query,
    Reset,
    Set,
    Show,
    Statement,
    StopJob,
    Use,
    WatermarkSpec,
)

__all__ = ["is_complete", "parse_script", "parse_statements", "pieces_of"]

_MOST_TYPES = 10
"""How deep ARRAY, ROW, DATE ... may stand in each other."""
_BLACK = re.compile(r"[^\r\n]")
_OPENING = re.compile(r"'|`|\"|/\*|--")
_CLOSED = {
    "'": re.compile(r"'(?:[^']|'')*'"), "`": re.compile(r"`(?:[^`]|``)*`"), '"': re.compile(r'"[^"]*"'),
    "/*": re.compile(r"/\*.*?\*/", re.DOTALL), "--": re.compile(r"--[^\n]*"),
}  # fmt: skip
"""By what something begins with that has an end: all of it."""


def parse_statements(text: str) -> list[Statement]:
    """Return the statements of a text, which semicolons separate.

    Raises:
        SqlError: If one of them is no SQL, or says what Flink's SQL knows and this does not.
    """
    source = SqlText(text)
    with _told_as_ours(source):
        return [_parsed(chunk, source) for chunk in _chunks(Flink().tokenize(text))]


def parse_script(text: str) -> list[tuple[Statement, SqlText]]:
    """Return the statements of a text, each with its own text; see `parse_statements`."""
    return [(parse_statements(piece)[0], SqlText(piece)) for piece in pieces_of(text)]


def pieces_of(text: str) -> list[str]:
    """Return the texts of statements, which semicolons separate.

    Before each stands as much space as there is before it in the whole, so that lines and columns are the same.

    Raises:
        SqlError: If a text or a name in it has no end.
    """
    with _told_as_ours(SqlText(text)):
        chunks = list(_chunks(Flink().tokenize(text)))
    return [_BLACK.sub(" ", text[: chunk[0].start]) + text[chunk[0].start : chunk[-1].end + 1] for chunk in chunks]


def is_complete(text: str) -> bool:
    """Return whether a text ends with the semicolon of a statement, outside of texts, comments and statement sets."""
    try:
        tokens = Flink().tokenize(text)
    except SqlglotError:
        return False
    chunks = list(_chunks(tokens))
    return (
        bool(tokens)
        and tokens[-1].token_type is TokenType.SEMICOLON
        and (not chunks or chunks[-1][-1].end < tokens[-1].start)
    )


@contextmanager
def _told_as_ours(source: SqlText) -> Iterator[None]:
    try:
        with source.not_too_deep():
            yield
    except ParseError as error:
        raise _no_sql(error, source) from None
    except TokenError:
        message = "this is no SQL: what begins here has no end"
        raise source.error(message, source.place_at(_endless(source.text))) from None
    except (SqlglotError, ValueError) as error:  # a ValueError is of digits that are none
        message = f"this is no SQL: {str(error).splitlines()[0]}"
        raise source.error(message, (1, 1)) from None


def _endless(text: str) -> int:
    """Where the text, name or comment begins that is not closed."""
    at = 0
    while (found := _OPENING.search(text, at)) is not None:
        whole = _CLOSED[found[0]].match(text, found.start())
        if whole is None:
            return found.start()
        at = whole.end()
    return len(text)


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
    parser.refuse_depth()
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

    def refuse_depth(self) -> None:
        """Refuse what would be read for hours: each word that may be a type and be called is read both ways."""
        open_words: list[bool] = []
        for before, token in itertools.pairwise(self._tokens):
            if token.token_type in (TokenType.L_PAREN, TokenType.L_BRACKET):
                open_words.append(before.token_type in self.TYPE_TOKENS)
                if sum(open_words) > _MOST_TYPES:
                    self._fail(f"{before.text.upper()} is nested too deeply", before, hint="split it by views or WITH")
            elif token.token_type in (TokenType.R_PAREN, TokenType.R_BRACKET) and open_words:
                open_words.pop()

    # -- what it starts with -------------------------------------------------------------------------------------------

    def parse_statement(self) -> Statement:
        starts: tuple[tuple[tuple[str, ...], Callable[[], Statement]], ...] = (
            (("CREATE",), self._create),
            (("DROP",), self._drop),
            (("INSERT", "INTO"), self._insert),
            (("EXECUTE", "STATEMENT", "SET", "BEGIN"), self._statement_set),
            (("STATEMENT", "SET", "BEGIN"), self._statement_set),
            (("BEGIN", "STATEMENT", "SET"), self._statement_set),
            (("COMPILE", "PLAN"), self._compile),
            (("COMPILE", "AND", "EXECUTE", "PLAN"), lambda: replace(self._compile(), executes=True)),
            (("EXECUTE", "PLAN"), lambda: ExecutePlan(self._string())),
            (("EXPLAIN",), self._explain),
            (("DESCRIBE",), self._describe),
            (("DESC",), self._describe),
            (("SHOW",), self._show),
            (("USE",), self._use),
            (("STOP", "JOB"), self._stop_job),
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
        first = self._parse_select(parse_subquery_alias=False, nested=True)
        return self._parse_query_modifiers(self._parse_set_operations(first))

    # -- CREATE, DROP --------------------------------------------------------------------------------------------------

    def _create(self) -> Statement:
        if self._match_words("OR", "REPLACE"):
            self._fail("CREATE OR REPLACE is not supported", hint="DROP ... IF EXISTS, and CREATE it")
        is_temporary = self._match_words("TEMPORARY")
        if self._match_words("TABLE"):
            return replace(self._create_table(), is_temporary=is_temporary)
        if self._match_words("VIEW"):
            return replace(self._create_view(), is_temporary=is_temporary)
        for word, parse in (("CATALOG", self._create_catalog), ("DATABASE", self._create_database)):
            if not is_temporary and self._match_words(word):
                return parse()
        if self._match_words("FUNCTION") or self._match_words("SYSTEM", "FUNCTION"):
            self._fail("functions are made in Python", hint="t.create_temporary_function(name, udf(...))")
        return self._fail(
            f"CREATE {self._curr.text.upper()} is not supported",
            hint="tables, views, databases and catalogs can be created",
        )

    def _create_catalog(self) -> CreateCatalog:
        if_not_exists = self._match_words("IF", "NOT", "EXISTS")
        name = self._part()
        self._comment()
        self._expect("WITH")
        return CreateCatalog(name, self._options(), if_not_exists)

    def _create_database(self) -> CreateDatabase:
        if_not_exists = self._match_words("IF", "NOT", "EXISTS")
        made = CreateDatabase(self._name(), if_not_exists)
        self._comment()
        if self._match_words("WITH"):
            self._fail("a database has no options")
        return made

    def _create_table(self) -> CreateTable:
        if_not_exists = self._match_words("IF", "NOT", "EXISTS")
        name = self._name()
        columns: list[ColumnSpec] = []
        watermark: WatermarkSpec | None = None
        keys: list[tuple[str, ...]] = []
        if self._match(TokenType.L_PAREN):
            while True:
                if self._match_words("WATERMARK", "FOR"):
                    rowtime = self._part()
                    self._expect("AS")
                    watermark = WatermarkSpec(rowtime, self._parse_disjunction())
                elif self._is_primary_key():
                    keys.append(self._names())
                    self._not_enforced()
                else:
                    column, is_key = self._column()
                    columns.append(column)
                    keys += [(column.name,)] if is_key else []
                if len(keys) > 1:
                    self._fail("a table has one primary key", hint="PRIMARY KEY (one, another) NOT ENFORCED")
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
        key = keys[0] if keys else ()
        return CreateTable(name, tuple(columns), watermark, key, partitioned_by, options, like, if_not_exists)

    def _is_primary_key(self) -> bool:
        """Take ``PRIMARY KEY``, which may have a name."""
        is_named = self._match_words("CONSTRAINT")
        if is_named:
            self._part()
        is_key = bool(self._match_words("PRIMARY", "KEY"))
        if is_named and not is_key:
            self._fail("the only constraint of a table is its PRIMARY KEY")
        return is_key

    def _not_enforced(self) -> None:
        if not self._match_words("NOT", "ENFORCED"):
            self._fail("a primary key is NOT ENFORCED: nothing here holds all rows of a table")

    def _column(self) -> tuple[ColumnSpec, bool]:
        """A column, and whether it alone is the primary key."""
        name = self._part()
        if self._match_words("AS"):
            computed = self._parse_disjunction()
            self._comment()
            return ColumnSpec(name, computed=computed), False
        place = self._curr
        declared = self._parse_types(schema=True)
        if not isinstance(declared, exp.DataType):
            self._fail(f"column {name!r} needs a type", place)
        with self.source.at(_place(place)):
            kind = arrow_type(declared)
        metadata, is_virtual = None, False
        if self._match_words("METADATA"):
            metadata = self._string() if self._match_words("FROM") else name
            is_virtual = bool(self._match_words("VIRTUAL"))
        is_key = metadata is None and self._is_primary_key()
        if is_key:
            self._not_enforced()
        self._comment()
        return ColumnSpec(name, kind, metadata=metadata, is_virtual=is_virtual), is_key

    def _create_view(self) -> CreateView:
        if_not_exists = self._match_words("IF", "NOT", "EXISTS")
        name = self._name()
        columns = self._names() if self._curr and self._curr.token_type is TokenType.L_PAREN else ()
        self._comment()
        self._expect("AS")
        return CreateView(name, columns, self._query(), if_not_exists)

    def _drop(self) -> Drop:
        is_temporary = self._match_words("TEMPORARY")
        for kind in ("TABLE", "VIEW", "FUNCTION", "CATALOG", "DATABASE"):
            if self._match_words(kind):
                if_exists = self._match_words("IF", "EXISTS")
                name = self._name()
                is_cascade = kind == "DATABASE" and self._match_words("CASCADE")
                if kind == "DATABASE" and not is_cascade:
                    self._match_words("RESTRICT")
                return Drop(kind.lower(), name, if_exists, is_temporary, is_cascade)
        return self._fail("tables, views, functions, databases and catalogs can be dropped")

    # -- INSERT --------------------------------------------------------------------------------------------------------

    def _insert(self) -> Insert:
        table = self._name()
        hint = self._parse_hint()
        if self._match_words("PARTITION"):
            self._fail("INSERT INTO ... PARTITION is not supported", hint="select the value as a column like others")
        is_list = self._curr and self._curr.token_type is TokenType.L_PAREN
        is_query = self._next and self._next.token_type in (TokenType.SELECT, TokenType.WITH, TokenType.L_PAREN)
        columns = self._names() if is_list and not is_query else ()
        query = self._query()
        conflict = self._conflict() if self._match_words("ON", "CONFLICT") else None
        return Insert(table, columns, query, conflict, None if hint is None else exp.Table(hint=hint))

    def _conflict(self) -> Conflict:
        place = _place(self._prev)
        self._expect("DO")
        for action in ("NOTHING", "ERROR", "DEDUPLICATE"):
            if self._match_words(action):
                return Conflict(action, place)
        return self._fail("ON CONFLICT is DO NOTHING, DO ERROR or DO DEDUPLICATE")

    def _statement_set(self) -> InsertSet:
        self._match_words("BEGIN")
        inserts = []
        while not self._match_words("END"):
            if not self._match_words("INSERT", "INTO"):
                self._fail("a statement set is made of INSERT INTO statements")
            inserts.append(self._insert())
            if not self._match(TokenType.SEMICOLON):
                self._fail("a statement in a statement set ends with a semicolon")
        return InsertSet(tuple(inserts))

    def _compile(self) -> CompilePlan:
        place = self._string()
        if_not_exists = self._match_words("IF", "NOT", "EXISTS")
        overwrites = not if_not_exists and self._match_words("OVERWRITE")
        self._expect("FOR")
        start = self._curr.start if self._curr else 0
        statement = self.parse_statement() if self._curr else None
        if not isinstance(statement, (Insert, InsertSet)):
            message = "INSERT statements, and sets of them, can be compiled"
            raise self._failure(message)
        text = self.source.text[start : self._prev.end + 1]
        return CompilePlan(place, statement, text, if_not_exists, overwrites)

    # -- the others ----------------------------------------------------------------------------------------------------

    def _explain(self) -> Explain | ExplainJob | ExplainUpgrade:
        if self._match_words("UPGRADE", "FROM"):
            place = self._string()
            upgraded = self.parse_statement()
            if not isinstance(upgraded, (Query, Insert, InsertSet)):
                message = "queries and INSERT statements can be upgraded"
                raise self._failure(message)
            return ExplainUpgrade(place, upgraded)
        details: list[str] = []
        analyzes = self._match_words("ANALYZE")
        if analyzes and self._match_words("JOB"):
            return ExplainJob(self._string())
        if not analyzes and not self._match_words("PLAN", "FOR"):
            while self._curr and self._curr.text.upper() in _DETAILS:
                details.append(self._curr.text.upper())
                self._advance()
                self._match(TokenType.COMMA)
        statement = self.parse_statement()
        if not isinstance(statement, (Query, Insert, InsertSet)):
            message = "queries and INSERT statements can be explained"
            raise self._failure(message)
        return Explain(statement, tuple(details), analyzes)

    def _describe(self) -> Describe:
        return Describe(self._name())

    def _show(self) -> Show:
        for what in ("CREATE TABLE", "CREATE VIEW"):
            if self._match_words(*what.split()):
                return Show(what.lower(), self._name())
        for what in ("CURRENT CATALOG", "CURRENT DATABASE", "JOBS"):
            if self._match_words(*what.split()):
                return Show(what.lower())
        for what in ("TABLES", "VIEWS", "FUNCTIONS", "DATABASES", "CATALOGS"):
            if self._match_words(what):
                return self._show_some(what.lower())
        return self._fail(
            "SHOW TABLES, VIEWS, FUNCTIONS, DATABASES, CATALOGS, JOBS, CURRENT CATALOG, CURRENT DATABASE, CREATE TABLE "
            "and CREATE VIEW are supported"
        )

    def _show_some(self, what: str) -> Show:
        name = None
        if what in ("tables", "views", "databases") and (self._match_words("FROM") or self._match_words("IN")):
            name = self._name()
        is_negated = self._match_words("NOT")
        if is_negated:
            self._expect("LIKE")
        is_like = is_negated or self._match_words("LIKE")
        return Show(what, name, self._string() if is_like else None, is_negated)

    def _use(self) -> Use:
        if self._match_words("CATALOG"):
            return Use("catalog", self._part())
        if self._match_words("MODULES"):
            self._fail("there are no modules")
        return Use("database", self._name())

    def _stop_job(self) -> StopJob:
        job = self._string()
        with_savepoint = self._match_words("WITH", "SAVEPOINT")
        return StopJob(job, with_savepoint, self._match_words("WITH", "DRAIN"))

    def _set(self) -> Set:
        if not self._curr:
            return Set()
        place = _place(self._curr)
        key = self._string()
        if not self._match(TokenType.EQ):
            self._fail("SET 'key' = 'value'")
        return Set(key, self._string(), place)

    def _reset(self) -> Reset:
        place = _place(self._curr) if self._curr else None
        return Reset(self._string() if self._curr else None, place)

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
        """A name of one or more parts, as `path_of` writes it."""
        parts = [self._part()]
        while self._match(TokenType.DOT):
            parts.append(self._part())
        return path_of(parts)

    def _part(self) -> str:
        found = self._parse_id_var(any_token=False)
        if found is None:
            message = "expected a name"
            raise self._failure(message, hint="names that are words of SQL go into back-ticks")
        return str(found.name)

    def _names(self) -> tuple[str, ...]:
        if not self._match(TokenType.L_PAREN):
            self._fail("expected names in parentheses")
        names = [self._part()]
        while self._match(TokenType.COMMA):
            names.append(self._part())
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
_NOT_YET = ("ALTER", "ANALYZE", "CALL", "DELETE", "LOAD", "TRUNCATE", "UNLOAD", "UPDATE", "ADD")
