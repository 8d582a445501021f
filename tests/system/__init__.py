"""fastfuse on a machine of its own: Debian in which systemd is the first process (`make system`, `make readme`)."""
