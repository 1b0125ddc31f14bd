"""Tables of Delta Lake. ``pip install 'headrace[delta]'`` brings the library, imported when it is needed.

May import: `headrace.formats`, `headrace.engine`, `headrace.state`, `headrace.arguments`, `headrace.connectors.files`,
`headrace.connectors.lake`. Start reading at `sink` and `source`; the protocol of commits is in
`headrace.connectors.lake.committing`.
"""

from .sink import DeltaSink
from .source import DeltaSource

__all__ = ["DeltaSink", "DeltaSource"]
