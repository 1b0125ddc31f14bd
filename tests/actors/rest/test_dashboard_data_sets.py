"""Data sets on the dashboard: in the list of jobs, and each with its stages, its plan, and why it has failed.

Risks: pages that fail or complain; numbers that are not REST's; markup in names and in failures; buttons that mean
nothing for a data set, or that a token which only looks must not see; more stages than are kept.
"""

from __future__ import annotations

import pytest
from dashboard_kit import CHROMIUM, DESKTOP, HOSTILE, PHONE, Watched, browser, dashboard_environment, until
from rest_kit import ask, build

from headrace import ExecutionEnvironment
from headrace.dataset.run_record import RunRecord, now_ms
from headrace.engine.errors import HeadraceError
from headrace.engine.plan.run_watch import MOST_STAGES, RunWatch
from headrace.engine.protocol.states import StageState
from headrace.engine.protocol.views import StageView

pytest.importorskip("playwright", reason="drives the browser")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"),
    pytest.mark.xdist_group("dashboard"),
]

STAGES = (
    StageView(1, HOSTILE, StageState.FINISHED, 8, 8, 0, 0, 40_000, 4_000, 1_790_000_000_000),
    StageView(2, "read -> parse", StageState.FINISHED, 4, 4, 0, 1, 500, 2_000, 1_790_000_000_500),
    StageView(
        3, "join -> PythonMapInArrow -> SortMergeJoin", StageState.RUNNING, 200, 50, 2, 0, None, 7_000, 0, (1, 2)
    ),
    StageView(4, "write", StageState.PENDING, 4, inputs=(3,)),
)


def fails(n):
    message = f"{HOSTILE}\nsecond line {n}"
    raise ValueError(message)


class Sets:
    """A cluster with a stream, and three data sets: one that runs, one that has failed, one of very many stages."""

    def __init__(self, directory):
        self.streams = dashboard_environment()
        build(self.streams, directory)
        self.streams.execute_async("orders")
        cluster = self.streams._connect()
        (self.address,) = cluster.rest_addresses()
        self.rest = self.streams.get_rest_client()
        self._env = ExecutionEnvironment.get_execution_environment("local", 2)
        reports = self._env._reports
        reports._must_be_there, reports._cluster = True, cluster
        with pytest.raises(HeadraceError):
            self._env.from_elements(1).map(fails).collect()
        self.failed = self.newest_of(1)
        many = RunWatch(now_ms)
        with reports.tell(RunRecord("many", many)):
            for number in range(MOST_STAGES + 7):
                many.tell(StageView(number, f"stage {number}", StageState.FINISHED, 1_000, 1_000))
        self.many = self.newest_of(2)
        self.watch = RunWatch(now_ms)
        self.watch.tell(*STAGES)
        self._run = reports.tell(RunRecord(HOSTILE, self.watch))
        self._run.__enter__().plan = f"#1 Source: {HOSTILE}"
        self.running = self.newest_of(3)
        until(lambda: bool(self.rest.job(self.running)["plan"]["explained"]), "its plan is not told")

    def sets(self):
        return [job["jid"] for job in self.rest.jobs() if job.get("job-type") == "DATASET"]

    def newest_of(self, number):
        """The newest data set, once so many are shown: REST's answers are good for a while."""
        until(lambda: len(self.sets()) == number, "a run is not told")
        return self.sets()[0]

    def close(self):
        self._run.__exit__(None, None, None)
        self.streams.close()


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    sets = Sets(tmp_path_factory.mktemp("checkpoints"))
    yield sets
    sets.close()


def looking(chromium, sets, token, size=DESKTOP):
    context = chromium.new_context(viewport=size)
    watched = Watched(context.new_page(), sets.address.url)
    watched.sign_in(token)
    return watched


@pytest.fixture(scope="module")
def watched(chromium, sets):
    """The page of one user, who goes from test to test: to load it takes more than a second of a core."""
    watched = looking(chromium, sets, sets.address.tokens.write)
    yield watched
    assert watched.complaints == []
    assert watched.foreign == []
    assert watched.page.title() == "Headrace"
    watched.page.context.close()


def cells(page, selector):
    return [row.locator("td").all_inner_texts() for row in page.locator(f"{selector} tbody tr").all()]


def test_the_list_has_data_sets_beside_streams(watched, sets):
    watched.go("#/", "table.data")
    rows = {row[0].split("\n")[0]: row for row in cells(watched.page, "main")}
    assert any("data set" in row[0] and HOSTILE in row[0] for row in rows.values())
    (orders,) = [row for row in rows.values() if row[0] == "orders"]
    assert "data set" not in orders[0]
    kept = {job["jid"]: job for job in sets.rest.jobs()}
    tasks = kept[sets.running]["tasks"]
    assert (tasks["running"], tasks["total"], tasks["finished"]) == (2, 216, 8 + 4 + 50)
    assert any(f"{tasks['running']}/{tasks['total']}" in " ".join(row) for row in rows.values())


