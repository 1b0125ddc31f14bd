"""The last records that operators reject: kept where records are shown, whoever reads them, and nowhere else.

Risks: a kind of late record that is counted and not kept, more kept than is said, records kept where none may be shown,
masked values in a text, kept records that change.
"""

from __future__ import annotations

import ast
import itertools
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from dashboard_kit import until
from rest_kit import ask, rest_environment

from headrace import OutputTag, TumblingEventTimeWindows, WatermarkStrategy
from headrace.actors.hosts.record_samples import rejected_records
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSource
from headrace.engine.columns.records import Batch
from headrace.engine.columns.rejected_records import (
    BAD,
    LATE,
    MOST_REJECTED,
    MOST_REJECTED_BYTES,
    RejectedRecords,
)
from headrace.engine.protocol.observation_messages import ShowRejectedRecords
from headrace.state.identifiers import VertexId

NUM_BEFORE_LATE = 100


# ------------------------------------------------------------------------------------------------------- what is kept
def rows_of(kept, kind=LATE, number=MOST_REJECTED):
    return [row for piece in kept.last(kind, number) for row in piece.rows]


def test_the_newest_of_each_kind_are_kept_whatever_pieces_they_came_in():
    kept, given = RejectedRecords(), list(range(400))
    cuts = [0, 1, 4, 60, 60, 61, 130, 399, 400]
    for low, high in itertools.pairwise(cuts):
        kept.keep(LATE, Batch.of_rows(given[low:high]))
        assert rows_of(kept) == given[:high][-MOST_REJECTED:]
        assert rows_of(kept, number=3) == given[:high][-3:]
    assert rows_of(kept, BAD) == []
    kept.keep(BAD, Batch.of_rows(["x"]))
    assert (rows_of(kept, BAD), rows_of(kept)) == (["x"], given[-MOST_REJECTED:])


