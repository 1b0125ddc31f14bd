"""Damages checkpoints of real jobs at random: is the output right, end to end, and is it noticed before any record?

    python tests/state/corruption_campaign.py --jobs 300 --trials 10000 [--seed 1] [--backend heap]

*Jobs*: each runs a whole job into files and a table, which fails once; the checkpoints it is about to go back to are
damaged (`lost_checkpoint_kit`). What its files and its table show in the end is compared with what the program must
put out. Nothing may come twice or wrong, whether it has finished or failed, and a job that has finished has put out
everything; only a job that chose to fall back may have written rows twice, if its history says so. It must fail if the
newest checkpoint is not sound, and must not if that is sound, or if falling back was chosen and an older one is.

*Trials*: the net for every reader. Each takes the folder of a job with several checkpoints, damages one to three files
(flipped bits, overwritten, truncated, extended, emptied, missing and swapped files, between checkpoints and between
subtasks; torn, renamed and foreign manifests) and restores as a job does: `prepare_job` chooses the checkpoint,
`JobExecution` makes the deployments, every task reads, verifies and opens its state; a checkpoint found corrupt is
passed over, as the JobManager does where that was chosen.

What must come of it is known without the code under test: a checkpoint is *sound* if its manifest and every file that
it names are byte for byte what they were. The newest sound one must be restored, with exactly the state that it held,
or, if none is left, an error of the tree must say so. Everything else is a *miss*.

The last lines say how the jobs ended, and of the trials: detected (the newest checkpoint was damaged, and that was
noticed), fell back (an older one was restored then), refused (none was left), harmless (the newest one was not
touched), missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import cloudpickle

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lost_checkpoint_kit import expected, run
from snapshot_programs import EveryKind, Remembering, environment, records

from headrace import DamagedCheckpointPolicy, WatermarkStrategy
from headrace.connectors.scripted import Pause, ScriptedSource
from headrace.engine.checkpoint.io import check_restorable, prepare_job
from headrace.engine.checkpoint.restore_choice import JobPast
from headrace.engine.errors import CheckpointCorruptError, CheckpointLostError, HeadraceError, SupersededError
from headrace.engine.graph.chaining import build_job_graph
from headrace.engine.job.context.running import JobExecution
from headrace.engine.kernel.event_log import EventLog
from headrace.engine.kernel.machine import Address, Send
from headrace.engine.protocol.control_messages import RelayToSlot
from headrace.engine.protocol.messages import RegisterTaskManager, SubmitJob
from headrace.engine.protocol.views import SlotInfo
from headrace.engine.task.snapshot_io import read_restored_parts
from headrace.engine.task.task import Task
from headrace.state.files.memory import MemoryFileSystem
from headrace.state.identifiers import JobId

PARALLELISM = 2
SLOT = Address("slot", "slot")


# -------------------------------------------------------------------------------------------------- a job and its files
def stream(env):
    """A program with every kind of keyed state, timers and operator state; small, for it is restored often.

    Its records outlast any checkpoint that is waited for, so that checkpoints differ however slow the machine is.
    """
    script = []
    for first in range(0, 6_000, 12):
        script += [*records(6_000)[first : first + 12], Pause(50)]
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value[1])
    source = ScriptedSource([*script, Pause()], is_bounded=False)
    numbers = env.from_source(source, strategy, "numbers").uid("numbers")
    remembered = numbers.map(Remembering()).uid("remembering")
    return remembered.key_by(lambda value: value[0]).process(EveryKind()).uid("every kind")


@dataclass
class Job:
    """A job that has ended, and the files that it left."""

    backend: str
    job: SubmitJob
    graph: object
    store: MemoryFileSystem
    files: dict[str, bytes]
    named: dict[int, frozenset[str]] = field(default_factory=dict)
    truths: dict[int, object] = field(default_factory=dict)


def taken(backend, folder):
    """Run a job that keeps several checkpoints, and take its files into memory."""
    with environment(folder, backend, PARALLELISM, interval_ms=50) as env:
        env.get_checkpoint_config().set_max_retained_checkpoints(4)
        stream(env).print()
        client = env.execute_async("campaign")
        for view in client.views():
            if view.vertices and view.vertices[0].records_in >= 60 and view.checkpoints_completed >= 5:
                break
        client.cancel()
        job_id = client.get_job_id()
    name = f"campaign-{backend}-{job_id}"
    with environment(folder, backend, PARALLELISM) as env:
        stream(env).print()
        env.enable_checkpointing(50, directory=f"memory://{name}/checkpoints")
        graph = env.get_stream_graph()
        settings = env._job_settings(graph, make_directory=False)
        job_graph = build_job_graph(graph, "campaign", settings)
    store = MemoryFileSystem.named(name)
    root = Path(folder) / "checkpoints" / job_id
    probe = settings.checkpoints.directory.removeprefix(f"memory://{name}/")
    files = {
        f"{probe}/{job_id}/{path.relative_to(root)}": path.read_bytes() for path in root.rglob("*") if path.is_file()
    }
    job = SubmitJob(JobId(job_id), "campaign", cloudpickle.dumps(job_graph), settings, 1)
    made = Job(backend, job, job_graph, store, files)
    made.named.update(named_by(files))
    return made


# ------------------------------------------------------------------------------------------------------------- restores
def restored(made):
    """Restore as a job does; gives the checkpoint's id and all state of all tasks, or the error that ends the job."""
    damaged = {}
    while True:
        past = JobPast(damaged=damaged, may_pass_over=True)
        point = prepare_job(made.job, 1, past, is_claimed=True).restore_point
        if point is None:
            return None, {}
        check_restorable(point, made.graph)
        try:
            return point.checkpoint_id, content(made, point)
        except CheckpointCorruptError:
            damaged[point.checkpoint_id] = "damaged"


