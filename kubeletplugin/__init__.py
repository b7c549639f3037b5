"""The node agent: registers with the kubelet, prepares claims, publishes the node's ResourceSlices."""
