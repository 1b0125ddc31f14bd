"""Files as a source and as a sink: Parquet, ORC, Avro, CSV, JSON lines, SequenceFiles and (as a source) plain text.

They are in any file system of `headrace.state.files.filesystem`.

May import: `headrace.formats`, `headrace.arguments`, `headrace.engine`, `headrace.state`. Start reading at
`source`, then `sink`, `writer` and `committer`.
"""

from .sink import FileSink
from .source import FileSource
from .waiting import FileCompaction

__all__ = ["FileCompaction", "FileSink", "FileSource"]
