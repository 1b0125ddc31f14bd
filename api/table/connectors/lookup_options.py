"""What tables that are looked up remember, by Flink's options.

Source: Flink's ``LookupOptions``; FLIP-221.
"""

from __future__ import annotations

from headrace.engine.joins.lookup import LookupCache

from .contract import Options

__all__ = ["lookup_cache_of"]


def lookup_cache_of(options: Options) -> LookupCache | None:
    """Take the options of a cache; None if there is to be none.

    Raises:
        ConfigurationError: If one means nothing.
    """
    is_cached = options.choice("lookup.cache", ("NONE", "PARTIAL"), "NONE") == "PARTIAL"
    max_rows = options.take("lookup.partial-cache.max-rows", int)
    expires_ms = options.take("lookup.partial-cache.expire-after-write", Options.duration)
    keeps_missing = options.take("lookup.partial-cache.cache-missing-key", Options.boolean, True)
    if not is_cached:
        return None
    return LookupCache(max_rows, expires_ms, keeps_missing)
