"""Kubernetes plumbing that every agent needs: the API client, the reflector, back-off and events."""
