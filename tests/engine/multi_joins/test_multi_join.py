"""Multi-way joins over changes.

Families: oracle (one join after the other, over lists in Python), property (random types, numbers of inputs, kinds of
joins, conditions, changelogs of all inputs, cuts, restores at other parallelisms, both backends, hashes of one bit),
example (row kinds, nets, errors).
"""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from changelog_kit import KEYS, KINDS, RUNS, Changelog, Running, batch_of, chosen_backend, cut, multiset
from changelog_oracles import joined_in_a_chain

from headrace.engine.changelog import join_state
from headrace.engine.columns.expressions import col
from headrace.engine.columns.records import RowKind
from headrace.engine.errors import ProgramError, UserFunctionError
from headrace.engine.multi_joins import multi_join_state
from headrace.engine.multi_joins.join_step import JoinStep
from headrace.engine.multi_joins.multi_join import MultiJoin
from headrace.engine.tables import row_store, run_log
from headrace.engine.tables.row_store import RowStore

INS, UB, UA, D = RowKind


def random_multi_join(rng):
    num_inputs, num_keys = rng.randint(2, 4), rng.randint(1, 2)
    keys = rng.choices(KEYS, k=num_keys)
    inputs = [[*keys, "int", *rng.choices(list(KINDS), k=rng.randint(0, 1))] for _ in range(num_inputs)]
    steps = [
        (rng.random() < 0.5, rng.choice([0, 0, number - 1]), rng.choice([None, None, rng.randrange(number)]))
        for number in range(1, num_inputs)
    ]
    return inputs, num_keys, steps


def operator_of(inputs, num_keys, steps, schemas):
    made = []
    for number, (is_left, by, compared) in enumerate(steps, 1):
        condition, columns = None, ()
        if compared is not None:
            condition = col("one") < col("other")
            columns = ((compared, f"c{num_keys}", "one"), (number, f"c{num_keys}", "other"))
        made.append(JoinStep(is_left, (by,) if by else (), condition, columns))
    projection = [(at, f"c{i}", f"{at}.{i}") for at, kinds in enumerate(inputs) for i in range(len(kinds))]
    names = [f"c{i}" for i in range(num_keys)]
    return MultiJoin([names] * len(inputs), made, schemas=schemas, projection=projection), [names] * len(inputs)


def run_multi_join(seed, backend, monkeypatch):
    rng = random.Random(seed)
    backend = chosen_backend(backend, rng, monkeypatch)
    monkeypatch.setattr(run_log, "MIN_ROWS", rng.choice([0, 20, 4_096]))
    monkeypatch.setattr(row_store, "_MIN_DEAD", rng.choice([0, 5]))
    monkeypatch.setattr(join_state, "_MIN_DEAD", rng.choice([0, 5]))
    monkeypatch.setattr(multi_join_state, "MAX_BATCH_ROWS", rng.choice([1, 7, 65_536]))
    monkeypatch.setattr(RowStore, "hash_bits", rng.choice([1, -1]))
    inputs, num_keys, steps = random_multi_join(rng)
    insert_only = rng.random() < 0.2
    changelogs = [Changelog(rng, kinds, takes_back=not insert_only) for kinds in inputs]
    fed = [Changelog(rng, kinds) for kinds in inputs]
    operator, keys = operator_of(inputs, num_keys, steps, [one.schema for one in changelogs])
    running = Running(operator, keys, rng.randint(1, 3), backend)
    for _ in range(14):
        at = rng.randrange(len(inputs))
        for part in cut(rng, changelogs[at].changes(rng.randint(1, 8))):
            for kind, row in part:
                if kind in (INS, UA):
                    fed[at].live.append(row)
                else:
                    fed[at]._forget(row)
            running.feed(batch_of(part, changelogs[at].schema), at)
            wanted = joined_in_a_chain([one.live for one in fed], steps, num_keys, [len(kinds) for kinds in inputs])
            assert running.out.rows == multiset(wanted)
        if rng.random() < 0.3:
            running.restore(rng.randint(1, 3))
    running.close()
    if insert_only and not any(is_left for is_left, _, _ in steps):
        assert set(running.kinds) <= {INS}


@pytest.mark.parametrize(("seed", "backend"), RUNS)
@pytest.mark.sampled(4)
def test_what_is_out_is_the_join_of_what_remains(seed, backend, monkeypatch):
    run_multi_join(seed, backend, monkeypatch)


