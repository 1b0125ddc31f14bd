"""Files as a source and as a sink: Parquet, CSV and JSON lines, in any file system that ``pyarrow.fs`` reaches.

Start reading at `source`, then `sink`.
"""

from .sink import FileSink
from .source import FileSource

__all__ = ["FileSink", "FileSource"]
