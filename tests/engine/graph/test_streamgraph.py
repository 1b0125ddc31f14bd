"""Graphs: which operators become one task, how many slots they need, which uid they get. Examples and properties."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.errors import ConfigurationError, ProgramError
from headrace.engine.functions.keys import KeySelector
from headrace.engine.functions.operator import Operator
from headrace.engine.graph.chaining import build_job_graph, num_slots
from headrace.engine.graph.explain import explain_text, plan_json
from headrace.engine.graph.stream_graph import build_stream_graph, default_max_parallelism
from headrace.engine.graph.transformations import (
    ChainingStrategy,
    OperatorKind,
    OperatorTransformation,
    PartitionTransformation,
    SideOutputTransformation,
    UnionTransformation,
)
from headrace.engine.kernel.config import JobSettings
from headrace.engine.operators.exchange import (
    BroadcastPartitioner,
    ForwardPartitioner,
    HashPartitioner,
    RebalancePartitioner,
    RescalePartitioner,
)


class Program:
    """Records transformations as the API does, without it."""

    def __init__(self):
        self.operators = []
        self.last_id = 0

    def id(self):
        self.last_id += 1
        return self.last_id

    def source(self, name="source", parallelism=2, **settings):
        return OperatorTransformation(self.id(), name, OperatorKind.SOURCE, Operator(), (), parallelism, **settings)

    def operator(self, name, *inputs, parallelism=2, kind=OperatorKind.OPERATOR, **settings):
        made = OperatorTransformation(self.id(), name, kind, Operator(), inputs, parallelism, **settings)
        self.operators.append(made)
        return made

    def sink(self, name, *inputs, **settings):
        return self.operator(name, *inputs, kind=OperatorKind.SINK, **settings)

    def keyed(self, stream):
        return self.partition(stream, HashPartitioner(KeySelector.of_field("k")))

    def partition(self, stream, partitioner):
        return PartitionTransformation(self.id(), stream, partitioner)

    def union(self, *streams):
        return UnionTransformation(self.id(), streams)

    def side(self, stream, tag):
        return SideOutputTransformation(self.id(), stream, tag)

    def stream_graph(self, **options):
        return build_stream_graph(self.operators, **options)

    def job_graph(self, **options):
        return build_job_graph(self.stream_graph(**options), "test")

    def tasks(self, **options):
        return [vertex.name for vertex in self.job_graph(**options).vertices.values()]

    def uids(self):
        return {node.name: node.uid for node in self.stream_graph().nodes.values()}


@pytest.fixture
def program():
    return Program()


# ------------------------------------------------------------------------------------------------------------- chaining


def test_operators_joined_by_forward_edges_of_one_parallelism_are_one_task(program):
    program.sink("out", program.operator("b", program.operator("a", program.source())))
    graph = program.job_graph()
    assert [v.name for v in graph.vertices.values()] == ["Source: source -> a -> b -> Sink: out"]
    assert graph.edges == ()
    (vertex,) = graph.vertices.values()
    assert [op.parent for op in vertex.chain] == [None, 0, 1, 2]


def test_a_keyed_edge_is_an_exchange_even_at_equal_parallelism(program):
    program.operator("count", program.keyed(program.source()))
    graph = program.job_graph()
    assert [v.name for v in graph.vertices.values()] == ["Source: source", "count"]
    (edge,) = graph.edges
    assert (edge.partitioner.name, edge.edge_id, edge.input_index, edge.source_operator) == ("HASH", 0, 0, 0)


def test_the_worked_placement_of_row_d16_needs_four_slots(program):
    mapped = program.operator("map", program.source(parallelism=4), parallelism=4)
    program.sink("reduce", program.keyed(mapped), parallelism=3)
    graph = program.job_graph()
    assert [(v.name, v.parallelism) for v in graph.vertices.values()] == [
        ("Source: source -> map", 4),
        ("Sink: reduce", 3),
    ]
    assert num_slots(graph) == 4


def test_raising_the_base_parallelism_from_two_to_six_needs_six_slots():
    for parallelism in (2, 6):
        program = Program()
        mapped = program.operator("map", program.source(parallelism=parallelism), parallelism=parallelism)
        window = program.operator("window", program.keyed(mapped), parallelism=parallelism)
        program.sink("out", window, parallelism=1)
        assert num_slots(program.job_graph()) == parallelism


def test_a_change_of_parallelism_is_a_rebalance(program):
    program.operator("map", program.source(parallelism=2), parallelism=3)
    (edge,) = program.job_graph().edges
    assert isinstance(edge.partitioner, RebalancePartitioner)


@pytest.mark.parametrize("partitioner", [RebalancePartitioner(), RescalePartitioner(), BroadcastPartitioner()])
def test_any_partitioning_but_forward_breaks_the_chain(program, partitioner):
    program.operator("map", program.partition(program.source(), partitioner))
    assert program.tasks() == ["Source: source", "map"]


def test_an_explicit_forward_keeps_the_chain(program):
    program.operator("map", program.partition(program.source(), ForwardPartitioner()))
    assert program.tasks() == ["Source: source -> map"]


def test_an_explicit_forward_over_a_change_of_parallelism_is_refused(program):
    program.operator("map", program.partition(program.source(parallelism=2), ForwardPartitioner()), parallelism=3)
    with pytest.raises(
        ProgramError, match=r"forward partitioning cannot change the parallelism: 'source' has 2, 'map' has 3"
    ):
        program.stream_graph()


def test_the_partitioning_next_to_the_consumer_counts(program):
    stream = program.partition(program.partition(program.source(), RebalancePartitioner()), BroadcastPartitioner())
    program.operator("map", stream)
    (edge,) = program.job_graph().edges
    assert edge.partitioner.name == "BROADCAST"


def test_start_new_chain_cuts_in_front_only(program):
    source = program.source()
    b = program.operator("b", program.operator("a", source), chaining=ChainingStrategy.HEAD)
    program.operator("c", b)
    assert program.tasks() == ["Source: source -> a", "b -> c"]


def test_disable_chaining_cuts_on_both_sides(program):
    b = program.operator("b", program.operator("a", program.source()), chaining=ChainingStrategy.NEVER)
    program.operator("c", b)
    assert program.tasks() == ["Source: source -> a", "b", "c"]


def test_chaining_can_be_switched_off_for_a_whole_program(program):
    program.operator("b", program.operator("a", program.source()))
    assert program.tasks(chaining_enabled=False) == ["Source: source", "a", "b"]


def test_operators_of_different_max_parallelism_are_not_chained(program):
    program.operator("a", program.source(), max_parallelism=64)
    assert program.tasks() == ["Source: source", "a"]


def test_different_slot_sharing_groups_are_not_chained_and_add_up(program):
    a = program.operator("a", program.source(parallelism=3), parallelism=3, slot_sharing_group="heavy")
    program.operator("b", a, parallelism=2)
    graph = program.job_graph()
    groups = {v.name: v.slot_sharing_group for v in graph.vertices.values()}
    assert groups == {"Source: source": "default", "a": "heavy", "b": "heavy"}
    assert num_slots(graph) == 3 + 3


def test_a_slot_sharing_group_is_inherited_only_if_all_inputs_agree(program):
    a = program.operator("a", program.source(), slot_sharing_group="x")
    b = program.operator("b", program.source(), slot_sharing_group="y")
    program.operator("c", program.union(a, b))
    graph = program.stream_graph()
    assert {n.name: n.slot_sharing_group for n in graph.nodes.values()}["c"] == "default"


def test_a_union_is_several_edges_into_one_input_and_heads_a_task(program):
    a, b = program.source("a"), program.source("b")
    program.operator("map", program.union(a, b))
    graph = program.job_graph()
    assert [v.name for v in graph.vertices.values()] == ["Source: a", "Source: b", "map"]
    assert [(e.input_index, e.partitioner.name) for e in graph.edges] == [(0, "FORWARD"), (0, "FORWARD")]


def test_a_stream_united_with_itself_comes_twice(program):
    source = program.source()
    program.operator("map", program.union(source, source))
    assert len(program.job_graph().edges) == 2


def test_nested_unions_dissolve(program):
    a, b, c = (program.source(name) for name in "abc")
    program.operator("map", program.union(program.union(a, b), c))
    graph = program.job_graph()
    assert [graph.vertices[e.source].name for e in graph.edges] == ["Source: a", "Source: b", "Source: c"]


def test_an_operator_of_two_inputs_heads_a_task_and_tells_its_inputs_apart(program):
    program.operator("join", program.keyed(program.source("a")), program.keyed(program.source("b")))
    assert [e.input_index for e in program.job_graph().edges] == [0, 1]


def test_a_chain_is_a_tree_where_an_operator_feeds_several(program):
    a = program.operator("a", program.source())
    program.sink("x", program.operator("b", a))
    program.sink("y", a)
    graph = program.job_graph()
    (vertex,) = graph.vertices.values()
    assert vertex.name == "Source: source -> a -> (b -> Sink: x, Sink: y)"
    assert [(op.name, op.parent) for op in vertex.chain] == [
        ("Source: source", None), ("a", 0), ("b", 1), ("Sink: x", 2), ("Sink: y", 1),
    ]  # fmt: skip


def test_a_side_output_is_chained_under_its_tag(program):
    a = program.operator("a", program.source())
    program.operator("late", program.side(a, "late"))
    program.operator("main", a)
    (vertex,) = program.job_graph().vertices.values()
    assert [(op.name, op.parent, op.side_tag) for op in vertex.chain][2:] == [("late", 1, "late"), ("main", 1, None)]


def test_a_side_output_over_an_exchange_keeps_its_tag_and_its_operator(program):
    a = program.operator("a", program.source())
    program.operator("late", program.partition(program.side(a, "late"), RebalancePartitioner()))
    (edge,) = program.job_graph().edges
    assert (edge.side_tag, edge.source_operator, edge.partitioner.name) == ("late", 1, "REBALANCE")


def test_a_declared_type_is_checked_behind_its_operator_and_not_on_side_outputs(program):
    schema = pa.schema([("n", pa.int64())])
    a = program.operator("a", program.source(), output_schema=schema)
    program.operator("main", a)
    program.operator("late", program.side(a, "late"))
    (vertex,) = program.job_graph().vertices.values()
    assert vertex.name == "Source: source -> a -> (main, late)"
    assert [(op.name, type(op.operator).__name__, op.parent, op.side_tag) for op in vertex.chain[1:]] == [
        ("a", "Operator", 0, None), ("a", "DeclaredRows", 1, None), ("main", "Operator", 2, None), ("late", "Operator",
        1, "late"),
    ]  # fmt: skip


def test_edges_leave_a_chain_behind_the_check_of_the_declared_type(program):
    a = program.operator("a", program.source(), output_schema=pa.schema([("k", pa.int64())]))
    program.operator("count", program.keyed(a))
    (edge,) = program.job_graph().edges
    assert edge.source_operator == 2


def test_long_programs_do_not_exhaust_the_stack(program):
    stream = program.source()
    for number in range(3_000):
        stream = program.operator(f"m{number}", stream)
    vertices = list(program.job_graph().vertices.values())
    assert [len(vertex.chain) for vertex in vertices] == [100] * 30 + [1]  # each calls the next one


def test_operators_beside_each_other_are_one_task_however_many(program):
    source = program.source()
    for number in range(200):
        program.operator(f"m{number}", source)
    assert len(program.tasks()) == 1


def test_vertices_and_edges_come_in_the_order_of_the_program(program):
    source = program.source()
    for name in "dcab":
        program.operator(name, program.keyed(source))
    assert program.tasks() == ["Source: source", "d", "c", "a", "b"]
    assert [e.edge_id for e in program.job_graph().edges] == [0, 1, 2, 3]


def test_the_lowest_buffer_timeout_holds_for_the_job(program):
    program.operator("a", program.source(), buffer_timeout_ms=2)
    assert program.job_graph().settings.buffer_timeout_ms == 2
    settings = JobSettings(buffer_timeout_ms=1)
    assert build_job_graph(program.stream_graph(), "test", settings).settings is settings


# ----------------------------------------------------------------------------------------------------------------- uids


def test_generated_uids_depend_on_structure_only():
    def build(name, parallelism, chaining):
        program = Program()
        source = program.source(name, parallelism=parallelism)
        a = program.operator(name + "a", source, parallelism=parallelism, chaining=chaining)
        program.sink(name + "s", program.keyed(a), parallelism=1)
        return [node.uid for node in program.stream_graph().nodes.values()]

    assert build("x", 1, ChainingStrategy.ALWAYS) == build("y", 3, ChainingStrategy.NEVER)


def test_generated_uids_are_the_same_in_every_release():
    """State is found by them: a change of this value loses the state of every program without uids."""
    program = Program()
    program.operator("map", program.source())
    assert list(program.uids().values()) == ["2cf998ba6a4a533c", "28a11fd8d1dcb9bf"]


@given(st.integers(0, 3), st.integers(0, 3))
def test_uids_survive_additions_elsewhere(num_before, num_after):
    def build(before, after):
        program = Program()
        other = program.source("other", uid="other")
        for number in range(before):
            program.operator(f"before{number}", other)
        a = program.operator("a", program.source("mine", uid="mine"))
        program.operator("b", a)
        for number in range(after):
            program.operator(f"after{number}", other)
        return {name: uid for name, uid in program.uids().items() if name in ("a", "b")}

    assert build(num_before, num_after) == build(0, 0)


def test_an_operator_put_in_upstream_changes_generated_uids_but_not_given_ones():
    def build(*, inserted):
        program = Program()
        stream = program.source()
        if inserted:
            stream = program.operator("new", stream)
        program.operator("c", program.operator("b", stream, uid="b"))
        program.operator("d", stream)
        return program.uids()

    before, after = build(inserted=False), build(inserted=True)
    assert (before["b"], before["c"]) == (after["b"], after["c"])
    assert before["d"] != after["d"]


def test_an_optional_operator_put_in_upstream_takes_no_uid_and_changes_none():
    """Else state of the operator behind it would be its own, which it has no use for: the state would be lost."""

    def build(*, has_first, united=False):
        program = Program()
        stream = program.source()
        behind = program.union(stream, program.source("other", uid="other")) if united else stream
        before = program.operator("first", behind, is_optional=True) if has_first else behind
        program.operator("second", program.keyed(before))
        program.operator("alike", stream)
        program.operator("last", program.operator("third", stream))
        return program.uids()

    for united in (False, True):
        without, uids = build(has_first=False, united=united), build(has_first=True, united=united)
        assert len(set(uids.values())) == len(uids)
        assert uids.pop("first") not in without.values()
        assert uids == without


def test_siblings_and_inputs_are_told_apart(program):
    source, other = program.source("s"), program.source("t")
    a, b = program.operator("a", source), program.operator("b", source)
    program.operator("ab", a, b)
    program.operator("ba", b, a)
    program.operator("side", program.side(a, "late"))
    program.operator("main", a)
    program.operator("u", program.union(a, other))
    uids = program.uids()
    assert len(set(uids.values())) == len(uids)


def test_a_uid_given_twice_is_refused(program):
    source = program.source()
    program.operator("a", source, uid="same")
    program.operator("b", source, uid="same")
    with pytest.raises(ProgramError, match="uid must be unique in a job; 'same' is given to both 'a' and 'b'"):
        program.stream_graph()


# --------------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [
        (1, 128),
        (85, 128),
        (86, 256),
        (128, 256),
        (170, 256),
        (171, 256),
        (172, 512),
        (20_000, 32_768),
        (32_768, 32_768),
    ],
)
def test_the_default_max_parallelism_is_flinks(parallelism, expected):
    assert default_max_parallelism(parallelism) == expected


def test_a_parallelism_above_the_max_parallelism_is_refused(program):
    program.operator("a", program.source(), parallelism=200)
    with pytest.raises(ConfigurationError) as caught:
        program.stream_graph(max_parallelism=128)
    assert str(caught.value) == "parallelism must be between 1 and max_parallelism (128); got 200 (operator 'a')"


def test_a_max_parallelism_above_the_largest_possible_is_refused(program):
    program.operator("a", program.source(), max_parallelism=40_000)
    with pytest.raises(ConfigurationError, match="max_parallelism must be between 1 and 32768; got 40000"):
        program.stream_graph()


def test_what_cannot_be_split_must_have_parallelism_one(program):
    program.operator("a", program.source("socket", parallelism=2, is_parallel=False))
    with pytest.raises(ConfigurationError, match="parallelism must be 1"):
        program.stream_graph()


def test_a_program_without_operators_is_refused(program):
    program.source()
    with pytest.raises(ProgramError, match="no operator to run"):
        program.stream_graph()


def test_a_cycle_is_refused_with_its_operators(program):
    a = program.operator("a", program.source())
    b = program.operator("b", a)
    a.inputs = (b,)
    with pytest.raises(ProgramError, match="the program has a cycle through 'a', 'b'"):
        program.stream_graph()


def test_an_operator_or_union_without_input_is_refused(program):
    program.operator("a")
    with pytest.raises(ProgramError, match="'a' has no input"):
        program.stream_graph()
    other = Program()
    other.operator("a", other.union())
    with pytest.raises(ProgramError, match="'UnionTransformation' has no input"):
        other.stream_graph()


def test_streams_of_two_programs_cannot_be_mixed(program):
    other = Program()
    program.operator("a", program.union(program.source(), other.source()))
    with pytest.raises(ProgramError, match="different environments"):
        program.stream_graph()


def test_a_side_output_of_a_union_is_refused(program):
    program.operator("a", program.side(program.union(program.source(), program.source()), "late"))
    with pytest.raises(ProgramError, match="side output 'late' must be taken from the operator that emits it"):
        program.stream_graph()


def test_a_chain_is_in_the_co_location_group_of_its_operators(program):
    a = program.operator("a", program.source(), co_location_group="g")
    program.operator("b", program.keyed(program.operator("c", a)), co_location_group="g")
    graph = program.job_graph()
    groups = {v.name: v.co_location_group for v in graph.vertices.values()}
    assert groups == {"Source: source -> a -> c": "g", "b": "g"}
    assert num_slots(graph) == 2


def test_operators_of_two_co_location_groups_are_not_chained(program):
    a = program.operator("a", program.source(), co_location_group="g")
    program.operator("b", program.operator("c", a), co_location_group="h")
    assert program.tasks() == ["Source: source -> a -> c", "b"]


def test_co_located_operators_in_different_slot_sharing_groups_are_refused(program):
    a = program.operator("a", program.source(), co_location_group="g")
    program.operator("b", a, co_location_group="g", slot_sharing_group="other")
    with pytest.raises(ProgramError, match="co-located operators must be in one slot sharing group"):
        program.stream_graph()


# ---------------------------------------------------------------------------------------------------------------- plans


def test_the_json_plan_has_flinks_form(program):
    a = program.operator("a", program.source(), description="what a does")
    program.sink("out", program.keyed(program.side(a, "late")), parallelism=1)
    nodes = json.loads(plan_json(program.stream_graph()))["nodes"]
    assert [(n["type"], n["pact"], n["parallelism"]) for n in nodes] == [
        ("Source: source", "Data Source", 2), ("a", "Operator", 2), ("Sink: out", "Data Sink", 1),
    ]  # fmt: skip
    assert nodes[1]["contents"] == "what a does"
    assert "predecessors" not in nodes[0]
    assert nodes[1]["predecessors"] == [{"id": nodes[0]["id"], "ship_strategy": "FORWARD", "side": "first"}]
    assert nodes[2]["predecessors"] == [
        {"id": nodes[1]["id"], "ship_strategy": "HASH", "side": "first", "side_output": "late"}
    ]


def test_the_text_plan_shows_tasks_exchanges_and_slots(program):
    a = program.operator("a", program.source(), uid="my-a", output_schema=pa.schema([("k", pa.int64())]))
    program.sink("out", program.keyed(a), parallelism=3, slot_sharing_group="other", co_location_group="near")
    text = explain_text(program.job_graph())
    assert text.startswith("job 'test': 2 tasks, 5 subtasks, 5 slots needed\ncheckpoints: none\nrestarts: none\n")
    assert "task 1: Source: source -> a\n  parallelism 2 of 128, slot sharing group 'default'\n" in text
    assert "uid my-a" in text
    assert ": k: int64" in text
    assert "  from task 1 by HASH of KeySelector('k')\n" in text
    assert "slot sharing group 'other', co-location group 'near'" in text
