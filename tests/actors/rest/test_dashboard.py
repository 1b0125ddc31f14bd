"""The dashboard in a browser, over a running job whose names are hostile.

Risks and families: pages that fail, complain, or load something from elsewhere (every page opened); numbers that are
not REST's (each compared with what REST says); markup in names; tokens that get out of the tab; actions that do
something else than they say. Pure parts (layout, hints, formats) are called in the browser.
"""

from __future__ import annotations

import ast
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from campaigns import campaign
from dashboard_kit import (
    CHROMIUM,
    DESKTOP,
    HOSTILE,
    NUM_ORDERS,
    PHONE,
    Watched,
    browser,
    build_orders,
    build_still,
    dashboard_environment,
    until,
)
from rest_kit import ask

pytest.importorskip("playwright", reason="drives the browser")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"),
    pytest.mark.xdist_group("dashboard"),
]

VERTEX = "score%2F1"
NOTHING = "\N{EN DASH}"


class Job:
    """A running job, and the server that it is looked at through."""

    def __init__(self, directory):
        self.directory = directory
        self.env = dashboard_environment()
        build_still(self.env, directory / "checkpoints", HOSTILE)
        self.client = self.env.execute_async(HOSTILE)
        self.id = self.client.get_job_id()
        (self.address,) = self.env._cluster.rest_addresses()
        self.rest = self.env.get_rest_client()

    def settle(self):
        """Wait until all orders were read and told, and a checkpoint is complete."""
        until(lambda: self.read() == NUM_ORDERS + 2, "the job does not read all")
        self.next_checkpoint()

    def read(self):
        """How many records the scores have read."""
        vertices = {vertex["id"]: vertex for vertex in self.rest.job(self.id)["vertices"]}
        return vertices["score/1"]["metrics"]["read-records"] if "score/1" in vertices else 0

    def has_reported(self):
        """Whether all tasks of the present attempts have told their numbers."""
        vertices = self.rest.job(self.id)["vertices"]
        return all(vertex.get("metrics", {}).get("read-records-complete") for vertex in vertices)

    def next_checkpoint(self):
        done = self.rest.checkpoints(self.id)["counts"]["completed"]
        until(lambda: self.rest.checkpoints(self.id)["counts"]["completed"] > done, "no checkpoint")
        return self.rest.checkpoints(self.id)["latest"]["completed"]["id"]


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    job = Job(tmp_path_factory.mktemp("dashboard"))
    job.settle()
    job.client.fail_task("score/1", 1, f"card is not valid: {HOSTILE}")
    until(lambda: job.rest.job(job.id)["num-restarts"] == 1, "no restart")
    until(job.has_reported, "not all tasks report again")
    yield job
    job.env.close()


@pytest.fixture(scope="module")
def watched(chromium, job):
    """The page of one user, who goes from test to test: to load it takes more than a second of a core."""
    context = chromium.new_context(viewport=DESKTOP)
    watched = Watched(context.new_page(), job.address.url)
    watched.sign_in(job.address.tokens.write)
    yield watched
    assert watched.complaints == []
    assert watched.foreign == []
    context.close()


@pytest.fixture
def modules(watched):
    """A page whose modules are called as they are."""
    return watched.page


