"""Examples: manifests to copy, and a demonstration of the plugin on a simulated node (``make demo``)."""
