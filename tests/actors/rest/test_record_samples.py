"""Records of an exchange, shown on demand: which ones, to whom, and what never becomes text.

Risks: records shown to those who may not see them, masked values in a text, a look that stays in the way, text made of
records that change.
"""

from __future__ import annotations

import ast
import threading
import time
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from rest_kit import ask, rest_environment

from headrace.actors.hosts.hot_keys import MOST_ROWS, ROWS_OF_BATCH, hot_keys
from headrace.actors.hosts.observer import HostObserver
from headrace.actors.hosts.record_samples import MOST_CHARACTERS, sample_records
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.columns.records import Batch, RowKind
from headrace.engine.functions.keys import KeySelector
from headrace.engine.protocol.observation_messages import FindHotKeys, SampleRecords
from headrace.engine.protocol.task_messages import DataMessage
from headrace.state.identifiers import ExecutionAttemptId, VertexId

PATIENCE_S = 20


def person(n):
    return {"n": n, "Card": f"card-{n}", "home": {"street": "hidden lane", "town": "Ulm"}}


class Shown:
    def __init__(self, directory, **rest):
        self.env = rest_environment(rest={"allows_record_samples": True, **rest})
        self.env.enable_checkpointing(200, directory=str(directory / "checkpoints"))
        people = self.env.from_source(GeneratorSource(person, records_per_second=500), None, "people").uid("people")
        people.key_by(lambda row: row["n"] % 7).map(lambda row: row["n"]).uid("keyed").filter(lambda _n: False).print()
        self.job = self.env.execute_async("private")
        (self.address,) = self.env._cluster.rest_addresses()
        self.path = f"/jobs/{self.job.get_job_id()}"
        deadline = time.monotonic() + PATIENCE_S
        while self.job.view().state != "RUNNING":
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def get(self, query="?edge=0", token=None):
        token = self.address.tokens.write if token is None else token
        return ask(self.address.url, f"{self.path}/vertices/keyed/samples{query}", token)

    def rows(self, query):
        answer = self.get(query)
        assert answer.status == 200, answer
        return {one["subtask"]: [record["text"] for record in one["records"]] for one in answer.json["subtasks"]}


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    shown = Shown(tmp_path_factory.mktemp("samples"), masked_fields=("card",))
    yield shown
    shown.env.close()


def test_the_newest_records_of_an_exchange_are_shown_without_what_is_always_hidden(shown):
    found = shown.rows("?edge=0&num=5")
    assert set(found) == {0, 1}
    numbers = {subtask: [ast.literal_eval(text)["n"] for text in texts] for subtask, texts in found.items()}
    assert all(0 < len(own) <= 5 and len(own) == len(set(own)) for own in numbers.values()), numbers
    # The same key is always in one subtask.
    assert not {n % 7 for n in numbers[0]} & {n % 7 for n in numbers[1]}
    for text in [text for texts in found.values() for text in texts]:
        row = ast.literal_eval(text)
        assert row == {**person(row["n"]), "Card": "***"}
    later = {ast.literal_eval(text)["n"] for texts in shown.rows("?edge=0&num=5").values() for text in texts}
    assert later
    assert not later & {number for own in numbers.values() for number in own}, "nothing is kept of a look"


def test_more_is_hidden_on_request(shown):
    for text in shown.rows("?edge=0&num=3&mask=street")[0]:
        assert "hidden lane" not in text
        assert "Ulm" in text
    for text in shown.rows("?edge=0&num=3&mask=*")[0]:
        assert ast.literal_eval(text) == {"n": "int", "Card": "str", "home": "dict"}


def test_it_takes_the_right_to_do_everything_and_a_cluster_that_allows_it(shown, tmp_path):
    assert shown.get(token=shown.address.tokens.read).status == 403
    assert shown.get(token="x").status == 401
    assert shown.get("?edge=7").status == 404
    assert shown.get("").status == 400
    assert shown.get("?edge=0&num=1000").status == 400
    config = ask(shown.address.url, "/config", shown.address.tokens.write).json
    assert config["features"]["record-samples"] is True
    other = Shown(tmp_path, allows_record_samples=False)
    try:
        answer = other.get()
        assert answer.status == 403
        assert "rest.record-samples.enabled" in answer.json["errors"][0]
        config = ask(other.address.url, "/config", other.address.tokens.write).json
        assert config["features"]["record-samples"] is False
    finally:
        other.env.close()


# ------------------------------------------------------------------------------------------------------------ what text
ATTEMPT = ExecutionAttemptId(1, 0, VertexId("v"), 0)


