"""What is known of a mount in numbers, and what follows from them.

`status` puts them together, `recorder` keeps them for `fastfuse report`, `verdict` says whether readers waited, and
why, and `summary` tells it. `endpoint` keeps a process alive that serves them to Prometheus, which is `scrapes`.
"""
