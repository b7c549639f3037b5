"""Admission: opaque configuration that Prepare would refuse is refused when its object is written."""
