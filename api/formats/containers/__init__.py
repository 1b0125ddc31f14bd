"""Files that say themselves what they hold: Parquet, ORC, Avro, SequenceFiles; and what compresses their parts.

May import: `headrace.formats`, `headrace.engine.columns`, `headrace.engine.errors`, `headrace.state`. Start with
`typed_files`, which has what all of them offer.
"""
