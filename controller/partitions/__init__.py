"""Partition requests: fixed MIG layouts, shares and MIG policies for GPUs of many nodes."""
