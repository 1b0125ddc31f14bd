"""Tables of Apache Iceberg. ``pip install 'headrace[iceberg]'`` brings the library, imported when it is needed.

May import: `headrace.formats`, `headrace.engine`, `headrace.state`, `headrace.connectors.files`,
`headrace.connectors.lake`. Start reading at `sink` and `source`; the protocol of commits is in
`headrace.connectors.lake.committing`.
"""

from .sink import IcebergSink
from .source import IcebergSource

__all__ = ["IcebergSink", "IcebergSource"]
