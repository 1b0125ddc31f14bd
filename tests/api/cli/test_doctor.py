"""What ``headrace doctor`` says of secrets and ports, over a ``/proc`` of plain files and links."""

import json
import os
import re
from pathlib import Path

import pytest

from headrace.actors.ray import java as runtimes
from headrace.cli import doctor
from headrace.cli.doctor import PYTHONS, Check, key_file, open_ports, ray_listeners, token_file
from headrace.cli.main import main

LOOPBACK, ALL, ALL_6, MAPPED = "0100007F", "00000000", "0" * 32, "0000000000000000FFFF00000100007F"


@pytest.fixture
def proc(tmp_path):
    """Makes processes that listen."""
    (tmp_path / "net").mkdir()
    tables = {"tcp": ["header"], "tcp6": ["header"]}

    def add(pid, command, host, port, *, state="0A", environ=b"A=b\0"):
        inode = pid * 10
        tables["tcp" if len(host) == 8 else "tcp6"].append(f"0: {host}:{port:04X} 00:0000 {state} 0 0 0 0 0 {inode} 1")
        (tmp_path / str(pid) / "fd").mkdir(parents=True)
        (tmp_path / str(pid) / "cmdline").write_bytes(command)
        (tmp_path / str(pid) / "environ").write_bytes(environ)
        os.symlink(f"socket:[{inode}]", tmp_path / str(pid) / "fd" / "3")
        for name, lines in tables.items():
            (tmp_path / "net" / name).write_text("\n".join(lines) + "\n")

    add.root = tmp_path
    add(1, b"/sbin/init", ALL, 22)
    return add


def test_ports_of_ray_that_everybody_reaches_are_told(proc):
    proc(7, b"/x/ray/core/src/ray/gcs/gcs_server\0--y", ALL_6, 6379)
    proc(8, b"ray::RayHost", ALL, 10_002)
    proc(9, b"ray::DashboardAgent", LOOPBACK, 52_365)
    check = open_ports(ray_listeners(proc.root))
    assert not check.is_fine
    assert "2 of 3 listen on all interfaces (6379 to 10002), without a token" in check.found
    assert "RAY_AUTH_MODE=token" in check.advice


def test_ports_that_want_a_token_will_do(proc):
    proc(7, b"/x/ray/core/src/ray/gcs/gcs_server\0", ALL_6, 6379, environ=b"A=b\0RAY_AUTH_MODE=token\0")
    assert open_ports(ray_listeners(proc.root)).is_fine
    proc(8, b"/x/ray/core/src/ray/raylet/raylet\0", ALL_6, 6380)
    assert not open_ports(ray_listeners(proc.root)).is_fine


def test_the_loopback_and_ports_of_others_do_not_count(proc):
    proc(7, b"/x/ray/core/src/ray/gcs/gcs_server\0", MAPPED, 6379)
    proc(8, b"python ray_free.py", ALL, 80)
    proc(9, b"ray::RayHost", ALL, 5_000, state="01")  # connected, not listening
    check = open_ports(ray_listeners(proc.root))
    assert (check.is_fine, check.found) == (True, "none that other machines reach")


def test_a_system_without_proc_is_no_failure(tmp_path):
    assert open_ports(ray_listeners(tmp_path)).is_fine


@pytest.mark.parametrize(("mode", "is_fine"), [(0o600, True), (0o400, True), (0o640, False), (0o604, False)])
def test_a_token_is_for_one_user_only(tmp_path, mode, is_fine):
    token = tmp_path / "auth_token"
    token.write_text("t0ken")
    token.chmod(mode)
    check = token_file(token)
    assert check.is_fine is is_fine
    assert is_fine or check.advice == f"chmod 600 {token}"
    assert "t0ken" not in f"{check}"


def test_no_token_is_no_failure(tmp_path):
    assert token_file(tmp_path / "none").is_fine


@pytest.mark.parametrize(
    ("mode", "is_fine"), [(0o700, True), (0o755, True), (0o775, False), (0o777, False), (0o1777, True)]
)
def test_a_token_that_others_can_replace_is_told(tmp_path, mode, is_fine):
    token = tmp_path / "folder" / "auth_token"
    token.parent.mkdir()
    token.write_text("t0ken")
    token.chmod(0o600)
    token.parent.chmod(mode)
    check = token_file(token)
    assert check.is_fine is is_fine
    assert is_fine or check.advice == f"chmod 700 {token.parent}"