def test_stages_are_those_that_rest_tells(watched, sets):
    watched.go(f"#/job/{sets.running}", "#stages tbody tr")
    page = watched.page
    rows = cells(page, "#stages")
    told = sets.rest.job(sets.running)["vertices"]
    assert [row[0] for row in rows] == [one["name"].replace(" -> ", " → ") for one in told]
    assert [row[1].strip() for row in rows] == ["finished", "finished", "running", "pending"]
    assert [row[2].strip() for row in rows] == ["8/8", "4/4", "50/200", "0/4"]
    assert [row[3].replace(",", "").replace("\u202f", "") for row in rows] == ["40000", "500", "\u2013", "\u2013"]
    assert page.locator("#graph g.vertex").count() == 4
    assert page.locator("#graph g.edge").count() == 3
    shown = page.locator('#graph g.vertex[data-vertex="3"]').text_content()
    assert "50 of 200 tasks" in shown
    heading = page.locator("main .names").inner_text()
    assert "data set, 4 stages, 216 tasks" in heading
    page.locator("#stages tbody tr").nth(1).click()
    page.wait_for_selector('#graph g.vertex.chosen[data-vertex="2"]')


@pytest.mark.sampled(4)
@pytest.mark.parametrize("view", ["stages", "timeline", "exceptions", "accumulators", "plan"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_page_of_a_data_set_opens(watched, sets, view, size):
    page = watched.page
    page.set_viewport_size(size)
    for job_id in (sets.running, sets.failed, sets.many):
        watched.go(f"#/job/{job_id}/{view}", f"#{view if view != 'stages' else 'graph'}")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert (watched.complaints, watched.foreign, page.title()) == ([], [], "Headrace")
    page.set_viewport_size(DESKTOP)


def test_a_failure_is_said_where_one_looks_first(watched, sets):
    watched.go(f"#/job/{sets.failed}", "#reason")
    root = sets.rest.get(f"/jobs/{sets.failed}/exceptions")["root-exception"]
    assert root.split("\n")[0] in watched.page.locator("#reason").inner_text()
    watched.page.click("#reason a")
    watched.page.wait_for_selector("#exceptions pre")
    assert "second line 1" in watched.page.locator("#exceptions pre").inner_text()
    assert watched.page.locator(".actions button").count() == 0


def test_older_stages_are_counted(watched, sets):
    watched.go(f"#/job/{sets.many}", "#stages tbody tr")
    assert watched.page.locator("#stages tbody tr").count() == MOST_STAGES
    assert "7 older ones not kept" in watched.page.locator("#stages header").inner_text()


def test_the_plan_is_shown_as_text(watched, sets):
    watched.go(f"#/job/{sets.running}/plan", "#plan pre")
    assert watched.page.locator("#plan pre").inner_text() == f"#1 Source: {HOSTILE}"


def test_it_can_be_canceled_and_nothing_else_and_not_by_who_only_looks(chromium, sets, watched):
    looks = looking(chromium, sets, sets.address.tokens.read)
    looks.go(f"#/job/{sets.running}", "#stages tbody tr")
    assert looks.page.locator(".actions button").count() == 0
    looks.page.context.close()
    watched.go(f"#/job/{sets.running}", "#stages tbody tr")
    page = watched.page
    assert page.locator(".actions button").all_inner_texts() == ["Cancel"]
    page.click('[data-action="cancel"]')
    assert "is run by a program" in page.locator("dialog, [role=dialog]").inner_text()
    page.click("dialog button.danger, [role=dialog] button.danger")
    until(lambda: sets.watch.is_canceled, "the program does not hear of it")
    until(lambda: sets.rest.job_status(sets.running) == "CANCELLING", "nobody sees that it is to end")


def test_streams_have_their_pages_as_before(watched, sets):
    (orders,) = [job["jid"] for job in sets.rest.jobs() if job["name"] == "orders"]
    until(lambda: sets.rest.job_status(orders) == "RUNNING", "the stream does not run")
    watched.go(f"#/job/{orders}", "#graph g.vertex")
    tabs = watched.page.locator("nav.tabs a").all_inner_texts()
    assert "Checkpoints" in [tab.split("\n")[0] for tab in tabs]
    assert ask(sets.address.url, f"/jobs/{orders}", sets.address.tokens.read).json["job-type"] == "STREAMING"
