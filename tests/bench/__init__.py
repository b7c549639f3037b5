"""The bench: how fast and how small the plugin is, on a real API server and a real disk."""
