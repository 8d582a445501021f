"""A long run that tries to break a mount: readers that compare every byte, and disturbances in between.

`data` says what every object holds, `server` serves it and takes orders, `readers` read and compare, `disturbances`
disturb, `mounting` counts what the mount's processes hold, `judging` decides what is a finding.
"""
