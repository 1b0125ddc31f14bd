"""Ray's own fault injection: ``python tests/actors/ray_faults.py --percent 2 --kills 5``.

Ray is started so that, of its calls to actors, some percent never arrive, as many run and lose their answer, and as
many fail for the caller while they still run (``RAY_testing_rpc_failure``, the knobs of Ray's own chaos tests). Above
that the job of the kill soak runs, with kills if asked for. Links have to send again, drop what comes twice and put
in order what comes late; a lost answer of a host's own call looks like its death. That may be a head's, so there is a
standby; and slots of the very first deployment, without which a job fails at once, have time to be asked for again.
Whatever happens, the output is judged as in the kill soak.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import cloudpickle

sys.path.insert(0, str(Path(__file__).resolve().parent))

CALL = "CoreWorkerService.grpc_client.PushTask"
"""How Ray calls a method of an actor."""


def inject(percent: int) -> None:
    """Have calls fail in every process of the Ray that is started next."""
    each = {"num_failures": -1, "req_failure_prob": percent, "resp_failure_prob": percent}
    os.environ.update(RAY_testing_rpc_failure=json.dumps({CALL: {**each, "in_flight_failure_prob": percent}}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--percent", type=int, default=1, help="of calls, for each of the three kinds of failure")
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    inject(options.percent)
    import kill_soak  # only now: Ray reads its environment when it is imported

    from headrace import HighAvailabilitySettings

    cloudpickle.register_pickle_by_value(kill_soak)  # its processes do not find the tests' modules
    with tempfile.TemporaryDirectory() as directory:
        figures, history = kill_soak.soak(
            options.kills,
            options.seed,
            Path(directory),
            victims=kill_soak.VICTIMS["all"],
            high_availability=HighAvailabilitySettings(f"{directory}/ha", "faults"),
            slot_request_timeout_ms=180_000,
        )
    print("\n".join(text for _, text in history))
    for name, value in figures.items():
        print(f"{name}: {value:.2f}" if isinstance(value, float) else f"{name}: {value}")
    is_bad = any(figures[name] for name in ("lost", "duplicated", "out of order", "changed files"))
    print(f"{0 if is_bad else 1} passed, {1 if is_bad else 0} failed")
    return 1 if is_bad else 0


if __name__ == "__main__":
    sys.exit(main())
