"""What BlueFog's scripts import beside its torch module: topology_util."""
