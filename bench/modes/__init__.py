"""A training job in modes File, FastFile and Pipe, side by side. ``python -m bench.modes --help``.

Layers, each knowing only those after it: `__main__` → `command` → `measure`, `channels` → `job` → `figures`. `training`
is the script that the jobs run; it imports nothing from here.
"""
