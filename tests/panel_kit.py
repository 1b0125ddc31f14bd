"""What the panels of the dashboard that ask for something are shown with: a shop whose accounts may be asked for."""

from __future__ import annotations

import sys
from typing import Any

from dashboard_kit import HOSTILE, dashboard_environment, until

from headrace import KeyedProcessFunction, MapStateDescriptor, ValueStateDescriptor
from headrace.actors.rest.resources.programs import ProgramPlace
from headrace.actors.rest.server import RestServer
from headrace.connectors.scripted import Pause, ScriptedSource
from headrace.engine.kernel.rest_settings import RestSettings

ORDERS = [("ann", "tea", 3), ("bob", "jam", 4), ("ann", "bun", 5), (HOSTILE, HOSTILE, 6)]


RUNNER = """
import runpy, sys
at = next(number for number, text in enumerate(sys.argv) if text.endswith(".py"))
print("options", sys.argv[1:at])
sys.argv = sys.argv[at:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Stands for ``headrace run``: tells its options and runs the program."""


class Account(KeyedProcessFunction):
    """What each customer has bought."""

    def open(self, context: Any) -> None:
        self.items = context.get_map_state(MapStateDescriptor("items", str, int, queryable="items"))
        self.last = context.get_state(ValueStateDescriptor("last", queryable="last order"))

    def process_element(self, value: Any, context: Any) -> None:
        customer, item, price = value
        self.items.put(item, price)
        self.last.update({"item": item, "card": f"card of {customer}", "price": price})


class Shop:
    """A running job with state, and the server that it is looked at through."""

    def __init__(self, directory: Any) -> None:
        self.env = dashboard_environment(rest={"allows_record_samples": True})
        self.env.enable_checkpointing(100, directory=str(directory))
        source = ScriptedSource([*ORDERS, Pause()], is_bounded=False)
        orders = self.env.from_source(source, None, "orders").uid("orders")
        orders.key_by(lambda order: order[0]).process(Account()).name("accounts").uid("accounts").print()
        self.id = self.env.execute_async("shop").get_job_id()
        (self.address,) = self.env._cluster.rest_addresses()
        self.rest = self.env.get_rest_client()

    def settle(self) -> None:
        def read() -> int:
            return sum(vertex["metrics"]["read-records"] for vertex in self.rest.job(self.id)["vertices"][1:])

        until(lambda: read() == len(ORDERS), "the job does not read all")
        done = self.rest.checkpoints(self.id)["counts"]["completed"]
        until(lambda: self.rest.checkpoints(self.id)["counts"]["completed"] >= done + 2, "no checkpoint")

    def taking_programs(self, directory: Any) -> tuple[RestServer, str]:
        """Serve the same cluster as one that takes programs; gives the server and its address.

        A program is run as it is: a local cluster cannot be joined by another process.
        """
        place = ProgramPlace(lambda: str(directory), lambda: [sys.executable, "-c", RUNNER])
        settings = RestSettings(bind_port="0", refresh_interval_ms=300, view_ttl_ms=100, allows_record_samples=True)
        server = RestServer(self.env._cluster, settings, self.address.tokens, place)
        return server, server.start()
