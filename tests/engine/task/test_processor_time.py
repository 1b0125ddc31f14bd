"""Processor time of a task: an operator's account is its own work, no matter what is called within it."""

from __future__ import annotations

import pytest

from headrace.engine.columns.records import Batch
from headrace.engine.errors import InternalError
from headrace.engine.functions.operator import Operator
from headrace.engine.kernel.metrics import MetricGroup
from headrace.engine.task.chain import ChainLink
from headrace.engine.task.processor_time import ProcessorTime


class Clock:
    now_us = 0

    def __call__(self):
        return self.now_us


class Works(Operator):
    """Takes so long for a batch before it goes on, and so long behind."""

    def __init__(self, clock, before_us, behind_us):
        self.clock, self.before_us, self.behind_us = clock, before_us, behind_us

    def process_batch(self, batch, input_index):
        self.clock.now_us += self.before_us
        if batch.rows == ["bad"]:
            message = "it is bad"
            raise InternalError(message)
        self.output.emit(batch)
        self.clock.now_us += self.behind_us


def chain_of(clock, time, *operators):
    links = []
    for number, operator in enumerate(operators):
        link = ChainLink(f"{number}", f"{number}", operator, 0, 1, MetricGroup(), time)
        operator.output = link.output
        if links:
            links[-1].output.add_link(link, None)
        links.append(link)
    return links


def test_each_operator_is_booked_its_own_work_and_exchanges_the_rest():
    clock = Clock()
    time = ProcessorTime(clock)
    first, second, third = chain_of(clock, time, Works(clock, 1, 20), Works(clock, 300, 4_000), Works(clock, 50_000, 0))
    clock.now_us += 7_000_000  # before a step: nobody's
    time.switch(time.exchanges)
    clock.now_us += 600_000
    first.process_batch(Batch.of_rows([1]), 0)
    with pytest.raises(InternalError, match="it is bad"):
        second.process_batch(Batch.of_rows(["bad"]), 0)
    clock.now_us += 100_000
    time.switch(None)
    clock.now_us += 7_000_000
    assert [link.processor.used_us for link in (first, second, third)] == [21, 4_600, 50_000]
    assert time.exchanges.used_us == 700_000


def test_without_a_clock_nothing_is_booked():
    clock = Clock()
    time = ProcessorTime()
    (link,) = chain_of(clock, time, Works(clock, 1, 20))
    link.process_batch(Batch.of_rows([1]), 0)
    assert not time.is_measured
    assert link.processor.used_us == time.exchanges.used_us == 0
