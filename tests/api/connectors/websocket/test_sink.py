"""WebSocket as a sink: what is confirmed is kept, whatever breaks, order, envelopes, refusals, errors.

Risks and families: lost messages (servers that are killed, connections that break between keeping a message and saying
so, servers that stand still; against what the server has kept); barriers that pass too early; bad input (errors by
name).
"""

from __future__ import annotations

import json

import pytest
from failing_functions import FailsAtFirst
from websocket_service import websocket_service  # noqa: F401 - a fixture

from headrace import RestartStrategies, StreamExecutionEnvironment
from headrace.connectors.websocket import BytesMessages, JsonMessages, TextMessages, WebSocketSink
from headrace.engine.columns.records import Batch
from headrace.engine.errors import ConfigurationError, HeadraceError
from headrace.testing.sinks.harness import SinkTestHarness

ANSWERED = {"envelope": '{"number": ${number}, "row": ${record}}', "acknowledged_by": "/ack", "refused_by": "/error"}


def sink_into(service, name, options="acknowledges=1", **arguments):
    given = {"value": JsonMessages(), **(ANSWERED if "acknowledges" in options else {}), **arguments}
    return WebSocketSink(f"{service.url}/take/{name}?{options}", **given)


def started(sink):
    harness = SinkTestHarness(sink)
    harness.start()
    return harness


def numbers_of(service, name):
    found = [json.loads(line) for line in service.taken(name)]
    return [row.get("row", row)["n"] for row in found]


@pytest.mark.parametrize("options", ["acknowledges=1", "pongs=1"])
def test_all_is_kept_in_its_order_when_a_barrier_has_passed(options, websocket_service):  # noqa: F811
    name = websocket_service.new_name()
    harness = started(sink_into(websocket_service, name, options))
    for first in range(0, 9_000, 3_000):
        harness.write(Batch.of_rows([{"n": n} for n in range(first, first + 3_000)]))
        harness.checkpoint(1 + first)
        if "acknowledges" in options:
            assert numbers_of(websocket_service, name) == list(range(first + 3_000))
    harness.close()
    websocket_service.wait_until(lambda: numbers_of(websocket_service, name) == list(range(9_000)))


@pytest.mark.parametrize("options", ["acknowledges=1&lost=7", "pongs=1&lost=7"])
def test_what_was_kept_and_not_confirmed_comes_again(options, websocket_service):  # noqa: F811
    """The connection breaks between keeping and saying so; each row is there, none is before one that came earlier."""
    name = websocket_service.new_name()
    harness = started(sink_into(websocket_service, name, options))
    for n in range(40):
        harness.write(Batch.of_rows([{"n": n}]))
        harness.checkpoint(1 + n)
    harness.close()
    found = numbers_of(websocket_service, name)
    if "acknowledges" in options:
        assert len(found) > 40
        assert list(dict.fromkeys(found)) == list(range(40))
    else:
        websocket_service.wait_until(lambda: set(numbers_of(websocket_service, name)) == set(range(40)))


def test_a_server_that_is_killed_is_waited_for_and_has_what_it_confirmed(websocket_service):  # noqa: F811
    name = websocket_service.new_name()
    harness = started(sink_into(websocket_service, name))
    harness.write(Batch.of_rows([{"n": n} for n in range(500)]))
    websocket_service.kill()
    harness.write(Batch.of_rows([{"n": n} for n in range(500, 1_000)]))
    websocket_service.start()
    harness.checkpoint(1)
    assert list(dict.fromkeys(numbers_of(websocket_service, name))) == list(range(1_000))
    websocket_service.kill()
    harness.write(Batch.of_rows([{"n": 1_000}]))
    websocket_service.start()
    harness.checkpoint(2)
    harness.close()
    assert numbers_of(websocket_service, name)[-1] == 1_000