def places(job, checkpoint):
    """Every page: its place, and what it has when it is there."""
    return {
        "overview": ("#/", "#running tbody tr"),
        "graph": (f"#/job/{job.id}/graph", ".vertex"),
        "load": (f"#/job/{job.id}/graph/{VERTEX}/load", ".drawer .chart"),
        "subtasks": (f"#/job/{job.id}/graph/{VERTEX}/subtasks", ".drawer tbody tr"),
        "vertex-watermarks": (f"#/job/{job.id}/graph/orders/watermarks", ".drawer tbody tr"),
        "backpressure": (f"#/job/{job.id}/graph/{VERTEX}/backpressure", ".drawer tbody tr"),
        "metrics": (f"#/job/{job.id}/graph/{VERTEX}/metrics", ".drawer .chart .legend b"),
        "operators": (f"#/job/{job.id}/graph/{VERTEX}/operators", ".drawer tbody tr"),
        "flame-graph": (f"#/job/{job.id}/graph/{VERTEX}/flame-graph", ".flames button"),
        "logs": (f"#/job/{job.id}/logs", ".log p"),
        "watermarks": (f"#/job/{job.id}/watermarks", "#watermarks tbody tr"),
        "checkpoints": (f"#/job/{job.id}/checkpoints", "#history tbody tr"),
        "checkpoint": (f"#/job/{job.id}/checkpoints/{checkpoint}/{VERTEX}", "#gantt .row.inner"),
        "exceptions": (f"#/job/{job.id}/exceptions", ".failure pre"),
        "timeline": (f"#/job/{job.id}/timeline", "#timeline .row.inner"),
        "rescales": (f"#/job/{job.id}/rescales", "#rescales .empty"),
        "accumulators": (f"#/job/{job.id}/accumulators", "#accumulators tbody tr"),
        "configuration": (f"#/job/{job.id}/configuration", "#configuration dd"),
        "task-managers": ("#/task-managers", "#task-managers tbody tr"),
    }


@pytest.mark.parametrize("viewport", [DESKTOP, campaign(PHONE)], ids=["desktop", "phone"])
def test_every_page_opens_and_nothing_is_executed_that_is_a_name(watched, job, viewport, tmp_path):
    page = watched.page
    page.set_viewport_size(viewport)
    page.emulate_media(color_scheme="dark" if viewport is PHONE else "light")
    sizes = {}
    for name in places(job, 0):
        where, selector = places(job, job.next_checkpoint() if name == "checkpoint" else 0)[name]
        watched.go(where, selector)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is too wide"
        assert page.query_selector("main img, main script, .notice.bad[role=alert]") is None, name
        page.screenshot(path=tmp_path / f"{name}.png")
        sizes[name] = (tmp_path / f"{name}.png").stat().st_size
    page.set_viewport_size(DESKTOP)
    assert page.title() == "Headrace"
    assert min(sizes.values()) > 5_000, sizes  # none is blank
    watched.go(f"#/job/{job.id}/graph", ".vertex")
    assert page.inner_text("h1") == HOSTILE
    assert page.eval_on_selector('[data-vertex="score/1"] > title', "title => title.textContent").startswith(HOSTILE)
    watched.go(f"#/job/{job.id}/exceptions", ".failure pre")
    assert HOSTILE in page.inner_text(".failure pre")


def figures(page):
    """The numbers that matter of a page, by their names."""
    found = page.eval_on_selector_all(
        "[data-figure]", "all => all.map(one => [one.dataset.figure, one.querySelector('b').textContent])"
    )
    return dict(found)


def rows(page, card):
    """The cells of a table, by the names of their columns."""
    return page.eval_on_selector_all(
        f"{card} tbody tr",
        "rows => rows.map(row => Object.fromEntries([...row.cells].map(one => [one.dataset.label, one.textContent])))",
    )


def test_numbers_are_those_of_rest(watched, job):
    page, rest = watched.page, job.rest
    watched.go("#/", "#running tbody tr")
    overview, shown = rest.overview(), figures(page)
    assert shown["slots"] == f"{overview['slots-available']} of {overview['slots-total']} slots free"
    for name in ("jobs-running", "jobs-finished", "jobs-cancelled", "jobs-failed"):
        assert shown[name] == str(overview[name])
    (row,) = rows(page, "#running")
    assert (row["Job"], row["State"]) == (HOSTILE, "running")
    assert row["Tasks running"] == f"{rest.jobs()[0]['tasks']['running']}/{rest.jobs()[0]['tasks']['total']}"

    watched.go(f"#/job/{job.id}/graph", "#vertices tbody tr")
    vertices = rest.job(job.id)["vertices"]
    shown = rows(page, "#vertices")
    for vertex, row in zip(vertices, shown, strict=True):
        assert row["Operator chain"] == vertex["name"]
        assert int(row["Subtasks"]) == vertex["parallelism"]
        assert int(row["Records in"].replace(",", "")) == vertex["metrics"]["read-records"]
        assert int(row["Records out"].replace(",", "")) == vertex["metrics"]["write-records"]

    watched.go(f"#/job/{job.id}/graph/{VERTEX}/subtasks", ".drawer tbody tr")
    subtasks = rest.vertex(job.id, "score/1")["subtasks"]
    assert [int(row["Records in"].replace(",", "")) for row in rows(page, ".drawer")] == [
        one["metrics"]["read-records"] for one in subtasks
    ]
    assert {row["Attempt"] for row in rows(page, ".drawer")} == {str(one["attempt"]) for one in subtasks}

    watched.go(f"#/job/{job.id}/accumulators", "#accumulators tbody tr")
    (row,) = rows(page, "#accumulators")
    assert (row["Name"], row["Value"]) == ("scored", str(sum(one["metrics"]["read-records"] for one in subtasks)))

    watched.go("#/task-managers", "#task-managers tbody tr")
    (row,) = rows(page, "#task-managers")
    assert row["TaskManager"] == rest.get("/taskmanagers")["taskmanagers"][0]["id"]


