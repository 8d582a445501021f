"""One HTML page of what a mount or a job did: its record is read, cut into intervals, and drawn."""
