"""The cluster's side of the driver: DeviceClasses, partition requests, admission."""
