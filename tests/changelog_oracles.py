"""What queries over changes must come to, worked out row by row in plain Python: from lists of the rows that remain."""

from __future__ import annotations

import functools
import math
import zlib

from changelog_kit import canonical


# ----------------------------------------------------------------------------------------------------------- aggregates
def total(values):
    """A sum as SQL has it."""
    if not values:
        return None
    if isinstance(values[0], float):
        return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)
    return sum(values)


def extreme(best):
    return lambda values: best([value for value in values if value == value] or values, default=None)


def each_once(values):
    return list({canonical(value): value for value in values}.values())


def trace_of(value):
    """A number that tells values apart, and equal ones not."""
    return zlib.crc32(repr(canonical(value)).encode())


def traces(values):
    return sum(map(trace_of, values))


AGGREGATES = {
    "count": len,
    "sum": total,
    "avg": lambda values: None if not values else float(total(values)) / len(values),
    "min": extreme(min),
    "max": extreme(max),
    "count_distinct": lambda values: len(set(map(canonical, values))),
    "sum_distinct": lambda values: total(each_once(values)),
    "user": traces,
    "user_without_merge": traces,
    "user_of_distinct": lambda values: traces(each_once(values)),
    "first": lambda values: values[0] if values else None,
    "last": lambda values: values[-1] if values else None,
}


def aggregated(rows, num_keys, wanted):
    """GROUP BY of rows in order of arrival.

    ``wanted`` are an aggregate's name and a column (None counts rows), and maybe a column that must not be null for a
    row to count. Without keys there is one row.
    """
    groups = {}
    for row in rows:
        groups.setdefault(canonical(row[:num_keys]), []).append(row)
    if not num_keys:
        groups.setdefault((), [])
    result = []
    for key, members in groups.items():
        results = []
        for name, column, *others in wanted:
            counted = [row for row in members if all(row[other] is not None for other in others)]
            values = counted if column is None else [row[column] for row in counted if row[column] is not None]
            results.append(AGGREGATES[name](values))
        result.append((*key, *results))
    return result


# ---------------------------------------------------------------------------------------------------------------- joins
def joined(left, right, how, num_keys, widths, is_match):
    """All rows of a join of two lists; keys are the first columns."""

    def matches(one, other):
        keys = canonical(one[:num_keys]), canonical(other[:num_keys])
        return keys[0] == keys[1] and None not in keys[0] and is_match(one, other)

    pairs = [(one, other) for one in left for other in right if matches(one, other)]
    if how in ("semi", "anti"):
        return [one for one in left if any(matches(one, other) for other in right) == (how == "semi")]
    rows = [(*one, *other) for one, other in pairs]
    if how in ("left", "full"):
        rows += [(*one, *[None] * widths[1]) for one in left if not any(matches(one, other) for other in right)]
    if how in ("right", "full"):
        rows += [(*[None] * widths[0], *other) for other in right if not any(matches(one, other) for one in left)]
    return rows


def joined_in_a_chain(rows, steps, num_keys, widths):
    """All rows of a chain of joins of lists; keys are the first columns.

    Args:
        rows: By input.
        steps: For all inputs but the first: which join it is, the input whose key it is joined by, and the input whose
            first column behind the key must be less than its own; None for no condition.
        num_keys: Columns of the key.
        widths: Columns of each input; those of semi and anti joins are not in the result.
    """
    lines = [[row] for row in rows[0]]
    for number, (how, by, compared) in enumerate(steps, 1):
        made = []
        for line in lines:
            key = None if line[by] is None else canonical(line[by][:num_keys])
            own = [] if key is None or None in key else [
                row
                for row in rows[number]
                if canonical(row[:num_keys]) == key and (compared is None or _is_less(line[compared], row, num_keys))
            ]  # fmt: skip
            if how in ("semi", "anti"):
                made += [[*line, None]] if bool(own) == (how == "semi") else []
            else:
                made += [[*line, row] for row in own] or ([[*line, None]] if how == "left" else [])
        lines = made
    given = [0, *(at for at, (how, _, _) in enumerate(steps, 1) if how in ("inner", "left"))]
    return [tuple(value for at in given for value in line[at] or [None] * widths[at]) for line in lines]


