"""Events: who gets them, with which instance, and how long a wait lasts."""

from __future__ import annotations

import threading
import time

import pynvml
import pytest

from tests.unit.nvmlsim.conftest import Binding, MakeNode, address

NONE = 0xFFFFFFFF
XID = pynvml.nvmlEventTypeXidCriticalError


def test_an_xid_reaches_every_set_with_its_instance(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("hgx-h100", mig={0: ["1g.10gb"]})
    with nvml(node):
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        node.xid(0, 31)
        sets = [pynvml.nvmlEventSetCreate() for _ in range(2)]
        for one in sets:
            pynvml.nvmlDeviceRegisterEvents(handle, XID, one)
        node.xid(0, 43, gi=7, ci=0)
        node.xid(0, 48)
        node.xid(1, 13)
        for one in sets:
            events = [pynvml.nvmlEventSetWait_v2(one, 0) for _ in range(2)]
            assert [(e.eventData, e.gpuInstanceId, e.computeInstanceId) for e in events] == [
                (43, 7, 0),
                (48, NONE, NONE),
            ]
            assert address(events[0].device) == address(handle)
            with pytest.raises(pynvml.NVMLError_Timeout):
                pynvml.nvmlEventSetWait_v2(one, 0)
            pynvml.nvmlEventSetFree(one)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlEventSetWait_v2(sets[0], 0)


def test_only_registered_types_come(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("t4x4")
    with nvml(node):
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        supported = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
        assert supported == 0xB
        events = pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeDoubleBitEccError, events)
        node.xid(0, 13)
        node.ecc_error(0, double_bit=True)
        assert pynvml.nvmlEventSetWait_v2(events, 0).eventType == pynvml.nvmlEventTypeDoubleBitEccError
        assert pynvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0) == 1
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeClock, events)
        node.set_gpu(0, events_supported=0)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceRegisterEvents(handle, XID, events)


def test_a_wait_ends_when_the_event_comes_or_the_time_is_up(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("t4x4")
    with nvml(node):
        events = pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(0), XID, events)
        began = time.monotonic()
        with pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlEventSetWait_v2(events, 100)
        assert 0.09 < time.monotonic() - began < 2
        timer = threading.Timer(0.1, node.xid, (0, 79))
        timer.start()
        began = time.monotonic()
        assert pynvml.nvmlEventSetWait_v2(events, 5000).eventData == 79
        assert time.monotonic() - began < 2
        timer.join()
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlEventSetWait_v2(events, 5000)


def test_more_events_than_are_kept_lose_the_oldest(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("t4x4")
    with nvml(node):
        events = pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(0), XID, events)
        for number in range(300):
            node.xid(0, 1000 + number)
        assert pynvml.nvmlEventSetWait_v2(events, 0).eventData == 1044
