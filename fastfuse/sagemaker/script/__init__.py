"""What a training script meets: directories and files, environment, and the process that it runs in."""
