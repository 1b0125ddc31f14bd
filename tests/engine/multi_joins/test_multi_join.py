"""Multi-way joins over changes.

Families: oracle (one join after the other, over lists in Python), property (random types, numbers of inputs, kinds of
joins, conditions, chains that share inputs, changelogs of all inputs, cuts, restores at other parallelisms, both
backends, hashes of one bit),
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
from headrace.engine.multi_joins import chain_state
from headrace.engine.multi_joins.join_step import JoinChain, JoinStep, result_tag
from headrace.engine.multi_joins.multi_join import MultiJoin
from headrace.engine.tables import row_store, run_log
from headrace.engine.tables.row_store import RowStore

INS, UB, UA, D = RowKind


def random_chain(rng, inputs):
    """Inputs in some order, and how all but the first are joined: the kind of join, by which, compared with which."""
    steps, given = [], [0]
    for number in range(1, len(inputs)):
        how = rng.choice(["inner", "inner", "left", "left", "semi", "anti"])
        steps.append((how, rng.choice([0, 0, given[-1]]), rng.choice([None, None, rng.choice(given)])))
        given += [number] if how in ("inner", "left") else []
    return inputs, steps


def random_multi_join(rng):
    """Columns of inputs, how many are keys, and chains that read all inputs, some of them several times."""
    num_inputs, num_keys = rng.randint(2, 4), rng.randint(1, 2)
    keys = rng.choices(KEYS, k=num_keys)
    inputs = [[*keys, "int", *rng.choices(list(KINDS), k=rng.randint(0, 1))] for _ in range(num_inputs)]
    numbers = list(range(num_inputs))
    others = [rng.sample(numbers, k=rng.randint(2, num_inputs)) for _ in range(rng.choice([0, 0, 1, 2]))]
    chains = [random_chain(rng, one) for one in (numbers, *others)]
    rng.shuffle(chains)
    return inputs, num_keys, chains


def chain_of(inputs, num_keys, numbers, steps):
    made = []
    for number, (how, by, compared) in enumerate(steps, 1):
        condition, columns = None, ()
        if compared is not None:
            condition = col("one") < col("other")
            columns = ((compared, f"c{num_keys}", "one"), (number, f"c{num_keys}", "other"))
        made.append(JoinStep(how, (by,) if by else (), condition, columns))
    given = [0, *(at for at, step in enumerate(made, 1) if step.gives_pairs)]
    projection = [(at, f"c{i}", f"{at}.{i}") for at in given for i in range(len(inputs[numbers[at]]))]
    return JoinChain(tuple(numbers), tuple(made), tuple(projection))


def run_multi_join(seed, backend, monkeypatch):
    rng = random.Random(seed)
    backend = chosen_backend(backend, rng, monkeypatch)
    monkeypatch.setattr(run_log, "MIN_ROWS", rng.choice([0, 20, 4_096]))
    monkeypatch.setattr(row_store, "_MIN_DEAD", rng.choice([0, 5]))
    monkeypatch.setattr(join_state, "_MIN_DEAD", rng.choice([0, 5]))
    monkeypatch.setattr(chain_state, "MAX_BATCH_ROWS", rng.choice([1, 7, 65_536]))
    monkeypatch.setattr(RowStore, "hash_bits", rng.choice([1, -1]))
    inputs, num_keys, chains = random_multi_join(rng)
    insert_only = rng.random() < 0.2
    changelogs = [Changelog(rng, kinds, takes_back=not insert_only) for kinds in inputs]
    fed = [Changelog(rng, kinds) for kinds in inputs]
    keys = [[f"c{i}" for i in range(num_keys)]] * len(inputs)
    operator = MultiJoin(keys, [chain_of(inputs, num_keys, *one) for one in chains],
                         schemas=[one.schema for one in changelogs])  # fmt: skip
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
            for i, (numbers, steps) in enumerate(chains):
                rows, widths = [fed[number].live for number in numbers], [len(inputs[number]) for number in numbers]
                out = running.sides[result_tag(i)] if i else running.out
                assert out.rows == multiset(joined_in_a_chain(rows, steps, num_keys, widths))
        if rng.random() < 0.3:
            running.restore(rng.randint(1, 3))
    running.close()
    if insert_only and all(how in ("inner", "semi") for how, _, _ in chains[0][1]):
        assert set(running.kinds) <= {INS}


@pytest.mark.parametrize(("seed", "backend"), RUNS)
@pytest.mark.sampled(4)
def test_what_is_out_is_the_join_of_what_remains(seed, backend, monkeypatch):
    run_multi_join(seed, backend, monkeypatch)


# ------------------------------------------------------------------------------------------------------------ row kinds
SCHEMAS = [pa.schema([("k", pa.int64()), (name, pa.string())]) for name in "abc"]
PROJECTION = [(0, "k", "k"), (0, "a", "a"), (1, "b", "b"), (2, "c", "c")]


def started(*kinds, needs=()):
    steps = [JoinStep(kind, needs if number == 2 else ()) for number, kind in enumerate(kinds, 1)]
    running = Running(MultiJoin([["k"]] * 3, [JoinChain.of_all(steps, PROJECTION)], schemas=SCHEMAS), [["k"]] * 3)
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


INNER = JoinStep("inner")


@pytest.mark.parametrize(
    ("keys", "chain", "message"),
    [
        ([["k"]] * 2, JoinChain.of_all([INNER] * 2, PROJECTION), "needs as many keys"),
        ([["k"], ["b"], ["k"]], JoinChain.of_all([INNER] * 2, PROJECTION), "of one type in all inputs"),
        ([["k"], ["x"], ["k"]], JoinChain.of_all([INNER] * 2, PROJECTION), "column 'x' is not in the records"),
        ([["k"]] * 3, JoinChain.of_all([INNER] * 2, []), "needs a column"),
        ([["k"]] * 3, JoinChain.of_all([JoinStep("inner", (1,)), INNER], PROJECTION), "reads inputs behind it"),
        ([["k"]] * 3, JoinChain.of_all([INNER], PROJECTION[:3]), "chains read all inputs"),
        ([["k"]] * 3, JoinChain((0, 1, 2, 0), (INNER,) * 3, tuple(PROJECTION)), "none of them an input twice"),
        ([["k"]] * 3, JoinChain((0, 1, 2), (INNER,), tuple(PROJECTION[:3])), "needs a step for each but the first"),
        ([["k"]] * 3, JoinChain.of_all([INNER, JoinStep("semi")], PROJECTION), "no part of the result"),
    ],
)
def test_what_cannot_be_joined_is_refused(keys, chain, message):
    with pytest.raises(ProgramError, match=message):
        MultiJoin(keys, [chain], schemas=SCHEMAS)


# ----------------------------------------------------------------------------------------------------- one input, twice
def test_an_input_of_two_joins_is_kept_once():
    chains = [
        JoinChain((0, 1), (INNER,), ((0, "a", "a"), (1, "b", "b"))),
        JoinChain((2, 1), (JoinStep("anti"),), ((0, "c", "c"),)),
    ]
    running = Running(MultiJoin([["k"]] * 3, chains, schemas=SCHEMAS), [["k"]] * 3)
    for at, rows in enumerate([[(1, "x")], [(1, "y"), (2, "z")], [(2, "p"), (3, "q")]]):
        running.feed(batch_of([(INS, row) for row in rows], SCHEMAS[at]), at)
    assert running.out.rows == multiset([("x", "y")])
    assert running.sides[result_tag(1)].rows == multiset([("q",)])
    stores = running.harness.subtasks[0].operator._state._stores
    assert [store.num_live for store in stores] == [1, 2, 2]
    running.feed(batch_of([(D, (2, "z"))], SCHEMAS[1]), 1)
    assert running.sides[result_tag(1)].rows == multiset([("p",), ("q",)])
    assert stores[1].num_live == 1
