"""A short corruption campaign, and that it would see a miss: `corruption_campaign.py` says what it does."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from headrace.state import manifest
from headrace.state.storage import CheckpointStorage, Manifest

_spec = importlib.util.spec_from_file_location(
    "corruption_campaign", Path(__file__).with_name("corruption_campaign.py")
)
corruption_campaign = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = corruption_campaign
_spec.loader.exec_module(corruption_campaign)
campaign = corruption_campaign.campaign


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_damage_is_found_before_the_first_record(backend, tmp_path):
    tally, misses, covered = campaign(backend, 60, 7, tmp_path)
    assert misses == []
    assert tally["missed"] == 0
    assert tally["detected"] > 15
    assert tally["fell back"] > 10
    assert tally["harmless"] > 10
    assert sum(covered.values()) > 40


def test_a_store_that_compares_no_hashes_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(CheckpointStorage, "_check_content", lambda *_: None)
    tally, misses, _ = campaign("heap", 60, 7, tmp_path)
    assert tally["missed"] > 0
    assert misses


def test_a_manifest_that_is_believed_is_caught(tmp_path, monkeypatch):
    """Without its own hash a manifest may name another file's place, size or key groups."""
    sealed = manifest._envelope
    read = Manifest.from_json

    def believing(data, path):
        with monkeypatch.context() as patch:
            patch.setattr(manifest, "_envelope", lambda body: data if data.startswith(b'{"manifest"') else sealed(body))
            return read(data, path)

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
