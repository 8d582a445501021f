"""The worker, which serves the requests of the kernel and may die at any time.

`worker` puts it together. `operations` answers requests about names, and `reads` those for bytes. `direct_files` says
what the threads of `kernel.direct_reads` may fetch.
"""
