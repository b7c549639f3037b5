"""The kubelet's gRPC contracts, generated from ``proto/`` by ``make proto``."""
