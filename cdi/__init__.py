"""Container Device Interface: the spec, what a GPU container needs from the driver root, and the spec folder."""
