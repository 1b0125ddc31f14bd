"""Regular joins over changes.

Families: oracle (all pairs of two lists, one by one in Python), property (random types, changelogs of both sides, cuts,
restores at other parallelisms, both backends, hashes of one bit), example (row kinds, nets, errors).
"""

from __future__ import annotations

import random
import subprocess
import sys

import pyarrow as pa
import pytest
from campaigns import blocks
from changelog_kit import BACKENDS, KEYS, KINDS, RUNS, Changelog, Running, batch_of, chosen_backend, cut, multiset
from changelog_oracles import joined
from operator_harness import OperatorHarness

from headrace.engine.changelog import join_state
from headrace.engine.changelog.join import ChangelogJoin
from headrace.engine.changelog.join_type import JoinType
from headrace.engine.columns.expressions import col, lit
from headrace.engine.columns.records import RowKind
from headrace.engine.errors import ProgramError, TypeMismatchError, UserFunctionError
from headrace.engine.tables import row_store, run_log
from headrace.engine.tables.row_store import RowStore

INS, UB, UA, D = RowKind
TYPES = [kind.value for kind in JoinType]


def random_join(rng):
    """The kinds of both sides, the number of keys, the operator, and what must be true of a pair, in Python."""
    how, num_keys = rng.choice(TYPES), rng.randint(1, 2)
    keys = rng.choices(KEYS, k=num_keys)
    sides = [[*keys, "int", *rng.choices(list(KINDS), k=rng.randint(0, 2))] for _ in range(2)]
    projection = [(side, f"c{index}", f"{'lr'[side]}{index}") for side in (0, 1) for index in range(len(sides[side]))]
    condition, is_match = None, lambda one, other: True
    if rng.random() < 0.5:
        condition = col(f"l{num_keys}") < col(f"r{num_keys}")
        is_match = lambda one, other: None not in (one[num_keys], other[num_keys]) and one[num_keys] < other[num_keys]
    elif how in ("semi", "anti") and rng.random() < 0.5:
        projection = projection[: len(sides[0])]
    return how, sides, num_keys, projection, condition, is_match


def run_join(seed, backend, monkeypatch=None):
    rng = random.Random(seed)
    if monkeypatch is not None:
        backend = chosen_backend(backend, rng, monkeypatch)
        monkeypatch.setattr(run_log, "MIN_ROWS", rng.choice([0, 20, 4_096]))
        monkeypatch.setattr(row_store, "_MIN_DEAD", rng.choice([0, 5]))
        monkeypatch.setattr(join_state, "_MIN_DEAD", rng.choice([0, 5]))
        monkeypatch.setattr(join_state, "MAX_BATCH_ROWS", rng.choice([1, 7, 65_536]))
        monkeypatch.setattr(RowStore, "hash_bits", rng.choice([1, -1]))
    how, sides, num_keys, projection, condition, is_match = random_join(rng)
    insert_only = rng.random() < 0.2
    changelogs = [Changelog(rng, kinds, takes_back=not insert_only) for kinds in sides]
    fed = [Changelog(rng, kinds) for kinds in sides]
    names = [f"c{index}" for index in range(num_keys)]
    operator = ChangelogJoin(
        names,
        names,
        how,
        left_schema=changelogs[0].schema,
        right_schema=changelogs[1].schema,
        projection=projection,
        condition=condition,
    )
    running = Running(operator, [names, names], rng.randint(1, 3), backend)
    widths = len(sides[0]), len(sides[1])
    for _ in range(14):
        side = rng.randrange(2)
        for part in cut(rng, changelogs[side].changes(rng.randint(1, 8))):
            for kind, row in part:
                if kind in (INS, UA):
                    fed[side].live.append(row)
                else:
                    fed[side]._forget(row)
            running.feed(batch_of(part, changelogs[side].schema), side)
            wanted = joined(fed[0].live, fed[1].live, how, num_keys, widths, is_match)
            assert running.out.rows == multiset(wanted)
        if rng.random() < 0.3:
            running.restore(rng.randint(1, 3))
    running.close()
    if insert_only and how == "inner":
        assert set(running.kinds) <= {INS}


