"""Records that are left where they are: what of that tests look at."""

from __future__ import annotations

from typing import Any

from headrace.engine.task.chain import OutputGate

__all__ = ["watched_staying"]


def watched_staying(monkeypatch: Any) -> list[int]:
    """Numbers of channels to which all is sent without being looked at; what is sent there is looked at after all."""
    found: list[int] = []

    def stay(gate: Any, index: int) -> None:
        found.append(index)
        partition = gate._partition

        def checked(batch: Any) -> list[tuple[int, Any]]:
            assert [at for at, _ in partition(batch)] == [index]
            return [(index, batch)]

        gate._partition = checked

    monkeypatch.setattr(OutputGate, "stay", stay)
    return found
