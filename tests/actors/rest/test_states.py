"""The state of a key by REST: what it says, in which form keys come, to whom, and what is hidden.

Risks: an answer that is not the state's, a key of another type taken for one that holds nothing, values shown to those
who may not see them.
"""

from __future__ import annotations

import json
import time
from urllib.parse import urlencode

import pytest
from rest_kit import ask, rest_environment

from headrace import (
    CountTrigger,
    KeyedProcessFunction,
    MapStateDescriptor,
    ProcessWindowFunction,
    ReducingStateDescriptor,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.actors.rest.resources.routes import RestError, RestRequest, Right
from headrace.actors.rest.server import RestServer
from headrace.cli.main import main
from headrace.connectors.scripted import Pause, ScriptedSource
from headrace.engine.kernel.rest_settings import RestSettings

PATIENCE_S = 20
ORDERS = [("ann", "tea", 3), ("bob", "jam", 4), ("ann", "bun", 5), ("ann", "tea", 6), ("7", "rye", 1)]


class Account(KeyedProcessFunction):
    """What each customer has bought, in states of several kinds."""

    def open(self, context):
        self.last = context.get_state(ValueStateDescriptor("last", queryable="last order"))
        self.items = context.get_map_state(MapStateDescriptor("items", str, int, queryable="items"))
        self.private = context.get_state(ValueStateDescriptor("private", int))

    def process_element(self, value, context):
        customer, item, price = value
        self.last.update({"item": item, "Card": f"card of {customer}", "price": price})
        self.items.put(item, (self.items.get(item) or 0) + price)
        self.private.update(price)


class Total(KeyedProcessFunction):
    """By a key of two parts."""

    def open(self, context):
        descriptor = ReducingStateDescriptor("sum", lambda a, b: a + b, int, queryable="sum")
        self.sum = context.get_reducing_state(descriptor)

    def process_element(self, value, context):
        self.sum.add(value[2])


class Calls(ProcessWindowFunction):
    """Counts how often each window has fired."""

    def process(self, key, context, elements):
        descriptor = ValueStateDescriptor("calls", int, queryable="calls")
        state = context.window_state().get_state(descriptor)
        state.update((state.value() or 0) + 1)
        return []


class Shop:
    def __init__(self, directory, **rest):
        self.env = rest_environment(rest={"allows_record_samples": True, **rest})
        self.env.enable_checkpointing(50, directory=str(directory))
        orders = self.env.from_source(ScriptedSource([*ORDERS, Pause()], is_bounded=False), None, "orders").uid(
            "orders"
        )
        orders.key_by(lambda order: order[0]).process(Account()).uid("account").print()
        orders.key_by(lambda order: (order[0], len(order[1]))).process(Total()).name("the totals").uid(
            "total/1"
        ).print()
        by_time = WatermarkStrategy.for_bounded_out_of_orderness("10 s").with_timestamp_assigner(
            lambda order, _at: order[2] * 10
        )
        timed = orders.assign_timestamps_and_watermarks(by_time).key_by(lambda order: order[0])
        each = timed.window(TumblingEventTimeWindows.of(40)).trigger(CountTrigger.of(1))
        each.process(Calls()).uid("windows").print()
        self.client = self.env.execute_async("shop")
        self.id = self.client.get_job_id()
        (self.address,) = self.env._cluster.rest_addresses()
        self.rest = self.env.get_rest_client()

    def settle(self):
        deadline = time.monotonic() + PATIENCE_S
        done = None
        while done is None or self.rest.checkpoints(self.id)["counts"]["completed"] < done + 2:
            assert time.monotonic() < deadline
            read = sum(vertex["metrics"]["read-records"] for vertex in self.rest.job(self.id)["vertices"][1:])
            if done is None and read == 3 * len(ORDERS):
                done = self.rest.checkpoints(self.id)["counts"]["completed"]
            time.sleep(0.02)

    def get(self, operator, state, token=None, **query):
        path = f"/jobs/{self.id}/operators/{operator}/states/{state}?{urlencode(query)}"
        return ask(self.address.url, path, self.address.tokens.write if token is None else token)

    def value(self, operator, state, **query):
        answer = self.get(operator, state, **query)
        assert answer.status == 200, answer
        (row,) = answer.json["values"]
        assert not row["is-cut"]
        return json.loads(row["value"])


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    shop = Shop(tmp_path_factory.mktemp("states"))
    shop.settle()
    yield shop
    shop.env.close()


@pytest.mark.parametrize("consistency", ["live", "checkpoint"])
def test_what_a_key_holds_now_and_in_the_newest_checkpoint(shop, consistency):
    found = {one["state"]: one for one in shop.rest.states(shop.id, "account", consistency)}
    assert set(found) == {"last order", "items"}
    assert (found["items"]["kind"], found["items"]["key-type"], found["items"]["key-example"]) == (
        "map",
        "string",
        '"ann"',
    )
    bought = {}
    for customer, item, price in ORDERS:
        own = bought.setdefault(customer, {})
        own[item] = own.get(item, 0) + price
    for customer, items in bought.items():
        assert shop.value("account", "items", key=customer, consistency=consistency) == items
        assert shop.value("account", "items", key=json.dumps(customer), consistency=consistency) == items
    assert shop.value("the%20totals", "sum", key='["ann", 3]', consistency=consistency) == 14
    assert shop.value("total%2F1", "sum", key='["7",3]', consistency=consistency) == 1
    assert shop.get("account", "items", key="nobody", consistency=consistency).json["found"] is False
    by_client = shop.rest.state(shop.id, "total/1", "sum", ("ann", 3), consistency=consistency)
    assert by_client["values"] == [{"value": "14", "is-cut": False}]


def test_windows_of_a_key_are_rows_and_one_may_be_asked_for(shop):
    answer = shop.get("windows", "calls", key="ann").json
    assert answer["windowed"]
    rows = [(one["window-start"], one["window-end"], one["value"]) for one in answer["values"]]
    assert rows == [(0, 40, "1"), (40, 80, "2")]  # at 30, 50 and 60
    (one,) = shop.rest.state(shop.id, "windows", "calls", "ann", window=(40, 80))["values"]
    assert one["value"] == "2"
    for window in ("soon", "1", "1,2,3", "80,40", f"0,{1 << 63}", "9" * 4_000 + ",0"):
        refused = shop.get("windows", "calls", key="ann", window=window)
        assert (refused.status, "0,60000" in refused.json["errors"][0]) == (400, True), window


def test_what_is_hidden_never_becomes_text(shop, tmp_path):
    own = {"item": "tea", "Card": "card of ann", "price": 6}
    assert shop.value("account", "last%20order", key="ann") == own
    assert shop.value("account", "last", key="ann", mask="ITEM") == {**own, "item": "***"}
    assert shop.value("account", "last", key="ann", mask="*") == {"item": "str", "Card": "str", "price": "int"}
    assert shop.value("account", "items", key="ann", mask="*") == "<map of 2>"
    other = Shop(tmp_path, masked_fields=("card",))
    try:
        other.settle()
        assert other.value("account", "last", key="ann") == {**own, "Card": "***"}
        # A value without fields, where some are to be hidden, is shown by its type alone.
        assert other.value("total%2F1", "sum", key='["ann", 3]') == "<int>"
    finally:
        other.env.close()


@pytest.mark.parametrize(
    ("operator", "state", "query", "status", "words"),
    [
        ("total%2F1", "sum", {"key": "ann"}, 400, "tuple(string, int64), as [\"ann\", 7]; got 'ann'"),
        ("total%2F1", "sum", {"key": '["ann", 3, 4]'}, 400, 'as ["ann", 7]'),
        ("total%2F1", "sum", {"key": '["ann", "3"]'}, 400, 'as ["ann", 7]'),
        ("account", "items", {"key": "x" * 5_000}, 400, "4,096 characters"),
        ("account", "items", {}, 400, "'key' is missing"),
        ("account", "items", {"key": "ann", "window": "0,1"}, 400, "is not one of windows"),
        ("account", "items", {"key": "ann", "consistency": "soon"}, 400, "must be one of live, checkpoint"),
        ("account", "private", {"key": "ann"}, 404, "it does for: items, last order"),
        ("orders", "items", {"key": "ann"}, 404, "it does for: none"),
        ("acount", "items", {"key": "ann"}, 404, "account"),
    ],
)
def test_what_cannot_be_answered_says_why(shop, operator, state, query, status, words):
    answer = shop.get(operator, state, **query)
    assert answer.status == status, answer
    assert words in answer.json["errors"][0]


def test_it_takes_the_right_to_do_everything_and_a_cluster_that_shows_records(shop):
    read = shop.address.tokens.read
    assert shop.get("account", "items", token=read, key="ann").status == 403
    assert shop.get("account", "items", token="x", key="ann").status == 401
    assert ask(shop.address.url, f"/jobs/{shop.id}/operators/account/states", read).status == 200
    settings = RestSettings(bind_port="0")
    route, path = RestServer(None, settings, shop.address.tokens).table.find("GET", "/jobs/a/operators/b/states/c")
    assert route.right is Right.WRITE
    with pytest.raises(RestError, match=r"rest\.record-samples\.enabled is false") as refused:
        route.handler(RestRequest(path, {"key": "ann"}, {}, None, Right.WRITE))
    assert refused.value.status == 403


def test_the_command_line_asks_by_rest(shop, monkeypatch, capsys):
    monkeypatch.setenv("HEADRACE_REST_TOKEN", shop.address.tokens.write)

    def said(*arguments):
        status = main(["state", "ask", "--url", shop.address.url, shop.id[:8], *arguments])
        return status, capsys.readouterr().out.splitlines()

    assert said("account")[1] == [
        'items (map): keys string, as "ann"; values int64',
        'last order (value): keys string, as "ann"; values of no declared type',
    ]
    assert said("total/1", "sum", '["ann", 3]') == (0, ["14"])
    assert said("account", "items", "7") == (0, ['{"rye":1}'])
    assert said("account", "items", "nobody") == (1, ["it holds nothing for this key"])
    assert said("windows", "calls", "ann", "--window", "40,80", "--consistency", "checkpoint") == (0, ["[40, 80) 2"])
    assert said("account", "last", "ann", "--mask", "Card") == (0, ['{"item":"tea","Card":"***","price":6}'])
