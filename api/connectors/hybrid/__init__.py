"""Several sources one after another, as one. Start reading at `source`."""

from .source import HybridSource, HybridSourceBuilder, SourceSwitchContext

__all__ = ["HybridSource", "HybridSourceBuilder", "SourceSwitchContext"]
