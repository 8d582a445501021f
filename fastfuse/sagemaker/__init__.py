"""The training-job contract: what SageMaker promises a training script, kept on any host.

`job` turns a description into channels, each channel is indexed like any mount, and `serving` mounts, downloads or
streams it. A field of a job has its place in `request` (its shape), `contradictions` (its sense) and `channel` (its
value).
"""
