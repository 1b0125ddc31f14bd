"""Flink's SQL as a dialect of sqlglot, which only parses: names, types and plans are ours.

What sqlglot knows better than Flink is switched off. Calls stay calls by their names, as written (`exp.Anonymous`):
which functions there are, and what they mean, is said in `headrace.sql.functions` alone. Names keep their case.
What Flink has and sqlglot does not is parsed here: window functions over tables, ``DESCRIPTOR``, ``ROW`` types, and
MATCH_RECOGNIZE with WITHIN; its pattern stays a text, which `headrace.sql.match` reads.

Source: Flink's documentation of its SQL ("Queries", "Pattern Recognition"); sqlglot's parser.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlglot import TokenType, exp, parser, tokens
from sqlglot.dialects.dialect import Dialect, NormalizationStrategy

__all__ = ["JSON_CALLS", "WINDOW_FUNCTIONS", "Flink"]

WINDOW_FUNCTIONS = ("TUMBLE", "HOP", "CUMULATE", "SESSION")
"""Functions of a table that put its rows into windows."""

JSON_CALLS = (
    "JSON_ARRAY", "JSON_ARRAYAGG", "JSON_EXISTS", "JSON_OBJECT", "JSON_OBJECTAGG", "JSON_QUERY", "JSON_VALUE",
)  # fmt: skip
"""Functions of JSON with words between their arguments."""

_JSON_WORDS = ("NULL", "ERROR", "TRUE", "FALSE", "UNKNOWN", "ABSENT", "EMPTY ARRAY", "EMPTY OBJECT")

_OWN_SYNTAX = ("CAST", "CEIL", "EXTRACT", "FLOOR", "OVERLAY", "POSITION", "SUBSTRING", "TRIM", "TRY_CAST")
"""Functions whose arguments are not only separated by commas."""


class Flink(Dialect):
    """How Flink writes SQL."""

    NORMALIZATION_STRATEGY = NormalizationStrategy.CASE_SENSITIVE
    NULL_ORDERING = "nulls_are_small"

    class Tokenizer(tokens.Tokenizer):
        """Texts in single quotes, names in back-ticks."""

        QUOTES: ClassVar = ["'"]
        IDENTIFIERS: ClassVar = ["`"]
        STRING_ESCAPES: ClassVar = ["'"]
        COMMANDS: ClassVar[set[Any]] = set()
        HEX_STRINGS: ClassVar = [("x'", "'"), ("X'", "'")]
        # Hints of tables are hints, too, and no comments that are left out.
        TOKENS_PRECEDING_HINT: ClassVar = {
            *tokens.Tokenizer.TOKENS_PRECEDING_HINT, TokenType.VAR, TokenType.IDENTIFIER, TokenType.R_PAREN
        }  # fmt: skip
        KEYWORDS: ClassVar = {
            **{word: kind for word, kind in tokens.Tokenizer.KEYWORDS.items() if word not in ("DIV", "SESSION")},
            "BYTES": TokenType.VARBINARY,
            "MATCH_RECOGNIZE": TokenType.MATCH_RECOGNIZE,
            "ROW": TokenType.STRUCT,
            "STRING": TokenType.TEXT,
            "TIMESTAMP_LTZ": TokenType.TIMESTAMPLTZ,
        }

    class Parser(parser.Parser):
        """Parses to the nodes of sqlglot; see the module."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar = {
            **{name: found for name, found in parser.Parser.FUNCTION_PARSERS.items() if name in _OWN_SYNTAX},
            **{name: lambda self, name=name: self.parse_window_function(name) for name in WINDOW_FUNCTIONS},
            **{name: lambda self, name=name: self.parse_json_call(name) for name in JSON_CALLS},
        }  # fmt: skip
        NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}
        NO_PAREN_FUNCTION_PARSERS: ClassVar = {"CASE": parser.Parser.NO_PAREN_FUNCTION_PARSERS["CASE"]}
        STRICT_CAST = True

        def _parse_types(self, check_func: bool = False, *args: Any, **options: Any) -> Any:
            found = super()._parse_types(check_func, *args, **options)
            if found is not None and not check_func:
                # Whether a value may be missing is not part of a type here.
                self._match_pair(TokenType.NOT, TokenType.NULL) or self._match(TokenType.NULL)
            return found

        def _parse_hint(self) -> Any:
            """Hints, all in the place of the first character: they are read from a text of their own."""
            begin = self._curr
            found = super()._parse_hint()
            if found is not None:
                for one in found.walk():
                    one.meta.clear()
                found.update_positions(begin)
            return found

        def _parse_table_parts(self, *args: Any, **options: Any) -> Any:
            table: Any = super()._parse_table_parts(*args, **options)
            hint = self._parse_hint()
            if hint is not None:
                table.set("hint", hint)
            return table

        def _parse_match_recognize(self) -> exp.MatchRecognize | None:
            return _parse_match(self)

        def parse_window_function(self, name: str) -> exp.Expression:
            """Return the arguments of TUMBLE and its like: of a table, or, as it was written once, of a time."""
            arguments: list[exp.Expression] = []
            while self._curr and self._curr.token_type is not TokenType.R_PAREN:
                arguments.append(self._parse_window_argument())
                if not self._match(TokenType.COMMA):
                    break
            return self.expression(exp.Anonymous(this=name, expressions=arguments))

        def _parse_window_argument(self) -> Any:
            named = None
            if self._next and self._next.token_type is TokenType.FARROW:
                named = self._curr.text
                self._advance(2)
            value = self._parse_table_argument()
            if value is None and self._match_text_seq("DESCRIPTOR"):
                columns = self._parse_wrapped_csv(self._parse_id_var)
                value = self.expression(exp.Anonymous(this="DESCRIPTOR", expressions=columns))
            if value is None:
                value = self._parse_disjunction()
            return value if named is None else self.expression(exp.Kwarg(this=exp.var(named.upper()), expression=value))

        def _parse_table_argument(self) -> Any:
            if not self._match(TokenType.TABLE):
                return None
            table: Any = self._parse_table_parts()
            if self._match(TokenType.PARTITION_BY):
                # Several columns are in parentheses: else the next argument would be one of them.
                keys = [self._parse_column()]
                keys = keys[0].expressions if isinstance(keys[0], exp.Tuple) else keys
                table.set("partition", exp.Tuple(expressions=keys))
            return table

        def parse_json_call(self, name: str) -> exp.Expression:
            """Return a call of a function of JSON: what its clauses say comes behind its arguments, as ``WORDS =>
            value``.
            """
            arguments: list[Any] = []
            clauses: list[Any] = []
            while self._curr and self._curr.token_type is not TokenType.R_PAREN:
                clause = self._parse_json_clause()
                if clause is not None:
                    clauses.append(clause)
                elif not self._match(TokenType.COMMA):
                    arguments += self._parse_json_argument()
            return self.expression(exp.Anonymous(this=name, expressions=[*arguments, *clauses]))

        def _parse_json_argument(self) -> list[Any]:
            """A value; an entry is a name and a value."""
            if self._next and self._next.token_type not in (TokenType.COMMA, TokenType.R_PAREN, TokenType.COLON):
                self._match_text_seq("KEY")
            name = self._parse_bitwise()
            if name is None:
                self.raise_error("expected a value")
            if self._match_text_seq("VALUE") or self._match(TokenType.COLON):
                return [self.expression(exp.Kwarg(this=exp.var("ENTRY"), expression=exp.Tuple(
                    expressions=[name, self._parse_disjunction()])))]  # fmt: skip
            return [name]

        def _parse_json_clause(self) -> Any:
            """RETURNING type, ... WRAPPER, ... ON NULL | EMPTY | ERROR; None if there is none."""
            if self._match_text_seq("RETURNING"):
                kind = self._parse_types()
                if self._prev.token_type is TokenType.NULL:  # of NULL ON EMPTY: sqlglot takes it for one of the type
                    self._retreat(self._index - 1)
                    kind.set("nullable", None)
                return self._clause("RETURNING", kind)
            for words in ("WITHOUT", "WITH CONDITIONAL", "WITH UNCONDITIONAL", "WITH"):
                if self._match_text_seq(*words.split()):
                    self._match_text_seq("ARRAY")
                    if not self._match_text_seq("WRAPPER"):
                        self.raise_error("expected WRAPPER")
                    return self._clause("WRAPPER", exp.var("UNCONDITIONAL" if words == "WITH" else words.split()[-1]))
            if self._match_text_seq("DEFAULT"):
                return self._default()
            for words in _JSON_WORDS:
                index = self._index
                if self._match_text_seq(*words.split()):
                    if self._match_text_seq("ON"):
                        return self._clause(f"ON {self._parse_when()}", exp.var(words))
                    self._retreat(index)
            return None

        def _default(self) -> Any:
            value = self._parse_bitwise()
            if not self._match_text_seq("ON"):
                self.raise_error("expected ON EMPTY or ON ERROR")
            return self._clause(f"ON {self._parse_when()}", value)

        def _parse_when(self) -> str:
            for word in ("NULL", "EMPTY", "ERROR"):
                if self._match_text_seq(word):
                    return word
            self.raise_error("expected NULL, EMPTY or ERROR")
            return ""

        def _clause(self, name: str, value: Any) -> Any:
            return self.expression(exp.Kwarg(this=exp.var(name), expression=value))


