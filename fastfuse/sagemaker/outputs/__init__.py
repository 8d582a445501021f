"""Everything that leaves a job: checkpoints while it runs, model and output at its end, and the record of the run.

`sending` and `syncing` write to S3, each in a process of its own. `record` tells what became of the job and what data
it had.
"""