@pytest.mark.parametrize(("seed", "backend"), RUNS)
@pytest.mark.sampled(4)
def test_what_is_out_is_the_join_of_what_remains(seed, backend, monkeypatch):
    run_join(seed, backend, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(0, 10))
def test_joins_over_many_seeds(block, monkeypatch):
    for seed in range(1_000 + 20 * block, 1_020 + 20 * block):
        run_join(seed, BACKENDS[(0, 2, 0, 1)[seed % 4]], monkeypatch)
        monkeypatch.undo()


# ------------------------------------------------------------------------------------------------------------ row kinds
LEFT = pa.schema([("k", pa.int64()), ("a", pa.string())])
RIGHT = pa.schema([("k", pa.int64()), ("b", pa.string())])
PROJECTION = [(0, "k", "k"), (0, "a", "a"), (1, "b", "b")]


def started(how, condition=None, projection=PROJECTION):
    operator = ChangelogJoin(
        ["k"], ["k"], how, left_schema=LEFT, right_schema=RIGHT, projection=projection, condition=condition
    )
    running = Running(operator, [["k"], ["k"]])
    running.left = lambda *changes: running.feed(batch_of(changes, LEFT), 0)[0]
    running.right = lambda *changes: running.feed(batch_of(changes, RIGHT), 1)[0]
    return running


def test_inner_joins_pass_kinds_on():
    running = started("inner")
    assert running.left((INS, (1, "x")), (INS, (2, "y"))) == []
    assert running.right((INS, (1, "p")), (INS, (3, "q"))) == [(INS, (1, "x", "p"))]
    assert running.right((UB, (1, "p")), (UA, (1, "r"))) == [(UB, (1, "x", "p")), (UA, (1, "x", "r"))]
    assert running.left((D, (1, "x"))) == [(D, (1, "x", "r"))]


def test_inner_joins_of_insertions_have_no_kinds():
    running = started("inner")
    running.left((INS, (1, "x")))
    running.harness.subtasks[0].operator.process_batch(batch_of([(INS, (1, "p"))], RIGHT), 1)
    (batch,) = running.harness.subtasks[0].output.elements
    assert batch.row_kinds is None


def test_outer_joins_take_nulls_back():
    running = started("left")
    assert running.left((INS, (1, "x"))) == [(INS, (1, "x", None))]
    assert running.right((INS, (1, "p"))) == [(D, (1, "x", None)), (INS, (1, "x", "p"))]
    assert running.right((INS, (1, "q"))) == [(INS, (1, "x", "q"))]
    assert running.right((D, (1, "p"))) == [(D, (1, "x", "p"))]
    assert running.right((D, (1, "q"))) == [(D, (1, "x", "q")), (INS, (1, "x", None))]


def test_matches_are_counted_over_restores():
    for parallelism in (1, 2, 3):
        running = started("left")
        running.left((INS, (1, "x")), (INS, (1, "x")))
        running.right((INS, (1, "p")), (INS, (1, "q")))
        running.restore(parallelism)
        running.feed(batch_of([(D, (1, "p"))], RIGHT), 1)
        running.restore(1)
        assert running.right((D, (1, "q"))) == [*[(D, (1, "x", "q"))] * 2, *[(INS, (1, "x", None))] * 2]


def test_a_row_that_changes_within_a_batch_does_not_move():
    running = started("full")
    running.left((INS, (1, "x")))
    running.right((INS, (1, "p")))
    assert running.right((D, (1, "p")), (INS, (1, "p"))) == []
    assert running.right((UB, (1, "p")), (UA, (1, "q"))) == [(D, (1, "x", "p")), (INS, (1, "x", "q"))]
    assert running.right((INS, (1, "r")), (D, (1, "r"))) == []


