"""Indices of Elasticsearch, against a real one: what holds for OpenSearch holds for it, by the same client."""

from __future__ import annotations

import pytest
from elasticsearch_server import elasticsearch_server  # noqa: F401 - a fixture
from search_checks import CHECKS, subject_of

from headrace.testing.upsert_contract import UPSERT_CONTRACT


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_indices_of_elasticsearch(check, elasticsearch_server):  # noqa: F811
    check(elasticsearch_server)


@pytest.mark.parametrize("check", UPSERT_CONTRACT, ids=lambda check: check.__name__)
def test_contract(check, elasticsearch_server):  # noqa: F811
    check(subject_of(elasticsearch_server))