def test_checkpoints_are_those_of_rest_and_the_slowest_subtask_is_named(watched, job):
    page = watched.page
    checkpoint = job.next_checkpoint()
    watched.go(f"#/job/{job.id}/checkpoints/{checkpoint}/{VERTEX}", "[data-slowest]")
    until(lambda: len(page.query_selector_all("#gantt .row.inner")) == 6, "not all subtasks are shown")
    vertices = job.rest.job(job.id)["vertices"]
    details = {vertex["name"]: job.rest.checkpoint(job.id, checkpoint, vertex["id"])["subtasks"] for vertex in vertices}
    slowest = max(one["end_to_end_duration"] for subtasks in details.values() for one in subtasks)
    said = page.inner_text("[data-slowest] b")
    assert any(
        f"subtask {one['index'] + 1} of {name}," in said
        for name, subtasks in details.items()
        for one in subtasks
        if one["end_to_end_duration"] == slowest
    ), said
    assert len(rows(page, "main .card:last-of-type")) == 2


def test_watermarks_of_all_operators_are_on_one_page(watched, job):
    watched.go(f"#/job/{job.id}/watermarks", "#watermarks tbody tr")
    operators = [
        operator
        for vertex in job.rest.get(f"/jobs/{job.id}/watermarks")["vertices"]
        for operator in vertex["operators"]
    ]
    shown = rows(watched.page, "#watermarks")
    assert [row["Operator"] for row in shown] == [f"{one['name']} {one['uid']}" for one in operators]
    assert shown[0]["Lowest watermark"] == "end of input"
    late = [int(row["Late, dropped"]) for row in shown]
    assert late == [one["late-records-dropped"] for one in operators]
    watched.page.click("#watermarks tbody tr:first-child")
    watched.page.wait_for_selector("text=Subtasks of Source: orders")


class BelowAPath(BaseHTTPRequestHandler):
    """A proxy that serves a dashboard below a path of its own."""

    target = ""

    def do_GET(self):
        assert self.path.startswith("/teams/flows/"), self.path
        own = {"Authorization": self.headers["Authorization"]} if "Authorization" in self.headers else {}
        answer = ask(self.target, self.path.removeprefix("/teams/flows"), headers=own)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *_arguments):
        pass


def test_it_works_below_a_path_of_a_proxy(chromium, job):
    handler = type("Proxy", (BelowAPath,), {"target": job.address.url})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        context = chromium.new_context(viewport=DESKTOP)
        watched = Watched(context.new_page(), f"http://127.0.0.1:{proxy.server_port}/teams/flows")
        watched.sign_in(job.address.tokens.read)
        watched.go(f"#/job/{job.id}/graph", ".vertex")
        assert watched.complaints == []
        assert watched.foreign == []
        context.close()
        proxy.shutdown()


