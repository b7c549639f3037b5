"""Container Device Interface: the spec, what a GPU container needs of the driver, and the spec folder."""
