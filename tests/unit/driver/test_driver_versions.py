from __future__ import annotations

import pytest

from driver.versions import cuda_version, semantic_version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("580.105.08", "580.105.8"),
        ("550.54", "550.54.0"),
        ("570.148.08.01", "570.148.8"),
        ("", "0.0.0"),
        ("N/A", "0.0.0"),
        ("610", "610.0.0"),
        ("v1.2.3", "1.2.3"),
        ("000.00.0", "0.0.0"),
        ("1234567890123456789.1", "0.0.0"),
        ("550.54-rc1", "550.54.0"),
    ],
)
def test_b018_versions_become_semantic_versions(text: str, version: str) -> None:
    assert semantic_version(text) == version


@pytest.mark.parametrize(
    ("encoded", "version"),
    [(13000, "13.0.0"), (12080, "12.8.0"), (11040, "11.4.0"), (0, "0.0.0"), (-1, "0.0.0")],
)
def test_b018_cuda_versions(encoded: int, version: str) -> None:
    assert cuda_version(encoded) == version
