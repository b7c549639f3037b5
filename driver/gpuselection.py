"""GPU selection: how an administrator names GPUs, to exclude them or to give them a policy of their own."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Self

from driver.inventory import Gpu, PciAddress


class GpuSelectionError(ValueError):
    """An entry that names no GPU in any of the allowed ways."""


@dataclass(frozen=True, slots=True)
class GpuSelection:
    """Which GPUs are meant: by UUID (lower case), PCI address, NVML index or product; none by default."""

    uuids: frozenset[str] = frozenset()
    addresses: frozenset[PciAddress] = frozenset()
    indexes: frozenset[int] = frozenset()
    products: tuple[re.Pattern[str], ...] = ()

    @classmethod
    def parse(cls, entries: Iterable[str]) -> Self:
        """Read entries such as ``GPU-4f0…``, ``0000:65:00.0``, ``3`` or a regular expression (``Tesla T4``).

        A regular expression may match anywhere in the product name.

        Raises:
            GpuSelectionError: an entry is empty, is a malformed address, names a MIG device, or is no regular
                expression.
        """
        uuids: set[str] = set()
        addresses: set[PciAddress] = set()
        indexes: set[int] = set()
        products: list[re.Pattern[str]] = []
        for raw in entries:
            entry = raw.strip()
            if re.fullmatch(r"\d+", entry, re.ASCII):
                indexes.add(int(entry))
            elif re.match(r"gpu-[0-9a-f]", entry, re.IGNORECASE):
                uuids.add(entry.lower())
            elif re.match(r"[0-9a-f]*:", entry, re.IGNORECASE):
                addresses.add(_address(entry))
            else:
                products.append(_product(entry))
        return cls(frozenset(uuids), frozenset(addresses), frozenset(indexes), tuple(products))

    def selects(self, gpu: Gpu) -> bool:
        return (
            gpu.uuid.lower() in self.uuids
            or gpu.pci in self.addresses
            or gpu.index in self.indexes
            or any(product.search(gpu.product_name) for product in self.products)
        )

    def without_gpu(self, gpus: Collection[Gpu]) -> tuple[str, ...]:
        """The names in it that none of these GPUs has, as a person would write them, sorted."""
        missing = [
            *(uuid for uuid in self.uuids if all(uuid != gpu.uuid.lower() for gpu in gpus)),
            *(str(pci) for pci in self.addresses if all(pci != gpu.pci for gpu in gpus)),
            *(str(index) for index in self.indexes if all(index != gpu.index for gpu in gpus)),
            *(one.pattern for one in self.products if not any(one.search(gpu.product_name) for gpu in gpus)),
        ]
        return tuple(sorted(missing))


def _address(entry: str) -> PciAddress:
    try:
        return PciAddress.parse(entry)
    except ValueError as error:
        raise _refusal(entry, str(error)) from None


def _product(entry: str) -> re.Pattern[str]:
    if not entry:
        raise _refusal(entry, "it is empty")
    if entry.upper().startswith("MIG-"):
        raise _refusal(entry, "a MIG device cannot be named here, only its whole GPU")
    try:
        return re.compile(entry)
    except re.error as error:
        raise _refusal(entry, f"it is no regular expression: {error}") from None


def _refusal(entry: str, reason: str) -> GpuSelectionError:
    return GpuSelectionError(
        f"GPU {entry!r}: {reason}; allowed are a GPU UUID (GPU-…), a PCI address (0000:65:00.0), "
        "an NVML index (3) or a regular expression on the product name (Tesla T4)"
    )
