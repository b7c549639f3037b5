"""What node tests, e2e tests and the bench share: the plugin as a process, a kubelet's calls, claims."""