@pytest.mark.parametrize(
    ("mode", "text", "is_fine"),
    [(0o600, "k " + "5a" * 32, True), (0o640, "k " + "5a" * 32, False), (0o600, "5a", False)],
)
def test_a_key_file_that_jobs_will_not_take_is_told(tmp_path, mode, text, is_fine):
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(mode)
    check = key_file(str(path))
    assert check.is_fine is is_fine
    assert "5a" not in f"{check}"
    assert key_file(None).is_fine


@pytest.fixture
def with_java(monkeypatch, tmp_path):
    """Makes runtimes, the only ones there are, on a machine that has or lacks the packages of Spark."""

    def make(packages=("pyspark", "raydp"), pyspark="3.5.6", **versions):
        monkeypatch.setattr(doctor, "find_spec", lambda name: object() if name in packages else None)
        monkeypatch.setattr(doctor.metadata, "version", lambda _name: pyspark)
        monkeypatch.setattr(runtimes.importlib.util, "find_spec", lambda _name: None)
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
        for place, (version, script) in versions.items():
            home = tmp_path / place
            (home / "bin").mkdir(parents=True)
            (home / "bin" / "java").write_text(f"#!/bin/sh\n{script}\n")
            (home / "bin" / "java").chmod(0o755)
            (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
            monkeypatch.setenv(*{"home": ("JAVA_HOME", str(home)), "path": ("PATH", str(home / "bin"))}[place])
        return doctor.java()

    return make


def test_a_java_that_spark_runs_on_is_named_with_what_is_passed_over(with_java, tmp_path):
    check = with_java(home=("1.8.0_292", "exit 0"), path=("17.0.9", "exit 0"))
    assert (check.is_fine, check.advice) == (True, "")
    assert check.found == (
        f"Java 17 of java on PATH ({tmp_path / 'path'}); "
        f"JAVA_HOME ({tmp_path / 'home'}) is Java 8, and is passed over; PySpark 3.5.6"
    )


@pytest.mark.parametrize(
    ("made", "found", "advice"),
    [
        ({}, "none", "set JAVA_HOME to a Java of 11 to 21"),
        ({"home": ("24", "exit 0")}, "is Java 24, and is passed over", "set JAVA_HOME to a Java of 11 to 21"),
        ({"home": ("17", "echo no memory >&2; exit 3")}, "does not run: no memory", "name another one with JAVA_HOME"),
        ({"home": ("17", "exit 0"), "pyspark": "4.0.1"}, "PySpark 4.0.1", "RayDP goes with PySpark 3.5.x"),
    ],
    ids=["none", "too new", "broken", "PySpark 4"],
)
def test_what_keeps_data_sets_from_spark_is_told_with_how_to_mend_it(with_java, made, found, advice):
    check = with_java(**made)
    assert not check.is_fine
    assert found in check.found
    assert check.advice.startswith(advice)


@pytest.mark.parametrize("made", [{}, {"home": ("17", "exit 0")}], ids=["no Java", "a Java"])
def test_without_the_packages_of_spark_nothing_is_wrong(with_java, made):
    check = with_java(packages=("pyspark",), **made)
    assert check.is_fine
    assert "raydp not installed, so data sets run in the program's process" in check.found
    assert "pip install 'headrace[spark]'" in check.advice


def test_the_pythons_that_are_fine_are_those_that_the_package_installs_on():
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    low, high = re.search(r'^requires-python = ">=3\.(\d+),<3\.(\d+)"$', project, re.MULTILINE).groups()
    assert ((3, int(low)), (3, int(high) - 1)) == PYTHONS
    listed = re.findall(r"Programming Language :: Python :: 3\.(\d+)", project)
    assert listed == [str(minor) for minor in range(int(low), int(high))]
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    assert f"Python 3.{low} to 3.{int(high) - 1}" in readme


def test_checks_are_told_as_json_line_by_line(monkeypatch, capsys):
    found = [Check("a", True, "1"), Check("b", False, "none", "install b")]
    monkeypatch.setattr(doctor, "checks", lambda: iter(found))
    assert main(["doctor", "--json"]) == 1
    assert [Check(**json.loads(line)) for line in capsys.readouterr().out.splitlines()] == found