# --------------------------------------------------------------------------------------------------------------- tokens
def test_a_wrong_token_is_refused_and_a_good_one_stays_in_its_tab(chromium, job):
    context = chromium.new_context(viewport=DESKTOP)
    page = context.new_page()
    page.goto(f"{job.address.url}/")
    page.fill("#token", "guess")
    page.click("button.primary")
    page.wait_for_selector("text=The server does not know this token.")
    page.fill("#token", job.address.tokens.read)
    page.click("button.primary")
    page.wait_for_selector(".shell")
    assert job.address.tokens.read not in page.url
    assert job.address.tokens.read not in json.dumps(page.evaluate("({...localStorage})"))
    assert list(page.evaluate("({...sessionStorage})").values()) == [job.address.tokens.read]
    assert context.cookies() == []
    other = context.new_page()
    other.goto(f"{job.address.url}/")
    other.wait_for_selector("#token")
    page.click("text=Sign out")
    page.wait_for_selector("#token")
    assert page.evaluate("sessionStorage.length") == 0
    context.close()


def test_a_token_that_allows_looking_shows_no_actions(chromium, job):
    context = chromium.new_context(viewport=DESKTOP)
    watched = Watched(context.new_page(), job.address.url)
    watched.sign_in(job.address.tokens.read)
    watched.go(f"#/job/{job.id}/graph", ".vertex")
    assert watched.page.query_selector("[data-action]") is None
    assert watched.page.is_visible("text=read only")
    assert watched.complaints == []
    context.close()


# -------------------------------------------------------------------------------------------------------------- actions
def test_a_job_is_saved_rescaled_and_stopped_from_the_page(chromium, tmp_path):
    job = Job(tmp_path)
    context = chromium.new_context(viewport=DESKTOP)
    try:
        job.settle()
        watched = Watched(context.new_page(), job.address.url)
        watched.sign_in(job.address.tokens.write)
        watched.go(f"#/job/{job.id}/graph", ".vertex")
        page = watched.page
        read = {row["Operator chain"]: int(row["Records in"].replace(",", "")) for row in rows(page, "#vertices")}
        assert list(read.values()) == [NUM_ORDERS, 2, NUM_ORDERS + 2]

        page.click("[data-action=savepoint]")
        page.fill("dialog input", str(tmp_path / "saved"))
        page.click("dialog button.primary")
        page.wait_for_selector("dialog .notice.good code")
        assert Path(page.inner_text("dialog .notice.good code")).is_dir()
        page.click("dialog .buttons button")

        before = job.rest.checkpoints(job.id)["counts"]["completed"]
        page.click("[data-action=checkpoint]")
        page.check("dialog input[type=checkbox]")
        page.click("dialog button.primary")
        page.wait_for_selector("dialog .notice.good code")
        assert (tmp_path / "checkpoints") in Path(page.inner_text("dialog .notice.good code")).parents
        assert job.rest.checkpoints(job.id)["counts"]["completed"] > before
        page.click("dialog .buttons button")

        page.click("[data-action=rescale]")
        assert page.is_disabled("dialog button.primary")
        page.fill("dialog input[type=number]", "1")
        page.click("dialog button.primary")
        page.wait_for_selector("dialog .notice.good")
        assert {vertex["parallelism"] for vertex in job.rest.job(job.id)["vertices"]} == {1}
        page.click("dialog .buttons button")

        watched.go(f"#/job/{job.id}/rescales", "#rescales tbody tr")
        (rescale,) = rows(page, "#rescales")
        assert (rescale["Asked by"], rescale["Result"], rescale["Why"]) == ("command", "done", NOTHING)
        changed = [vertex["name"][:39] for vertex in job.rest.job(job.id)["vertices"]]
        assert [name in rescale["Parallelism"] for name in changed] == [True] * rescale["Parallelism"].count("2 → 1")

        page.click("[data-action=stop]")
        page.fill("dialog input", "not/absolute")
        page.click("dialog button.primary")
        page.wait_for_selector("dialog .notice.bad")
        assert "absolute path" in page.inner_text("dialog .notice.bad")
        page.fill("dialog input", str(tmp_path / "saved"))
        page.click("dialog button.primary")
        page.wait_for_selector("dialog .notice.good code")
        assert job.rest.job_status(job.id) == "FINISHED"
        page.click("dialog .buttons button")
        page.wait_for_selector(".headline .pill:has-text('finished')")
        assert page.query_selector("[data-action]") is None  # nothing can be done with it any more
        assert [complaint for complaint in watched.complaints if "400" not in complaint] == []
    finally:
        context.close()
        job.env.close()


