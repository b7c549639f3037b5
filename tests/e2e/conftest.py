"""The cluster of the end-to-end tests."""

from tests.cluster.fixtures import cluster

__all__ = ["cluster"]
