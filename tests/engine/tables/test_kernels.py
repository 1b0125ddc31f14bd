"""Compiled loops where nothing can be cached. Family: environment (an installation that nobody may write to)."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
from numba.core import caching

class Nowhere(caching._CacheLocator):
    @classmethod
    def from_function(cls, function, path):
        return None

caching.CodeLibraryCacheImpl._locator_classes = caching.CompileResultCacheImpl._locator_classes = [Nowhere]

import pyarrow as pa
from headrace.engine.tables import table_loops
from headrace.engine.tables.key_index import KeyIndex

assert not table_loops.find_integers.stats.cache_path, table_loops.find_integers.stats
codes, num_new = KeyIndex([pa.int64()]).codes_of([pa.array([7, 9, 7])])
assert (codes.tolist(), num_new) == ([0, 1, 0], 2)
"""


@pytest.mark.campaign
@pytest.mark.slow
def test_loops_are_compiled_where_no_folder_can_be_written():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=200)