def _is_less(one, other, at):
    return one is not None and None not in (one[at], other[at]) and one[at] < other[at]


# ---------------------------------------------------------------------------------------------------------------- ranks
def before(one, other, orders):
    """-1, 0 or 1: how two rows stand in an order."""
    for column, ascending, nulls_first in orders:
        left, right = one[column], other[column]
        if left is None or right is None:
            if left is not right:
                first = ascending if nulls_first is None else nulls_first
                return -1 if (left is None) == first else 1
            continue
        sign = (left > right) - (left < right) if left == left and right == right else (left != left) - (right != right)
        if sign:
            return sign if ascending else -sign
    return 0


def first_rows(rows, num_keys, orders, *, limit, offset=0, numbered=False, ties_keep_last=False):
    """The first rows of each partition of rows in order of arrival; partitions are the first columns."""
    partitions = {}
    for row in rows:
        partitions.setdefault(canonical(row[:num_keys]), []).append(row)
    result = []
    for members in partitions.values():
        members = reversed(members) if ties_keep_last else members
        ordered = sorted(members, key=functools.cmp_to_key(lambda one, other: before(one, other, orders)))
        for number, row in enumerate(ordered[offset : offset + limit], offset + 1):
            result.append((*row, number) if numbered else row)
    return result


# ------------------------------------------------------------------------------------------------------------- frames
def over(rows, num_keys, orders, specs, frame):
    """OVER of rows in order of arrival: partitions are the first columns.

    ``specs`` are names with a column (None counts rows) and, of ``lag`` and ``lead``, how far; ``frame`` is None, or
    ("rows" or "range", low, high) with None for an end of the partition.
    """
    partitions = {}
    for row in rows:
        partitions.setdefault(canonical(row[:num_keys]), []).append(row)
    result = []
    for part in partitions.values():
        members = sorted(part, key=functools.cmp_to_key(lambda one, other: before(one, other, orders)))
        result += [
            (*row, *(_over_one(members, place, spec, orders, frame) for spec in specs))
            for place, row in enumerate(members)
        ]
    return result


def _over_one(members, place, spec, orders, frame):
    name, column, *rest = spec
    smaller = [row for row in members if before(row, members[place], orders) < 0]
    if name == "row_number":
        return place + 1
    if name == "rank":
        return len(smaller) + 1
    if name == "dense_rank":
        return len({canonical([row[column] for column, _, _ in orders]) for row in smaller}) + 1
    if name == "ntile":
        small, num_large = divmod(len(members), rest[0])
        sizes = [small + (tile < num_large) for tile in range(rest[0])]
        return next(tile + 1 for tile in range(rest[0]) if place < sum(sizes[: tile + 1]))
    if name == "percent_rank":
        return len(smaller) / max(len(members) - 1, 1)
    if name == "cume_dist":
        return sum(before(row, members[place], orders) <= 0 for row in members) / len(members)
    if name in ("lag", "lead"):
        at = place + (rest[0] if name == "lead" else -rest[0])
        return members[at][column] if 0 <= at < len(members) else None
    seen = _seen(members, place, orders, frame)
    if column is None:
        return len(seen)
    return AGGREGATES[name]([row[column] for row in seen if row[column] is not None])


def _seen(members, place, orders, frame):
    """The rows of a frame."""
    if frame is None:
        return [row for row in members if before(row, members[place], orders) <= 0]
    kind, low, high = frame
    if kind == "rows":
        end = len(members) if high is None else max(0, place + high + 1)
        return members[0 if low is None else max(0, place + low) : end]
    ((column, ascending, _),) = orders
    now = members[place][column]

    def is_within(row, distance, side):
        """Whether a row is not beyond an end of the frame; a null is near nothing but nulls."""
        if distance is None:
            return True
        if now is None or row[column] is None:
            return side * before(row, members[place], orders) <= 0
        away = (row[column] - now) * (1 if ascending else -1)
        return side * away <= side * distance

    return [row for row in members if is_within(row, low, -1) and is_within(row, high, 1)]
