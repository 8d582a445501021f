"""The connection to the kernel, as FUSE has it: everything here knows libfuse, pyfuse3 or the bytes of the protocol.

`fuse` loads pyfuse3 after the compiled modules: `interposed` takes requests before libfuse does, `replies` keeps and
answers them, and `direct_reads` fetches in threads (`threads` declares what they are made of). `session` answers INIT,
`loop` waits for requests, `in_hand` finds the READ that kills workers, and `notices` says what the kernel must forget.
"""
