"""Tables of Apache Hudi, read. ``pip install 'headrace[hudi]'`` brings the library, imported when it is needed.

May import: `headrace.formats`, `headrace.engine`, `headrace.state`, `headrace.arguments`, `headrace.connectors.lake`.
Start reading at `source`; what a commit means is in `timeline` and `reading`.
"""

from .source import HudiSource

__all__ = ["HudiSource"]
