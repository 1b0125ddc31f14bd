"""What the job store holds of jobs: all of it comes back, and nothing else is taken; what is closed stays closed.

Families: property (every field of settings and views by its type), hostile facts, end of a job whatever its view holds.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import types
import typing
from enum import Enum, IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.cluster.job_store_io import recover_jobs, store_end, store_submission
from headrace.engine.cluster.stored_jobs import (
    end_as_facts,
    end_from_facts,
    submission_as_facts,
    submission_from_facts,
)
from headrace.engine.errors import (
    HeadraceError,
    JobFailedError,
    SinkFencedError,
    TypeMismatchError,
    UserFunctionError,
)
from headrace.engine.functions.accumulators import (
    AccumulatorPart,
    AverageAccumulator,
    DoubleCounter,
    IntCounter,
    accumulated_value,
)
from headrace.engine.kernel.autoscaler_settings import AutoscalerSettings
from headrace.engine.kernel.config import CheckpointSettings, JobSettings, RestartStrategy
from headrace.engine.protocol.messages import SubmitJob
from headrace.engine.protocol.states import JobStatus
from headrace.engine.protocol.views import JobView
from headrace.state.checkpoints import job_store
from headrace.state.checkpoints.job_store import JobStore
from headrace.state.checkpoints.stored_facts import fields_as_facts, fields_from_facts
from headrace.state.files.memory import MemoryFileSystem


class Lease:
    """One that nobody takes."""

    def is_current(self, _epoch):
        return True


class Small(IntEnum):
    """A number that is more than that."""

    THREE = 3


class Trap:
    """A pickle of it fails the test that opens it."""

    def __reduce__(self):
        return pytest.fail, ("a pickle was opened",)


TRAP = pickle.dumps(Trap(), 4)


def view(**fields):
    given = {"job_id": "j", "name": "n", "state": JobStatus.FINISHED, "version": 1, "started_ms": 1, "ended_ms": None}
    return JobView(**{**given, **fields})


def read_back(found):
    return end_from_facts("j", json.loads(json.dumps(end_as_facts(found))))


# ------------------------------------------------------------------------------------------------ every field of a type
def instances(kind):
    """Values of a declared type, whatever it is; classes are found by their fields, so new ones are drawn, too."""
    if isinstance(kind, typing.NewType):
        return instances(kind.__supertype__)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*map(instances, arguments))
    if origin is tuple and arguments[1:] == (...,):
        return st.lists(instances(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(instances, arguments))
    if origin is dict:
        return st.dictionaries(instances(arguments[0]), instances(arguments[1]), max_size=2)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = {
            field.name: instances(hints[field.name])
            for field in dataclasses.fields(kind)
            if (kind, field.name) not in NOT_DRAWN
        }
        return st.builds(kind, **fields)
    if hasattr(kind, "_fields"):
        return st.builds(kind, **{name: instances(hint) for name, hint in typing.get_type_hints(kind).items()})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(kind)
    return PLAIN[kind]


PLAIN = {
    type(None): st.none(),
    bool: st.booleans(),
    int: st.integers(1, 1 << 62),
    float: st.floats(allow_nan=False),  # which equals nothing; it is told apart below
    str: st.text(st.characters(codec=None), max_size=5),
}
CHECKED = ("mode", "unaligned", "backend", "managed_memory_bytes", "jitter_factor", "max_backoff_ms", "is_batch")
NOT_DRAWN = {
    *((JobView, name) for name in ("error", "accumulators", "job_id", "state")),
    *((kind, name) for kind in (CheckpointSettings, JobSettings) for name in CHECKED),
    *((AutoscalerSettings, f"utilization_{name}") for name in ("target", "max", "min")),
    *((AutoscalerSettings, f"scale_{name}_max_factor") for name in ("up", "down")),
    (AutoscalerSettings, "vertex_min_parallelism"),
    (AutoscalerSettings, "vertex_max_parallelism"),
}


def _settings():
    hints = typing.get_type_hints(JobSettings)
    plain = {name: hint for name, hint in hints.items() if name not in ("restart", "state", "is_batch")}
    return st.builds(JobSettings, **{name: instances(hint) for name, hint in plain.items()})


@given(_settings())
def test_settings_come_back_as_they_were(settings):
    submission = SubmitJob("j", "n", b"closed", settings, 3)
    facts = json.loads(json.dumps(submission_as_facts(submission)))
    assert submission_from_facts("j", facts, b"closed") == submission


def _views():
    hints = typing.get_type_hints(JobView)
    own = ("error", "accumulators", "job_id", "state", "backoff", "version")
    fields = {name: instances(hint) for name, hint in hints.items() if name not in own}
    return st.builds(view, **fields, state=st.sampled_from([JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED]))


@given(_views())
def test_views_come_back_as_they_were(found):
    assert read_back(found) == found


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan"), 0.1, 1e308, -0.0, 7])
def test_any_float_comes_back(number):
    [found] = read_back(view(last_checkpoint_metrics={"x": number})).last_checkpoint_metrics.values()
    assert repr(found) == repr(number)


# ------------------------------------------------------------------------------------------------- errors, accumulators
def test_an_error_of_ours_comes_back_with_all_it_says():
    error = UserFunctionError("it failed", hint="mend it", operator="map", subtask=1, traceback="Traceback")
    found = read_back(view(state=JobStatus.FAILED, error=error)).error
    assert type(found) is UserFunctionError
    assert (str(found), found.context) == (str(error), error.context)


def test_an_error_of_a_class_of_ones_own_is_the_nearest_of_ours():
    class Theirs(SinkFencedError):
        pass

    found = read_back(view(state=JobStatus.FAILED, error=Theirs("taken", path="x", parts=("a", 1)))).error
    assert type(found) is SinkFencedError
    assert found.context == {"path": "x", "parts": "('a', 1)"}


def test_of_another_error_the_text_stays():
    found = read_back(view(state=JobStatus.FAILED, failure="ValueError: no", error=ValueError("no")))
    assert (found.failure, found.error) == ("ValueError: no", None)


def test_accumulators_of_numbers_come_back_and_all_others_stay_closed():
    average = AverageAccumulator(2, 3.0)
    parts = {
        "i": (AccumulatorPart("f", "IntCounter", IntCounter(2**80)),),
        "d": (AccumulatorPart("f", "DoubleCounter", DoubleCounter(float("inf"))),),
        "a": (AccumulatorPart("f", "AverageAccumulator", average),),
        "own": (AccumulatorPart("f", "theirs.Own", TRAP),),
    }
    found = read_back(view(accumulators=parts)).accumulators
    values = {name: accumulated_value(name, found[name]) for name in "ida"}
    assert values == {"i": 2**80, "d": float("inf"), "a": 1.5}
    assert found["own"] == parts["own"]


# ---------------------------------------------------------------------------------------------------- whatever it holds
@pytest.mark.parametrize(
    "change",
    [
        {"settings": {}, "num_slots": -1},
        {"settings": []},
        {"settings": {"no_such_setting": 1}},
        {"settings": {"restart": ["JobSettings", {}]}},
        {"settings": {"restart": ["RestartStrategy", {}]}},
        {"settings": {"state": {"backend": "os.system"}}},
        {"settings": {"max_batch_rows": 1.5}},
        {"settings": {"max_batch_rows": True}},
        {"settings": {"checkpoints": {"interval_ms": 0, "directory": "x"}}},
        {"settings": {"failover": "__class__"}},
        {"name": 5},
        {"more": 1},
    ],
)
def test_facts_of_no_submission_are_refused(change):
    facts = {**submission_as_facts(SubmitJob("j", "n", b"", JobSettings(), 1)), **change}
    with pytest.raises((ValueError, HeadraceError)):
        submission_from_facts("j", facts, b"")


@pytest.mark.parametrize(
    "change",
    [
        {"error": {"kind": "SystemExit", "message": "x", "hint": None, "context": {}}},
        {"error": {"kind": "nearest", "message": "x", "hint": None, "context": {}}},
        {"error": {"kind": "JobFailedError", "message": "x", "hint": None, "context": {"self": 1}}},
        {"error": {"kind": "JobFailedError", "message": "x", "hint": None, "context": {"x": []}}},
        {"accumulators": {"x": [["f", "ListAccumulator", [1]]]}},
        {"accumulators": {"x": [["f", "IntCounter", 0.5]]}},
        {"accumulators": {"x": [["f", "own", "no base64"]]}},
        {"accumulators": []},
        {"view": None},
        {"error": 5},
    ],
)
def test_facts_of_no_last_word_are_refused(change):
    with pytest.raises((ValueError, TypeError)):
        end_from_facts("j", {**end_as_facts(view()), **change})


@pytest.mark.parametrize("change", [{"job_id": "another"}, {"state": "RUNNING"}, {"state": "?"}, {"vertices": [{}]}])
def test_a_last_word_is_the_jobs_own_and_its_last(change):
    facts = end_as_facts(view())
    with pytest.raises(ValueError, match=r"impossible|is not a valid"):
        end_from_facts("j", {**facts, "view": {**facts["view"], **change}})


def test_a_field_that_an_older_version_did_not_have_has_its_default():
    facts = fields_as_facts(JobSettings(max_batch_rows=7))
    del facts["sort_memory_bytes"], facts["restart"]
    assert JobSettings(**fields_from_facts(JobSettings, facts)) == JobSettings(max_batch_rows=7)


def test_numbers_that_are_truth_values_or_whole_floats_come_back():
    settings = JobSettings(max_batch_rows=True, channel_credits=4.0, restart=RestartStrategy(Small.THREE))
    facts = json.loads(json.dumps(submission_as_facts(SubmitJob("j", "\ud800", b"", settings, 1))))
    found = submission_from_facts("j", facts, b"")
    assert (found.settings, found.name) == (settings, "\ud800")
    assert {type(found.settings.max_batch_rows), type(found.settings.restart.max_attempts)} == {int}


def test_a_setting_of_another_type_is_refused_where_it_is_submitted():
    submission = SubmitJob("j", "n", b"", JobSettings(max_batch_rows=7.5), 1)
    with pytest.raises(TypeMismatchError, match=r"JobSettings.max_batch_rows must be a whole number .* got 7.5"):
        store_submission(JobStore(MemoryFileSystem(), "c"), Lease(), 1, submission)


# ------------------------------------------------------------------------------------------------------------ the store
def test_a_leader_opens_no_program_and_no_accumulator():
    store = JobStore(MemoryFileSystem(), "c")
    settings = JobSettings(restart=RestartStrategy(3))
    for job_id in ("j", "open"):
        store_submission(store, Lease(), 1, SubmitJob(job_id, "n", TRAP, settings, 2))
    store_end(store, Lease(), 1, view(accumulators={"own": (AccumulatorPart("f", "theirs.Own", TRAP),)}))
    ended, still_open = recover_jobs(store, Lease(), 2)
    assert (ended.job_id, ended.submission.job_graph, ended.view.state) == ("j", b"", "FINISHED")
    assert still_open.submission == SubmitJob("open", "n", TRAP, settings, 2)


@pytest.mark.parametrize("entry", ["submission", "end"])
def test_what_is_no_job_is_named_and_hides_no_other(entry):
    store = JobStore(MemoryFileSystem(), "c")
    store_submission(store, Lease(), 1, SubmitJob("sound", "n", b"", JobSettings(), 1))
    if entry == "end":
        store.put_end("j", 1, {"view": {"job_id": "j"}})
    else:
        store.put_submission("j", 1, {"name": "n"}, b"")
    found = {job.job_id: job for job in recover_jobs(store, Lease(), 2)}
    assert found["sound"].problem is None
    assert "cannot be read" in found["j"].problem


@pytest.mark.parametrize("operator", ["too large", object()], ids=["too large", "of another type"])
def test_how_a_job_ended_is_stored_whatever_else_its_view_holds(monkeypatch, operator):
    monkeypatch.setattr(job_store, "MAX_FACTS_BYTES", 5_000)
    parts = {"x": (AccumulatorPart(operator, "theirs.Own", b"x" * 5_000),)}
    store = JobStore(MemoryFileSystem(), "c")
    error = JobFailedError("it failed", traceback="x" * 5_000)
    store_end(store, Lease(), 1, view(state=JobStatus.FAILED, failure="it failed", error=error, accumulators=parts))
    [stored] = recover_jobs(store, Lease(), 2)
    assert (stored.view.state, stored.view.failure) == ("FAILED", "it failed")
    assert "are not kept" in stored.view.history[-1][1]
