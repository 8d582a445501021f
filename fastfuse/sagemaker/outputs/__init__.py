"""Everything that leaves a job at its end: model and output for S3, and the record of the run.

`walk` finds the files and `archive` makes one stream of them; `sending` writes them to S3 in the process that
`uploader` forks. `record` tells what became of the job, and `lineage` what data it had.
"""
