"""What operators by event time must come to, worked out row by row in plain Python."""

from __future__ import annotations

from changelog_kit import canonical
from changelog_oracles import AGGREGATES


def over(rows, num_keys, time, specs, frame):
    """OVER of rows in order of arrival: partitions are the first columns, ``time`` the place of the time column.

    ``specs`` are names with a column (None counts rows) and, of ``lag``, how far; ``frame`` is None, or
    ("rows" or "range", low, high) with None for the first row of the partition. Times are numbers.
    """
    partitions = {}
    for row in rows:
        partitions.setdefault(canonical(row[:num_keys]), []).append(row)
    return [
        (*row, *(_over_one(members, place, time, spec, frame) for spec in specs))
        for members in (sorted(part, key=lambda row: row[time]) for part in partitions.values())
        for place, row in enumerate(members)
    ]


def _over_one(members, place, time, spec, frame):
    name, column, *rest = spec
    now = members[place][time]
    before = [row[time] for row in members if row[time] < now]
    if name == "row_number":
        return place + 1
    if name == "rank":
        return len(before) + 1
    if name == "dense_rank":
        return len(set(before)) + 1
    if name == "lag":
        return members[place - rest[0]][column] if place >= rest[0] else None
    kind, low, high = frame or ("range", None, 0)
    if kind == "rows":
        seen = members[0 if low is None else max(0, place + low) : max(0, place + high + 1)]
    else:
        seen = [row for row in members if (low is None or row[time] >= now + low) and row[time] <= now + high]
    if column is None:
        return len(seen)
    return AGGREGATES[name]([row[column] for row in seen if row[column] is not None])


def with_versions(rows, versions, num_keys, times, is_left):
    """Rows with the versions of their keys, which are the first columns; ``times`` are the places of the time columns.

    A version is a row, and whether the key is gone from then on; of one time the later one counts.
    """
    nothing = (None,) * len(versions[0][0]) if versions else ()
    result = []
    for row in rows:
        key = canonical(row[:num_keys])
        known = [
            (version[times[1]], place)
            for place, (version, _) in enumerate(versions)
            if canonical(version[:num_keys]) == key and None not in key and version[times[1]] <= row[times[0]]
        ]
        found, is_gone = versions[max(known)[1]] if known else (nothing, True)
        if not is_gone or is_left:
            result.append((*row, *(nothing if is_gone else found)))
    return result


def near(left, right, num_keys, times, low, high):
    """Pairs of rows with equal keys, the first columns, whose times are near enough."""
    return [
        (*one, *other)
        for one in left
        for other in right
        if canonical(one[:num_keys]) == canonical(other[:num_keys])
        and None not in canonical(one[:num_keys])
        and low <= other[times[1]] - one[times[0]] <= high
    ]
