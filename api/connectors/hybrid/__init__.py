"""Several sources one after another, as one.

May import: `headrace.arguments`, `headrace.engine`, `headrace.state`. Start reading at `source`.
"""

from .source import HybridSource, HybridSourceBuilder, SourceSwitchContext

__all__ = ["HybridSource", "HybridSourceBuilder", "SourceSwitchContext"]