@pytest.mark.parametrize("as_columns", [True, False], ids=["columns", "rows"])
def test_what_is_kept_is_bounded_in_bytes_also_of_one_batch(as_columns):
    kept, large = RejectedRecords(), "x" * (MOST_REJECTED_BYTES // 10)
    for n in range(30):
        texts = [f"{n}/{i} {large}" for i in range(3)]
        kept.keep(LATE, Batch.of_columns(pa.record_batch({"t": texts})) if as_columns else Batch.of_rows(texts))
        assert 0 < sum(piece.nbytes for piece in kept.last(LATE, MOST_REJECTED)) <= MOST_REJECTED_BYTES
    newest = rows_of(kept)[-1]
    assert (newest["t"] if as_columns else newest).startswith("29/2 ")
    kept.keep(LATE, Batch.of_rows(["y" * 2 * MOST_REJECTED_BYTES]))
    assert rows_of(kept)[-1] == newest, "one that is too large is left out, and takes nothing with it"


def test_kept_columns_hold_no_buffers_of_what_they_were_cut_from():
    whole = pa.record_batch({"n": np.arange(1_000_000)})
    kept = RejectedRecords()
    kept.keep(LATE, Batch.of_columns(whole).slice(5, 10))
    pieces = kept.last(LATE, MOST_REJECTED)
    assert sum(piece.columns.get_total_buffer_size() for piece in pieces) <= 1_000
    assert all(piece.is_shared for piece in pieces), "who reads the side output gets copies if it changes records"


@pytest.mark.parametrize("as_columns", [True, False], ids=["columns", "rows"])
def test_a_record_that_is_too_large_is_left_out_wherever_it_is_and_takes_nothing_with_it(as_columns):
    for place in range(MOST_REJECTED):
        rows = [{"a": str(number)} for number in range(MOST_REJECTED)]
        rows[place] = {"a": "x" * 2 * MOST_REJECTED_BYTES}
        kept = RejectedRecords()
        kept.keep(LATE, Batch.of_columns(pa.RecordBatch.from_pylist(rows)) if as_columns else Batch.of_rows(rows))
        assert rows_of(kept) == [*rows[:place], *rows[place + 1 :]]


def test_what_could_not_be_decoded_is_hidden_where_fields_are():
    kept, raw = RejectedRecords(), '{"card": "4711",'
    letter = {"error": f"no JSON: {raw}", "split": "s", "position": "line 7", "raw": raw}
    kept.keep(BAD, Batch.of_rows([letter]))

    def shown(masked, *, hides_values=False):
        request = ShowRejectedRecords(VertexId("v"), 10, frozenset(masked), hides_values)
        (one,) = rejected_records(lambda _vertex: [("attempt", "uid", "name", kept)], request)
        (record,) = one.sample.records
        return ast.literal_eval(record.text)

    assert shown(()) == letter
    assert shown(["card"]) == {"error": "***", "split": "s", "position": "line 7", "raw": "***"}
    assert shown((), hides_values=True) == dict.fromkeys(letter, "str")


# ------------------------------------------------------------------------------------------------------------- by REST
def order(n):
    """In order for a while; from then on each third one is an hour late."""
    ts = 10_000_000 + n * 1_000
    return {"n": n, "card": f"card-{n}", "k": n % 2, "ts": ts - 3_600_000 * (n > NUM_BEFORE_LATE and n % 3 == 0)}


class Job:
    def __init__(self, directory, *, tag=None, allows=True, kind="rows"):
        rest = {"allows_record_samples": allows, "masked_fields": ("card",)}
        self.env = rest_environment(rest=rest)
        self.env.set_parallelism(1)
        times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ts")
        orders = self.env.from_source(GeneratorSource(order, records_per_second=500), times, "orders").uid("orders")
        windows = orders.key_by(lambda row: row["k"]).window(TumblingEventTimeWindows.of("10 s"))
        if tag is not None:
            windows = windows.side_output_late_data(OutputTag(tag))
        windows.reduce(lambda one, other: one).uid("windows").filter(lambda _: False).print()
        self.job = self.env.execute_async("late")
        (self.address,) = self.env._cluster.rest_addresses()

    def get(self, query="", token=None, vertex="windows"):
        path = f"/jobs/{self.job.get_job_id()}/vertices/{vertex}/rejected{query}"
        return ask(self.address.url, path, self.address.tokens.write if token is None else token)

    def late(self, query=""):
        def found():
            answer = self.get(query)
            return answer.json["rejected"] if answer.status == 200 and answer.json["rejected"] else None

        (one,) = until(found, "nothing is kept")
        return one


@pytest.mark.parametrize("tag", [None, "nobody reads it"], ids=["dropped", "side output without a reader"])
def test_late_records_are_shown_though_nobody_reads_them(tmp_path, tag):
    job = Job(tmp_path, tag=tag)
    try:
        one = job.late("?num=50")
        assert (one["uid"], one["kind"], one["subtask"]) == ("windows", "late", 0)
        seen = [ast.literal_eval(record["text"]) for record in one["records"]]
        assert len({row["n"] for row in seen}) == len(seen) <= MOST_REJECTED
        assert [record["timestamp"] for record in one["records"]] == [row["ts"] for row in seen]
        assert all(row == {**order(row["n"]), "card": "***"} and row["n"] % 3 == 0 for row in seen)
        assert all(row["n"] > NUM_BEFORE_LATE for row in seen)
        for record in job.late("?num=2&mask=k")["records"]:
            assert ast.literal_eval(record["text"])["k"] == "***"
        assert len(job.late("?num=2")["records"]) <= 2
        assert job.get(token=job.address.tokens.read).status == 403
        assert [job.get(query).status for query in ("?num=0", "?num=51")] == [400, 400]
        assert job.get(vertex="none").status == 404
    finally:
        job.env.close()


def test_where_records_are_not_shown_none_are_kept(tmp_path):
    job = Job(tmp_path, allows=False)
    try:

        def num_late():
            return sum(one.metrics.get("num_late_records_dropped", 0) for one in job.job.view().vertices) or None

        until(num_late, "none is late")
        answer = job.get()
        assert answer.status == 403
        assert "rest.record-samples.enabled" in answer.json["errors"][0]
        links = [
            link
            for host in job.env._cluster.system._hosts.values()
            for slot in host.kernel._slots()
            for task in slot._tasks.values()
            for link in task.links
        ]
        assert links
        assert Counter(link.rejected for link in links) == {None: len(links)}
    finally:
        job.env.close()


@pytest.mark.parametrize("on_error", ["skip", "dead-letter"])
def test_what_a_source_could_not_decode_is_shown(tmp_path, on_error):
    lines = [f'{{"n": {n}}}' if n % 10 else f"no json {n}" for n in range(1, 101)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.jsonl").write_text("\n".join(lines) + "\n")
    env = rest_environment(rest={"allows_record_samples": True})
    try:
        files = FileSource.json_lines(str(tmp_path / "in"), on_error=on_error, follow="100 ms")
        endless = env.from_source(GeneratorSource(lambda n: {"n": n}, records_per_second=10), None, "more").uid("more")
        read = env.from_source(files, None, "files").uid("files").set_parallelism(1)
        read.union(endless).map(lambda row: row).uid("both").filter(lambda _: False).print()
        job = env.execute_async("bad")
        (address,) = env._cluster.rest_addresses()
        path = f"/jobs/{job.get_job_id()}/vertices/files/rejected?num=50"

        def found():
            answer = ask(address.url, path, address.tokens.write)
            rejected = answer.json["rejected"] if answer.status == 200 else []
            return rejected if sum(len(one["records"]) for one in rejected) == 10 else None

        (one,) = until(found, "what was bad is not shown")
        assert (one["uid"], one["kind"]) == ("files", "bad")
        letters = [ast.literal_eval(record["text"]) for record in one["records"]]
        assert [letter["raw"] for letter in letters] == [f"no json {n}" for n in range(10, 101, 10)]
        assert all(letter["error"] and letter["split"] and letter["position"] for letter in letters)
    finally:
        env.close()
