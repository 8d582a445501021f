"""The processes of a job: `run` is the parent, `serving` the work of one channel's process."""
