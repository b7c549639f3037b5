from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from driver.inventory import NvLink, PciAddress
from driver.topology import GpuLinks, Link, Remote, nvlinks

_SWITCHES = [PciAddress(0, 0xC0 + number, 0, 0) for number in range(4)]


def _pci(number: int) -> PciAddress:
    return PciAddress(0, 0x10 + number, 0, 0)


def _uuid(number: int) -> str:
    return f"GPU-{number}"


def _bridged(number: int, *remotes: int, links: int = 4) -> GpuLinks:
    to = tuple(Link(Remote.GPU, _pci(remote)) for remote in remotes for _ in range(links))
    return GpuLinks(_uuid(number), _pci(number), to, "3.0.0")


def _switched(number: int, switches: list[PciAddress], clique: str | None = None) -> GpuLinks:
    return GpuLinks(
        _uuid(number), _pci(number), tuple(Link(Remote.SWITCH, pci) for pci in switches), "4.0.0", clique
    )


def _islands(result: dict[PciAddress, NvLink]) -> set[frozenset[PciAddress]]:
    return {
        frozenset(pci for pci in result if result[pci].domain == domain)
        for domain in {nvlink.domain for nvlink in result.values()}
    }


def test_two_bridged_pairs_are_two_domains() -> None:
    result = nvlinks([_bridged(0, 1), _bridged(1, 0), _bridged(2, 3), _bridged(3, 2)])
    assert result[_pci(0)] == NvLink("nvlink-GPU-0", 4, "3.0.0", 1)
    assert result[_pci(1)].domain == "nvlink-GPU-0"
    assert result[_pci(2)].domain == result[_pci(3)].domain == "nvlink-GPU-2"


def test_all_gpus_behind_switches_are_one_domain() -> None:
    result = nvlinks([_switched(number, _SWITCHES) for number in range(8)])
    assert {nvlink.domain for nvlink in result.values()} == {"nvlink-GPU-0"}
    assert {nvlink.peers for nvlink in result.values()} == {7}


def test_switches_that_share_gpus_are_one_fabric() -> None:
    result = nvlinks([_switched(0, _SWITCHES[:2]), _switched(1, _SWITCHES[1:3]), _switched(2, _SWITCHES[2:])])
    assert {nvlink.peers for nvlink in result.values()} == {2}


def test_b023_two_islands_of_four() -> None:
    gpus = [
        _bridged(number, *(other for other in range(8) if other != number and other // 4 == number // 4))
        for number in range(8)
    ]
    result = nvlinks(gpus)
    assert _islands(result) == {frozenset(map(_pci, range(4))), frozenset(map(_pci, range(4, 8)))}
    assert {nvlink.peers for nvlink in result.values()} == {3}


def test_b024_gpus_without_nvlink_match_nothing() -> None:
    result = nvlinks([_bridged(0), _bridged(1)])
    assert result == {_pci(0): NvLink(_uuid(0)), _pci(1): NvLink(_uuid(1))}


def test_a_dead_link_splits_also_when_one_end_still_calls_it_active() -> None:
    result = nvlinks([_bridged(0, 1), _bridged(1)])
    assert result[_pci(0)] == NvLink(_uuid(0), 4, "3.0.0", 0)
    assert result[_pci(1)] == NvLink(_uuid(1))


def test_a_gpu_whose_switch_links_are_all_dead_leaves_the_fabric() -> None:
    result = nvlinks([_switched(0, _SWITCHES), _switched(1, _SWITCHES), _switched(2, [])])
    assert result[_pci(2)] == NvLink(_uuid(2))
    assert result[_pci(0)].peers == 1


def test_cliques_split_a_fabric_and_join_gpus_whose_switches_have_no_address() -> None:
    result = nvlinks(
        [
            GpuLinks(
                _uuid(number), _pci(number), (Link(Remote.SWITCH, None),), "5.0.0", f"cluster.{number // 2}"
            )
            for number in range(4)
        ]
    )
    assert _islands(result) == {frozenset(map(_pci, (0, 1))), frozenset(map(_pci, (2, 3)))}


def test_in_a_chain_peers_are_those_reached_directly() -> None:
    result = nvlinks([_bridged(0, 1), _bridged(1, 0, 2), _bridged(2, 1)])
    assert [result[_pci(number)].peers for number in range(3)] == [1, 2, 1]
    assert len({nvlink.domain for nvlink in result.values()}) == 1


def test_links_to_a_processor_or_to_a_gpu_that_is_not_ours_join_nothing() -> None:
    strange = GpuLinks(
        _uuid(0), _pci(0), (Link(Remote.OTHER, _pci(1)), Link(Remote.GPU, PciAddress(0, 0xFF, 0, 0))), "4.0.0"
    )
    result = nvlinks([strange, _bridged(1, 0)])
    assert result[_pci(0)].domain == _uuid(0)
    assert result[_pci(0)].links == 2


@given(st.sets(st.sampled_from(list(itertools.combinations(range(6), 2)))), st.randoms(use_true_random=False))
def test_domains_are_the_connected_parts_whatever_the_order(
    edges: set[tuple[int, int]], shuffled: random.Random
) -> None:
    remotes: dict[int, set[int]] = {number: set() for number in range(6)}
    for one, other in edges:
        remotes[one].add(other)
        remotes[other].add(one)
    gpus = [_bridged(number, *sorted(remotes[number])) for number in range(6)]
    result = nvlinks(gpus)
    for one, other in edges:
        assert result[_pci(one)].domain == result[_pci(other)].domain
    for number, others in remotes.items():
        assert result[_pci(number)].peers == len(others)
        assert (result[_pci(number)].domain == _uuid(number)) == (not others)
    shuffled.shuffle(gpus)
    assert nvlinks(gpus) == result
