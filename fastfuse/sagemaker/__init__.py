"""The training-job contract: what SageMaker promises a training script, kept on any host.

`description` turns what a user gives into a job, and `running` carries it out with one process for each channel. The
script meets its `files`, its `environment` and the process in which it runs (`training`). A channel is indexed like any
mount, and then mounted, downloaded (`download`) or streamed (`pipe`); `local_files` are its directories of this host.
`outputs` leave the job.
"""
