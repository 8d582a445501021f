"""How fast a mount reads, beside the raw client, FUSE without a store, and its peers. ``python -m bench --help``.

Layers, each knowing only those after it: `__main__` → `command` → `report`, `plots` → `verdicts` → `results`
→ `suite` → `candidates`, `workloads` → `mounting`, `readers`, `server` → `machine`.
`requests`, `fio`, `libraries`, `listing`, `memory` and `namespace` are commands of their own.
"""
