"""The GPU domain: what hardware there is, how it is named and published, and how a claim is carried out.

Nothing here speaks gRPC or waits for the API server. ``discovery`` reads the node, ``resourceslices``
and ``plan`` think in values only.
"""
