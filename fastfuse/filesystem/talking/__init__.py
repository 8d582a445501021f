"""What a running mount is asked and told by other programs, and what it tells them.

`control` is the socket that answers commands; the answers are made in `filesystem.answers`. `hint_sender` sends
announced orders of files, `hint_taker` takes them, `watching` shows reads to `fastfuse trace` and `fastfuse top`, and
`service_manager` tells systemd how the mount is doing.
"""
