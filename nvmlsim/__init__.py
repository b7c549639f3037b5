"""A simulated GPU node: an NVML library, nvidia-smi and a driver root over one shared state file.

The real NVML binding, the real driver and real containers run on it without a GPU. Start with
`nvmlsim.node.SimulatedNode` or the program `nvmlsim`.
"""
