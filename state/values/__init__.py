"""Values as they are stored: what they are, and how they become bytes or columns and come back as they were.

`types` is the one type of a value, with `composite_types` and what they are made of (`type_sources`: hints, columns,
stored descriptions). `encoding` brings values into Arrow columns and back, `serde` whole records; `packed` and
`json_text` are bytes and texts of one value. `sharing` tells what is in memory twice.

May import: `headrace.state.reading`, `headrace.state.errors`, `headrace.state.identifiers`. Start reading at `types`,
then `encoding`.
"""
