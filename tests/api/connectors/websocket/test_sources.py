"""WebSocket as a source: jobs that fail, servers that are killed, what a server must not do, errors, secrets.

Risks and families: lost and doubled records (jobs that fail while the server is killed, gone on at another parallelism,
against what was put); connections that are given up for nothing (readers that are held back); servers that go, stand
still or refuse; hostile messages (bounds, by a server of the same protocol); bad input (errors by name).
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections import Counter
from operator import itemgetter

import pytest
from campaigns import campaign
from failing_functions import FailsAtFirst, some
from http_service import http_service  # noqa: F401 - a fixture
from reading_kit import Reading
from websocket_service import websocket_service  # noqa: F401 - a fixture

from headrace import RestartStrategies, StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.http import HttpSink
from headrace.connectors.websocket import BytesMessages, JsonMessages, TextMessages, Tls, WebSocketSource
from headrace.engine.connectors.contract import ALL_SPLITS_FINISHED
from headrace.engine.errors import ConfigurationError

CURSOR = {"cursor": "/id", "parameter": "since"}


@pytest.mark.parametrize("parallelisms", [(2, 1), campaign((2, 3, 1, 2))], ids=str)
def test_jobs_whose_server_is_killed(parallelisms, websocket_service, http_service, tmp_path):  # noqa: F811
    """Exactly once: it is killed while a job fails, and while it goes on at another parallelism."""
    service, target = websocket_service, http_service.new_name()
    names, path, sent = [service.new_name() for _ in range(4)], None, 0
    for part, parallelism in enumerate(parallelisms):
        for name in names:
            service.put(name, [{"n": sent + number} for number in range(75)])
            sent += 75
        if part:
            service.kill()
        with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
            env.enable_checkpointing(20, directory=str(tmp_path / "checkpoints"))
            env.set_restart_strategy(RestartStrategies.fixed_delay_restart(6, 10))
            urls = [f"{service.url}/since/{name}?cut=31" for name in names]
            source = WebSocketSource(urls, value=JsonMessages({"n": "int64"}), **CURSOR)
            stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "in").uid("in")
            failing = FailsAtFirst(tmp_path, some(2 * len(parallelisms), of=300 * len(parallelisms)), itemgetter("n"))
            sink = HttpSink.exactly_once(f"{http_service.url}/sink/{target}", value=JsonMessages())
            stream.map(failing).uid("map").rebalance().sink_to(sink).uid("out")
            client = env.execute_async("part", from_savepoint=path)
            if not part:
                while not list(tmp_path.glob("failed-*")):
                    assert client.view().state not in ("FAILED", "FINISHED"), [f.text for f in client.view().failures]
                service.kill()
            service.start()
            while len(b"".join(http_service.posted(target)).splitlines()) < sent:
                assert client.view().state not in ("FAILED", "FINISHED"), [f.text for f in client.view().failures]
            path = client.stop_with_savepoint(str(tmp_path / "savepoints"))
    assert len(list(tmp_path.glob("failed-*"))) == 2 * len(parallelisms)
    posted = [json.loads(line)["n"] for line in b"".join(http_service.posted(target)).splitlines()]
    assert Counter(posted) == Counter(range(sent))


# --------------------------------------------------------------------------------------------------------- by a reader
def put(service, number):
    name = service.new_name()
    service.put(name, [{"n": n} for n in range(number)])
    return name


def test_metadata_say_where_records_are_from_and_answers_are_passed_over(websocket_service):  # noqa: F811
    url = f"{websocket_service.url}/subscribe/{put(websocket_service, 3)}"
    source = WebSocketSource(
        url, value=JsonMessages({"n": "int64"}), cursor="/id", subscribe='{"what": "all"}', needs_cursors=False,
        resume=['{"what": "rest", "after": "${cursor}"}'], metadata={"at": "url", "cursor": "cursor"},
    )  # fmt: skip
    reading = Reading(source)
    assert reading.rows(3) == [{"n": n, "at": url, "cursor": str(n)} for n in range(3)]
    (split,) = reading.reader.snapshot()
    assert split.position == {"cursor": "2", "given": 0}
    reading.reader.close()
    url = f"{websocket_service.url}/hostile/x?says=one|two"
    reading = Reading(WebSocketSource(url, value=BytesMessages()))
    assert reading.rows(2) == [b"one", b"two"]
    reading.reader.close()


def test_without_a_cursor_what_was_sent_meanwhile_is_lost_and_nothing_comes_twice(websocket_service):  # noqa: F811
    service, name = websocket_service, websocket_service.new_name()
    reading = Reading(WebSocketSource(f"{service.url}/live/{name}", value=JsonMessages({"n": "int64"})))
    rows, number = [], 0
    while not rows:
        service.put(name, [{"n": number}])
        rows, number = reading.poll(), number + 1
    service.kill()
    service.start()
    service.put(name, [{"n": 1_000_000}])
    while rows[-1]["n"] <= 1_000_000:
        number += 1
        service.put(name, [{"n": 1_000_000 + number}])
        rows += reading.poll()
    seen = [row["n"] for row in rows]
    assert len(set(seen)) == len(seen)
    reading.reader.close()


def test_who_asks_is_told_to_the_server_alone(websocket_service):  # noqa: F811
    url = f"{websocket_service.url}/since/{put(websocket_service, 3)}"
    given = {"value": JsonMessages({"n": "int64"}), "headers": {"Authorization": "Bearer hidden"}, **CURSOR}
    source = WebSocketSource(url, subscribe="hidden, too", **given)
    assert "hidden" not in repr(source)
    reading = Reading(source)
    assert len(reading.rows(3)) == 3
    reading.reader.close()
    name = put(websocket_service, 1)
    reading = Reading(WebSocketSource(f"{websocket_service.url}/since/{name}?who=hidden", **given))
    assert len(reading.rows(1)) == 1
    reading.reader.close()
    told = Reading(WebSocketSource(f"{websocket_service.url}/since/{name}?who=me", **given)).fails()
    assert "answers 401 Unauthorized: who are you?" in told
    assert "hidden" not in told


def test_a_server_that_says_to_come_later_is_waited_for(websocket_service):  # noqa: F811
    name = put(websocket_service, 2)
    value = JsonMessages({"n": "int64"})
    url = f"{websocket_service.url}/since/{name}"
    reading = Reading(WebSocketSource(f"{url}?status=503&times=2&Retry-After=0", value=value, **CURSOR))
    assert len(reading.rows(2)) == 2
    reading.reader.close()
    name = put(websocket_service, 2)
    url = f"{websocket_service.url}/since/{name}?status=429&times=1&Retry-After=100"
    assert "answers 429" in Reading(WebSocketSource(url, value=value, patience="10 s", **CURSOR)).fails()


def test_what_a_server_will_never_give_is_an_error_at_once(websocket_service):  # noqa: F811
    base = f"{websocket_service.url}/hostile"

    def told(options, **arguments):
        name = websocket_service.new_name()
        return Reading(WebSocketSource(f"{base}/{name}?{options}", value=TextMessages(), **arguments)).fails()

    assert "answers 404" in told("status=404&times=9")
    assert "answers 301" in told("status=301&times=9&Location=ws://127.0.0.1:1/")
    assert "1008 (policy violation) because" in told("code=1008")
    assert "takes none of the subprotocols" in told("x=1", subprotocols="nobody")
    assert "more than 1000 bytes, which max_bytes allows" in told("size=1001", max_bytes=1000)
    assert "more than 1000 bytes, which max_bytes allows" in told("fragments=1001", max_bytes=1000)
    assert "what the server sends is not read" in told("broken=1")
    assert "no text or number at '/id'" in told('says={"n":1}', **CURSOR)
    assert "have the cursor '1'" in told('says={"id":1}|{"id":1}', **CURSOR)
    assert "the server has closed the connection" in told("code=4001", patience=0)
    assert (
        "cannot be reached" in Reading(WebSocketSource("ws://127.0.0.1:1/x", value=TextMessages(), patience=0)).fails()
    )


def test_what_is_no_json_has_its_place_and_comes_once(websocket_service):  # noqa: F811
    url = f'{websocket_service.url}/hostile/x?says={{"id":1}}|{{"id":2}}|no|{{"id":3}}'
    given = {"value": JsonMessages({"id": "int64"}), "patience": "1 min", **CURSOR}
    assert "record 1 behind '2'" in Reading(WebSocketSource(url, **given)).fails()
    reading = Reading(WebSocketSource(f"{url}&code=1001", on_error="skip", **given))
    rows = reading.rows(9)
    assert rows[:3] == [{"id": 1}, {"id": 2}, {"id": 3}]
    reading.reader.close()
    reading = Reading(WebSocketSource(url, needs_cursors=False, **given))
    assert reading.rows(3) == [{"id": 1}, {"id": 2}, {"id": 3}]
    reading.reader.close()


def test_a_server_that_stands_still_is_left_and_one_that_is_held_back_is_not(websocket_service):  # noqa: F811
    service, name = websocket_service, put(websocket_service, 20_000)
    url = f"{service.url}/since/{name}"
    quick = {"ping": "50 ms", "timeout": "300 ms"}
    source = WebSocketSource(url, value=JsonMessages({"n": "int64"}), **CURSOR, **quick)
    reading = Reading(source)
    rows = reading.rows(1)
    (fetcher,) = set(reading.reader._fetchers.values())
    held = fetcher._connection
    while not fetcher._got.full():  # nobody takes what it has got, so it reads no more
        pass
    waited = threading.Event()
    waited.wait(1.0)
    rows += reading.rows(20_000 - len(rows))
    assert fetcher._connection is held
    assert [row["n"] for row in rows] == list(range(20_000))
    service.pause()
    while fetcher._connection is held:
        reading.poll()
    service.resume()
    service.put(name, [{"n": 20_000}])
    assert reading.rows(1) == [{"n": 20_000}]
    reading.reader.close()


def slow_server(listener, text):
    """Sends a byte of a frame for each ping; it cannot answer one within the frame."""
    from websockets.utils import accept_key

    connection, _ = listener.accept()
    with connection:
        request = connection.recv(1 << 16).decode()
        key = accept_key(re.search(r"Sec-WebSocket-Key: (\S+)", request)[1])
        head = f"HTTP/1.1 101 Ok\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {key}\r\n\r\n"
        connection.sendall(head.encode() + bytes([0x81, len(text)]))
        for byte in text.encode():
            if not connection.recv(1 << 16):
                return
            connection.sendall(bytes([byte]))
        connection.recv(1)


def test_a_message_that_takes_long_is_waited_for_while_it_comes():
    pytest.importorskip("websockets")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = threading.Thread(target=slow_server, args=(listener, "a long message"), daemon=True)
        peer.start()
        url = f"ws://127.0.0.1:{listener.getsockname()[1]}/x"
        reading = Reading(WebSocketSource(url, value=TextMessages(), ping=1, timeout="10 s", patience=0))
        assert reading.rows(1) == ["a long message"]
        reading.close()
        peer.join()


def test_a_normal_end_ends_what_is_bounded_alone(websocket_service):  # noqa: F811
    url = f"{websocket_service.url}/hostile/x?code=1000"
    reading = Reading(WebSocketSource(url, value=TextMessages(), bounded=True))
    while reading.reader.poll(10) is not ALL_SPLITS_FINISHED:
        pass
    reading.reader.close()
    reading = Reading(WebSocketSource(url, value=TextMessages(), patience=0))
    assert "1000 (OK)" in reading.fails()


def test_wrong_arguments_are_refused():
    def told(urls="ws://localhost/x", **arguments):
        with pytest.raises(ConfigurationError) as refused:
            WebSocketSource(urls, **{"value": TextMessages(), **arguments})
        return str(refused.value)

    assert "each once" in told(urls=[])
    assert "url must be wss://" in told(urls="http://localhost")
    assert "url has a user" in told(urls="ws://me:hidden@localhost")
    assert "tls is for wss://" in told(tls=Tls())
    assert "belongs together" in told(cursor="/id")
    assert "belongs together" in told(parameter="since")
    assert "where the cursor is to stand" in told(cursor="/id", resume="x")
    assert "begins with /" in told(cursor="id", parameter="since")
    assert "subscribe is a message" in told(subscribe=[1])
    assert "a subprotocol is a name" in told(subprotocols=["a b"])
    assert "ping must be" in told(ping=0)
    assert "max_bytes must be" in told(max_bytes=0)
