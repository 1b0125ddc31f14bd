"""Pipelined regions as connected components, against a slow search over all channels."""

from control_harness import edge, graph, vertex
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.connectors.sinks import SinkOperator
from headrace.engine.execution.regions import PipelinedRegions
from headrace.engine.execution.scheduling import connected_consumers
from headrace.engine.operators.exchange import ForwardPartitioner, RebalancePartitioner, RescalePartitioner

PARTITIONERS = (ForwardPartitioner, RescalePartitioner, RebalancePartitioner)


def sizes(job_graph):
    return sorted(len(region) for region in PipelinedRegions(job_graph).regions)


def test_forward_only_job_has_a_region_per_subtask():
    job = graph(vertex("a", 4), vertex("b", 4), edges=[edge(0, "a", "b", ForwardPartitioner())])
    assert sizes(job) == [2, 2, 2, 2]
    assert PipelinedRegions(job).touched_by([("a", 1), ("b", 3)]) == {("a", 1), ("b", 1), ("a", 3), ("b", 3)}


def test_an_all_to_all_exchange_joins_everything_on_its_two_sides():
    job = graph(
        vertex("a", 2), vertex("b", 3), vertex("c", 3),
        edges=[edge(0, "a", "b"), edge(1, "b", "c", ForwardPartitioner())],
    )  # fmt: skip
    assert sizes(job) == [8]


def test_pipelines_without_an_exchange_between_them_are_apart():
    job = graph(vertex("a", 2), vertex("b", 2), vertex("c", 2), edges=[edge(0, "a", "b")])
    assert sizes(job) == [1, 1, 4]


def test_rescale_joins_the_few_it_connects():
    job = graph(vertex("a", 2), vertex("b", 4), edges=[edge(0, "a", "b", RescalePartitioner())])
    assert sizes(job) == [3, 3]


class Exclusive:
    """A sink that shuts out earlier attempts of the whole job."""

    def create_writer(self):
        raise NotImplementedError

    create_committer = create_writer


class Independent(Exclusive):
    subtasks_are_independent = True


def test_a_sink_that_shuts_out_whole_attempts_is_one_region():
    edges = [edge(0, "a", "b", ForwardPartitioner())]
    assert sizes(graph(vertex("a", 3), vertex("b", 3, SinkOperator(Exclusive())), edges=edges)) == [6]
    assert sizes(graph(vertex("a", 3), vertex("b", 3, SinkOperator(Independent())), edges=edges)) == [2, 2, 2]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
def test_regions_are_what_a_search_over_all_channels_finds(parallelisms, data):
    vertices = [vertex(f"v{i}", parallelism) for i, parallelism in enumerate(parallelisms)]
    edges = []
    for target in range(1, len(vertices)):
        for source in data.draw(st.lists(st.integers(0, target - 1), max_size=2, unique=True)):
            kind = data.draw(st.sampled_from(PARTITIONERS))
            if kind is ForwardPartitioner and parallelisms[source] != parallelisms[target]:
                kind = RescalePartitioner
            edges.append(edge(len(edges), f"v{source}", f"v{target}", kind()))
    job = graph(*vertices, edges=edges)
    neighbours = {(v.vertex_id, i): set() for v in vertices for i in range(v.parallelism)}
    for one in edges:
        num_producers, num_consumers = job.vertices[one.source].parallelism, job.vertices[one.target].parallelism
        for producer in range(num_producers):
            for consumer in connected_consumers(one, num_producers, num_consumers, producer):
                neighbours[(one.source, producer)].add((one.target, consumer))
                neighbours[(one.target, consumer)].add((one.source, producer))
    regions = PipelinedRegions(job)
    for start in neighbours:
        seen, open_ends = set(), [start]
        while open_ends:
            one = open_ends.pop()
            if one not in seen:
                seen.add(one)
                open_ends.extend(neighbours[one])
        assert regions.touched_by([start]) == seen
