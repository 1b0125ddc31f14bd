"""Half of an optional contract, or a method that could not be called as it will be, is refused."""

import pytest

from headrace import CheckpointedFunction, CheckpointListener, ProgramError, StreamExecutionEnvironment
from headrace.connectors.scripted import ScriptedSource
from headrace.engine.connectors.contract import Discovery, SourceReader
from headrace.engine.connectors.source_protocols import (
    KeepingReader,
    ListeningEnumerator,
    ListeningReader,
    PausingReader,
    SideBySideReader,
    check_enumerator,
    check_reader,
)


class Reader(SourceReader):
    def open(self, context):
        pass

    def add_splits(self, splits):
        pass

    def poll(self, max_records):
        pass

    def snapshot(self):
        return []


class Enumerator:
    discovery_interval_ms = None

    def discover(self):
        return Discovery([], is_final=True)


def method(*parameters):
    return eval(f"lambda {', '.join(('self', *parameters))}: None")


READERS = {
    "half of state": ({"initialize_state": method("context")}, "no snapshot_state"),
    "the other half": ({"snapshot_state": method("context")}, "no initialize_state"),
    "half of a listener": ({"notify_checkpoint_aborted": method("id")}, "no notify_checkpoint_complete"),
    "no argument": ({"notify_checkpoint_complete": method()}, "is called with 1 arguments"),
    "an argument too many": ({"poll": method("a", "b")}, "is called with 1 arguments"),
    "missing": ({"poll": None}, "has a method poll"),
    "nearly": ({"notify_checkpoint_completed": method("id")}, "has notify_checkpoint_complete"),
    "in Flink's spelling": ({"handleSourceEvent": method("event")}, "has handle_source_event"),
    "a method for a property": ({"wants_split": method()}, "must be a property"),
}
ENUMERATORS = {
    "an event without its progress": ({"handle_source_event": method("subtask", "event")}, "with 3 arguments"),
    "misspelt": ({"discovery_from": method("progress")}, "has discover_from"),
    "no interval": ({"discovery_interval_ms": "1 s"}, "discovery_interval_ms"),
}


@pytest.mark.parametrize("case", READERS)
def test_readers_that_would_not_be_called_are_refused(case):
    methods, text = READERS[case]
    with pytest.raises(ProgramError, match=text):
        check_reader(type("Odd", (Reader,), methods)(), "source")


@pytest.mark.parametrize("case", ENUMERATORS)
def test_enumerators_that_would_not_be_called_are_refused(case):
    methods, text = ENUMERATORS[case]
    with pytest.raises(ProgramError, match=text):
        check_enumerator(type("Odd", (Enumerator,), methods)(), "source")


def test_what_is_whole_is_taken_and_is_what_it_can_do():
    methods = {"snapshot_state": method("context"), "initialize_state": method("context")}
    methods |= {
        "notify_checkpoint_complete": method("id"),
        "pause_splits": method("ids"),
        "wants_split": False,
        "num_kept": 0,
    }
    reader = type("Whole", (Reader,), {**methods, "handle_source_event": method("event")})()
    check_reader(reader, "source")
    contracts = (CheckpointListener, CheckpointedFunction, PausingReader, SideBySideReader, KeepingReader)
    for contract in (*contracts, ListeningReader):
        assert isinstance(reader, contract)
    check_enumerator(Enumerator(), "source")
    assert not isinstance(Enumerator(), ListeningEnumerator)


def test_it_is_told_where_the_program_is_written():
    class Source(ScriptedSource):
        def create_reader(self):
            return type("Half", (Reader,), {"notify_checkpoint_aborted": method("id")})()

    env = StreamExecutionEnvironment.get_execution_environment("local")
    with pytest.raises(ProgramError, match=r"(?s)Half has notify_checkpoint_aborted but no.*mine"):
        env.from_source(Source([1]), None, "mine")
    with pytest.raises(ProgramError, match="is_bounded"):
        env.from_source(type("Unsaid", (Source,), {"is_bounded": None, "__init__": lambda self: None})(), None, "x")
