"""DeviceClasses: which there should be, by what nodes offer and what the administrator set, and kept so."""