# ----------------------------------------------------------------------------------------------------- MATCH_RECOGNIZE
def _parse_match(own: Any) -> exp.MatchRecognize | None:
    """MATCH_RECOGNIZE, if it comes next; else None."""
    word = own._curr
    if not own._match(TokenType.MATCH_RECOGNIZE):
        return None
    own._match_l_paren()
    parts: dict[str, Any] = {"partition_by": own._parse_partition_by(), "order": own._parse_order()}
    if own._match_text_seq("MEASURES"):
        parts["measures"] = own._parse_csv(own._parse_match_recognize_measure)
    parts["rows"] = _rows(own)
    parts["after"] = _after(own)
    parts["pattern"] = _pattern(own)
    if own._match_text_seq("WITHIN"):
        parts["within"] = own._parse_disjunction()
    if own._match_text_seq("DEFINE"):
        parts["define"] = own._parse_csv(own._parse_name_as_expression)
    own._match_r_paren()
    made = exp.MatchRecognize(**{name: value for name, value in parts.items() if value})
    made.set("alias", own._parse_table_alias())
    made.update_positions(word)
    return made


def _rows(own: Any) -> Any:
    if own._match_text_seq("ONE", "ROW", "PER", "MATCH"):
        return None  # as without
    word = own._curr
    if not own._match_text_seq("ALL", "ROWS", "PER", "MATCH"):
        return None
    return exp.Var(this="ALL ROWS PER MATCH").update_positions(word)