def test_a_job_is_cancelled_only_after_a_confirmation(chromium, tmp_path):
    job = Job(tmp_path)
    context = chromium.new_context(viewport=PHONE)
    try:
        until(lambda: job.rest.job_status(job.id) == "RUNNING", "it does not run")
        watched = Watched(context.new_page(), job.address.url)
        watched.sign_in(job.address.tokens.write)
        watched.go(f"#/job/{job.id}/graph", "[data-action=cancel]")
        watched.page.click("[data-action=cancel]")
        watched.page.click("dialog .buttons button:not(.danger)")
        watched.page.wait_for_selector("dialog", state="detached")
        assert job.rest.job_status(job.id) == "RUNNING"
        watched.page.click("[data-action=cancel]")
        watched.page.click("dialog .buttons button.danger")
        until(lambda: job.rest.job_status(job.id) == "CANCELED", "it is not cancelled")
        watched.page.wait_for_selector(".headline .pill:has-text('canceled')")
    finally:
        context.close()
        job.env.close()


def test_a_page_that_is_opened_again_has_its_files(chromium, job):
    """Forty files by HTTP would take the process with the cluster as long as many answers about jobs."""
    context = chromium.new_context()
    watched = Watched(context.new_page(), job.address.url)
    watched.sign_in(job.address.tokens.read)
    watched.page.goto("about:blank")
    session = context.new_cdp_session(watched.page)
    session.send("Network.enable")
    asked, kept = {}, set()
    session.on("Network.requestWillBeSent", lambda event: asked.update({event["requestId"]: event["request"]["url"]}))
    session.on("Network.requestServedFromCache", lambda event: kept.add(event["requestId"]))
    session.on(
        "Network.responseReceived",
        lambda event: kept.add(event["requestId"]) if event["response"].get("fromDiskCache") else None,
    )
    watched.page.goto(f"{watched.url}/")
    watched.page.wait_for_selector("#running tbody tr")
    files = {number for number, url in asked.items() if "/web/" in url}
    assert len(files) > 30
    assert files <= kept, [asked[number] for number in files - kept]
    assert watched.complaints == watched.foreign == []
    context.close()


def test_answers_say_what_they_took_and_files_do_not(job):
    (work,) = re.fullmatch(
        r"work;dur=([0-9.]+)", ask(job.address.url, f"/jobs/{job.id}", job.address.tokens.read).headers["server-timing"]
    ).groups()
    assert 0 < float(work) < 1_000
    assert "server-timing" not in ask(job.address.url, "/").headers
    assert "server-timing" not in ask(job.address.url, f"/jobs/{job.id}").headers


# ----------------------------------------------------------------------------------------------------------- pure parts
def call(modules, module, function, *arguments):
    """What a function of a module gives."""
    return modules.evaluate(
        """async ([module, name, given]) => {
            const found = await import(new URL(`parts/${module}.js`, document.querySelector('script').src));
            return found[name](...given);
        }""",
        [module, function, list(arguments)],
    )


def test_a_line_of_a_log_is_told_without_what_all_lines_have(modules):
    """As `headrace logs` prints it; a line of any other form stays as it is."""
    line = f'level=WARNING time=2026-01-02T03:04:05.006Z host=tm-1 job={"ab" * 16} operator="a -> b" subtask=3 '
    line += 'attempt=2 epoch=1 logger=shop event="say \\"x\\" = a\\\\b"'
    told = {"at": 1767323045006, "level": "WARNING", "place": "a -> b, subtask 4 attempt=2", "said": 'say "x" = a\\b'}
    assert call(modules, "log_lines", "partsOf", line) == told
    line = "level=INFO time=2026-01-02T03:04:05.006Z host=jm-1 machine=JobManager epoch=1 checkpoint=7 event=aborted"
    told = {"at": 1767323045006, "level": "INFO", "place": "JobManager checkpoint=7", "said": "aborted"}
    assert call(modules, "log_lines", "partsOf", line) == told
    for other in ("", "a traceback = x", "time=2026-01-02T03:04:05Z what", "time=x event=1", 'time="open event=1'):
        plain = {"at": None, "level": "INFO", "place": "", "said": other}
        assert call(modules, "log_lines", "partsOf", other) == plain


