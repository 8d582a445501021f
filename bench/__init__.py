"""How fast a mount reads, beside the raw client, FUSE without a store, and its peers. ``python -m bench --help``.

Layers, each knowing only those after it: `__main__` → `report`, `suite` → `candidates`, `workloads` → `readers`,
`machine`.
"""
