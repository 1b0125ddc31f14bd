"""``headrace dashboard``: it says where the page is, and hands no token to the browser."""

from __future__ import annotations

import json

import pytest
from rest_kit import ask, rest_environment

from headrace.cli import dashboard, main


@pytest.fixture
def address(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    with rest_environment() as env:
        (address,) = env._connect().rest_addresses()
        yield address


@pytest.fixture
def opened(monkeypatch):
    opened = []
    monkeypatch.setattr(dashboard.webbrowser, "open", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    return opened


def test_it_says_where_the_page_is_and_opens_it_without_the_token(address, opened, capsys):
    assert main(["dashboard"]) == 0
    shown = capsys.readouterr().out
    assert shown == f"dashboard of cluster local: {address.url}/\ntoken: {address.tokens.write}\n"
    assert opened == [f"{address.url}/"]
    assert b"<title>Headrace</title>" in ask(address.url, "/").content
    assert main(["dashboard", "local", "--read-only", "--no-browser"]) == 0
    assert f"token to look only: {address.tokens.read}\n" in capsys.readouterr().out
    assert main(["dashboard", "--json"]) == 0
    expected = {"cluster": "local", "url": f"{address.url}/", "token": address.tokens.write, "read-only": False}
    assert json.loads(capsys.readouterr().out) == expected
    assert len(opened) == 1


def test_without_a_display_no_browser_takes_the_terminal_over(address, opened, capsys, monkeypatch):
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(dashboard.sys, "platform", "linux")
    assert main(["dashboard"]) == 0
    assert address.url in capsys.readouterr().out
    assert opened == []


def test_a_cluster_that_is_not_there_is_named(address, opened, capsys):
    assert main(["dashboard", "orders"]) == 1
    assert "no REST server of cluster 'orders'" in capsys.readouterr().err
    assert opened == []