def content(made, point):
    """What every task has after it was restored and opened, before its first record."""
    execution = JobExecution(made.job, made.graph, Address("jm", "jm"), Address("jm", "cc"), EventLog())
    slots = tuple(SlotInfo(index, Address(f"slot-{index}", "slot")) for index in range(execution.num_slots_needed))
    execution.register(RegisterTaskManager(made.job.job_id, "tm", Address("tm", "tm"), 1, slots, {}, 1))
    found = {}
    for command in execution.deploy(1, 0, point, execution.graph.subtasks(), 0):
        if not (isinstance(command, Send) and isinstance(command.message, RelayToSlot)):
            continue
        deployment = command.message.message.deployment
        task = Task(deployment, SLOT, lambda: 1_000, lambda _name: None)
        try:
            task.initialize(read_restored_parts(deployment))
            for link in task.links:
                backend = task.keyed_state(link.uid)
                place = (str(link.uid), deployment.attempt.subtask)
                found[place] = (keyed_content(backend), operator_content(link.operator.context.operator_state))
        finally:
            task.close()
    return found


def keyed_content(backend):
    held = {}
    for name, table in backend.tables().items():
        if table.kind == "keyed":
            held[name] = {
                (namespace, key): repr(value)
                for namespace in table.namespaces()
                for key, value in table.namespace(namespace).items()
            }
    return {name: rows for name, rows in held.items() if rows}


def operator_content(state):
    return {
        name: repr(sorted(s.entries.items()) if s.kind == "broadcast" else s.values)
        for name, s in state._states.items()
    }


# --------------------------------------------------------------------------------------------------------------- damage
def flip(rng, data):
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def overwrite(rng, data):
    start = rng.randrange(len(data))
    size = rng.randrange(1, min(4_096, len(data) - start) + 1)
    piece = bytes(size) if rng.random() < 0.5 else rng.randbytes(size)
    return data[:start] + piece + data[start + size :]


def truncate(rng, data):
    return data[: rng.randrange(len(data))]


def extend(rng, data):
    return data + rng.randbytes(rng.randrange(1, 64))


def cut_out(rng, data):
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.randrange(1, 64) :]


CONTENT = (flip, flip, flip, overwrite, truncate, extend, cut_out)


