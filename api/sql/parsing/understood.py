"""What of the parser's trees is understood. Whatever a statement says beyond that is refused, by what it is called.

The parser knows the SQL of thirty systems, and hangs what it has read on the nodes of a tree. A part that nobody here
looks at would be left out silently. So each kind of node that is looked at stands here with the parts that are.
"""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from .errors import SqlText

__all__ = ["require_understood"]

_BINARY = ("this", "expression")
_SET_OPERATION = ("with_", "this", "expression", "distinct", "order", "limit", "offset")

_PARTS: dict[type, tuple[str, ...]] = {
    exp.Select: (
        "with_",
        "expressions",
        "from_",
        "joins",
        "where",
        "group",
        "having",
        "order",
        "limit",
        "offset",
        "distinct",
        "kind",
        "windows",
        "qualify",
        "hint",
        "match",
    ),
    exp.Hint: ("expressions",),
    exp.Union: _SET_OPERATION,
    exp.Intersect: _SET_OPERATION,
    exp.Except: _SET_OPERATION,
    exp.Subquery: ("this", "alias", "with_", "order", "limit", "offset"),
    exp.Unnest: ("expressions", "alias", "offset"),
    exp.Lateral: ("this", "alias"),
    exp.Values: ("expressions", "alias", "order", "limit", "offset"),
    exp.With: ("expressions", "recursive"),
    exp.CTE: ("this", "alias"),
    exp.Table: ("this", "db", "catalog", "alias", "joins", "partition", "version", "hint"),
    exp.TableAlias: ("this", "columns"),
    exp.From: ("this",),
    exp.Join: ("this", "on", "using", "side", "kind", "method"),
    exp.Where: ("this",),
    exp.Having: ("this",),
    exp.Qualify: ("this",),
    exp.Group: ("expressions", "grouping_sets", "cube", "rollup", "totals", "all"),
    exp.GroupingSets: ("expressions",),
    exp.Cube: ("expressions",),
    exp.Rollup: ("expressions",),
    exp.Order: ("expressions",),
    exp.Ordered: ("this", "desc", "nulls_first"),
    exp.Limit: ("expression",),
    exp.Offset: ("expression",),
    exp.Fetch: ("direction", "count", "limit_options"),
    exp.LimitOptions: ("rows",),
    exp.Distinct: ("expressions",),
    exp.MatchRecognize: (
        "partition_by",
        "order",
        "measures",
        "rows",
        "after",
        "pattern",
        "within",
        "define",
        "alias",
    ),
    exp.MatchRecognizeMeasure: ("this",),
    exp.Window: ("this", "partition_by", "order", "spec", "over", "alias"),
    exp.WindowSpec: ("kind", "start", "start_side", "end", "end_side"),
    exp.Filter: _BINARY,
    exp.Alias: ("this", "alias"),
    exp.Star: (),
    exp.Column: ("this", "table", "db", "catalog"),
    exp.Dot: _BINARY,
    exp.Anonymous: ("this", "expressions"),
    exp.Kwarg: _BINARY,
    exp.Literal: ("this", "is_string"),
    exp.Interval: ("this", "unit"),
    exp.Case: ("this", "ifs", "default"),
    exp.If: ("this", "true"),
    exp.Cast: ("this", "to", "safe"),
    exp.TryCast: ("this", "to", "safe", "requires_string"),
    exp.DataType: ("this", "expressions", "nested", "kind"),
    exp.In: ("this", "expressions", "query", "field"),
    exp.Between: ("this", "low", "high", "symmetric"),
    exp.Array: ("expressions",),
    exp.Bracket: ("this", "expressions"),
    exp.JSON: ("this",),
    exp.Overlaps: _BINARY,
    exp.Tuple: ("expressions",),
    exp.Like: ("this", "expression", "negate"),
    exp.SimilarTo: ("this", "expression", "negate"),
    exp.Escape: _BINARY,
    exp.Is: _BINARY,
    exp.Exists: ("this",),
    exp.Extract: _BINARY,
    exp.Ceil: ("this", "to"),
    exp.Floor: ("this", "to"),
    exp.Substring: ("this", "start", "length"),
    exp.Trim: ("this", "expression", "position"),
    exp.StrPosition: ("this", "substr"),
    exp.Overlay: ("this", "expression", "from_", "for_"),
    exp.Div: ("this", "expression", "typed", "safe"),
    exp.DPipe: ("this", "expression", "safe"),
}


def require_understood(tree: Any, text: SqlText) -> None:
    """Refuse a statement that says more than is understood.

    Raises:
        SqlError: With the place of the node, and what the parser calls the part.
    """
    for node in tree.walk():
        parts = _PARTS.get(type(node))
        if parts is None:
            continue  # nobody knows such nodes: they are refused where they are bound
        for part, value in node.args.items():
            if part not in parts and value not in (None, False, [], ""):
                what = part.strip("_").replace("_", " ").upper()
                message = f"{what} is not supported in {type(node).__name__.upper()}"
                raise text.error(message, node)
