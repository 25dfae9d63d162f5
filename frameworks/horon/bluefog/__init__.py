"""BlueFog's names: `import horon.bluefog.torch as bf` runs scripts written for bluefog.torch.

Topologies are networkx graphs, as there.
"""
