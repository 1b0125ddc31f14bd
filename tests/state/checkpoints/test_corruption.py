"""A short corruption campaign, and that it would see a miss: `corruption_campaign.py` says what it does."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from campaigns import planted
from lost_checkpoint_kit import expected, flip, newest_manifest, run

from headrace.engine.connectors import commits
from headrace.engine.job.phases import preparing
from headrace.state.checkpoints import manifest
from headrace.state.checkpoints.data_files import DataFiles
from headrace.state.checkpoints.manifest import Manifest

_spec = importlib.util.spec_from_file_location(
    "corruption_campaign", Path(__file__).parents[1] / "corruption_campaign.py"
)
corruption_campaign = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = corruption_campaign
_spec.loader.exec_module(corruption_campaign)
campaign = corruption_campaign.campaign


@pytest.mark.parametrize("backend", [pytest.param("heap", marks=pytest.mark.campaign), "rocksdb"])
def test_damage_is_found_before_the_first_record(backend, tmp_path):
    tally, misses, covered = campaign(backend, 24, 7, tmp_path)
    assert misses == []
    assert tally["missed"] == 0
    assert tally["detected"] > 5
    assert tally["fell back"] > 3
    assert tally["harmless"] > 3
    assert sum(covered.values()) > 15


@pytest.mark.parametrize("backend", planted(["heap", "rocksdb"], {"heap"}))
@pytest.mark.campaign
def test_the_output_of_jobs_whose_checkpoints_are_damaged_is_right_end_to_end(backend, tmp_path):
    tally, misses = corruption_campaign.run_jobs(backend, 5, 3, tmp_path)
    assert misses == []
    assert tally["failed"]
    assert tally["exact"] + tally["fell back"]


def test_a_job_that_falls_back_in_silence_is_caught_by_its_output(tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "may_fall_back", lambda _job: True)
    monkeypatch.setattr(commits, "_prove", lambda *_: None)
    monkeypatch.setattr(commits, "_newer_output", lambda _: "repeat")  # else sinks refuse, who know what is public
    for number in range(10):  # what the newest one has committed by then is a matter of moments
        place = tmp_path / str(number)
        place.mkdir()
        end = run(place, lambda root: flip(newest_manifest(root)))
        if end.files - expected() and end.table - expected():
            return
    pytest.fail("no output came twice")


@pytest.mark.campaign
def test_a_store_that_compares_no_hashes_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(DataFiles, "_check_content", lambda *_: None)
    tally, misses, _ = campaign("heap", 60, 7, tmp_path)
    assert tally["missed"] > 0
    assert misses


@pytest.mark.campaign
def test_a_manifest_that_is_believed_is_caught(tmp_path, monkeypatch):
    """Without its own hash a manifest may name another file's place, size or key groups."""
    sealed = manifest._envelope
    read = Manifest.from_json

    def believing(data, path, *rest):
        with monkeypatch.context() as patch:
            patch.setattr(
                manifest,
                "_envelope",
                lambda body, *rest: data if data.startswith(b'{"manifest"') else sealed(body, *rest),
            )
            return read(data, path, *rest)

    monkeypatch.setattr(Manifest, "from_json", staticmethod(believing))
    changed = []

    def only_manifests(rng, files, newest):
        path = next(p for p in sorted(newest) if "/manifests/" in p)
        data = files[path]
        files[path] = data.replace(b'"source":', b'"sourcE":').replace(b'"key_groups":[0,15]', b'"key_groups":[0,14]')
        changed.append(files[path] != data)
        return "key groups"

    monkeypatch.setattr(corruption_campaign, "damage", only_manifests)
    tally, _, _ = campaign("heap", 3, 7, tmp_path)
    assert any(changed)
    assert tally["missed"] > 0
