"""The node policy: what holds for a GPU, what of it holds for none, and what is offered by it."""

from __future__ import annotations

import pytest

from driver.devices import offered_devices
from driver.gpuselection import GpuSelection
from driver.migoffer import MigPolicy
from driver.nodepolicy import GpuPolicy, NodePolicy, PolicyEntry
from driver.shares import ShareMode, Shares
from tests.unit.driver.inventories import gpu, inventory, mig

T4 = gpu(0x17, index=0, product_name="Tesla T4", mig_capable=False, profiles=())
H100 = gpu(0x65, index=1)
BOTH = inventory(T4, H100)
TWO, FIVE = Shares(ShareMode.PLACES, 2), Shares(ShareMode.PLACES, 5)
LAYOUT = (("3g.40gb", 1), ("1g.10gb", 2))


def on(*names: str, **fields: object) -> PolicyEntry:
    return PolicyEntry(GpuSelection.parse(names) if names else None, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["0", "0000:17:00.0", "00000000:17:00.0", T4.uuid, T4.uuid.upper(), "Tesla T4", "^Tesla", "T4$"]
)
def test_an_entry_selects_by_index_address_uuid_or_product(name: str) -> None:
    policy = NodePolicy(entries=(on(name, shares=TWO),))
    assert (policy.of(T4).shares, policy.of(H100).shares) == (TWO, None)


def test_the_first_entry_that_selects_a_gpu_holds_as_a_whole() -> None:
    policy = NodePolicy(
        entries=(on("T4", exclude=True), on("0", "1", shares=TWO), on(shares=FIVE, layout=LAYOUT))
    )
    assert policy.of(T4) == GpuPolicy(exclude=True)
    assert policy.of(H100) == GpuPolicy(shares=TWO)
    assert policy.of(gpu(0x99, index=2)) == GpuPolicy(shares=FIVE, layout=LAYOUT)
    assert NodePolicy().of(T4) == GpuPolicy()


def test_flags_hold_where_the_file_says_nothing_else() -> None:
    policy = NodePolicy(
        GpuSelection.parse(["0"]), MigPolicy.STATIC, (on("H100", mig=MigPolicy.OFF), on(shares=TWO))
    )
    assert policy.of(H100) == GpuPolicy(mig=MigPolicy.OFF)
    assert policy.of(T4) == GpuPolicy(exclude=True, mig=MigPolicy.STATIC, shares=TWO)
    assert policy.excludes(T4)
    assert not policy.excludes(H100)


def test_profiles_have_shares_of_their_own() -> None:
    policy = GpuPolicy(shares=TWO, profile_shares=(("1g.10gb", FIVE),))
    assert [policy.shares_of(name) for name in (None, "1g.10gb", "2g.20gb")] == [TWO, FIVE, None]


@pytest.mark.parametrize(
    ("entry", "any_shared"),
    [(on(), False), (on(shares=TWO), True), (on("9", profile_shares=(("1g.10gb", TWO),)), True)],
)
def test_whether_anything_could_be_shared(entry: PolicyEntry, any_shared: bool) -> None:
    assert NodePolicy(entries=(entry,)).shares_any is any_shared


@pytest.mark.parametrize(
    ("entries", "names"),
    [
        ((on("1", exclude=True),), ["gpu-0000-17-00-0"]),
        ((on(exclude=True),), []),
        ((on("1", mig=MigPolicy.OFF),), ["gpu-0000-17-00-0", "gpu-0000-65-00-0"]),
        ((on("1", mig=MigPolicy.STATIC),), ["gpu-0000-17-00-0", "gpu-0000-65-00-0"]),
        (
            (on("1", layout=LAYOUT),),
            [
                "gpu-0000-17-00-0",
                "gpu-0000-65-00-0-mig-1g10gb-4",
                "gpu-0000-65-00-0-mig-1g10gb-5",
                "gpu-0000-65-00-0-mig-3g40gb-0",
            ],
        ),
    ],
)
def test_what_is_offered_by_it(entries: tuple[PolicyEntry, ...], names: list[str]) -> None:
    offered = offered_devices(BOTH, NodePolicy(entries=entries), {})
    assert sorted(device.name for device in offered) == names


def test_a_layout_that_is_not_possible_changes_nothing() -> None:
    impossible = NodePolicy(entries=(on(layout=(("7g.80gb", 2),)),))
    assert offered_devices(BOTH, impossible, {}) == offered_devices(BOTH, NodePolicy(), {})


def test_the_partitions_of_a_layout_are_shared_by_their_profiles() -> None:
    entry = on(layout=LAYOUT, shares=TWO, profile_shares=(("1g.10gb", FIVE),))
    offered = offered_devices(inventory(H100), NodePolicy(entries=(entry,)), {})
    assert [(device.profile, device.shares) for device in offered] == [
        ("1g.10gb", FIVE),
        ("1g.10gb", FIVE),
        ("3g.40gb", None),
    ]


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        (NodePolicy(), []),
        (NodePolicy(GpuSelection.parse(["0", "T4"]), entries=(on("1"), on(shares=TWO))), []),
        (
            NodePolicy(GpuSelection.parse(["99", "0"])),
            ["--exclude: '99' selects no GPU that this node has now"],
        ),
        (
            NodePolicy(entries=(on("1"), on("0", "GPU-4F0", "0000:99:00.0", "L40S$", exclude=True))),
            [
                f"node policy, field spec.entries.1.gpus: {name!r} selects no GPU that this node has now"
                for name in ("0000:99:00.0", "L40S$", "gpu-4f0")
            ],
        ),
        (
            NodePolicy(entries=(on(shares=TWO), on("T4", exclude=True))),
            ["node policy, field spec.entries.1: for each GPU that it selects, an earlier entry holds"],
        ),
        (
            NodePolicy(entries=(on("1", profile_shares=(("1g.10gb", TWO), ("1g.5gb", TWO))),)),
            [
                "node policy, field spec.entries.0.profiles.1g.5gb: no GPU that the entry holds for "
                "has this MIG profile"
            ],
        ),
        (NodePolicy(entries=(on("1"), on("T4", "0"), on(shares=TWO))), []),
        (
            NodePolicy(entries=(on(), on())),
            ["node policy, field spec.entries.1: for each GPU that it selects, an earlier entry holds"],
        ),
    ],
)
def test_what_holds_for_no_gpu_is_named(policy: NodePolicy, found: list[str]) -> None:
    assert list(policy.without_effect(BOTH.gpus)) == found


def test_a_profile_is_known_by_an_existing_mig_device_too() -> None:
    divided = gpu(0x65, profiles=(), mig_enabled=True, mig_devices=(mig(profile="1c.3g.40gb"),))
    policy = NodePolicy(entries=(on(profile_shares=(("1c.3g.40gb", TWO),)),))
    assert policy.without_effect([divided]) == ()
