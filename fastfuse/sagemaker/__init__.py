"""The training-job contract: what SageMaker promises a training script, kept on any host.

`description` turns what a user gives into a job, `running` carries it out with one process for each channel, and
`script` is what the training script meets: its files, environment and process. A channel is indexed like any mount, and
then mounted, downloaded (`download`) or streamed (`pipe`).
"""
