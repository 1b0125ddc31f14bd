"""What is made of what Ray says of its nodes and its autoscaler; the saying itself is tested on Ray."""

import pytest

from headrace.actors.ray.node_types import NodeType, _first_status, _Status, report_of, types_in
from headrace.engine.kernel.cluster_shape import NodeShape

HEAD = {"NodeID": "h", "NodeManagerAddress": "10.0.0.1", "Resources": {"node:10.0.0.1": 1.0}}
WORKER = NodeType("worker", 4.0, 8)


def node(node_id, cpus):
    return {"NodeID": node_id, "NodeManagerAddress": f"ip-{node_id}", "Resources": {"CPU": cpus}}


def test_types_are_those_of_workers_within_the_bound_on_all_nodes():
    kinds = {
        "head": {"resources": {"CPU": 8}},
        "small": {"resources": {"CPU": 2}, "max_workers": 9},
        "large": {"resources": {"CPU": 16}, "max_workers": 3},
        "any": {},
    }
    config = {"max_workers": 5, "head_node_type": "head", "available_node_types": kinds}
    assert list(types_in(config)) == [NodeType("large", 16.0, 3), NodeType("small", 2.0, 2)]
    assert list(types_in({})) == []


def test_an_empty_cluster_is_what_it_may_launch():
    seen = report_of([HEAD], _Status(scales=True), (WORKER,))
    assert (seen.shapes, seen.scales, seen.is_complete) == ((NodeShape("worker", 4.0, 8),), True, True)


@pytest.mark.parametrize("key", ["w", "ip-w"])
def test_a_node_of_a_type_is_one_of_those_that_may_be(key):
    seen = report_of([HEAD, node("w", 3.0), node("x", 7.0)], _Status(scales=True, types={key: "worker"}), (WORKER,))
    assert seen.shapes == (NodeShape("", 7.0, 1), NodeShape("worker", 3.0, 8)), (
        "what it has counts, not what is written"
    )


def test_a_type_that_does_not_say_what_it_has_leaves_the_picture_incomplete():
    assert not report_of([HEAD], _Status(scales=True), (NodeType("worker", None, 8),)).is_complete


def test_a_cluster_of_which_nothing_is_known_may_grow():
    seen = report_of([node("a", 2.0), node("b", 2.0)], _Status(), ())
    assert (seen.shapes, seen.scales, seen.is_complete) == ((NodeShape("", 2.0, 2),), True, False)


def test_a_cluster_that_does_not_grow_is_what_it_is():
    seen = report_of([node("a", 2.0)], _Status(scales=False), ())
    assert (seen.scales, seen.is_complete) == (False, True)


def test_the_first_autoscaler_says_it_as_json(monkeypatch):
    import json

    from ray.experimental import internal_kv

    said = {
        "active_nodes": {"head": 1},
        "pending_launches": {"worker": 2},
        "pending_nodes": [["ip", "worker", "setting-up"], ["ip", "other", "waiting-for-ssh"]],
        "node_type_mapping": {"ip-w": "worker"},
        "node_availability_summary": {
            "node_availabilities": {
                "worker": {"is_available": False, "unavailable_node_information": {"description": "no capacity"}},
                "other": {"is_available": True},
            }
        },
    }
    answers = {"__autoscaling_status": json.dumps({"autoscaler_report": said}).encode()}
    monkeypatch.setattr(internal_kv, "_internal_kv_get", answers.get)
    status = _first_status([HEAD])
    assert status == _Status(True, (("other", 1), ("worker", 3)), ("worker: no capacity",), {"ip-w": "worker"})
    said["active_nodes"] = {"node_h": 1}  # of a Ray that was not asked to scale
    answers["__autoscaling_status"] = json.dumps({"autoscaler_report": said}).encode()
    assert _first_status([HEAD]).scales is False
    answers.clear()
    assert _first_status([HEAD]) == _Status()
