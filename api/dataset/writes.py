"""Data sets written to files: by the environment's ``execute``, a file per partition.

Source: Flink's ``DataSet.writeAsText``, ``writeAsCsv``; Hive's folders ``name=value``.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.engine.columns.write_mode import WriteMode, check_write_mode
from headrace.engine.errors import TypeMismatchError
from headrace.engine.plan.plan import WriteFiles
from headrace.state.type_variables import T1

from ..arguments.places import lasting_place
from ..formats.avro_types import avro_schema_of
from ..formats.containers.avro_files import require_avro_codec
from ..formats.containers.orc_files import OrcCompression, orc_schema_of, require_orc_compression
from ..formats.containers.sequence_files import SequenceCompression, SequenceSettings
from ..formats.csv_lexing import require_delimiter
from ..formats.folders import require_folder_columns
from .files.outputs import FilesOfSink
from .record_types import check_fields
from .recorded import Recorded

__all__ = ["WriteVerbs"]


class WriteVerbs(Recorded[T1]):
    """The part of a data set that is about files."""

    def write_as_text(self, path: str, *, mode: WriteMode = "error") -> None:
        """Write ``str(record)`` per line when the environment executes; a file per partition in the folder ``path``."""
        self._write("text", path, mode, {})

    def write_as_csv(
        self,
        path: str,
        *,
        delimiter: str = ",",
        header: bool | None = None,
        mode: WriteMode = "error",
        partition_by: str | Sequence[str] = (),
    ) -> None:
        """Write CSV files when the environment executes.

        Null is an empty field; in a file of one column it is one in quotes, as readers skip empty lines. Records
        without a type have the columns of the first one, and all partitions must have the same.

        Args:
            path: The folder.
            delimiter: One character.
            header: Whether files begin with the names; None for dicts only.
            mode: What happens to what is there: ``error`` refuses a folder that is not empty, ``append`` leaves it,
                ``overwrite`` replaces it when all is written.
            partition_by: Fields (integers, texts, dates) that become folders ``name=value``, one in the other, which
                the files then leave out. Reading finds them again; a text that looks like a number is one there, if
                its type is not declared.
        """
        require_delimiter(delimiter)
        options: dict[str, Any] = {"delimiter": delimiter}
        if header is not None:
            options["header"] = header
        self._write("csv", path, mode, options, partition_by)

    def write_as_json(self, path: str, *, mode: WriteMode = "error", partition_by: str | Sequence[str] = ()) -> None:
        """Write a JSON value per line when the environment executes; ``partition_by`` as of `write_as_csv`.

        Dates and times are ISO 8601 text, decimals text, bytes base64 text, sets arrays. JSON knows no ``NaN`` and no
        infinity: they are null.
        """
        self._write("json", path, mode, {}, partition_by)

    def write_as_parquet(
        self,
        path: str,
        *,
        compression: str = "snappy",
        mode: WriteMode = "error",
        partition_by: str | Sequence[str] = (),
    ) -> None:
        """Write Parquet files when the environment executes; ``partition_by`` as of `write_as_csv`.

        Records without a type get one that fits those of all partitions; if there is none, the job fails.
        """
        self._write("parquet", path, mode, {"compression": compression}, partition_by)

    def write_as_orc(
        self,
        path: str,
        *,
        compression: OrcCompression = "zlib",
        mode: WriteMode = "error",
        partition_by: str | Sequence[str] = (),
    ) -> None:
        """Write ORC files when the environment executes; `FileSink.orc` says of which types, in which compressions.

        Records without a type get one as in `write_as_parquet`. ``partition_by`` is as of `write_as_csv`.
        """
        require_orc_compression(compression)
        if self.schema is not None:
            orc_schema_of(self.schema)
        self._write("orc", path, mode, {"compression": compression}, partition_by)

    def write_as_avro(
        self, path: str, *, codec: str = "snappy", mode: WriteMode = "error", partition_by: str | Sequence[str] = ()
    ) -> None:
        """Write container files of Avro when the environment executes; `FileSink.avro` says of which types, by which
        codecs.

        Records without a type get one as in `write_as_parquet`. ``partition_by`` is as of `write_as_csv`.
        """
        require_avro_codec(codec)
        if self.schema is not None:
            avro_schema_of(self.schema)
        self._write("avro", path, mode, {"compression": codec}, partition_by)

    def write_as_sequence_file(
        self,
        path: str,
        *,
        key: str | None = None,
        value: str | None = None,
        compression: SequenceCompression = "none",
        codec: str = "zlib",
        mode: WriteMode = "error",
    ) -> None:
        """Write SequenceFiles of Hadoop when the environment executes; records have two fields, the first is the key.

        Args:
            path: The folder.
            key: The class of the keys, as of `FileSink.sequence_file`.
            value: The class of the values.
            compression: ``none``, ``record`` or ``block``.
            codec: ``zlib``, ``gzip``, ``bzip2``, ``snappy``, ``lz4`` or ``zstd``.
            mode: As of `write_as_csv`.

        Raises:
            ConfigurationError: If there is no such class, compression or codec.
            TypeMismatchError: If the records are known to have no two fields.
        """
        if self.schema is not None and len(self.schema) != 2:
            message = f"the records of a SequenceFile are pairs of key and value; they have {self.schema.names}"
            raise TypeMismatchError(message, hint="make tuples of two of them")
        self._write("sequence", path, mode, {"settings": SequenceSettings(key, value, compression, codec)})

    def _write(
        self,
        form: str,
        path: str,
        mode: WriteMode,
        options: dict[str, Any],
        partition_by: str | Sequence[str] = (),
    ) -> None:
        check_write_mode(mode)
        if self.schema is not None and form == "csv":
            for field in self.schema:
                if pa.types.is_nested(field.type):
                    message = f"field {field.name!r} of type {field.type} cannot be written as csv"
                    raise TypeMismatchError(message, hint="write json or parquet")
        place = lasting_place(path, "where a data set is written")
        folders = self._folders(partition_by)
        node = self.then(
            WriteFiles, f"write {form}", None, files=FilesOfSink(), format=form, path=place, mode=mode,
            run=uuid.uuid4().hex[:12], options=options, partition_by=folders,
        ).take_node()  # fmt: skip
        self._environment.add_sink(node)

    def _folders(self, partition_by: str | Sequence[str]) -> tuple[str, ...]:
        """The fields that become folders, checked."""
        names = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        if not names:
            return ()
        schema = self._fields_for("partition_by")
        check_fields("partition_by", names, schema)
        require_folder_columns(names, schema)
        return names
