"""horonrun: starts the ranks of a job, passes their shared memory around, and reports how it ended.

Pure Python and imports nothing heavy: the ranks wait for it.
"""
