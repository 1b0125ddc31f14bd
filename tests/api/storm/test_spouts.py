"""Families: contract (a spout acknowledges behind a checkpoint, as every source of what is then forgotten does)."""

from __future__ import annotations

import itertools

import pytest
from post_source import Post
from storm_kit import spout

from headrace.storm import Spout, Stream
from headrace.storm.layout import Component, Layout
from headrace.storm.spout_source import SpoutSource
from headrace.testing.acknowledging_contract import ACKNOWLEDGING_CONTRACT, AcknowledgingSubject

_names = itertools.count()
NARROW = {"topology.max.spout.pending": 10}


class Letters(Spout):
    """Has a share of the queues of a post, and gives a letter at a time."""

    def __init__(self, post):
        self.post = post

    def initialize(self, storm_conf, context):
        from post_source import Post  # the one that has the posts

        tasks = sorted(map(int, context["task->component"]))
        self.service = Post.posts[self.post]
        self.queues = range(len(self.service.queues))[tasks.index(context["taskid"]) :: len(tasks)]
        self.connection = self.service.connect()

    def next_tuple(self):
        for queue in self.queues:
            for letter in self.service.take(self.connection, queue, 1):
                self.emit([letter], tup_id=letter)
                return

    def ack(self, tup_id):
        self.service.acknowledge(self.connection, [tup_id])

    def stop(self):
        self.service.close(self.connection)


def source_of(letters, num_tasks, **conf):
    component = Component("letters", {"default": Stream(("letter",))}, num_tasks)
    return SpoutSource(letters, Layout("topology", [component], conf), "letters")


@pytest.mark.parametrize("check", ACKNOWLEDGING_CONTRACT, ids=lambda check: check.__name__)
def test_contract(check):
    name = f"post of spouts {next(_names)}"
    post, letters = Post(name), Letters(name)
    check(
        AcknowledgingSubject(
            source_of(letters, 3), number=lambda emitted: emitted.values[0], send=post.send, num_left=post.num_left,
            knows_again=False, narrow=source_of(letters, 1, **NARROW), server=post,
        )
    )  # fmt: skip


@pytest.mark.lane("storm")
@pytest.mark.parametrize("check", ACKNOWLEDGING_CONTRACT, ids=lambda check: check.__name__)
def test_contract_of_a_program(check, tmp_path):
    letters = spout("spool.py", str(tmp_path), outputs=("letter",))

    def send(numbers):
        for number in numbers:
            (tmp_path / str(number)).touch()

    check(
        AcknowledgingSubject(
            source_of(letters, 3), number=lambda emitted: emitted.values[0], send=send,
            num_left=lambda: len(list(tmp_path.iterdir())), knows_again=False, narrow=source_of(letters, 1, **NARROW),
        )
    )  # fmt: skip