def _after(own: Any) -> Any:
    if not own._match_text_seq("AFTER", "MATCH"):
        return None
    if not own._match_text_seq("SKIP"):
        own.raise_error("expected SKIP")
    if own._match_text_seq("PAST", "LAST", "ROW"):
        return exp.Tuple(expressions=[exp.var("past")])
    if own._match_text_seq("TO", "NEXT", "ROW"):
        return exp.Tuple(expressions=[exp.var("next")])
    if not own._match_text_seq("TO"):
        own.raise_error("expected PAST LAST ROW, TO NEXT ROW, TO FIRST or TO LAST")
    to = "first" if own._match_text_seq("FIRST") else "last"
    if to == "last":
        own._match_text_seq("LAST")
    variable = own._parse_id_var()
    if variable is None:
        own.raise_error("expected a variable of the pattern")
    return exp.Tuple(expressions=[exp.var(to), variable])


def _pattern(own: Any) -> Any:
    """What stands in the parentheses behind PATTERN, as it is written."""
    if not own._match_text_seq("PATTERN"):
        return None
    opened = own._curr
    own._match_l_paren()
    depth, begin, last = 1, own._curr, None
    while own._curr:
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(own._curr.token_type, 0)
        if not depth:
            break
        last = own._curr
        own._advance()
    if last is None:
        own.raise_error("expected a pattern", opened)
    text = own._find_sql(begin, last)
    own._match_r_paren()
    return exp.Var(this=text).update_positions(begin)