@pytest.mark.parametrize(
    ("now", "worked", "then"),
    [(0, 0, 3_000), (10, 5, 3_000), (1_400, 5, 3_000), (1_600, 5, 6_000), (10, 30, 6_000), (10, 1_000, 102_000)],
)
def test_all_that_a_page_asks_is_asked_at_once_and_seldom_where_answers_take_long(modules, now, worked, then):
    """At multiples of the interval; answers take a hundredth of a processor at most."""
    assert call(modules, "api", "pause", now, 3_000, worked) + now == then
    assert then - now >= 100 * worked


def vertex(name, busy, held, **more):
    spread = {"max-busy": busy, "max-backpressured": held, "skew": 0, "largest-subtask": 0, "largest-share": 0.5}
    numbers = {"busy": busy, "backpressured": held, "read-records-per-second": 1000, "parallelism": 2}
    return {"id": name, "name": name, **numbers, **more, "spread": {**spread, **more.get("spread", {})}}


def graph(vertices, edges):
    nodes = [
        {"id": one["id"], "inputs": [{"id": source} for source, target in edges if target == one["id"]]}
        for one in vertices
    ]
    return {"vertices": vertices, "plan": {"nodes": nodes}}


@pytest.mark.parametrize(
    ("loads", "edges", "cause"),
    [
        # The first busy one below a chain that is held up; those behind it are idle.
        ({"s": (0.1, 0.9), "m": (0.2, 0.8), "slow": (0.97, 0), "k": (0.1, 0)}, ["s m", "m slow", "slow k"], ["slow"]),
        # Of two readers the busy one.
        ({"s": (0.1, 0.9), "slow": (0.9, 0), "quick": (0.1, 0)}, ["s slow", "s quick"], ["slow"]),
        # A slow sink holds up all before it, however busy they are.
        ({"s": (0.2, 0.8), "m": (0.3, 0.7), "k": (0.99, 0.0)}, ["s m", "m k"], ["k"]),
        # Who takes the time of a slot holds up those behind it, too: they wait for their turn, those before for them.
        (
            {"s": (0.02, 0.6), "slow": (0.6, 0.2), "m": (0.04, 0.5), "k": (0.07, 0)},
            ["s slow", "slow m", "m k"],
            ["slow"],
        ),
        # Nothing is held up.
        ({"s": (0.99, 0.05), "m": (0.95, 0), "k": (0.9, 0)}, ["s m", "m k"], []),
        # Two chains, each with its own.
        ({"a": (0, 0.9), "b": (0.9, 0), "c": (0, 0.8), "d": (0.8, 0)}, ["a b", "c d"], ["b", "d"]),
    ],
)
def test_the_bottleneck_is_the_first_busy_operator_below_what_is_held_up(modules, loads, edges, cause):
    job = graph([vertex(name, *load) for name, load in loads.items()], [tuple(edge.split()) for edge in edges])
    hints = call(modules, "hints", "hintsOf", job)
    assert [hint["id"] for hint in hints if hint["kind"] == "bottleneck"] == cause


def test_nobody_who_has_little_to_do_is_called_the_bottleneck(modules):
    """Seen of a job of 2,000 records a second at parallelism 4, on a machine that was too small for it."""
    for loads in (
        {"s": (0.18, 0.13), "m": (0.1, 0.08), "k": (0.04, 0)},
        {"s": (0.01, 0.64), "m": (0.04, 0), "k": (0.23, 0)},
        {"s": (0.11, 0.99), "m": (0.02, 0), "k": (0, 0)},
    ):
        job = graph([vertex(name, *load) for name, load in loads.items()], [("s", "m"), ("m", "k")])
        (hint,) = call(modules, "hints", "hintsOf", job)
        assert (hint["id"], hint["title"]) == ("m", "m holds others up")
        assert "It holds up s, though" in hint["text"]
        assert "asynchronous calls" in hint["text"]