class Channels:
    """One task, to which batches come as soon as somebody looks."""

    def __init__(self, *batches):
        self.batches = batches
        self.taps = []

    def __call__(self, _vertex, edge_id, tap):
        self.taps.append(tap)
        for sequence, batch in enumerate(self.batches if tap is not None else ()):
            tap(ATTEMPT, DataMessage(edge_id, ATTEMPT, ATTEMPT, sequence, (batch,), 1))
        return [ATTEMPT]


def texts(batches, **options):
    request = {"num_records": 3, "duration_ms": 40, "masked": frozenset(), "hides_values": False, **options}
    channels = Channels(*batches)
    (sample,) = sample_records(channels, SampleRecords(VertexId("v"), 0, **request))
    assert channels.taps[-1] is None, "nobody looks any more"
    return sample


def test_columns_come_with_their_schema_and_changes_with_their_kinds():
    columns = pa.record_batch({"a": [1, 2, 3, 4], "b": ["w", "x", "y", "z"]})
    kinds = [int(RowKind.INSERT), int(RowKind.DELETE)] * 2
    batch = Batch.of_columns(columns, np.array([10, 20, 30, 40]), np.array(kinds, dtype=np.int8))
    sample = texts([batch])
    assert sample.schema == "a int64, b string"
    assert [(one.timestamp_ms, one.kind) for one in sample.records] == [(20, "-D"), (30, "+I"), (40, "-D")]
    assert ast.literal_eval(sample.records[-1].text) == {"a": 4, "b": "z"}
    assert "z" not in texts([batch], masked=frozenset({"b"})).records[-1].text


class Odd:
    def __repr__(self):
        message = "not now"
        raise ValueError(message)


class Home(NamedTuple):
    street: str
    town: str


class Leaky:
    def __repr__(self):
        return "secret value"


@pytest.mark.parametrize(
    ("row", "masked", "expected"),
    [
        ("plain", set(), "'plain'"),
        (("a", "b"), {"x"}, "<tuple>"),
        ("secret value", {"x"}, "<str>"),
        ({"x": 1, "y": [{"X": 2}]}, {"x"}, "{'x': '***', 'y': [{'X': '***'}]}"),
        ({"y": Leaky()}, {"x"}, "{'y': <Leaky>}"),
        ({"y": [[[[[1]]]]]}, {"x"}, "{'y': [[['***']]]}"),
        ({"y": Home("secret value", "Ulm")}, {"street"}, "{'y': {'street': '***', 'town': 'Ulm'}}"),
        ({"y": np.array([{"x": "secret value"}])}, {"x"}, "{'y': [{'x': '***'}]}"),
        ({"y": np.array([(1,)], dtype=[("x", "i8")])}, {"x"}, "{'y': <ndarray>}"),
        ({"y": np.array([(1,)], dtype=[("x", "i8")])[0]}, {"x"}, "{'y': <void>}"),
        (Odd(), set(), "<Odd, which cannot be shown: ValueError>"),
    ],
)
def test_what_is_to_be_masked_never_becomes_text(row, masked, expected):
    sample = texts([Batch.of_rows([row])], masked=frozenset(masked))
    assert [one.text for one in sample.records] == [expected]


def test_texts_and_numbers_of_records_are_bounded():
    sample = texts([Batch.of_rows([1] * 100), Batch.of_rows(["x" * 10_000] * 2)])
    assert len(sample.records) == 3
    assert all(len(one.text) <= MOST_CHARACTERS + 4 for one in sample.records)
    assert sample.records[0].text == "1"


def test_two_who_look_at_once_both_see_records():
    """A channel has one tap; the first look's end must not be the second one's, nor the second take the first one's."""
    both_came = threading.Event()
    taps = []

    def tap_channels(_vertex, edge_id, tap):
        taps.append(tap)
        if tap is not None:
            both_came.wait(PATIENCE_S)
            tap_now = taps[-1]  # what a channel has by now
            for sequence in range(3 if tap_now is not None else 0):
                tap_now(ATTEMPT, DataMessage(edge_id, ATTEMPT, ATTEMPT, sequence, (Batch.of_rows([sequence]),), 1))
        return [ATTEMPT]

    observer = HostObserver(list, lambda: None, tap_channels=tap_channels)
    request = SampleRecords(VertexId("v"), 0, 3, 500, frozenset(), hides_values=False)
    found = []
    looks = [threading.Thread(target=lambda: found.append(observer.answer(request))) for _ in range(2)]
    for look in looks:
        look.start()
    both_came.set()
    for look in looks:
        look.join()
    assert [len(sample.records) for samples in found for sample in samples] == [3, 3]


