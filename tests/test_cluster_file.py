"""``ray-cluster.yaml``: what would keep a fresh cluster from running a job can be seen without starting one."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.actors.ray.node_types import NodeType, types_in

ROOT = Path(__file__).resolve().parents[1]

yaml = pytest.importorskip("yaml")


@pytest.fixture
def config():
    return yaml.safe_load((ROOT / "ray-cluster.yaml").read_text())


def test_all_nodes_get_the_token_and_want_it(config):
    assert config["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    assert "chmod 600 ~/.ray/auth_token" in config["setup_commands"][0]
    for name in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert "RAY_AUTH_MODE=token ray start" in config[name][-1]


def test_only_what_the_package_is_built_from_is_copied(config):
    sources = {Path(source) for source in config["file_mounts"].values()} - {Path("~/.ray/auth_token")}
    assert all((ROOT / source).exists() for source in sources)
    assert not any(Path() == source for source in sources), "the clone's environment would go along"
    project = (ROOT / "pyproject.toml").read_text()
    assert {Path("api"), Path("engine"), Path("actors"), Path("state"), Path("pyproject.toml")} <= sources
    assert all(Path(name) in sources for name in ("README.md", "LICENSE") if f'"{name}"' in project)


def test_python_of_a_submitted_command_has_the_package(config):
    [install] = [command for command in config["setup_commands"] if "pip install" in command]
    assert '"$HOME/headrace[cluster]"' in install
    for name in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert config[name][-1].startswith('export PATH="$HOME/headrace-venv/bin:$PATH";')


def test_node_types_say_what_they_offer(config):
    assert list(types_in(config)) == [NodeType("worker", 4.0, 8)]
    assert config["available_node_types"]["worker"]["min_workers"] == 0
    assert config["available_node_types"][config["head_node_type"]]["resources"] == {"CPU": 0}


def test_ray_takes_the_file(config):
    from ray.autoscaler._private.util import prepare_config, validate_config

    pytest.importorskip("jsonschema")
    validate_config(prepare_config(config))
