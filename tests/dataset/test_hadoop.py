"""MapReduce programs: classes and scripts, against counts made by Python."""

import sys
from collections import Counter

import pytest

from headrace import ProgramError, UserFunctionError
from headrace.dataset import Combiner, HadoopJob, Mapper, Reducer

TEXT = ["to be or not to be", "that is the question", "to die to sleep"] * 3
COUNTS = Counter(" ".join(TEXT).split())


class Tokens(Mapper):
    def open(self, runtime_context):
        self.lines = runtime_context.get_long_counter("lines")

    def map(self, key, value):
        self.lines.add(1)
        for word in value.split():
            yield word, 1


class Sums(Reducer):
    def reduce(self, key, values):
        yield key, sum(values)


class Combines(Combiner):
    def open(self, runtime_context):
        self.calls = runtime_context.get_long_counter("combined")

    def reduce(self, key, values):
        self.calls.add(1)
        return [(key, sum(values))]


@pytest.mark.parametrize("combiner", [None, Combines()])
def test_a_word_count_of_classes(env, combiner):
    data = HadoopJob(Tokens(), Sums(), combiner).apply(env.from_collection(TEXT))
    assert dict(data.collect()) == COUNTS
    result = env.get_last_job_execution_result()
    assert result.get_accumulator_result("lines") == 9
    assert (result.get_accumulator_result("combined") or 0) == (0 if combiner is None else 3 * len(COUNTS))


def test_keys_come_sorted_to_each_reducer(env):
    class Keys(Reducer):
        def reduce(self, key, values):
            yield len(list(values)), key

    reduced = HadoopJob(Tokens(), Keys(), num_reducers=2, partitioner=lambda key, n: len(key) % n).apply(
        env.from_collection(TEXT)
    )
    partitions = reduced.map_partition(lambda pairs: [[key for _n, key in pairs]]).collect()
    assert partitions == [sorted(w for w in COUNTS if len(w) % 2 == i) for i in range(2)]


def test_a_job_of_mappers_only_and_pairs_as_input(env):
    class Swap(Mapper):
        def map(self, key, value):
            yield value, key

    assert sorted(HadoopJob(Swap()).apply(env.from_collection([("a", 1), ("b", 2)])).collect()) == [(1, "a"), (2, "b")]


MAPPER = "import sys\nfor line in sys.stdin:\n    for w in line.split(): print(w + '\\t1')"
REDUCER = """
import sys
from itertools import groupby
for key, lines in groupby(sys.stdin, key=lambda line: line.split('\\t')[0]):
    print(key + '\\t' + str(sum(int(line.split('\\t')[1]) for line in lines)))
print('reporter:counter:words,reducers,1', file=sys.stderr)
"""


def test_a_word_count_of_scripts(env):
    script = [sys.executable, "-c"]
    job = HadoopJob.streaming([*script, MAPPER], [*script, REDUCER], combiner=[*script, REDUCER], num_reducers=2)
    found = job.apply(env.from_collection(TEXT)).collect()
    assert {key: int(value) for key, value in found} == COUNTS
    assert env.get_last_job_execution_result().get_accumulator_result("words.reducers") == 5


def test_lines_without_a_tab_are_keys(env):
    job = HadoopJob.streaming("cat", "uniq -c", num_reducers=1)
    found = job.apply(env.from_elements("b", "a", "b")).collect()
    assert [(key.split(), value) for key, value in found] == [(["1", "a"], None), (["2", "b"], None)]


def test_scripts_that_fail_are_told_with_what_they_said(env):
    job = HadoopJob.streaming("cat", "sh -c 'cat >/dev/null; echo too bad >&2; exit 3'", num_reducers=1)
    with pytest.raises(UserFunctionError, match="ended with status 3") as caught:
        job.apply(env.from_elements("a")).collect()
    assert "too bad" in str(caught.value)
    with pytest.raises(UserFunctionError, match="cannot be started"):
        HadoopJob.streaming("no-such-program").apply(env.from_elements("a")).collect()


def test_wrong_jobs_are_refused():
    with pytest.raises(ProgramError, match="a mapper must be a Mapper object"):
        HadoopJob(Sums())
    with pytest.raises(ProgramError, match="for a job with a reducer"):
        HadoopJob(Tokens(), combiner=Combines())
    with pytest.raises(ProgramError, match="a script needs a command"):
        HadoopJob.streaming("")


def test_what_is_no_pair_is_refused(env):
    class Single(Mapper):
        def map(self, key, value):
            return [value]

    with pytest.raises(ProgramError, match="a mapper must give tuples of key and value; got 'a'"):
        HadoopJob(Single()).apply(env.from_elements("a")).collect()
