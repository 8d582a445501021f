"""What is known of a mount in numbers, and what follows from them.

`status` puts them together and tells them, `recorder` keeps them for `fastfuse report`, and `verdict` says whether
readers waited, and why. `endpoint` keeps a process alive that serves them to Prometheus, which is `scrapes`.
"""
