"""The clause MATCH_RECOGNIZE: its parts, as Flink has them. The pattern stays a text; `headrace.sql.match` reads it.

Source: Flink's documentation ("Pattern Recognition"); sqlglot's parser, which knows no WITHIN.
"""

from __future__ import annotations

from typing import Any

from sqlglot import TokenType, exp

__all__ = ["parse_match"]


def parse_match(parser: Any) -> exp.MatchRecognize | None:
    """Return the clause, if it comes next; else None."""
    word = parser._curr
    if not parser._match(TokenType.MATCH_RECOGNIZE):
        return None
    parser._match_l_paren()
    parts: dict[str, Any] = {"partition_by": parser._parse_partition_by(), "order": parser._parse_order()}
    if parser._match_text_seq("MEASURES"):
        parts["measures"] = parser._parse_csv(parser._parse_match_recognize_measure)
    parts["rows"] = _rows(parser)
    parts["after"] = _after(parser)
    parts["pattern"] = _pattern(parser)
    if parser._match_text_seq("WITHIN"):
        parts["within"] = parser._parse_disjunction()
    if parser._match_text_seq("DEFINE"):
        parts["define"] = parser._parse_csv(parser._parse_name_as_expression)
    parser._match_r_paren()
    made = exp.MatchRecognize(**{name: value for name, value in parts.items() if value})
    made.set("alias", parser._parse_table_alias())
    made.update_positions(word)
    return made


def _rows(parser: Any) -> Any:
    if parser._match_text_seq("ONE", "ROW", "PER", "MATCH"):
        return None  # as without
    word = parser._curr
    if not parser._match_text_seq("ALL", "ROWS", "PER", "MATCH"):
        return None
    return exp.Var(this="ALL ROWS PER MATCH").update_positions(word)


def _after(parser: Any) -> Any:
    if not parser._match_text_seq("AFTER", "MATCH"):
        return None
    if not parser._match_text_seq("SKIP"):
        parser.raise_error("expected SKIP")
    if parser._match_text_seq("PAST", "LAST", "ROW"):
        return exp.Tuple(expressions=[exp.var("past")])
    if parser._match_text_seq("TO", "NEXT", "ROW"):
        return exp.Tuple(expressions=[exp.var("next")])
    if not parser._match_text_seq("TO"):
        parser.raise_error("expected PAST LAST ROW, TO NEXT ROW, TO FIRST or TO LAST")
    to = "first" if parser._match_text_seq("FIRST") else "last"
    if to == "last":
        parser._match_text_seq("LAST")
    variable = parser._parse_id_var()
    if variable is None:
        parser.raise_error("expected a variable of the pattern")
    return exp.Tuple(expressions=[exp.var(to), variable])


def _pattern(parser: Any) -> Any:
    """What stands in the parentheses behind PATTERN, as it is written."""
    if not parser._match_text_seq("PATTERN"):
        return None
    opened = parser._curr
    parser._match_l_paren()
    depth, begin, last = 1, parser._curr, None
    while parser._curr:
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(parser._curr.token_type, 0)
        if not depth:
            break
        last = parser._curr
        parser._advance()
    if last is None:
        parser.raise_error("expected a pattern", opened)
    text = parser._find_sql(begin, last)
    parser._match_r_paren()
    return exp.Var(this=text).update_positions(begin)