# ------------------------------------------------------------------------------------------------------------ row kinds
SCHEMAS = [pa.schema([("k", pa.int64()), (name, pa.string())]) for name in "abc"]
PROJECTION = [(0, "k", "k"), (0, "a", "a"), (1, "b", "b"), (2, "c", "c")]


def started(*kinds, needs=()):
    steps = [JoinStep(kind == "left", needs if number == 2 else ()) for number, kind in enumerate(kinds, 1)]
    running = Running(MultiJoin([["k"]] * 3, steps, schemas=SCHEMAS, projection=PROJECTION), [["k"]] * 3)
    return lambda at, *changes: running.feed(batch_of(changes, SCHEMAS[at]), at)[0]


def test_inner_joins_pass_kinds_on():
    feed = started("inner", "inner")
    assert feed(0, (INS, (1, "x"))) == feed(2, (INS, (1, "p")), (INS, (2, "q"))) == []
    assert feed(1, (INS, (1, "y"))) == [(INS, (1, "x", "y", "p"))]
    assert feed(1, (UB, (1, "y")), (UA, (1, "z"))) == [(UB, (1, "x", "y", "p")), (UA, (1, "x", "z", "p"))]
    assert feed(0, (D, (1, "x"))) == [(D, (1, "x", "z", "p"))]


def test_nulls_go_and_come_again():
    feed = started("left", "left")
    assert feed(0, (INS, (1, "x"))) == [(INS, (1, "x", None, None))]
    assert feed(2, (INS, (1, "p"))) == [(D, (1, "x", None, None)), (INS, (1, "x", None, "p"))]
    assert feed(1, (INS, (1, "y"))) == [(D, (1, "x", None, "p")), (INS, (1, "x", "y", "p"))]
    assert feed(1, (UB, (1, "y")), (UA, (1, "z"))) == [(D, (1, "x", "y", "p")), (INS, (1, "x", "z", "p"))]
    assert feed(1, (D, (1, "z")), (INS, (1, "z")), (D, (1, "z"))) == [
        (D, (1, "x", "z", "p")), (INS, (1, "x", None, "p"))
    ]  # fmt: skip


def test_a_batch_comes_to_its_net():
    feed = started("left", "left")
    feed(0, (INS, (1, "x")))
    assert feed(1, (INS, (1, "y")), (D, (1, "y"))) == []


def test_what_is_joined_by_a_row_that_is_not_there_finds_nothing():
    """``a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON b.k = c.k``: without a row of b there is none of c."""
    feed = started("left", "left", needs=(1,))
    feed(2, (INS, (1, "p")))
    assert feed(0, (INS, (1, "x"))) == [(INS, (1, "x", None, None))]
    assert feed(1, (INS, (1, "y"))) == [(D, (1, "x", None, None)), (INS, (1, "x", "y", "p"))]
    assert feed(2, (D, (1, "p"))) == [(D, (1, "x", "y", "p")), (INS, (1, "x", "y", None))]


def test_rows_without_a_key_match_nothing():
    feed = started("left", "inner")
    feed(2, (INS, (None, "p")))
    assert feed(0, (INS, (None, "x"))) == []
    feed = started("left", "left")
    assert feed(1, (INS, (None, "p"))) == []
    assert feed(0, (INS, (None, "x"))) == [(INS, (None, "x", None, None))]
    assert feed(0, (D, (None, "x"))) == [(D, (None, "x", None, None))]


def test_what_was_not_there_cannot_be_taken_back():
    with pytest.raises(UserFunctionError, match="takes back what is not there"):
        started("left", "inner")(1, (D, (1, "x")))


@pytest.mark.parametrize(
    ("keys", "steps", "projection", "message"),
    [
        ([["k"]] * 2, [JoinStep(False)] * 2, PROJECTION, "needs as many keys"),
        ([["k"], ["b"], ["k"]], [JoinStep(False)] * 2, PROJECTION, "of one type in all inputs"),
        ([["k"], ["x"], ["k"]], [JoinStep(False)] * 2, PROJECTION, "column 'x' is not in the records"),
        ([["k"]] * 3, [JoinStep(False)] * 2, [], "needs a column"),
        ([["k"]] * 3, [JoinStep(False, (1,)), JoinStep(False)], PROJECTION, "reads inputs behind it"),
    ],
)
def test_what_cannot_be_joined_is_refused(keys, steps, projection, message):
    with pytest.raises(ProgramError, match=message):
        MultiJoin(keys, steps, schemas=SCHEMAS, projection=projection)