def damage(rng, files, newest, *, has_foreign=True):
    """Damage a folder's files in place, half of the time one of the newest checkpoint; gives a word for it.

    ``has_foreign`` says whether files may be added that nobody has written.
    """
    path = rng.choice(sorted(newest & files.keys() if rng.random() < 0.5 and newest & files.keys() else files))
    data = files[path]
    kind = rng.randrange(12)
    if kind < 6 and data:
        change = rng.choice(CONTENT)
        files[path] = change(rng, data)
        return change.__name__
    if kind == 6:
        files[path] = b""
        return "empty"
    if kind == 7:
        del files[path]
        return "missing"
    if kind == 8:  # a file of the same name in another checkpoint, or of another subtask; else any
        alike = [p for p in files if p != path and p.rpartition("/")[2] == path.rpartition("/")[2]]
        siblings = [p for p in files if p != path and p.rpartition(".")[2] == path.rpartition(".")[2]]
        other = rng.choice(sorted(alike or siblings or files))
        files[path], files[other] = files[other], files[path]
        return "swapped"
    if kind == 9:
        other = rng.choice(sorted(files))
        files[path] = files[other]
        return "replaced"
    start = next(p for p in files if "/manifests/" in p or "/epochs/" in p).rpartition("/")[0].rpartition("/")[0]
    manifests = sorted(p for p in files if "/manifests/" in p)
    if not has_foreign:
        return "none"
    if kind == 10 or not manifests:
        extra = rng.choice(("manifests/chk-x.json", "chk-99/a.arrow", "epochs/000000000077", "shared/a/1-b", "junk"))
        files[f"{start}/{extra}"] = rng.randbytes(rng.randrange(0, 100))
        return "extra"
    source = files[rng.choice(manifests)]
    target = f"{start}/manifests/chk-{rng.choice((1, 2, 50, 51))}.json"
    files[target] = rng.choice((source, source[: len(source) // 2], flip(rng, source) if source else b""))
    return "foreign manifest"


def trial(made, rng, tally, misses):
    """One trial; counts how it went."""
    files = dict(made.files)
    done = [damage(rng, files, made.named[max(made.named)]) for _ in range(rng.choice((1, 1, 1, 1, 2, 3)))]
    made.store.files.clear()
    made.store.files.update(files)
    sound = [i for i, named in made.named.items() if all(files.get(p) == made.files[p] for p in named)]
    newest, expected = max(made.named), max(sound, default=None)
    try:
        found, held = restored(made)
    except (CheckpointCorruptError, CheckpointLostError) as error:
        found, held = error, None
    except SupersededError as error:  # that of a leader whose epoch is gone, whatever else is there
        is_right = any("/epochs/" in path for path in made.files.keys() - files.keys())
        tally["detected"] += is_right
        tally["refused"] += is_right
        if not is_right:
            tally["missed"] += 1
            misses.append((done, f"no epoch is gone: {error!r}"))
        return
    except HeadraceError as error:
        misses.append((done, f"an error that is not of a damaged checkpoint: {error!r}"))
        tally["missed"] += 1
        return
    if expected is None:
        has_manifest = any(
            "/manifests/chk-" in p and p.rpartition("/chk-")[2].removesuffix(".json").isdigit() for p in files
        )
        was_noted = any("/completed/" in p for p in files)
        is_right = isinstance(found, HeadraceError) if has_manifest or was_noted else found is None
        tally["detected"] += is_right
        tally["refused"] += is_right
    else:
        is_right = found == expected and held == made.truths[expected]
        tally["harmless"] += is_right and expected == newest
        tally["detected"] += is_right and expected != newest
        tally["fell back"] += is_right and expected != newest
    if not is_right:
        tally["missed"] += 1
        misses.append((done, f"{found!r} where {expected} was right"))


# ----------------------------------------------------------------------------------------------------------- end to end
def named_by(files):
    """By checkpoint, its manifest and the files that it names."""
    named = {}
    for path, data in files.items():
        if "/manifests/" in path:
            manifest = json.loads(data)["manifest"]
            start = path.partition("/manifests/")[0]
            held = {f["path"] for o in manifest["operators"] for s in o["subtasks"] for f in s["files"]}
            named[manifest["checkpoint_id"]] = frozenset({path, *(f"{start}/{name}" for name in held)})
    return named


def run_job(backend, rng, folder):
    """Run a job whose checkpoints are damaged before it restarts; gives how that went, and what is wrong, if anything.

    Returns:
        A word for the outcome, what was damaged, and a text, empty if all is as it must be.
    """
    policy = rng.choice(list(DamagedCheckpointPolicy))
    done, sound, newest = [], [], []

    def strike(root):
        files = {
            f"{root.name}/{path.relative_to(root)}": path.read_bytes() for path in root.rglob("*") if path.is_file()
        }
        before, named = dict(files), named_by(files)
        times = rng.choice((1, 1, 1, 2, 3))
        done.extend(damage(rng, files, named[max(named)], has_foreign=False) for _ in range(times))
        for path in before.keys() - files.keys():
            (root.parent / path).unlink()
        for path, data in files.items():
            if before.get(path) != data:
                (root.parent / path).write_bytes(data)
        newest.append(max(named))
        sound.extend(i for i, paths in named.items() if all(files.get(path) == before[path] for path in paths))

    end = run(folder, strike, backend=backend, parallelism=rng.choice((1, 2)), policy=policy)
    falls_back = policy is DamagedCheckpointPolicy.FALL_BACK_AT_LEAST_ONCE
    is_said = any("output comes twice" in text for text in end.history)
    must_finish = newest[0] in sound or (falls_back and bool(sound))
    wrong = []
    for place, rows in (("files", end.files), ("table", end.table)):
        if set(rows) - set(expected()):
            wrong.append(f"the {place} show rows that are wrong")
        if rows - expected() and not is_said:
            wrong.append(f"the {place} show rows twice")
        if end.failure is None and expected() - rows:
            wrong.append(f"the {place} lack rows")
    if is_said and (not falls_back or newest[0] in sound):
        wrong.append("it fell back although that was not called for")
    if must_finish != (end.failure is None):
        wrong.append(f"it {'failed' if must_finish else 'finished'}: {end.failure}")
    word = "failed" if end.failure is not None else "fell back" if is_said else "exact"
    return word, done, "; ".join(wrong)


def run_jobs(backend, count, seed, folder):
    """Run jobs on one backend; gives the tally and the misses."""
    rng, tally, misses = random.Random(f"jobs {seed} {backend}"), Counter(), []
    for number in range(count):
        place = Path(folder) / str(number)
        place.mkdir()
        word, done, wrong = run_job(backend, rng, place)
        # A commit that was under way when its job failed may still end, and close its database, in a thread.
        shutil.rmtree(place, ignore_errors=True)
        tally["missed" if wrong else word] += 1
        misses += [(done, wrong)] if wrong else []
    return tally, misses


def coverage(made):
    """What each file of the folder is: a manifest, named by one, or ignorable, and why."""
    counts = Counter()
    named = frozenset().union(*made.named.values())
    for path in made.files:
        if "/manifests/" in path:
            counts["manifests, which hold their own hash"] += 1
        elif path in named:
            counts["files whose size and hash a manifest holds"] += 1
        elif "/epochs/" in path or "/completed/" in path:
            counts["epochs and notes, of which only names count"] += 1
        else:
            assert "/chk-" in path or "/shared/" in path, path
            counts["files that no manifest names: of checkpoints that never completed"] += 1
    return counts


def campaign(backend, trials, seed, folder):
    """Run trials on one backend; gives the tally, the misses and the coverage."""
    made = taken(backend, folder)
    made.store.files.update(made.files)
    for checkpoint_id in made.named:
        made.store.files.clear()
        kept = {p: d for p, d in made.files.items() if "/manifests/" not in p or f"/chk-{checkpoint_id}.json" in p}
        made.store.files.update(kept)
        found, made.truths[checkpoint_id] = restored(made)
        assert found == checkpoint_id
        assert any(keyed for keyed, _ in made.truths[checkpoint_id].values())
    assert len({repr(truth) for truth in made.truths.values()}) > 1, "the checkpoints hold different states"
    assert len(made.named) >= 3
    rng, tally, misses = random.Random(f"{seed} {backend}"), Counter(), []
    for _ in range(trials):
        trial(made, rng, tally, misses)
    return tally, misses, coverage(made)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", choices=("heap", "rocksdb"), action="append")
    options = parser.parse_args(arguments)
    backends = options.backend or ["heap", "rocksdb"]
    total, began = Counter(), time.monotonic()
    for backend in backends:
        folder = tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        try:
            jobs, wrong = run_jobs(backend, options.jobs // len(backends), options.seed, folder)
            tally, misses, covered = campaign(backend, options.trials // len(backends), options.seed, folder)
        finally:
            shutil.rmtree(folder)
        total.update(tally)
        total["missed"] += jobs["missed"]
        counts = ", ".join(f"{word} {jobs[word]}" for word in ("exact", "fell back", "failed", "missed"))
        print(f"{backend}, end to end: {jobs.total()} jobs, {counts}")
        for done, what in wrong[:10]:
            print(f"MISSED end to end {done}: {what}")
        print(f"{backend}: {'; '.join(f'{count} {what}' for what, count in sorted(covered.items()))}")
        for done, what in misses[:10]:
            print(f"MISSED {done}: {what}")
    names = ("detected", "fell back", "refused", "harmless", "missed")
    seconds = time.monotonic() - began
    counts = ", ".join(f"{name} {total[name]}" for name in names)
    print(f"trials {sum(total[n] for n in ('detected', 'harmless', 'missed'))}, {counts} ({seconds:.0f} s)")
    return 1 if total["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
