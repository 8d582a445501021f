"""The FUSE side: one supervisor that owns the mount, one worker that serves it. pyfuse3 is imported here only.

* Making a mount: `supervisor` does it from `mount_settings`. `preflight` looks ahead, `mount_places` mounts (by
  `mountpoint`, or through `fuse_helper`), `session` answers INIT, and `kernel_readahead` raises the readahead.
* Processes: `children` forks them, `privileges` takes their rights, and `key_finder` brings them credentials.
  `worker_process` watches the worker; `deaths`, `health` and `hang_report` say what became of it.
* Serving: `worker` puts it together, on `fuse`, `loop` and the compiled `interposed`, `replies` and `direct_reads`.
  `operations` answers for names, `reads` for bytes (with `in_hand`, `late_reads` and `outcomes`), and `direct_files`
  says what the compiled threads may fetch.
* Refreshing: `refresh` lists again, and `notices` are what the kernel is told.
* Talking: `sockets`, `control` and `answers`, `hint_taker`, `watching` (trace and top), and `service_manager`.
* Figures: `status`, `recorder`, `verdict`, and `endpoint` with `scrapes` for Prometheus.
"""
