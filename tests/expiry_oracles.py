"""What operators over changes give when their state has a time to live: dictionaries and lists, one change at a time.

A model takes a batch at a time of the clock, and keeps in ``out`` what is out. It knows of time only this: what was
written ``ttl`` ago or longer is not there. What has gone so once stays gone, as its owner has forgotten it.
"""

from __future__ import annotations

import statistics
from collections import Counter

from changelog_kit import canonical
from changelog_oracles import first_rows, over

from headrace.engine.columns.records import RowKind

ADDS = (RowKind.INSERT, RowKind.UPDATE_AFTER)


class Model:
    """What all models share; ``entries`` are what has a time, by whatever key: lists that begin with their time."""

    def __init__(self, ttls):
        self.ttls = list(ttls)
        self.has_times = [ttl > 0 for ttl in ttls]
        self.out = Counter()
        self.num_ignored = 0

    def give(self, row):
        self.out[canonical(row)] += 1

    def take(self, row):
        row = canonical(row)
        assert self.out[row] > 0, f"the model takes back {row}, which is not out"
        self.out[row] -= 1
        self.out += Counter()

    def is_past(self, time, now, side=0):
        return self.ttls[side] > 0 and time + self.ttls[side] <= now

    def restore(self, ttls, now):
        """Another time to live: what has expired under the last one is gone, and times begin now where none were."""
        self.expire(now)
        for side, ttl in enumerate(ttls):
            if ttl > 0 and not self.has_times[side]:
                self.has_times[side] = True
                self.set_times(side, now)
        self.ttls = list(ttls)


class ByKey(Model):
    """Models whose unit is the key: ``parts`` are [time, rows] by key."""

    def __init__(self, ttl, num_keys):
        super().__init__([ttl])
        self.num_keys = num_keys
        self.parts = {}

    def expire(self, now):
        self.parts = {key: part for key, part in self.parts.items() if not self.is_past(part[0], now)}

    def set_times(self, _side, now):
        for part in self.parts.values():
            part[0] = now

    def key_of(self, row):
        return canonical(row[: self.num_keys])


# --------------------------------------------------------------------------------------------------------------- groups
class _Numbers:
    """Counts, sums and averages: nothing is taken from none, and none begins anew."""

    def __init__(self):
        self.count = self.sum = 0

    def add(self, value):
        self.count += 1
        self.sum += value

    def take(self, value):
        if self.count:
            self.count -= 1
            self.sum = self.sum - value if self.count else 0


class _Values(list):
    """All values in order; of equal ones the first goes, and one that is not there is passed over."""

    def add(self, value):
        self.append(value)

    def take(self, value):
        if value in self:
            self.remove(value)


RESULTS = {
    "count": (_Numbers, lambda one: one.count),
    "sum": (_Numbers, lambda one: one.sum if one.count else None),
    "avg": (_Numbers, lambda one: one.sum / one.count if one.count else None),
    "min": (_Values, lambda one: min(one, default=None)),
    "max": (_Values, lambda one: max(one, default=None)),
    "count_distinct": (_Values, lambda one: len(set(one))),
    "sum_distinct": (_Values, lambda one: sum(set(one)) if one else None),
    "collect_list": (_Values, list),
    "median": (_Values, lambda one: float(statistics.median(one)) if one else None),
    "last": (_Values, lambda one: one[-1] if one else None),
}


class Groups(ByKey):
    """GROUP BY: ``wanted`` are an aggregate's name, a column, and one that must not be null; parts are [time, the
    number of records, what aggregates have]."""

    def __init__(self, ttl, num_keys, wanted):
        super().__init__(ttl, num_keys)
        self.wanted = wanted

    def row_of(self, key, part):
        return (*key, part[1], *(RESULTS[one[0]][1](held) for one, held in zip(self.wanted, part[2], strict=True)))

    def feed(self, changes, now):
        self.expire(now)
        for kind, row in changes:
            self.change(kind in ADDS, row, now)

    def change(self, is_added, row, now):
        key = self.key_of(row)
        part = self.parts.get(key)
        if not is_added and (part is None or not part[1]):
            self.num_ignored += 1
            return
        if part is None:
            part = self.parts[key] = [now, 0, [RESULTS[one[0]][0]() for one in self.wanted]]
        else:
            self.take(self.row_of(key, part))
        part[0] = now
        part[1] += 1 if is_added else -1
        if not part[1] and self.num_keys:
            del self.parts[key]
            return
        if not part[1]:
            part[2] = [RESULTS[one[0]][0]() for one in self.wanted]
        for (_, column, other), held in zip(self.wanted, part[2], strict=True):
            if part[1] and row[column] is not None and row[other] is not None:
                (held.add if is_added else held.take)(row[column])
        self.give(self.row_of(key, part))


