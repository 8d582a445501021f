"""What every process of a mount takes to start, to lose its rights, and to be understood from another one.

`children` forks processes, `privileges` takes their rights, and `credential_finder` brings them credentials. `sockets`
are where others find them. `health` decides whether a worker hangs and whether another follows a dead one, and
`hang_report` says what a process is doing.
"""
