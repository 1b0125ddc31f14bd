"""Site-to-site with NiFi, against a server of tests that follows its published protocol.

Risks and families: lost and doubled flow files (jobs that fail, readers that die, transactions that end too early,
answers that get lost, NiFi away); hostile streams; errors by name.
"""

from __future__ import annotations

import json
import threading
from collections import Counter

import pytest
from failing_functions import FailsAtFirst, some
from free_ports import free_port
from nifi_kit import NiFi
from reading_kit import Reading
from storm_kit import rows_in, wait_until

from headrace import RestartStrategies, StreamExecutionEnvironment
from headrace.connectors.files import FileSink
from headrace.connectors.nifi import JsonMessages, NiFiSink, NiFiSource, TextMessages
from headrace.connectors.nifi import sink as port_sink
from headrace.connectors.nifi.site_to_site import FlowFile, Place, decoded, encoded
from headrace.engine.columns.records import Batch
from headrace.engine.errors import ConfigurationError, SinkError, SourceError
from headrace.testing.acknowledging_contract import ACKNOWLEDGING_CONTRACT, AcknowledgingSubject
from headrace.testing.sinks.harness import SinkTestHarness


@pytest.fixture
def nifi():
    server = NiFi()
    yield server
    server.stop()


def source_of(server, **arguments):
    return NiFiSource(server.url, "out", **{"value": TextMessages(), **arguments})


# -------------------------------------------------------------------------------------------------------------- streams
def test_flow_files_go_through_a_stream():
    flow_files = [FlowFile({"uuid": "1", "ü": ""}, b"content"), FlowFile({}, b""), FlowFile({"a": "b"}, bytes(1_000))]
    assert decoded(encoded(flow_files)) == flow_files
    assert decoded(b"") == []
    assert encoded(flow_files[:1])[:12] == b"\0\0\0\2\0\0\0\4uuid"


def test_hostile_streams_are_errors():
    stream = encoded([FlowFile({"uuid": "1"}, b"content")])
    for damaged in (stream[:-1], stream + b"\0", b"\xff" * 4, b"\0\1\0\0" + stream[4:], b"\0\0\0\1\x7f\xff\xff\xff"):
        with pytest.raises(SourceError, match="damaged"):
            decoded(damaged)


# --------------------------------------------------------------------------------------------------------------- source
@pytest.mark.parametrize("check", ACKNOWLEDGING_CONTRACT, ids=lambda check: check.__name__)
def test_contract_of_an_output_port(check, nifi):
    check(
        AcknowledgingSubject(
            source_of(nifi), number=int, send=lambda numbers: nifi.fill(map(str, numbers)), num_left=lambda: nifi.left,
            is_told=lambda: nifi.left == 0, give_up=lambda: nifi.roll_back(all_of_them=True),
            narrow=source_of(nifi, prefetch=10, batch_count=10), server=nifi,
        )
    )  # fmt: skip


def test_transactions_live_on_and_are_given_back_in_order():
    nifi = NiFi(ttl_s=1)
    nifi.fill(["a", "b"])
    reading = Reading(source_of(nifi))
    assert reading.rows(2) == ["a", "b"]
    wait_until(lambda: reading.poll() == [] and nifi.num_extended >= 3)
    assert nifi.sent == Counter("ab")
    reading.reader.close()
    nifi.roll_back()
    assert nifi.left == 2
    nifi.stop()


def test_a_confirmation_whose_answer_is_lost_doubles_nothing(nifi):
    nifi.fill(map(str, range(10)))
    reading = Reading(source_of(nifi))
    reading.rows(10)
    nifi.loses = 1
    reading.checkpoint(1)
    wait_until(lambda: reading.poll() == [] and nifi.left == 0 and nifi.loses == 0)
    nifi.fill(["10"])
    assert reading.rows(1) == ["10"]
    reading.reader.close()


def test_answers_that_are_cut_short_are_asked_for_again(nifi):
    nifi.fill(map(str, range(40)))
    nifi.cuts = 3  # ports, nodes, flow files
    reading = Reading(source_of(nifi))
    wait_until(lambda: reading.poll() == [] and nifi.cuts == 0)
    nifi.roll_back(all_of_them=True)  # those that went out in vain
    assert sorted(reading.rows(40), key=int) == [str(n) for n in range(40)]
    reading.checkpoint(1)
    wait_until(lambda: reading.poll() == [] and nifi.left == 0)
    reading.reader.close()


def test_a_node_that_is_gone_is_passed_over(nifi):
    nifi.other_ports = [free_port(), free_port()]
    nifi.fill(["a"])
    reading = Reading(source_of(nifi, patience="10 min"))
    assert reading.rows(1) == ["a"]
    reading.reader.close()
    harness = SinkTestHarness(sink_of(nifi))
    harness.start()
    harness.write(Batch.of_rows([{"n": 1}]))
    harness.checkpoint(1)
    harness.close()