def test_who_takes_all_the_time_of_a_slot_is_the_bottleneck_though_nothing_is_held_up(modules):
    source, slow = (
        vertex("s", 0.01, 0.02, slotSharingGroup="default"),
        vertex("slow", 0.97, 0, slotSharingGroup="default"),
    )
    (hint,) = call(modules, "hints", "hintsOf", graph([source, slow], [("s", "slow")]))
    assert (hint["kind"], hint["id"]) == ("bottleneck", "slow")
    assert "waits for its turn" in hint["text"]
    source["slotSharingGroup"] = "alone"  # it would be held up
    assert call(modules, "hints", "hintsOf", graph([source, slow], [("s", "slow")])) == []


def test_skewed_subtasks_and_a_source_that_holds_event_time_back_are_named(modules):
    spread = {"skew": 60, "largest-subtask": 3, "largest-share": 0.7}
    skewed = vertex("k", 0.9, 0, parallelism=4, spread=spread)
    (hint,) = call(modules, "hints", "hintsOf", graph([vertex("s", 0.5, 0), skewed], [("s", "k")]))
    assert hint["kind"] == "skew"
    assert "Subtask 4 of 4 reads 70 %" in hint["text"]
    job = graph([vertex("s", 0.5, 0), skewed], [("s", "k")])
    job["plan"]["nodes"][1]["inputs"][0] |= {"ship_strategy": "HASH", "edge": 2}
    (hint,) = call(modules, "hints", "hintsOf", job)
    assert (hint["keyed"]["edge"], hint["keyed"]["subtask"]) == (2, 3)
    keys = [{"key": "'c0'", "share": 0.52}, {"key": "'c1'", "share": 0.2}, {"key": "'c2'", "share": 0.01}]
    answer = {"subtasks": [{"subtask": 3, "looked-at": 9, "keys-seen": 40, "keys": keys}]}
    named = call(modules, "hints", "withKeys", hint, answer)
    assert named["text"].endswith("reads 70 % of its records. Key 'c0' has 52 % of what it reads, 'c1' has 20 %.")
    answer["subtasks"][0]["keys"] = keys[2:]
    assert "No key has 10 % of them, of 40" in call(modules, "hints", "withKeys", hint, answer)["text"]
    answer["subtasks"][0]["subtask"] = 1
    assert call(modules, "hints", "withKeys", hint, answer) == hint

    def source(name, *watermarks):
        parts = [{"name": str(i), "watermark": ms, "idle": ms == "idle"} for i, ms in enumerate(watermarks)]
        parts = [{**part, "watermark": None} if part["idle"] else part for part in parts]
        return {"uid": name, "name": name, "subtasks": [{"subtask": 0, "parts": parts}]}

    def held(*sources):
        return call(modules, "hints", "holders", {"vertices": [{"operators": list(sources)}]})

    assert held(source("a", 100_000, 101_000), source("b", 99_500)) == []
    assert held(source("a", 100_000, 101_000), source("b", "idle")) == []
    (hint,) = held(source("a", 100_000, 101_000), source("b", 20_000))
    assert hint["id"] == "b"
    (hint,) = held(source("a", 100_000, 101_000), source("b", None))
    assert hint["id"] == "b"
    assert "no record yet" in hint["text"]


