"""Panels of the dashboard that ask for something: the state of a key, programs that are submitted.

Risks: what is shown is not what REST says, a refusal that is not told, markup in keys and values, a page that complains
or is too wide on a phone.
"""

from __future__ import annotations

import json

import pytest
from dashboard_kit import CHROMIUM, DESKTOP, HOSTILE, PHONE, Watched, browser, until
from panel_kit import Shop
from rest_kit import ask

pytest.importorskip("playwright", reason="drives the browser")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"),
    pytest.mark.xdist_group("dashboard"),
]


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    shop = Shop(tmp_path_factory.mktemp("panels"))
    shop.settle()
    yield shop
    shop.env.close()


@pytest.fixture(scope="module")
def watched(chromium, shop):
    """The page of one user, who goes from test to test: to load it takes more than a second of a core."""
    context = chromium.new_context(viewport=DESKTOP)
    watched = Watched(context.new_page(), shop.address.url)
    watched.sign_in(shop.address.tokens.write)
    yield watched
    assert watched.complaints == []
    assert watched.foreign == []
    context.close()


def is_narrow_enough(page):
    page.set_viewport_size(PHONE)
    try:
        return page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    finally:
        page.set_viewport_size(DESKTOP)


@pytest.mark.parametrize("consistency", ["live", "checkpoint"])
def test_the_state_of_a_key_is_that_of_rest(watched, shop, consistency):
    page = watched.page
    watched.go(f"#/job/{shop.id}/graph/accounts/state", "[data-action=ask-state]")
    known = shop.rest.states(shop.id, "accounts")
    assert page.eval_on_selector_all("[data-field=state] option", "all => all.map(one => one.textContent)") == [
        f"{one['state']} of accounts ({one['kind']})" for one in known
    ]
    assert page.get_attribute("[data-field=key]", "placeholder") == f"as {known[0]['key-example']}"
    page.select_option("[data-field=consistency]", consistency)
    for customer in ("ann", HOSTILE, "nobody"):
        page.fill("[data-field=key]", customer)
        page.click("[data-action=ask-state]")
        title = f"items of {json.dumps(customer)}, {'now' if consistency == 'live' else 'in the newest checkpoint'}"
        until(lambda title=title: title in page.inner_text(".drawer"), title)
        answer = shop.rest.state(shop.id, "accounts", "items", customer, consistency=consistency)
        shown = page.eval_on_selector_all(".drawer code.record", "all => all.map(one => one.textContent)")
        assert shown == [one["value"] for one in answer["values"]]
        assert answer["found"] == (customer != "nobody")
    assert page.title() == "Headrace"
    assert is_narrow_enough(page)


def test_a_key_that_is_none_and_fields_that_are_hidden(chromium, shop):
    context = chromium.new_context(viewport=DESKTOP)
    watched = Watched(context.new_page(), shop.address.url)
    page = watched.page
    watched.sign_in(shop.address.tokens.write)
    watched.go(f"#/job/{shop.id}/graph/accounts/state", "[data-action=ask-state]")
    page.select_option("[data-field=state]", index=1)
    page.fill(".records label:has-text('Hide') input", "Card, *")
    page.fill("[data-field=key]", "ann")
    page.keyboard.press("Enter")
    page.wait_for_selector(".drawer code.record")
    assert json.loads(page.inner_text(".drawer code.record")) == {"item": "str", "card": "str", "price": "int"}
    assert "Hidden: card" in page.inner_text(".drawer")
    page.fill("[data-field=key]", "x" * 5_000)
    page.click("[data-action=ask-state]")
    page.wait_for_selector(".drawer .notice.bad")
    assert "4,096 characters" in page.inner_text(".drawer .notice.bad")
    assert [one for one in watched.complaints if "400" not in one] == []
    context.close()


def test_a_program_is_uploaded_run_and_deleted_from_the_page(chromium, shop, tmp_path):
    (tmp_path / "kept").mkdir()
    server, url = shop.taking_programs(tmp_path / "kept")
    context = chromium.new_context(viewport=DESKTOP)
    try:
        watched = Watched(context.new_page(), url)
        page = watched.page
        watched.sign_in(shop.address.tokens.write)
        page.click("nav >> text=Submit")
        page.wait_for_selector("#programs .empty")
        program = tmp_path / "orders.py"
        program.write_text(f"import sys\nprint(sys.argv[1:])\nprint('submitted {shop.id} (shop) to cluster local')\n")
        page.set_input_files("input[type=file]", program)
        page.click("[data-action=upload]")
        page.wait_for_selector("#programs [data-action=run]")
        (listed,) = ask(url, "/jars", shop.address.tokens.write).json["files"]
        cells = page.eval_on_selector_all("#programs td", "all => all.map(one => one.textContent)")
        assert (cells[0], cells[2]) == (listed["name"], f"{listed['size']} B")
        page.click("[data-action=run]")
        page.fill("[data-field=arguments]", f"--name\n{HOSTILE}")
        page.fill("[data-field=parallelism]", "2")
        page.click("dialog button.primary")
        page.wait_for_selector("dialog .notice.good a")
        (run,) = server._programs._runs.values()
        assert list(run.lines)[:2] == ["options ['--parallelism', '2']", str(["--name", HOSTILE])]
        assert is_narrow_enough(page)
        page.set_viewport_size(DESKTOP)
        page.click("dialog .notice.good a")
        page.wait_for_selector("h1:has-text('shop')")

        program.write_text("raise SystemExit('no rate for EUR')")
        watched.go("#/submit", "#programs [data-action=delete]")
        page.set_input_files("input[type=file]", program)
        page.click("[data-action=upload]")
        until(lambda: len(page.query_selector_all("[data-action=run]")) == 2, "it is not listed")
        page.click("[data-action=run]")
        page.click("dialog button.primary")
        page.wait_for_selector("dialog .notice.bad")
        assert "no rate for EUR" in page.inner_text("dialog .notice.bad")
        page.click("dialog .buttons button")
        for left in (1, 0):
            page.click("[data-action=delete]")
            page.click("dialog button.danger")
            page.wait_for_selector("dialog .notice.good")
            page.click("dialog .buttons button")
            until(lambda left=left: len(page.query_selector_all("[data-action=run]")) == left, "it is not deleted")
        assert list((tmp_path / "kept").iterdir()) == []
        assert watched.complaints == []
        reader = Watched(chromium.new_context().new_page(), url)
        reader.sign_in(shop.address.tokens.read)
        assert reader.page.query_selector("nav >> text=Submit") is None
    finally:
        context.close()
        server.close()
