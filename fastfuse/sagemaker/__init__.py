"""The training-job contract: what SageMaker promises a training script, kept on any host.

A job description becomes channels (`job`), each channel an index like any mount's (`indexing`), and each index is
served in the channel's input mode: mounted, downloaded or streamed.
"""