def test_semi_and_anti_joins_give_left_rows():
    semi, anti = started("semi"), started("anti")
    assert [one.left((INS, (1, "x")), (INS, (2, "y"))) for one in (semi, anti)] == [
        [],
        [(INS, (1, "x")), (INS, (2, "y"))],
    ]
    assert [one.right((INS, (1, "p")), (INS, (1, "q"))) for one in (semi, anti)] == [[(INS, (1, "x"))], [(D, (1, "x"))]]
    assert [one.left((UB, (1, "x")), (UA, (1, "z"))) for one in (semi, anti)] == [
        [(UB, (1, "x")), (UA, (1, "z"))],
        [],
    ]
    assert [one.right((D, (1, "p"))) for one in (semi, anti)] == [[], []]
    assert [one.right((D, (1, "q"))) for one in (semi, anti)] == [[(D, (1, "z"))], [(INS, (1, "z"))]]


def test_null_keys_match_nothing_and_are_not_kept():
    for how, rows in (("inner", []), ("left", [(None, "x", None)]), ("anti", [(None, "x")]), ("semi", [])):
        running = started(how)
        assert running.right((INS, (None, "p"))) == []
        assert running.left((INS, (None, "x"))) == [(INS, row) for row in rows]
        assert running.left((D, (None, "x"))) == [(D, row) for row in rows]
        assert all(store.size == 0 for store in running.harness.subtasks[0].operator._state._stores)


def test_conditions_decide_what_matches():
    running = started("left", col("b") > col("a"))
    assert running.left((INS, (1, "m"))) == [(INS, (1, "m", None))]
    assert running.right((INS, (1, "a"))) == []
    assert running.right((INS, (1, None))) == []
    assert running.right((INS, (1, "z"))) == [(D, (1, "m", None)), (INS, (1, "m", "z"))]
    never = started("anti", lit(False))
    assert never.left((INS, (1, "m"))) == [(INS, (1, "m"))]
    assert never.right((INS, (1, "a"))) == []


# --------------------------------------------------------------------------------------------------------------- errors
def test_what_was_not_there_cannot_be_taken_back():
    for changes in ([(D, (1, "x"))], [(INS, (1, "x")), (D, (1, "y"))], [(INS, (1, "x")), (D, (1, "x")), (D, (1, "x"))]):
        with pytest.raises(UserFunctionError, match="takes back what is not there") as error:
            started("inner").left(*changes)
        assert error.value.context["operator"] == "op"
        assert error.value.context["subtask"] == "1/1"


def test_programs_that_mean_nothing():
    def make(left=("k",), right=("k",), how="inner", projection=PROJECTION, condition=None):
        return ChangelogJoin(
            left, right, how, left_schema=LEFT, right_schema=RIGHT, projection=projection, condition=condition
        )

    for options, message in (
        ({"how": "cross"}, "a join is one of"),
        ({"left": ("x",)}, "left keys: column 'x'"),
        ({"left": ("k", "a")}, "as many"),
        ({"left": (), "right": ()}, "need keys"),
        ({"right": ("b",)}, "keys of a join must be of one type; k is int64, b is string"),
        ({"projection": [(0, "b", "b")]}, "column 'b'"),
        ({"projection": [(0, "k", "k"), (1, "k", "k")]}, "a name once"),
        ({"projection": [(1, "b", "b")], "how": "semi"}, "a column of its result"),
    ):
        with pytest.raises(ProgramError, match=message):
            make(**options)
    with pytest.raises(TypeMismatchError, match="a join needs a condition"):
        make(condition=col("k") + 1)


def test_keys_and_rows_that_are_gone_are_forgotten():
    running = started("full")
    for start in range(0, 20_000, 2_000):
        rows = [(key, str(key)) for key in range(start, start + 2_000)]
        for feed in (running.left, running.right):
            feed(*((INS, row) for row in rows))
        for feed in (running.left, running.right):
            feed(*((D, row) for row in rows))
    state = running.harness.subtasks[0].operator._state
    assert len(state._index) < 6_000
    assert all(store.size < 6_000 for store in state._stores)


def test_no_process_imports_compilers_before_an_operator_is_opened():
    code = "import sys, headrace.engine.changelog.join; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert OperatorHarness(started("inner").harness._operator)