# ----------------------------------------------------------------------------------------------------------- partitions
class Partitions(ByKey):
    """Rows of partitions, and what ``given`` makes of a list of them; ``keeps`` says which places stay."""

    def __init__(self, ttl, num_keys, given, keeps=None):
        super().__init__(ttl, num_keys)
        self.given, self.keeps = given, keeps

    def feed(self, changes, now):
        self.expire(now)
        for kind, row in changes:
            self.change(kind in ADDS, row, now)

    def change(self, is_added, row, now):
        key = self.key_of(row)
        rows = self.parts[key][1] if key in self.parts else []
        after = [*rows, row]
        if not is_added:
            found = [index for index, one in enumerate(rows) if canonical(one) == canonical(row)]
            if not found:
                self.num_ignored += 1
                return
            after = [one for index, one in enumerate(rows) if index != found[0]]
        elif self.keeps is not None:
            places = self.keeps(after)
            if len(rows) not in places:  # the new row is not among them
                return
            after = [after[place] for place in places]
        for one in self.given(rows):
            self.take(one)
        for one in self.given(after):
            self.give(one)
        self.parts[key] = [now, after]


def ranked(ttl, num_keys, orders, *, takes_back, limit, offset, **options):
    """Top-N of partitions; rows that only come are kept while they are among the first ones."""

    def given(rows):
        return first_rows(rows, num_keys, orders, limit=limit, offset=offset, **options)

    def keeps(rows):
        placed = [(*row, place) for place, row in enumerate(rows)]
        ties = {"ties_keep_last": options.get("ties_keep_last", False)}
        return sorted(row[-1] for row in first_rows(placed, num_keys, orders, limit=limit + offset, **ties))

    return Partitions(ttl, num_keys, given, None if takes_back else keeps)


def numbered(ttl, num_keys, orders, specs, frame):
    """OVER of partitions."""
    return Partitions(ttl, num_keys, lambda rows: over(rows, num_keys, orders, specs, frame))


# ---------------------------------------------------------------------------------------------------------------- joins
class Joined(Model):
    """A join, one row at a time: sides are lists of [time, row, number of matches that are out]."""

    def __init__(self, ttls, how, num_keys, widths, is_match):
        super().__init__(ttls)
        self.how, self.num_keys, self.widths, self.is_match = how, num_keys, widths, is_match
        self.sides = [[], []]
        self.preserves = how in ("left", "full"), how in ("right", "full")
        self.counts = how in ("left", "full", "semi", "anti"), how in ("right", "full")

    def expire(self, now):
        for side, entries in enumerate(self.sides):
            entries[:] = [one for one in entries if not self.is_past(one[0], now, side)]

    def set_times(self, side, now):
        for one in self.sides[side]:
            one[0] = now

    def feed(self, changes, now, side):
        self.expire(now)
        for kind, row in changes:
            self.change(kind in ADDS, row, now, side)

    def has_null(self, row):
        return any(value is None for value in row[: self.num_keys])

    def matches(self, row, side):
        def is_pair(other):
            left, right = (row, other) if side == 0 else (other, row)
            same = canonical(left[: self.num_keys]) == canonical(right[: self.num_keys])
            return same and not self.has_null(row) and self.is_match(left, right)

        return [one for one in self.sides[1 - side] if is_pair(one[1])]

    def pair(self, row, other, side):
        return (*row, *other) if side == 0 else (*other, *row)

    def alone(self, row, side):
        return (*row, *[None] * self.widths[1]) if side == 0 else (*[None] * self.widths[0], *row)

    def change(self, is_added, row, now, side):
        own, put = self.sides[side], self.give if is_added else self.take
        found, number = self.matches(row, side), len(self.matches(row, side))
        if self.has_null(row):
            pass
        elif is_added:
            own.append([now, row, number])
        else:
            equal = [index for index, one in enumerate(own) if canonical(one[1]) == canonical(row)]
            if not equal:
                self.num_ignored += 1
                return
            gone = own.pop(equal[0])
            number = gone[2] if self.counts[side] else number
        if self.how in ("semi", "anti"):
            if side == 0 and (number > 0) == (self.how == "semi"):
                put(row)
        elif self.preserves[side] and not number:
            put(self.alone(row, side))
        for one in found:
            if self.how not in ("semi", "anti"):
                put(self.pair(row, one[1], side))
            if self.counts[1 - side]:
                self.count(one, 1 if is_added else -1, 1 - side)
                one[0] = now

    def count(self, one, step, side):
        had = one[2] > 0
        one[2] += step
        assert one[2] >= 0
        has = one[2] > 0
        if had == has:
            return
        if self.how in ("semi", "anti"):
            (self.give if has == (self.how == "semi") else self.take)(one[1])
        else:
            (self.take if has else self.give)(self.alone(one[1], side))