def test_flow_files_are_read_once_through_failures_and_while_nifi_is_away(nifi, tmp_path):
    nifi.fill(str(n) for n in range(300))
    with StreamExecutionEnvironment.get_execution_environment("local") as env:
        env.enable_checkpointing(20, directory=str(tmp_path / "checkpoints"))
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 10))
        source = source_of(nifi, value=JsonMessages({"n": "int64"}), metadata=["uuid", "filename"])
        stream = env.from_source(source_of(nifi), None, "in").map(FailsAtFirst(tmp_path, some(4, of=600)))
        stream.map(lambda text: {"n": int(text)}).sink_to(FileSink.json_lines(str(tmp_path / "out")))
        assert source.produced_columns().names == ["n", "uuid", "filename"]
        client = env.execute_async("pulled")
        wait_until(lambda: len(rows_in(tmp_path / "out")) >= 100, client)
        nifi.stop()
        nifi.fill(str(n) for n in range(300, 600))
        nifi.start()
        wait_until(lambda: nifi.left == 0 and len(rows_in(tmp_path / "out")) >= 600, client)
        client.cancel()
    assert len(list(tmp_path.glob("failed-*"))) == 4
    assert Counter(row["n"] for row in rows_in(tmp_path / "out")) == Counter(range(600))


def test_what_cannot_be_read_is_an_error_by_name(nifi):
    reading = Reading(NiFiSource(nifi.url, "no-such-port", value=TextMessages()))
    with pytest.raises(SourceError, match="no port 'no-such-port' among its output-ports: 'out'"):
        reading.rows(1)
    reading.reader.close()
    nifi.refuses = (503, 201)  # it does not run: is waited for
    nifi.fill(["a"])
    reading = Reading(source_of(nifi, patience="10 min"))
    assert reading.poll() == []
    nifi.refuses = None
    assert reading.rows(1) == ["a"]
    reading.reader.close()
    nifi.refuses = (403, 240)
    reading = Reading(source_of(nifi))
    with pytest.raises(SourceError, match="begins no transaction: 403, code 240, 'not now'"):
        reading.rows(1)
    reading.reader.close()


def test_wrong_arguments_are_refused():
    for url in ("ftp://host/nifi", "http:///nifi", "http://host:x/nifi", "http://u:p@host/nifi"):
        with pytest.raises(ConfigurationError, match="url must be"):
            NiFiSource(url, "out", value=TextMessages())
    for arguments, reason in (
        ({"ports": []}, "each once"),
        ({"prefetch": 0}, "prefetch must be 1"),
        ({"remember": "1 min"}, "120 s at least"),
        ({"on_error": "x"}, "on_error must be"),
    ):
        with pytest.raises(ConfigurationError, match=reason):
            NiFiSource(**{"url": "http://host:1/nifi", "ports": "out", "value": TextMessages(), **arguments})
    assert str(Place.of("https://host/", None)) == "https://host:443"
    assert Place.of("http://host:1/x/nifi", None).prefix == "/x/nifi-api"


# ----------------------------------------------------------------------------------------------------------------- sink
def sink_of(server, **arguments):
    return NiFiSink(server.url, "in", **{"value": JsonMessages(), **arguments})


def test_flow_files_are_there_when_the_barrier_has_passed(nifi):
    harness = SinkTestHarness(sink_of(nifi, attributes={"key": "k"}))
    harness.start()
    harness.write(Batch.of_rows([{"n": n, "k": f"k{n}"} for n in range(1_200)]))
    harness.checkpoint(1)
    assert [json.loads(one.content)["n"] for one in nifi.taken] == list(range(1_200))
    assert nifi.taken[7].attributes == {"key": "k7"}
    harness.close()


def test_nifi_is_waited_for_and_a_lost_answer_doubles(nifi):
    harness = SinkTestHarness(sink_of(nifi))
    nifi.refuses = (503, 202)
    harness.start()
    harness.write(Batch.of_rows([{"n": 1}]))
    nifi.refuses = None
    harness.checkpoint(1)
    nifi.loses = 1
    harness.write(Batch.of_rows([{"n": 2}]))
    harness.checkpoint(2)
    assert Counter(json.loads(one.content)["n"] for one in nifi.taken) == {1: 1, 2: 2}
    nifi.stop()
    impatient = SinkTestHarness(sink_of(nifi, patience=0))
    impatient.start()
    with pytest.raises(SinkError, match=r"does not take messages: NiFi at .* does not answer"):
        impatient.write(Batch.of_rows([{"n": 3}]))
        impatient.checkpoint(1)
    impatient.close()
    harness.close()
    nifi.start()


def test_a_sender_that_is_closed_while_it_gathers_ends(nifi, monkeypatch):
    begun, gate = threading.Event(), threading.Event()
    monkeypatch.setattr(port_sink._Sender, "_transact", lambda *_given: begun.set() or gate.wait())
    sender = port_sink._Sender(Place.of(nifi.url, None), "in", "sender", 5.0)
    sender.hand_over([FlowFile({}, b"")])
    assert begun.wait(10)
    sender.hand_over([FlowFile({}, b""), None])  # what close() puts there comes behind one that is gathered
    gate.set()
    sender._thread.join(10)
    assert not sender._thread.is_alive()


def test_rows_come_at_least_once_through_failures(nifi, tmp_path):
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        env.enable_checkpointing(20, directory=str(tmp_path / "checkpoints"))
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 10))
        numbers = env.from_sequence(0, 599).map(FailsAtFirst(tmp_path, some(4, of=600)))
        numbers.map(lambda n: {"n": n}).sink_to(sink_of(nifi))
        env.execute("pushed")
    assert len(list(tmp_path.glob("failed-*"))) == 4
    assert {json.loads(one.content)["n"] for one in nifi.taken} == set(range(600))
