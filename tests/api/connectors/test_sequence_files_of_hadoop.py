"""Family: differential (Hadoop's own writer and reader of SequenceFiles)."""

from __future__ import annotations

import itertools

from hadoop_server import hadoop  # noqa: F401 - a fixture
from sequence_pairs import CLASSES, pairs_of

from headrace.connectors.files import FileSink, FileSource

CODECS = {
    "zlib": "DefaultCodec",
    "gzip": "GzipCodec",
    "bzip2": "BZip2Codec",
    "snappy": "SnappyCodec",
    "lz4": "Lz4Codec",
}  # zstd needs Hadoop's native library
FORMS = [("none", "zlib"), *itertools.product(["record", "block"], CODECS)]
NUMBER = {"none": 20_000, "record": 5_000, "block": 60_000}


def test_files_of_hadoop_are_read(reading, hadoop, tmp_path):  # noqa: F811
    """Each compression; whole, in splits, and by readers that are thrown away again and again."""
    files = {(kind, codec): tmp_path / f"{kind}-{codec}.seq" for kind, codec in FORMS}
    commands = [
        f"write {path} LongWritable Text {kind} org.apache.hadoop.io.compress.{CODECS[codec]} {NUMBER[kind]}"
        for (kind, codec), path in files.items()
    ]
    assert set(hadoop.sequence_pairs(commands)) == {"written"}
    for (kind, _), path in files.items():
        wanted = pairs_of("LongWritable", "Text", NUMBER[kind])
        assert reading().rows(FileSource.sequence_file(path)) == wanted
        assert reading().rows(FileSource.sequence_file(path, split_bytes=70_000)) == wanted
        source = FileSource.sequence_file(path, split_bytes=path.stat().st_size // 3)
        assert reading().rows_with_cuts(source, range(0, 200, 9)) == wanted


def test_every_class_of_hadoop_is_read(reading, hadoop, tmp_path):  # noqa: F811
    pairs = [(name, CLASSES[place - 1]) for place, name in enumerate(CLASSES)]
    commands = [f"write {tmp_path}/{key}.seq {key} {value} none - 3000" for key, value in pairs]
    assert set(hadoop.sequence_pairs(commands)) == {"written"}
    for key, value in pairs:
        found = reading().rows(FileSource.sequence_file(f"{tmp_path}/{key}.seq"))
        assert found == pairs_of(key, value, 3000)


def test_splits_have_the_records_that_hadoop_gives_them(reading, hadoop, tmp_path):  # noqa: F811
    files = [(tmp_path / f"{kind}.seq", kind) for kind in ("none", "record", "block")]
    writes = [f"write {path} Text Text {kind} org.apache.hadoop.io.compress.DefaultCodec 60000" for path, kind in files]
    for split_bytes in (7_001, 100_000, 333_333):
        answers = hadoop.sequence_pairs([*writes, *(f"splits {path} {split_bytes}" for path, _ in files)])
        for (path, _), answer in zip(files, answers[len(files) :], strict=True):
            source = FileSource.sequence_file(path, split_bytes=split_bytes)
            counts = [
                sum(batch.num_rows for batch in reading().batches(source, splits=[split]))
                for split in reading().discover(source)
            ]
            assert counts == list(map(int, answer.split()))
            assert sum(counts) == 60_000


def written(sink_job, directory, rows, **options):
    job = sink_job(FileSink.sequence_file(directory, **options))
    job.start()
    for start in range(0, len(rows), 997):
        job.write(rows[start : start + 997])
    job.checkpoint(1)
    job.finish()
    [path] = [path for path in directory.iterdir() if path.suffix == ".seq"]
    return path


def test_hadoop_reads_files_of_ours(sink_job, hadoop, tmp_path):  # noqa: F811
    """Each compression and each class; all records, and those of each split."""
    paths, numbers = [], []
    for kind, codec in FORMS:
        number = NUMBER[kind] // 2
        rows = pairs_of("LongWritable", "Text", number)
        paths.append(written(sink_job, tmp_path / f"{kind}-{codec}", rows, compression=kind, codec=codec))
        numbers.append(number)
    for place, key in enumerate(CLASSES):
        value = CLASSES[place - 1]
        rows = pairs_of(key, value, 1_000)
        paths.append(written(sink_job, tmp_path / key, rows, key=key, value=value))
        numbers.append(1_000)
    answers = hadoop.sequence_pairs([f"read {path}" for path in paths] + [f"splits {path} 30000" for path in paths])
    assert answers[: len(paths)] == [str(number) for number in numbers]
    assert [sum(map(int, answer.split())) for answer in answers[len(paths) :]] == numbers
