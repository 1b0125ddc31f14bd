"""A job worth looking at, and a browser that looks: Debian's Chromium, driven without a download."""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Iterator
from typing import Any

from headrace import MapFunction, RestSettings, StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.kernel.sampling_settings import SamplingSettings

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

HOSTILE = "<img src=x onerror=\"document.title='owned'\"> & \"orders\" </script><script>document.title='owned'</script>"
"""A name that becomes markup, and a script that runs, where somebody has forgotten to quote it."""

DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


def order(n: int) -> dict[str, Any]:
    # Half of all orders are of one customer.
    return {"customer": 0 if n % 2 else n % 16, "amount": n % 100, "ts": 1_790_000_000_000 + 20 * n}


def visit(n: int) -> dict[str, Any]:
    return {"customer": n % 16, "amount": 0, "ts": 1_790_000_000_000 + 20 * n - 90_000}


class Score(MapFunction):
    """Takes its time; counts what it has seen; fails once, if it is to."""

    def __init__(self, loops: int) -> None:
        self._loops = loops

    def open(self, runtime_context: Any) -> None:
        self._scored = runtime_context.get_int_counter("scored")
        self._is_first = True

    def map(self, value: Any) -> Any:
        if self._is_first:
            self._is_first = False
            logging.getLogger("shop").warning("first order of customer %d: %s", value["customer"], HOSTILE)
        total = 0
        for i in range(self._loops):
            total += i * i
        self._scored.add(1)
        return {**value, "score": total % 97}


def build_orders(env: StreamExecutionEnvironment, directory: Any, name: str, *, loops: int = 2_000) -> None:
    """Orders and visits without end, a slow operator that holds them up, and names that are hostile."""
    env.enable_checkpointing(1_000, directory=str(directory))
    in_order = WatermarkStrategy.for_bounded_out_of_orderness("2 s").with_timestamp_assigner("ts")
    orders = env.from_source(GeneratorSource(order, records_per_second=20_000), in_order, "orders").uid("orders")
    visits = env.from_source(GeneratorSource(visit, records_per_second=200), in_order, "visits").uid("visits")
    both = orders.union(visits).key_by(lambda row: row["customer"])
    scored = both.map(Score(loops)).name(name).uid("score/1")
    totals = scored.key_by(lambda row: row["score"] % 4).map(lambda row: row["amount"]).name("amounts").uid("amounts")
    totals.filter(lambda _amount: False).name("none").uid("none").print()
    scored.rebalance().map(lambda row: row["score"]).name("audit").uid("audit").filter(lambda _score: False).print()


NUM_ORDERS = 2_000


def build_still(env: StreamExecutionEnvironment, directory: Any, name: str) -> None:
    """The like with few orders, after which nothing comes for a long time: its numbers stand still."""
    env.enable_checkpointing(500, directory=str(directory))
    in_order = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ts")
    orders = env.from_source(GeneratorSource(order, NUM_ORDERS), in_order, "orders").uid("orders")
    visits = env.from_source(GeneratorSource(visit, records_per_second=0.001), in_order, "visits").uid("visits")
    both = orders.union(visits).key_by(lambda row: row["customer"])
    both.map(Score(0)).name(name).uid("score/1").filter(lambda _row: False).name("none").uid("none").print()


def dashboard_environment(**options: Any) -> StreamExecutionEnvironment:
    samples = SamplingSettings(num_samples=20, delay_ms=10)
    rest = RestSettings(
        bind_port="0",
        refresh_interval_ms=300,
        view_ttl_ms=100,
        backpressure=samples,
        flame_graph=samples,
        **options.pop("rest", {}),
    )
    return StreamExecutionEnvironment.get_execution_environment(
        options.pop("actor_system", "local"), parallelism=2, rest=rest, **options
    )


class Watched:
    """A page, and all that it complained of.

    Args:
        page: Of the browser.
        url: Of the server.
    """

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        page.on("request", self._asked)
        page.add_init_script(
            "addEventListener('securitypolicyviolation', event => console.error('CSP: ' + event.violatedDirective))"
        )

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text} ({message.location})")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(f"{self.url}/"):
            self.foreign.append(request.url)

    def sign_in(self, token: str) -> None:
        self.page.goto(f"{self.url}/")
        self.page.fill("#token", token)
        self.page.click("button.primary")
        self.page.wait_for_selector(".shell")

    def go(self, place: str, selector: str) -> None:
        self.page.evaluate("place => { location.hash = place }", place)
        self.page.wait_for_selector(selector)


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Chromium, without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield started
        finally:
            started.close()


def until(find: Any, what: str, patience_s: float = 30) -> Any:
    """The first thing that is found which is neither None nor False."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        found = find()
        if found is not None and found is not False:
            return found
        time.sleep(0.05)
    raise AssertionError(what)
