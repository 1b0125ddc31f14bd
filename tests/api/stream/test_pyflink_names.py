"""Names that programs bring along from PyFlink: what they mean here, and which are not here and say so.

Families: property (sequences and lines against plain Python, at any parallelism, with cuts), behaviour, the guide.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import (
    CheckpointingMode,
    ConfigurationError,
    HashMapStateBackend,
    JobFailedError,
    ProgramError,
    RestartStrategies,
    RocksDBStateBackend,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    Types,
    col,
)
from headrace.arguments.absent_names import ABSENT
from headrace.connectors.files import FileSource
from headrace.table import TableEnvironment

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guide" / "pyflink.md"


def environment(parallelism=2, **options):
    return StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism, **options)


# ------------------------------------------------------------------------------------------------------------- sources
@pytest.mark.parametrize(
    ("first", "last", "parallelism"),
    [(1, 10, 1), (-3, 250, 3), (7, 7, 4), (2**63 - 5, 2**63 - 1, 2), (-(2**63), 3 - 2**63, 2)],
)
def test_a_sequence_has_both_ends_and_each_number_once(first, last, parallelism):
    stream = environment(parallelism).from_sequence(first, last)
    assert stream.get_type() == Types.LONG()
    assert sorted(stream.map(lambda n: n).execute_and_collect()) == list(range(first, last + 1))


def test_a_sequence_is_shared_by_all_subtasks_and_goes_on_behind_a_failure(tmp_path):
    failed = tmp_path / "failed"

    def once(n):
        if n == 700 and not failed.exists():
            failed.touch()
            message = "once"
            raise ValueError(message)
        return n

    env = environment(3, max_batch_rows=10)
    env.enable_checkpointing(20, directory=tmp_path / "checkpoints")
    numbers = env.from_sequence(0, 999).map(once).map(lambda n: n * 2)
    assert sorted(numbers.execute_and_collect()) == [2 * n for n in range(1_000)]


def test_a_sequence_that_is_none_is_refused():
    for first, last, text in ((2, 1, "2 to 1"), (0, 2**63, "64 bits"), ("a", 3, "whole number"), (0, True, "whole")):
        with pytest.raises(ConfigurationError, match=text):
            environment().from_sequence(first, last)


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\r\n\ufeff", exclude_categories=("Cs",)), max_size=9), max_size=30
    ),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.integers(1, 40),
)
@settings(max_examples=examples(25), deadline=None)
def test_lines_of_text_are_records_however_files_are_split(tmp_path_factory, lines, end, has_last_end, split_bytes):
    path = tmp_path_factory.mktemp("text") / "lines.txt"
    text = end.join(lines) + (end if has_last_end and lines else "")
    path.write_bytes(text.encode())
    expected = [line.removesuffix("\r") for line in text.split("\n")]
    expected = expected[:-1] if not expected[-1] else expected
    env = environment()
    stream = env.from_source(FileSource.text(path, split_bytes=split_bytes), None, "text")
    assert sorted(stream.execute_and_collect()) == sorted(expected)


def test_text_has_an_encoding_and_bytes_that_are_none_are_told(tmp_path):
    (tmp_path / "a.txt").write_bytes("äöü\r\nß\n".encode("latin-1"))
    stream = environment().read_text_file(tmp_path / "a.txt", "latin-1")
    assert stream.get_type() == Types.STRING()
    assert list(stream.execute_and_collect()) == ["äöü", "ß"]
    with pytest.raises(JobFailedError, match=r"(?s)cannot decode a text record.*line 1"):
        list(environment().read_text_file(tmp_path / "a.txt").execute_and_collect())
    skipping = FileSource.text(tmp_path / "a.txt", on_error="skip")
    assert list(environment().from_source(skipping, None, "text").execute_and_collect()) == []
    for charset in ("utf-16", "no-such", "rot13", 5):
        with pytest.raises(ConfigurationError, match="text"):
            environment().read_text_file(tmp_path / "a.txt", charset)


def test_lines_are_columns_that_expressions_read(tmp_path):
    (tmp_path / "a.txt").write_text("to\nbe\n\nor")
    stream = environment(1).read_text_file(tmp_path / "a.txt").filter(col("value") != "be")
    assert list(stream.execute_and_collect()) == ["to", "", "or"]


# --------------------------------------------------------------------------------------------------------------- types
def test_get_type_says_what_is_known():
    env = environment()
    row = Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.LIST(Types.STRING())])
    pair = Types.TUPLE([Types.STRING(), Types.LONG()])
    assert env.from_collection([("x", 1)], pair).get_type() == pair
    assert env.from_collection([{"a": 1, "b": ["x"]}]).get_type() == row
    assert env.from_collection([1, 2]).map(str, Types.STRING()).get_type() == Types.STRING()
    assert env.from_collection([object()]).get_type() == Types.PICKLED_BYTE_ARRAY()
    assert env.from_collection([{"a": 1, "b": ["x"]}]).select("a").get_type() == Types.ROW_NAMED(["a"], [Types.LONG()])
    keyed = env.from_collection([("x", 1)], pair).key_by(0)
    assert keyed.get_type() == keyed.window(TumblingEventTimeWindows.of(5)).get_input_type() == pair
    assert env.from_collection([1]).map(lambda n: n).get_type().is_pickled


def test_project_takes_fields_of_tuples():
    env = environment(1)
    triples = Types.TUPLE([Types.LONG(), Types.STRING(), Types.DOUBLE()])
    stream = env.from_collection([(1, "a", 0.5)], triples).project(2, 0, 2)
    assert stream.get_type() == Types.TUPLE([Types.DOUBLE(), Types.LONG(), Types.DOUBLE()])
    assert list(stream.execute_and_collect()) == [(0.5, 1, 0.5)]
    unknown = env.from_collection([(1, object)]).map(lambda pair: pair).project(0)
    assert list(unknown.execute_and_collect()) == [(1,)]
    with pytest.raises(ProgramError, match="field 3 is not in the records"):
        env.from_collection([(1, "a", 0.5)], triples).project(3)
    with pytest.raises(ProgramError, match=r"project takes records that are tuples; these are ROW\(a: LONG\)"):
        env.from_collection([{"a": 1}]).project(0)
    with pytest.raises(ProgramError, match="at least one"):
        env.from_collection([(1,)]).project()


def test_settings_can_be_read_back(tmp_path):
    env = environment(3)
    assert (env.get_checkpoint_interval(), env.get_checkpointing_mode()) == (None, CheckpointingMode.EXACTLY_ONCE)
    assert isinstance(env.get_state_backend(), HashMapStateBackend)
    assert env.get_restart_strategy() is None
    env.enable_checkpointing("2 s", CheckpointingMode.AT_LEAST_ONCE)
    env.set_state_backend(RocksDBStateBackend(1 << 24, str(tmp_path)))
    env.set_restart_strategy(RestartStrategies.no_restart())
    env.set_buffer_timeout(7)
    assert (env.get_checkpoint_interval(), env.get_checkpointing_mode()) == (2_000, CheckpointingMode.AT_LEAST_ONCE)
    assert env.get_state_backend() == RocksDBStateBackend(1 << 24, str(tmp_path))
    assert env.get_restart_strategy() == RestartStrategies.no_restart()
    assert env.get_buffer_timeout() == 7
    assert env.set_latency_target("10 ms").get_buffer_timeout() == 1
    assert env.set_latency_target("10 s").get_buffer_timeout() == 5
    assert env.set_buffer_timeout(9).get_buffer_timeout() == 9  # the last call counts
    stream = env.from_collection([1]).map(str).name("text")
    assert (stream.get_name(), stream.get_parallelism()) == ("text", 3)
    assert stream.force_non_parallel().get_parallelism() == 1
    with pytest.raises(ConfigurationError, match="parallelism must be 1"):
        stream.set_parallelism(2)
    window = env.from_collection([1]).key_by(lambda n: n).count_window(2)
    assert window.get_execution_environment() is env


# ------------------------------------------------------------------------------------------------------ what is absent
def test_names_that_are_absent_say_what_to_use():
    env = environment()
    tables = TableEnvironment.create("batch")
    table = tables.from_elements([(1,)], ["a"])  # nothing is started for it
    things = {"StreamExecutionEnvironment": env, "DataStream": env.from_collection([1]).key_by(lambda n: n)}
    things |= {"TableEnvironment": tables, "Table": table, "TableResult": table.execute()}
    for owner, names in ABSENT.items():
        for name, instead in names.items():
            with pytest.raises(AttributeError, match=re.escape(f"{name} is PyFlink's and not here; use {instead}")):
                getattr(things[owner], name)
    with pytest.raises(AttributeError, match="no attribute 'frobnicate'"):
        env.frobnicate  # noqa: B018


def test_the_guide_names_what_is_absent():
    _, _, absent = GUIDE.read_text(encoding="utf-8").partition("\n## Absent on purpose\n")
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (.*) \|$", absent, re.MULTILINE)
    told = {(name, instead) for names, instead in rows for name in re.findall(r"\w+", names)}
    assert told == {pair for names in ABSENT.values() for pair in names.items()}


def test_the_names_that_programs_are_sent_to_are_there():
    rows = re.findall(r"^\| .*? \| (.*) \|$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`(headrace\.[\w.]+)`", row)]
    assert len(names) > 40

    def is_there(name):
        """A name in a module, or a module, which its package need not have imported."""
        package, _, last = name.rpartition(".")
        return hasattr(importlib.import_module(package), last) or importlib.util.find_spec(name) is not None

    assert [name for name in names if not is_there(name)] == []
