"""Pairs for SequenceFiles, made by their number: the same ones as `tests/data/SequencePairs.java` makes."""

from __future__ import annotations

CLASSES = (
    "Text",
    "BytesWritable",
    "IntWritable",
    "LongWritable",
    "FloatWritable",
    "DoubleWritable",
    "ShortWritable",
    "ByteWritable",
    "BooleanWritable",
    "NullWritable",
    "VIntWritable",
    "VLongWritable",
)


def value_of(name: str, i: int) -> object:
    """The value of a class and a number."""
    text = f"text {i}" + " ä€😀" * (i % 5)
    sign = 1 if i % 2 == 0 else -1
    return {
        "Text": text,
        "BytesWritable": text.encode(),
        "IntWritable": i * 1000003 % 1000000 - 500000,
        "LongWritable": i * 1000000000007 * sign,
        "FloatWritable": i / 4,
        "DoubleWritable": i / 8 - 5,
        "ShortWritable": i % 1000 - 500,
        "ByteWritable": i % 256 - 128,
        "BooleanWritable": i % 3 == 0,
        "NullWritable": None,
        "VIntWritable": (i % 1000) ** 2 * sign,
        "VLongWritable": i**4 * sign,
    }[name]


def pairs_of(key: str, value: str, number: int) -> list[tuple[object, object]]:
    """So many pairs."""
    return [(value_of(key, i), value_of(value, i)) for i in range(number)]