def test_a_job_that_fails_loses_nothing_while_its_server_is_killed(websocket_service, tmp_path):  # noqa: F811
    name, rows = websocket_service.new_name(), [{"n": n} for n in range(1_200)]
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        env.enable_checkpointing(20, directory=str(tmp_path / "checkpoints"))
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(4, 10))
        failing = FailsAtFirst(tmp_path, (300, 700, 900), lambda row: row["n"])
        sink = sink_into(websocket_service, name, "acknowledges=1&lost=201")
        env.from_collection(rows).rebalance().map(failing).sink_to(sink)
        client = env.execute_async("out")
        while not websocket_service.taken(name):
            assert client.view().state not in ("FAILED", "FINISHED"), [f.text for f in client.view().failures]
        websocket_service.kill()
        websocket_service.start()
        assert client.result().num_restarts >= 1
    assert set(numbers_of(websocket_service, name)) == set(range(1_200))


def test_messages_are_texts_or_bytes(websocket_service):  # noqa: F811
    name = websocket_service.new_name()
    for sink, row in (
        (sink_into(websocket_service, name, "x=1", value=TextMessages()), "a text"),
        (sink_into(websocket_service, name, "x=1", value=BytesMessages(), binary=True), b"bytes"),
        (sink_into(websocket_service, name, "x=1", envelope='<${record}>', value=TextMessages(), binary=True), "both"),
    ):  # fmt: skip
        harness = started(sink)
        harness.write([row])
        harness.checkpoint(1)
        harness.close()
    websocket_service.wait_until(lambda: websocket_service.taken(name) == ["a text", "bytes", "<both>"])


def test_what_cannot_be_sent_is_an_error(websocket_service):  # noqa: F811
    def told(row, options="acknowledges=1", **arguments):
        harness = started(sink_into(websocket_service, websocket_service.new_name(), options, **arguments))
        with pytest.raises(HeadraceError) as refused:
            harness.write([row])
            harness.checkpoint(1)
        harness.close()
        return str(refused.value)

    assert "refuses a message: no room" in told({"n": "full"})
    assert "answers 403" in told({"n": 1}, "status=403&times=9")
    assert "answers 503" in told({"n": 1}, "status=503&times=99", patience=0)
    assert "no text in UTF-8" in told(b"\xff", "x=1", value=BytesMessages())
    assert "hidden" not in told({"n": 1}, "who=me", headers={"Authorization": "Bearer hidden"}, opening="hidden, too")
    harness = started(WebSocketSink("ws://127.0.0.1:1/x", value=TextMessages(), patience=0))
    with pytest.raises(HeadraceError, match="cannot be reached"):
        harness.write(["x"])
    harness.close()


def test_a_server_that_takes_messages_and_confirms_none_is_given_up(websocket_service):  # noqa: F811
    """Each connection is taken, and ended behind its first message."""
    name = websocket_service.new_name()
    harness = started(sink_into(websocket_service, name, "acknowledges=1&lost=1", patience="300 ms"))
    harness.write(Batch.of_rows([{"n": 1}]))
    with pytest.raises(HeadraceError, match="does not take messages"):
        harness.checkpoint(1)
    harness.close()
    assert set(numbers_of(websocket_service, name)) == {1}


def test_a_server_that_stands_still_holds_up_the_barrier_and_not_the_end(websocket_service):  # noqa: F811
    name = websocket_service.new_name()
    sink = sink_into(websocket_service, name, patience="1 s", timeout="200 ms", ping="50 ms")
    harness = started(sink)
    harness.write(Batch.of_rows([{"n": 1}]))
    harness.checkpoint(1)
    websocket_service.pause()
    try:
        harness.write(Batch.of_rows([{"n": 2, "x": "x" * 100_000} for _ in range(200)]))
        with pytest.raises(HeadraceError, match="does not take messages"):
            harness.checkpoint(2)
        harness.close()
    finally:
        websocket_service.resume()


def test_wrong_arguments_are_refused():
    def told(url="ws://localhost/x", **arguments):
        with pytest.raises(ConfigurationError) as refused:
            WebSocketSink(url, **{"value": TextMessages(), **arguments})
        return str(refused.value)

    assert "url must be wss://" in told("http://localhost")
    assert "where the record is" in told(envelope="x")
    assert "which is acknowledged" in told(acknowledged_by="/ack")
    assert "which is acknowledged" in told(envelope="${number} ${record}")
    assert "acknowledged_by is missing" in told(refused_by="/error")
    assert "opening is a message" in told(opening=7)
    assert "a format of messages" in told(value=None)