# ------------------------------------------------------------------------------------------------------------- hot keys
def counted(*batches, selector=None, subtask=None, **options):
    request = FindHotKeys(VertexId("v"), 0, 3, 50, subtask, **options)
    selector = selector or KeySelector.of_field("k")
    return hot_keys(Channels(*batches), lambda _vertex, _edge_id: selector, request)


def keyed(*keys):
    return Batch.of_rows([{"k": key, "n": n} for n, key in enumerate(keys)])


def test_the_hottest_keys_have_their_shares_also_of_batches_that_are_not_looked_at_as_a_whole():
    large = keyed(*(0 if n % 2 else n for n in range(40 * ROWS_OF_BATCH)))
    (one,) = counted(keyed(7, 7, 8), large, keyed(7))
    assert (one.num_records, one.num_looked_at) == (40 * ROWS_OF_BATCH + 4, ROWS_OF_BATCH + 4)
    assert one.keys[0].text == "0"
    assert one.keys[0].share == pytest.approx(0.5, abs=0.01)
    (small,) = counted(keyed(7, 7, 8), keyed(7))
    assert [(key.text, key.share) for key in small.keys] == [("7", 0.75), ("8", 0.25)]
    assert small.num_keys == 2
    (bounded,) = counted(*[large] * 1_000)
    assert bounded.num_looked_at <= MOST_ROWS + ROWS_OF_BATCH


def test_keys_that_are_to_be_masked_never_become_text():
    def texts(selector, **options):
        (one,) = counted(Batch.of_rows([{"k": "ann", "n": 5}]), selector=selector, **options)
        return [key.text for key in one.keys]

    masked = {"masked": frozenset({"k"})}
    assert texts(KeySelector.of_field("k")) == ["'ann'"]
    assert texts(KeySelector.of_field("k"), **masked) == ["'***'"]
    assert texts(KeySelector.of_field("k", "n"), **masked) == ["('***', 5)"]
    assert texts(KeySelector.of_field("n"), **masked) == ["5"]
    assert texts(KeySelector.of_field("n"), hides_values=True) == ["<int>"]
    by_function = KeySelector.of_function(lambda row: row["k"])
    assert texts(by_function) == ["'ann'"]
    assert texts(by_function, **masked) == ["<str>"]  # nobody knows what a function makes of a record
    assert counted(keyed(1), subtask=1) == []


def test_hot_keys_of_a_subtask_by_rest(tmp_path):
    env = rest_environment(rest={"allows_record_samples": True})
    try:
        rows = GeneratorSource(lambda n: {"customer": f"c{0 if n % 3 else n % 50}"}, records_per_second=2_000)
        keys = env.from_source(rows, None, "rows").uid("rows").key_by("customer").map(lambda row: row).uid("keyed")
        keys.rebalance().map(lambda row: row).uid("not keyed").filter(lambda _row: False).print()
        job = env.execute_async("hot")
        (address,) = env._cluster.rest_addresses()

        def get(vertex, query, token=address.tokens.write):
            path = f"/jobs/{job.get_job_id()}/vertices/{vertex}/hotkeys{query}"
            return ask(address.url, path, token)

        deadline = time.monotonic() + PATIENCE_S
        while job.view().state != "RUNNING":
            assert time.monotonic() < deadline
            time.sleep(0.02)
        answer = get("keyed", "?edge=0&num=2")
        assert answer.status == 200, answer
        hot = [one for one in answer.json["subtasks"] if one["keys"] and one["keys"][0]["key"] == "'c0'"]
        assert len(hot) == 1, answer.json
        # Two of three records are of it, and of the others those that the subtask has, too.
        assert 2 / 3 <= hot[0]["keys"][0]["share"] < 1
        subtask = hot[0]["subtask"]
        (alone,) = get("keyed", f"?edge=0&subtask={subtask}&mask=customer").json["subtasks"]
        assert (alone["subtask"], alone["keys"][0]["key"]) == (subtask, "'***'")
        assert get("not%20keyed", "?edge=1").json["subtasks"] == []
        assert get("keyed", "?edge=0", address.tokens.read).status == 403
        assert [get("keyed", query).status for query in ("", "?edge=5", "?edge=0&num=0", "?edge=0&subtask=9")] == [
            400, 404, 400, 404,
        ]  # fmt: skip
    finally:
        env.close()
