"""The table of a job's phases: nothing is a trap, nothing comes back from the end."""

from headrace.engine.job.context.phase import LIVE_PHASES, PHASE_TRANSITIONS, Phase


def test_every_phase_is_in_the_table():
    assert set(PHASE_TRANSITIONS) == set(Phase)


def test_the_end_is_final_and_every_other_phase_can_come_to_it():
    assert not PHASE_TRANSITIONS[Phase.ENDED]
    for start in set(Phase) - {Phase.ENDED}:
        assert Phase.ENDED in PHASE_TRANSITIONS[start]


def test_tasks_never_run_again_without_being_prepared():
    """Between two deployments there is always a preparation: it chooses the checkpoint."""
    assert [start for start, ends in PHASE_TRANSITIONS.items() if Phase.DEPLOYING in ends] == [Phase.WAITING_FOR_SLOTS]
    assert [start for start, ends in PHASE_TRANSITIONS.items() if Phase.WAITING_FOR_SLOTS in ends] == [Phase.PREPARING]
    assert not any(PHASE_TRANSITIONS[phase] & {Phase.PREPARING, Phase.BACKING_OFF} for phase in LIVE_PHASES)
