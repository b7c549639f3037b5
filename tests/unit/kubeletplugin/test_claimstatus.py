"""What is written into a claim's status.devices."""

from __future__ import annotations

from kubeletplugin.claimstatus import StatusWriter, device_statuses
from tests.unit.kubeletplugin.records import held, record


def test_a_whole_gpu_and_a_mig_device() -> None:
    whole, part = device_statuses(
        record(
            held(),
            held("gpu-0000-66-00-0-mig-1g10gb-3", "0000:66:00.0", uuid="MIG-1", gpu_instance_id=9,
                 compute_instance_id=0, share_id="s"),
        )
    )  # fmt: skip
    assert whole == {
        "driver": "gpu.nvidia.com",
        "pool": "node-1",
        "device": "gpu-0000-65-00-0",
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Prepared",
                "message": "gpu-0000-65-00-0 is prepared as GPU-of-0000:65:00.0",
                "lastTransitionTime": "2023-11-14T22:13:20Z",
            }
        ],
        "data": {
            "uuid": "GPU-of-0000:65:00.0",
            "parentUUID": "GPU-of-0000:65:00.0",
            "pciBusID": "0000:65:00.0",
        },
    }
    assert part["data"] == {
        "uuid": "MIG-1",
        "parentUUID": "GPU-of-0000:66:00.0",
        "pciBusID": "0000:66:00.0",
        "gpuInstanceID": 9,
        "computeInstanceID": 0,
    }
    assert part["shareID"] == "s"


def test_what_stands_there_already_is_not_written_again() -> None:
    prepared = record()
    stored = {**device_statuses(prepared)[0]}
    stored["conditions"] = [{**stored["conditions"][0], "lastTransitionTime": "2020-01-01T00:00:00Z"}]
    cases = {
        "there": ([stored], False),
        "not there": ([], True),
        "there without condition": ([{**stored, "conditions": []}], True),
        "of another card": ([{**stored, "data": {"uuid": "GPU-other"}}], True),
        "of another driver": ([{**stored, "driver": "nic.example.com"}], True),
    }
    for case, (devices, is_written) in cases.items():
        writer = StatusWriter(None, None, None)  # type: ignore[arg-type]
        writer.prepared(prepared, {"status": {"devices": devices}})
        assert (prepared.claim.uid in writer._pending) is is_written, case
        writer.unprepared(prepared.claim.uid)
        assert writer._pending == {}, case