def test_a_graph_is_laid_out_without_overlaps_and_always_the_same(modules):
    """Two hundred vertices in layers, with edges over several of them, and one that closes a loop."""
    ids = [f"v{i}" for i in range(200)]
    edges = [{"source": f"v{(i * 7) % i}" if i % 3 else f"v{i // 2}", "target": f"v{i}"} for i in range(1, 200)]
    edges += [{"source": f"v{i}", "target": f"v{i + 40}"} for i in range(0, 150, 9)]
    edges.append({"source": "v199", "target": "v0", "feedback": True})
    script = """async ([ids, edges, options]) => {
        const { layOut } = await import(new URL('parts/layout.js', document.querySelector('script').src));
        const found = layOut(ids, edges, options);
        return [[...found.vertices], [...found.routes.values()], found.width, found.height];
    }"""
    size = {"width": 200, "height": 80}
    for is_down in (False, True):
        options = {"size": size, "gap": {"along": 100, "across": 20}, "isDown": is_down}
        vertices, routes, width, height = modules.evaluate(script, [ids, edges, options])
        assert [vertices, routes, width, height] == modules.evaluate(script, [ids, edges, options])
        at = {name: (point["x"], point["y"]) for name, point in vertices}
        assert set(at) == set(ids)
        assert len(routes) == len(edges)
        for name, (x, y) in at.items():
            assert x - size["width"] / 2 + 1e-6 >= 0
            assert x + size["width"] / 2 <= width + 1e-6
            assert y - size["height"] / 2 + 1e-6 >= 0
            assert y + size["height"] / 2 <= height + 1e-6
            for other, (x2, y2) in at.items():
                if name < other:
                    apart = abs(x - x2) >= size["width"] - 1e-6 or abs(y - y2) >= size["height"] - 1e-6
                    assert apart, (name, other)
        axis = 1 if is_down else 0
        for edge in edges:
            if "feedback" not in edge:
                assert at[edge["source"]][axis] < at[edge["target"]][axis], edge


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        ("count", 0, "0"),
        ("count", 999, "999"),
        ("count", 1000, "1k"),
        ("count", 1234, "1.23k"),
        ("count", 99_960, "100k"),
        ("count", 12_345_678, "12.3M"),
        ("count", None, NOTHING),
        ("bytes", 1023, "1023 B"),
        ("bytes", 1536, "1.5 KiB"),
        ("bytes", 3 << 30, "3.0 GiB"),
        ("duration", 0, "0 ms"),
        ("duration", 999, "999 ms"),
        ("duration", 61_000, "1 min 1 s"),
        ("duration", 90_061_000, "1 d 1 h"),
        ("duration", -1, NOTHING),
        ("percent", 0.105, "11 %"),
        ("watermark", None, "none yet"),
        ("watermark", -(2**63), "none yet"),
        ("watermark", 2**63 - 1, "end of input"),
        ("watermark", 1_790_000_000_000, "2026-09-21 14:13:20.000"),
    ],
)
def test_numbers_are_written_for_people(modules, function, value, text):
    assert call(modules, "format", function, value) == text


def test_records_are_looked_at_where_that_is_allowed_and_hidden_fields_are_in_no_page(chromium, tmp_path):
    env = dashboard_environment(rest={"allows_record_samples": True, "masked_fields": ("amount",)})
    context = chromium.new_context(viewport=DESKTOP)
    try:
        build_orders(env, tmp_path / "checkpoints", HOSTILE, loops=10)
        job_id = env.execute_async("shown").get_job_id()
        (address,) = env._cluster.rest_addresses()
        watched = Watched(context.new_page(), address.url)
        watched.sign_in(address.tokens.write)
        watched.go(f"#/job/{job_id}/graph/{VERTEX}/records", "[data-action=look]")
        watched.page.fill(".records input", "customer")
        watched.page.click("[data-action=look]")
        watched.page.wait_for_selector("code.record")
        found = watched.page.eval_on_selector_all("code.record", "all => all.map(one => one.textContent)")
        assert found
        for text in found:
            row = ast.literal_eval(text)
            assert (row["amount"], row["customer"]) == ("***", "***")
            assert row["ts"] > 0
        # Who may only look has no such tab.
        other = Watched(chromium.new_context(viewport=DESKTOP).new_page(), address.url)
        other.sign_in(address.tokens.read)
        other.go(f"#/job/{job_id}/graph/{VERTEX}", ".drawer")
        assert "Records" not in other.page.inner_text(".drawer .tabs").split("\n")
        assert not watched.complaints
    finally:
        context.close()
        env.close()
