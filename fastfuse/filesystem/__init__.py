"""The FUSE side: one supervisor that owns the mount, one worker that serves it. pyfuse3 is imported here only.

`supervisor` holds a mount from its listing to its end. Beside it are what it does itself: `refresh` lists,
`worker_process` starts and watches the worker, `deaths` takes stock when that dies, and `answers` serves the control
socket. The rest is in rooms, and none of them imports these five:

* `serving`: the worker, which answers for names and bytes.
* `figures`: status, record, verdict and metrics.
* `talking`: the control socket, hints, `fastfuse trace` and `fastfuse top`, and the service manager.
* `kernel`: the adapter to pyfuse3, and the compiled modules.
* `mounting`: the mount itself, from its settings to its end.
* `processes`: children, their rights, credentials and sockets, and whether they hang.

A room imports rooms below it in this list only.
"""
