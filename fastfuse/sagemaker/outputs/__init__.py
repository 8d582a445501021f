"""What a job leaves behind at its end: `record` tells how it went, `lineage` what data it had."""
