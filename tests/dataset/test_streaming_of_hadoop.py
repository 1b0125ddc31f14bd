"""Family: differential (Hadoop streaming itself, in one process): the same scripts give the same lines."""

from __future__ import annotations

import sys

import pytest
from hadoop_server import hadoop  # noqa: F401 - a fixture

from headrace import ExecutionEnvironment, UserFunctionError
from headrace.dataset import HadoopJob

MAPPER = """
import sys
for line in sys.stdin:
    for word in line.split():
        print(f"{word}\\t1\\tmore" if word == "be" else word if word == "or" else f"{word}\\t1")
print("reporter:counter:words,mappers,1", file=sys.stderr)
"""
REDUCER = """
import sys
from itertools import groupby
for key, lines in groupby(sys.stdin, key=lambda line: line.rstrip("\\n").split("\\t")[0]):
    print(key, len(list(lines)), sep="\\t")
"""
LINES = ["to be or not to be", "", "Zoë ä€😀 \uffff 😀", "that is the question", "a b\ta c"] * 3


@pytest.fixture
def scripts(tmp_path):
    found = []
    for name, text in (("mapper", MAPPER), ("reducer", REDUCER), ("broken", "import sys\nsys.exit('no such luck')")):
        (tmp_path / f"{name}.py").write_text(text)
        found.append(f"{sys.executable} {tmp_path / name}.py")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("".join(f"{line}\n" for line in LINES))
    return found


def lines_of(folder):
    parts = sorted(folder.glob("part-*"))
    return [part.read_text().splitlines() for part in parts]


@pytest.mark.parametrize("has_combiner", [False, True])
def test_scripts_give_what_they_give_in_hadoop(hadoop, scripts, tmp_path, has_combiner):  # noqa: F811
    mapper, reducer, _ = scripts
    combiner = mapper.replace("mapper", "combiner") if has_combiner else None
    (tmp_path / "combiner.py").write_text("import sys\nfor line in sys.stdin: sys.stdout.write(line)")
    done = hadoop.streaming(
        *("-D", "mapreduce.job.reduces=1", "-input", str(tmp_path / "in"), "-output", str(tmp_path / "theirs")),
        *("-mapper", mapper, "-reducer", reducer, *(("-combiner", combiner) if combiner else ())),
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    env = ExecutionEnvironment.get_execution_environment("local", 2)
    job = HadoopJob.streaming(mapper, reducer, combiner, num_reducers=1)
    pairs = job.apply(env.read_text(str(tmp_path / "in"))).collect()
    [theirs] = lines_of(tmp_path / "theirs")
    assert [f"{key}\t{value}" for key, value in pairs] == theirs
    assert env.get_last_job_execution_result().get_accumulator_result("words.mappers") == 1


def test_a_script_that_fails_fails_there_and_here(hadoop, scripts, tmp_path):  # noqa: F811
    _, reducer, broken = scripts
    done = hadoop.streaming(
        *("-input", str(tmp_path / "in"), "-output", str(tmp_path / "theirs"), "-mapper", broken, "-reducer", reducer)
    )
    assert done.returncode != 0
    env = ExecutionEnvironment.get_execution_environment("local", 1)
    with pytest.raises(UserFunctionError, match=r"(?s)ended with status 1.*no such luck"):
        HadoopJob.streaming(broken, reducer).apply(env.read_text(str(tmp_path / "in"))).collect()
